//! A lock in an async program: no thread of the runtime ever blocks.
//!
//! ```text
//! cargo run --example tokio -- 127.0.0.1:2181
//! ```

use std::error::Error;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use zookeeper_recipes_lock::{
    BlockingWriteLock, ListeningLock, LockError, LockListener, LossReason, Session, WriteLock,
};

/// Completes a future when the lock is acquired, or never will be.
struct Completes(Mutex<Option<oneshot::Sender<Result<(), LossReason>>>>);

impl Completes {
    fn complete(&self, outcome: Result<(), LossReason>) {
        if let Some(acquired) = self.0.lock().take() {
            // The future may have been dropped.
            let _ = acquired.send(outcome);
        }
    }
}

impl LockListener for Completes {
    fn lock_acquired(&self) {
        self.complete(Ok(()));
    }

    fn lock_released(&self) {}

    fn request_dropped(&self, _lock: &ListeningLock, reason: LossReason) {
        self.complete(Err(reason));
    }
}

/// Waits without a thread: the listener is called by the session. Only joining the queue takes one.
async fn lock(session: &Session, dir: &str) -> Result<WriteLock, Box<dyn Error>> {
    let (sender, acquired) = oneshot::channel();
    let lock = WriteLock::with_listener(session, dir, Completes(Mutex::new(Some(sender))))?;
    let lock = spawn_blocking(move || lock.lock().map(|_| lock)).await??;
    acquired.await?.map_err(|reason| format!("the request has ended: {reason}"))?;
    Ok(lock)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let connect = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2181".to_owned());
    let session = spawn_blocking(move || Session::connect(&connect, Duration::from_secs(20))).await??;

    // One call after the other on a thread for what blocks.
    let of_thread = session.clone();
    let token = spawn_blocking(move || {
        let guard = BlockingWriteLock::new(&of_thread, "/locks/async")?.lock()?;
        let token = guard.fencing_token()?;
        guard.unlock()?;
        Ok::<i64, LockError>(token)
    });
    println!("held on a thread, with fencing token {}", token.await??);

    let lock = lock(&session, "/locks/async").await?;
    println!("held without a thread: {}", lock.is_owner());
    // Returns when the server has deleted the znode.
    spawn_blocking(move || lock.unlock().map(|_| session.close())).await??;
    Ok(())
}
