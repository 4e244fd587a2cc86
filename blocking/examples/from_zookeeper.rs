//! A program that already has a handle of the crate `zookeeper` and takes a lock on the handle's session.
//!
//! ```text
//! cargo run --example from_zookeeper -- 127.0.0.1:2181
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use zookeeper::ZooKeeper;
use zookeeper_recipes_lock::{BlockingWriteLock, LockError, ProtocolSupport};
use zookeeper_recipes_lock_blocking::{error_of, session_on};

const SESSION_TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info,zookeeper::=off"))
        .init();
    let connect = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2181".to_owned());
    let handle = Arc::new(ZooKeeper::connect(&connect, SESSION_TIMEOUT, |_| {})?);
    let session = session_on(Arc::clone(&handle), SESSION_TIMEOUT)?;

    // Make a call on the handle, and retry it if the connection is lost.
    let servers = ProtocolSupport::new(&session).retry_operation(|| {
        let stat = handle.exists("/zookeeper", false);
        stat.map_err(|error| LockError::from_client("look for", "/zookeeper", error_of(error)))
    })?;
    println!("the server keeps its own data in /zookeeper: {}", servers.is_some());

    let guard = BlockingWriteLock::new(&session, "/locks/nightly")?.lock()?;
    println!("owned: {}", guard.is_owner());
    guard.unlock()?;
    session.close();
    // The handle is still open.
    handle.close()?;
    Ok(())
}
