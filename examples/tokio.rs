//! A lock in an async program: no thread of the runtime ever blocks.
//!
//! ```text
//! cargo run --example tokio -- --connect 127.0.0.1:2181
//! ```

use std::error::Error;
use std::time::Duration;

use lexopt::ValueExt;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use zookeeper_recipes_lock::{BlockingWriteLock, LockError, LockListener, Session, WriteLock};

/// Completes a future when the lock is acquired.
struct Completes(Mutex<Option<oneshot::Sender<()>>>);

impl LockListener for Completes {
    fn lock_acquired(&self) {
        if let Some(acquired) = self.0.lock().take() {
            // The future may have been dropped.
            let _ = acquired.send(());
        }
    }

    fn lock_released(&self) {}
}

/// Acquires without a thread: the listener is called by the session.
async fn lock(session: &Session, dir: &str) -> Result<WriteLock, Box<dyn Error>> {
    let (sender, acquired) = oneshot::channel();
    let lock = WriteLock::with_listener(session, dir, Completes(Mutex::new(Some(sender))))?;
    lock.lock()?;
    acquired.await?;
    Ok(lock)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = lexopt::Parser::from_env();
    let mut connect = "127.0.0.1:2181".to_owned();
    while let Some(argument) = arguments.next()? {
        match argument {
            lexopt::Arg::Long("connect") => connect = arguments.value()?.parse()?,
            other => return Err(other.unexpected().into()),
        }
    }
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
    // It may wait for the server.
    spawn_blocking(move || drop((lock, session))).await?;
    Ok(())
}
