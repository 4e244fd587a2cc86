//! A program that takes a lock through the crate `zookeeper`.
//!
//! ```text
//! cargo run --example from_zookeeper -- 127.0.0.1:2181
//! ```

use std::error::Error;
use std::time::Duration;

use zookeeper::ZooKeeper;
use zookeeper_recipes_lock::BlockingWriteLock;
use zookeeper_recipes_lock_blocking::open_session;

const SESSION_TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info,zookeeper::=off"))
        .init();
    let servers = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2181".to_owned());
    let connect = move || ZooKeeper::connect(&servers, SESSION_TIMEOUT, |_| {});
    let session = open_session(connect, SESSION_TIMEOUT, false)?;
    let guard = BlockingWriteLock::new(&session, "/locks/nightly")?.lock()?;
    println!("owned: {}", guard.is_owner());
    guard.unlock()?;
    session.close();
    Ok(())
}
