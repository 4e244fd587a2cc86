//! Tests that nothing of the library remains after a session on a handle is dropped. This is a separate
//! binary because it inspects the whole process.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the failure report")]

#[path = "support/handle.rs"]
mod handle;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use support::leaks::assert_no_threads;
use support::server::Server;
use support::wait::eventually;
use zookeeper::ZooKeeper;
use zookeeper_recipes_lock::WriteLock;
use zookeeper_recipes_lock_blocking::open_session;

const LONG: Duration = Duration::from_secs(30);

#[test]
fn nothing_is_left_of_a_session_on_a_handle() {
    let server = Server::start();
    let connect_string = server.connect_string();
    let connect = move || ZooKeeper::connect(&connect_string, LONG, |_| {});
    let session = open_session(connect, LONG, false).unwrap();
    let lock = WriteLock::new(&session, "/leaks/queue").unwrap();
    assert!(lock.lock().unwrap());
    drop(session);
    drop(lock);
    assert_no_threads("zk-");
    let other = handle::connect(&server.connect_string(), LONG);
    eventually("the znode is gone", || other.get_children("/leaks/queue", false).unwrap().is_empty());
}
