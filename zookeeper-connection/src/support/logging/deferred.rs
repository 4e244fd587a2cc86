//! Writes the log lines of threads that must not block, on a thread that ends when there have been no lines for a
//! while.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use log::Level;
use parking_lot::Condvar;

use crate::support::lock_order::{Mutex, rank::LOG};
use crate::support::process::PerProcess;

/// The maximum number of waiting lines. If the logger blocks, further lines are dropped. An outage causes one line for
/// each held lock, and a session may hold 17,000 locks.
const MAX_LINES: usize = 40_000;

/// How long the thread waits for further lines before it ends.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// A forked child begins without lines: its parent has the thread that writes the parent's.
static QUEUE: PerProcess<Queue> = PerProcess::new();

struct Queue {
    deferred: Mutex<LOG, Deferred>,
    added: Condvar,
}

#[derive(Default)]
struct Deferred {
    lines: VecDeque<DeferredLine>,
    /// The number of dropped lines that have not been reported yet.
    dropped: u64,
    /// The target of the last dropped line.
    dropped_target: &'static str,
    /// Whether a thread is writing the lines.
    is_running: bool,
}

impl Queue {
    /// Returns the queue of this process.
    fn get() -> &'static Queue {
        QUEUE.get_or_make(|| Queue { deferred: Mutex::new(Deferred::default()), added: Condvar::new() })
    }
}

struct DeferredLine {
    level: Level,
    target: &'static str,
    text: String,
}

pub(super) fn push(level: Level, target: &'static str, text: String) {
    let Queue { deferred, added } = Queue::get();
    {
        let mut queue = deferred.lock();
        match queue.lines.len() < MAX_LINES {
            true => queue.lines.push_back(DeferredLine { level, target, text }),
            false => {
                queue.dropped += 1;
                queue.dropped_target = target;
            }
        }
        if queue.is_running {
            drop(queue);
            added.notify_one();
            return;
        }
        queue.is_running = true;
    }
    let thread = thread::Builder::new().name("zk-log".to_owned());
    if thread.spawn(run).is_err() {
        // The next line tries again to start a thread.
        deferred.lock().is_running = false;
    }
}

fn run() {
    while let Some(DeferredLine { level, target, text }) = next_line() {
        super::write(level, target, format_args!("{text}"));
    }
}

/// Waits for the next line; `None` ends the thread.
fn next_line() -> Option<DeferredLine> {
    let Queue { deferred, added } = Queue::get();
    let mut queue = deferred.lock();
    loop {
        if queue.lines.is_empty() && queue.dropped > 0 {
            let dropped = std::mem::take(&mut queue.dropped);
            let text = format!("{dropped} lines were dropped because the logger was blocked");
            return Some(DeferredLine { level: Level::Warn, target: queue.dropped_target, text });
        }
        if let Some(line) = queue.lines.pop_front() {
            return Some(line);
        }
        let timed_out = queue.wait_for(added, IDLE_TIME).timed_out();
        if timed_out && queue.lines.is_empty() {
            queue.is_running = false;
            return None;
        }
    }
}
