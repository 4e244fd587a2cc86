//! Tests of transactions under a lock.

use std::thread;

use zookeeper_recipes_lock::client::ZkError;
use zookeeper_recipes_lock::data::OpOutcome;
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::{BlockingWriteLock, ErrorReason, RetryPolicy, Session};

use crate::fixtures::{LONG, Observer, connect, session, unique_dir};
use crate::support::relay::{Relay, Request};
use crate::support::server::{self, Server};
use crate::support::wait::eventually;

/// The operation number of a transaction in the protocol.
const MULTI: i32 = 14;

fn caller_of(session: &Session) -> RecoverableZooKeeper {
    RecoverableZooKeeper::new(session, RetryPolicy::default())
}

fn lock(session: &Session, dir: &str) -> BlockingWriteLock {
    BlockingWriteLock::new(session, dir).unwrap()
}

#[test]
fn replaced_owner_changes_nothing() {
    let observer = Observer::at(server::shared());
    let (dir, report) = (unique_dir("commit"), unique_dir("report"));
    observer.create_persistent(&report);
    let (first, second) = (session(server::shared()), session(server::shared()));
    let former = lock(&first, &dir).lock().unwrap();
    former.commit(|changes| changes.set_data(&report, "first").if_version(0)).unwrap();
    // Commit right after this deletion, so that the former owner does not know of it yet.
    observer.delete(former.id());
    let refused = former.commit(|changes| changes.set_data(&report, "late"));
    assert!(matches!(refused, Err(ref error) if error.reason() == ErrorReason::NotOwner), "{refused:?}");
    let owner = lock(&second, &dir).lock().unwrap();
    owner.commit(|changes| changes.set_data(&report, "second")).unwrap();
    let refused = former.commit(|changes| changes.set_data(&report, "late"));
    assert!(matches!(refused, Err(ref error) if error.reason() == ErrorReason::NotOwner), "{refused:?}");
    assert_eq!(observer.data(&report), b"second");
}

#[test]
fn commit_after_a_lost_one_raises_the_version_that_both_check() {
    let relay = Relay::to(server::shared().connect_string());
    let observer = Observer::at(server::shared());
    let (dir, report) = (unique_dir("commit"), unique_dir("report"));
    observer.create_persistent(&report);
    let session = connect(&relay.connect_string(), LONG);
    let guard = lock(&session, &dir).lock().unwrap();
    let own = observer.data(guard.id());
    thread::scope(|scope| {
        relay.swallow_from(Request { operation: MULTI, path: report.clone() });
        let lost = scope.spawn(|| guard.commit(|changes| changes.set_data(&report, "lost")));
        eventually("the request is sent", || relay.bytes_held() > 0);
        relay.cut();
        let error = lost.join().unwrap().unwrap_err();
        assert_eq!(error.reason(), ErrorReason::ConnectionLoss, "{error:?}");
    });
    eventually("the next commit is made", || {
        guard.commit(|changes| changes.set_data(&report, "new")).is_ok()
    });
    let version = caller_of(&session).exists(guard.id()).unwrap().unwrap().version;
    assert_eq!((version, observer.data(guard.id())), (1, own));
    assert_eq!(observer.data(&report), b"new");
    assert!(guard.is_owner() && guard.revocation().is_empty());
    guard.unlock().unwrap();
}

#[test]
fn failed_operation_of_an_owner_is_named_and_changes_nothing() {
    let observer = Observer::at(server::shared());
    let (dir, report) = (unique_dir("commit"), unique_dir("report"));
    observer.create_persistent(&report);
    let session = session(server::shared());
    let guard = lock(&session, &dir).lock().unwrap();
    let missing = format!("{report}/missing");
    let error = guard.commit(|changes| changes.set_data(&report, "new").delete(&missing)).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::Server(ZkError::NoNode), "{error:?}");
    assert_eq!(error.path(), Some(&*missing));
    let error = guard.commit(|changes| changes.set_data(&report, vec![0; 1 << 20])).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::CallTooLong, "{error:?}");
    assert_eq!(observer.data(&report), b"");
    assert!(guard.is_owner());
    guard.unlock().unwrap();
}

#[test]
fn paths_of_a_transaction_begin_below_the_chroot() {
    let server = Server::start();
    let observer = Observer::at(&server);
    observer.create_persistent("/app/report");
    let session =
        Session::builder(format!("{}/app", server.connect_string())).session_timeout(LONG).connect().unwrap();
    let guard = lock(&session, "/locks").lock().unwrap();
    let outcomes = guard.commit(|changes| changes.set_data("/report", "1").create("/made", "")).unwrap();
    assert!(matches!(&outcomes[1], OpOutcome::Created(path) if path == "/made"), "{outcomes:?}");
    assert_eq!(observer.data("/app/report"), b"1");
    guard.unlock().unwrap();
}
