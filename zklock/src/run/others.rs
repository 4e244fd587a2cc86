//! [`Others`]: requests of other libraries that do not count the requests of this program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, bounded};
use zookeeper_recipes_lock::queue::LockDirectory;
use zookeeper_recipes_lock::{LockError, Session};

use crate::queue::mixed_names;
use crate::stderr::complain;

/// Looks for requests that do not count those of this program, and warns of them once.
pub(super) struct Others {
    directory: LockDirectory,
    is_reported: Arc<AtomicBool>,
}

impl Others {
    pub(super) fn new(session: &Session, dir: &str) -> Result<Others, LockError> {
        Ok(Others { directory: LockDirectory::new(session, dir)?, is_reported: Arc::default() })
    }

    /// Looks for such requests on another thread. The channel is disconnected when the search is done.
    pub(super) fn look(&self) -> Receiver<()> {
        let (done, is_done) = bounded(0);
        let (directory, is_reported) = (self.directory.clone(), Arc::clone(&self.is_reported));
        let look = move || {
            // A failure is ignored, because this only serves a warning.
            if let Ok(Some(warning)) = mixed_names(&directory) {
                if !is_reported.swap(true, Ordering::SeqCst) {
                    complain(&warning);
                }
            }
            drop(done);
        };
        // If no thread can be started, the closure is dropped, and `done` with it.
        drop(thread::Builder::new().name("others".to_owned()).spawn(look));
        is_done
    }
}
