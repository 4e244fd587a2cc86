//! [`Queue`]: the lines that wait for the logger, and the thread that passes them on. The thread ends when there have
//! been no lines for a while.

use std::collections::VecDeque;
use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use log::Level;
use parking_lot::Condvar;

use crate::support::lock_order::{Mutex, MutexGuard, rank::LOG};
use crate::support::process::PerProcess;

/// The limits of what may wait while the logger blocks. Further lines are dropped. The loss of a session causes one
/// line for each held lock, and a session may hold 17,000 locks.
const MAX_LINES: usize = 40_000;
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// How long the thread waits for further lines before it ends.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// A logger that takes longer than this for a line is not waited for.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// A forked child begins without lines: its parent has the thread that writes the parent's.
static QUEUE: PerProcess<Queue> = PerProcess::new();

pub(super) struct Queue {
    backlog: Mutex<LOG, Backlog>,
    added: Condvar,
    written: Condvar,
}

/// A line on its way to the logger.
pub(super) struct Line {
    pub(super) level: Level,
    pub(super) target: &'static str,
    pub(super) text: String,
}

#[derive(Default)]
struct Backlog {
    lines: VecDeque<Line>,
    /// The memory of the lines.
    bytes: usize,
    /// The number of dropped lines that have not been reported yet.
    dropped: u64,
    /// The target of the last dropped line.
    dropped_target: &'static str,
    /// When the thread passed the current line to the logger. `None` between two lines.
    writing_since: Option<Instant>,
    /// The number of lines that the logger has written so far.
    written: u64,
    has_thread: bool,
}

impl Queue {
    /// Returns the queue of this process.
    pub(super) fn get() -> &'static Queue {
        QUEUE.get_or_make(|| Queue {
            backlog: Mutex::new(Backlog::default()),
            added: Condvar::new(),
            written: Condvar::new(),
        })
    }

    pub(super) fn add(&'static self, line: Line) {
        let mut backlog = self.backlog.lock();
        let dropped = backlog.add(line);
        self.keep_writing(backlog);
        drop(dropped);
    }

    /// Wakes the thread, or starts it. If it cannot be started, the next line tries again.
    fn keep_writing(&'static self, mut backlog: MutexGuard<'_, LOG, Backlog>) {
        let has_thread = mem::replace(&mut backlog.has_thread, true);
        drop(backlog);
        if has_thread {
            self.added.notify_one();
            return;
        }
        let thread = thread::Builder::new().name("zk-log".to_owned());
        if thread.spawn(|| self.run()).is_err() {
            self.backlog.lock().has_thread = false;
            self.written.notify_all();
        }
    }

    /// Waits until the logger has written the lines that were added so far, unless it takes too long.
    pub(super) fn await_written(&'static self) {
        let deadline = Instant::now() + MAX_WAIT;
        let mut backlog = self.backlog.lock();
        let last = backlog.last();
        if backlog.written < last && !backlog.has_thread {
            self.keep_writing(backlog);
            backlog = self.backlog.lock();
        }
        while backlog.written < last && backlog.has_thread {
            // A logger that is stuck holds up one wait, and not one after the other.
            let until = backlog.writing_since.map_or(deadline, |since| deadline.min(since + MAX_WAIT));
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            backlog.wait_for(&self.written, left);
        }
    }

    fn run(&self) {
        super::never_wait_on_this_thread();
        while let Some(line) = self.next_line() {
            super::pass_on(&line);
        }
    }

    /// Waits for the next line, now that the last one is written; `None` ends the thread.
    fn next_line(&self) -> Option<Line> {
        let mut backlog = self.backlog.lock();
        if backlog.writing_since.take().is_some() {
            backlog.written += 1;
            self.written.notify_all();
        }
        let mut timed_out = false;
        loop {
            if let Some(line) = backlog.take() {
                backlog.writing_since = Some(Instant::now());
                return Some(line);
            }
            if timed_out {
                backlog.lines = VecDeque::new();
                backlog.has_thread = false;
                return None;
            }
            timed_out = backlog.wait_for(&self.added, IDLE_TIME).timed_out();
        }
    }
}

impl Backlog {
    /// Adds a line. If there is no room, counts the line and returns it.
    fn add(&mut self, line: Line) -> Option<Line> {
        let bytes = self.bytes + line.bytes();
        if self.lines.len() < MAX_LINES && bytes <= MAX_BYTES {
            self.bytes = bytes;
            self.lines.push_back(line);
            return None;
        }
        self.dropped += 1;
        self.dropped_target = line.target;
        Some(line)
    }

    /// Takes the next line or, after the last one, the report of the dropped lines.
    fn take(&mut self) -> Option<Line> {
        if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.bytes();
            return Some(line);
        }
        let dropped = mem::take(&mut self.dropped);
        let text = format!("{dropped} lines were dropped because the logger was blocked");
        (dropped > 0).then_some(Line { level: Level::Warn, target: self.dropped_target, text })
    }

    /// Returns how many lines will be written once nothing is left.
    fn last(&self) -> u64 {
        let waiting = self.lines.len() as u64 + u64::from(self.dropped > 0);
        self.written + u64::from(self.writing_since.is_some()) + waiting
    }
}

impl Line {
    fn bytes(&self) -> usize {
        size_of::<Line>() + self.text.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: String) -> Line {
        Line { level: Level::Debug, target: "target", text }
    }

    fn texts(backlog: &mut Backlog) -> Vec<String> {
        std::iter::from_fn(|| backlog.take().map(|line| line.text)).collect()
    }

    #[test]
    fn lines_beyond_either_limit_are_counted_and_reported_once() {
        let long = MAX_BYTES / 4;
        for (length, kept) in [(0, MAX_LINES), (long, 3)] {
            let mut backlog = Backlog::default();
            let added = (0..MAX_LINES + 5).filter(|_| backlog.add(line("a".repeat(length))).is_none());
            assert_eq!(added.count(), kept);
            assert_eq!(backlog.last(), kept as u64 + 1);
            let texts = texts(&mut backlog);
            let dropped = MAX_LINES + 5 - kept;
            assert_eq!(texts.len(), kept + 1);
            assert_eq!(texts[kept], format!("{dropped} lines were dropped because the logger was blocked"));
            assert_eq!((backlog.bytes, backlog.dropped, backlog.last()), (0, 0, 0));
        }
    }

    #[test]
    fn lines_are_taken_in_order_and_make_room() {
        let mut backlog = Backlog::default();
        for number in 0..MAX_LINES {
            assert!(backlog.add(line(number.to_string())).is_none());
        }
        assert!(backlog.add(line("too many".to_owned())).is_some());
        assert_eq!(backlog.take().map(|line| line.text).as_deref(), Some("0"));
        assert!(backlog.add(line("later".to_owned())).is_none());
        let texts = texts(&mut backlog);
        assert_eq!((texts[0].as_str(), texts[MAX_LINES - 1].as_str()), ("1", "later"));
        assert!(texts[MAX_LINES].starts_with("1 lines were dropped"), "{}", texts[MAX_LINES]);
    }
}
