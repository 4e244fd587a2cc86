//! [`Others`]: the requests of other libraries that do not count those of this program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, bounded};
use zookeeper_recipes_lock::queue::LockDirectory;
use zookeeper_recipes_lock::{LockError, Session};

use crate::queue::mixed_names;
use crate::stderr::complain;

/// Warns of them, once.
pub(super) struct Others {
    directory: LockDirectory,
    is_reported: Arc<AtomicBool>,
}

impl Others {
    pub(super) fn new(session: &Session, dir: &str) -> Result<Others, LockError> {
        Ok(Others { directory: LockDirectory::new(session, dir)?, is_reported: Arc::default() })
    }

    /// Looks on another thread. The channel is disconnected when that is done.
    pub(super) fn look(&self) -> Receiver<()> {
        let (done, is_done) = bounded(0);
        let (directory, is_reported) = (self.directory.clone(), Arc::clone(&self.is_reported));
        let look = move || {
            // A look that fails shows nothing. It is a warning only.
            if let Ok(Some(warning)) = mixed_names(&directory) {
                if !is_reported.swap(true, Ordering::SeqCst) {
                    complain(&warning);
                }
            }
            drop(done);
        };
        // Without a thread there is no look, and `done` is dropped.
        drop(thread::Builder::new().name("others".to_owned()).spawn(look));
        is_done
    }
}
