//! [`ReadLock`]: the read lock with a listener.

use std::ops::Deref;

use crate::locks::listening_lock::ListeningLock;

/// A read lock that joins the queue and returns, as a [`WriteLock`](crate::WriteLock) does. Made by
/// [`ReadWriteLock::read_lock`](crate::ReadWriteLock::read_lock).
///
/// Any number of readers own the lock at once, but none beside a writer. A
/// [`LockListener`](crate::LockListener) is notified when this one acquires, releases or loses it.
///
/// It derefs to [`ListeningLock`], which has the methods. `Send` and `Sync`; dropping it closes it.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{LockListener, ReadWriteLock, Session};
///
/// struct Serve;
///
/// impl LockListener for Serve {
///     fn lock_acquired(&self) {
///         println!("serving");
///     }
///     fn lock_released(&self) {
///         println!("no longer serving");
///     }
/// }
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let lock = ReadWriteLock::new(&session, "/locks/index")?;
/// let reading = lock.read_lock(Serve);
/// reading.lock()?; // joins the queue and returns
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[must_use = "the lock is closed at once when it is not kept"]
#[derive(Debug)]
pub struct ReadLock {
    lock: ListeningLock,
}

impl ReadLock {
    pub(crate) fn around(lock: ListeningLock) -> ReadLock {
        ReadLock { lock }
    }
}

impl Deref for ReadLock {
    type Target = ListeningLock;

    fn deref(&self) -> &ListeningLock {
        &self.lock
    }
}
