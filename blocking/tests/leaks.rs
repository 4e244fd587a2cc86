//! Tests that nothing of the library remains after a session on a handle is dropped. This is a separate
//! binary because it inspects the whole process.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the failure report")]

#[path = "support/handle.rs"]
mod handle;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::leaks::assert_no_threads;
use support::server::Server;
use support::wait::eventually;
use zookeeper_recipes_lock::WriteLock;
use zookeeper_recipes_lock_blocking::session_on;

const LONG: Duration = Duration::from_secs(30);

#[test]
fn only_the_borrowed_handle_is_left() {
    let server = Server::start();
    let zk = Arc::new(handle::connect(&server.connect_string(), LONG));
    let session = session_on(Arc::clone(&zk), LONG).unwrap();
    let lock = WriteLock::new(&session, "/leaks/queue").unwrap();
    assert!(lock.lock().unwrap());
    drop(session);
    drop(lock);
    assert_no_threads("zk-");
    eventually("the handle is released", || Arc::strong_count(&zk) == 1);
    assert!(zk.get_children("/leaks/queue", false).unwrap().is_empty());
}
