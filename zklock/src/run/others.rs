//! [`Others`]: requests on the same path that do not count the requests of this program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use zookeeper_recipes_lock::Session;
use zookeeper_recipes_lock::queue::LockDirectory;

use super::MAX_LOOKUP;
use crate::failure::{Failure, NO_LOCK};
use crate::queue::{Use, mixed_names, other_use};
use crate::stderr::complain;

/// Looks for requests that do not count those of this program. A look that fails is ignored, because the lock itself
/// reports what is wrong.
#[derive(Clone)]
pub(super) struct Others {
    session: Session,
    dir: String,
    own_use: Use,
    is_reported: Arc<AtomicBool>,
}

impl Others {
    pub(super) fn new(session: &Session, dir: &str, own_use: Use) -> Others {
        Others { session: session.clone(), dir: dir.to_owned(), own_use, is_reported: Arc::default() }
    }

    /// Fails if there is a request for another use of the path, so that both would own at once. Takes no longer than
    /// `limit`, and ends with the session.
    ///
    /// Call this before joining the queue, so that this program never keeps those from running who are there already,
    /// and again after acquiring. Then, of two programs that come at the same time, at least one sees the request of
    /// the other.
    pub(super) fn refuse(&self, limit: Duration) -> Result<(), Failure> {
        let others = self.clone();
        let found =
            in_background(move || other_use(&others.session, &others.dir, others.own_use).ok().flatten());
        match found.recv_timeout(limit.min(MAX_LOOKUP)).ok().flatten() {
            Some(message) => Err(Failure::new(NO_LOCK, message)),
            None => Ok(()),
        }
    }

    /// Warns, once, of any request that does not count those of this program. Looks on another thread. The channel is
    /// disconnected when the look is done.
    pub(super) fn warn(&self) -> Receiver<()> {
        let others = self.clone();
        in_background(move || {
            if let Some(warning) = others.find() {
                if !others.is_reported.swap(true, Ordering::SeqCst) {
                    complain(&warning);
                }
            }
        })
    }

    fn find(&self) -> Option<String> {
        let of_names = || mixed_names(&LockDirectory::new(&self.session, &self.dir).ok()?).ok().flatten();
        other_use(&self.session, &self.dir, self.own_use).ok().flatten().or_else(of_names)
    }
}

/// Does this on another thread. If no thread can be started, the channel is disconnected at once.
fn in_background<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, result) = bounded(1);
    drop(thread::Builder::new().name("others".to_owned()).spawn(move || sender.send(look())));
    result
}
