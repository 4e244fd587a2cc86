//! [`Log`]: writes to the log on a short-lived thread.
//!
//! The logger is the application's. It may block, or call in here, which the I/O thread must not
//! do.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use log::Level;

use crate::lock_order::{Mutex, rank::CONNECTION_LOG};
use crate::logging;

/// More lines are dropped while the logger blocks.
const MAX_LINES: usize = 100;

/// The lines to be logged. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Log {
    queue: Arc<Mutex<CONNECTION_LOG, Queue>>,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<(Level, String)>,
    /// A thread writes them, and ends when none is left.
    is_writing: bool,
}

impl Log {
    pub(super) fn write(&self, level: Level, line: String) {
        {
            let mut queue = self.queue.lock();
            if queue.lines.len() < MAX_LINES {
                queue.lines.push_back((level, line));
            }
            if queue.is_writing {
                return;
            }
            queue.is_writing = true;
        }
        let log = self.clone();
        let thread = thread::Builder::new().name("zk-lock-log".to_owned());
        if thread.spawn(move || log.run()).is_err() {
            // The next line tries again.
            self.queue.lock().is_writing = false;
        }
    }

    fn run(&self) {
        while let Some((level, line)) = self.next_line() {
            logging::log!(level, "{line}");
        }
    }

    fn next_line(&self) -> Option<(Level, String)> {
        let mut queue = self.queue.lock();
        let line = queue.lines.pop_front();
        queue.is_writing = line.is_some();
        line
    }
}
