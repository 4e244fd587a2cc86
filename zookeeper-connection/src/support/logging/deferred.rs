//! Writes the log lines of threads that must not block, on a thread that ends when there have been no lines for a
//! while.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use log::Level;
use parking_lot::Condvar;

use crate::support::lock_order::{Mutex, rank::LOG};
use crate::support::process::Process;

/// The maximum number of waiting lines. If the logger blocks, further lines are dropped. An outage causes one line for
/// each held lock, and a session may hold 17,000 locks.
const MAX_LINES: usize = 40_000;

/// How long the thread waits for further lines before it ends.
const IDLE_TIME: Duration = Duration::from_secs(1);

static QUEUE: Mutex<LOG, Deferred> = Mutex::new(Deferred::of_process(None));
static ADDED: Condvar = Condvar::new();

struct Deferred {
    lines: VecDeque<DeferredLine>,
    /// The number of dropped lines that have not been reported yet.
    dropped: u64,
    /// The target of the last dropped line.
    dropped_target: &'static str,
    /// Whether a thread is writing the lines.
    is_running: bool,
    /// The process of that thread.
    process: Option<Process>,
}

impl Deferred {
    const fn of_process(process: Option<Process>) -> Deferred {
        Deferred { lines: VecDeque::new(), dropped: 0, dropped_target: "", is_running: false, process }
    }

    /// Empties the queue in a forked child, which has a copy of its parent's lines but no thread to write them.
    fn move_to(&mut self, process: Process) {
        if self.process != Some(process) {
            *self = Deferred::of_process(Some(process));
        }
    }
}

struct DeferredLine {
    level: Level,
    target: &'static str,
    text: String,
}

pub(super) fn push(level: Level, target: &'static str, text: String) {
    {
        let mut queue = QUEUE.lock();
        queue.move_to(Process::current());
        match queue.lines.len() < MAX_LINES {
            true => queue.lines.push_back(DeferredLine { level, target, text }),
            false => {
                queue.dropped += 1;
                queue.dropped_target = target;
            }
        }
        if queue.is_running {
            drop(queue);
            ADDED.notify_one();
            return;
        }
        queue.is_running = true;
    }
    let thread = thread::Builder::new().name("zk-log".to_owned());
    if thread.spawn(run).is_err() {
        // The next line tries again to start a thread.
        QUEUE.lock().is_running = false;
    }
}

fn run() {
    while let Some(DeferredLine { level, target, text }) = next_line() {
        super::write(level, target, format_args!("{text}"));
    }
}

/// Waits for the next line; `None` ends the thread.
fn next_line() -> Option<DeferredLine> {
    let mut queue = QUEUE.lock();
    loop {
        if queue.lines.is_empty() && queue.dropped > 0 {
            let dropped = std::mem::take(&mut queue.dropped);
            let text = format!("{dropped} lines were dropped because the logger was blocked");
            return Some(DeferredLine { level: Level::Warn, target: queue.dropped_target, text });
        }
        if let Some(line) = queue.lines.pop_front() {
            return Some(line);
        }
        let timed_out = queue.wait_for(&ADDED, IDLE_TIME).timed_out();
        if timed_out && queue.lines.is_empty() {
            queue.is_running = false;
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_child_starts_a_thread_for_its_lines() {
        let (parent, child) = (Process::of_id(1), Process::of_id(2));
        let line = DeferredLine { level: Level::Info, target: "test", text: String::new() };
        let mut queue = Deferred {
            lines: VecDeque::from([line]),
            is_running: true,
            ..Deferred::of_process(Some(parent))
        };
        queue.move_to(parent);
        assert!(queue.is_running && queue.lines.len() == 1);
        queue.move_to(child);
        assert!(!queue.is_running && queue.lines.is_empty(), "the parent writes its lines");
    }
}
