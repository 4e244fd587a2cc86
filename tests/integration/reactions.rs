//! Tests of what an error tells a program to do: the reaction table of `docs/operations.md`, produced by real servers.
//!
//! Other tests check the kind of the errors that need their fixtures:
//! - `InvalidTls`: `tls::client_with_an_encrypted_key_locks_over_tls`
//! - `CertificateRefused`: `tls::client_that_may_not_connect_learns_the_cause_in_time`
//! - `LeaderPanicked`: `electing::panic_in_the_closure_ends_the_candidate_and_its_leadership`
//! - `OutcomeUnknown`: `recoverable::create_with_a_lost_request_does_not_claim_a_znode_of_another`
//! - `SequenceExhausted`: `counter_end::at_most_one_owner_at_the_end_of_the_counter`
//! - `Unsupported`, which only a client without transactions still gets: in `blocking`,
//!   `transaction_on_a_handle_of_the_crate_zookeeper_is_unsupported`
//!
//! Only an application makes errors with the reason `Other`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zookeeper_recipes_lock::client::{Acl, CreateMode, Permissions, ZkError};
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::queue::{LockDirectory, Revoker};
use zookeeper_recipes_lock::{
    BlockingWriteLock, CancelToken, ErrorKind, ErrorReason, LockError, LockGuard, LockOptions, LossReason,
    RetryPolicy, Session, SessionState, Wait, WriteLock,
};

use crate::acl;
use crate::child_test::ChildTest;
use crate::fixtures::{LONG, Observer, SHORT, connect, next, session, unique_dir};
use crate::support::ensemble::Ensemble;
use crate::support::net::{free_port, listen};
use crate::support::relay::{Relay, Request};
use crate::support::server::{self, Server, ServerOptions};
use crate::support::wait::{deadline, eventually, eventually_within, scaled};

/// The number of the operation in the protocol.
const EXISTS: i32 = 3;

/// Checks what happened, what to do about it, and that the message shows this text.
#[track_caller]
fn assert_reaction<T>(outcome: Result<T, LockError>, kind: ErrorKind, reason: ErrorReason, text: &str) {
    let error = outcome.err().expect("the call must fail");
    assert_eq!((error.kind(), error.reason()), (kind, reason), "{error}");
    assert!(error.to_string().contains(text), "{text}: {error}");
}

fn lock_on(session: &Session, dir: &str) -> BlockingWriteLock {
    BlockingWriteLock::new(session, dir).unwrap()
}

fn hold(session: &Session, dir: &str) -> LockGuard {
    lock_on(session, dir).lock().unwrap()
}

/// Makes each call once.
fn znodes_of(session: &Session) -> RecoverableZooKeeper {
    RecoverableZooKeeper::new(session, RetryPolicy::default().with_attempts(1))
}

// ---- lock again, reconnect

#[test]
fn lost_lock_can_be_acquired_again_while_its_session_lives() {
    let (near, observer) = (session(server::shared()), Observer::at(server::shared()));
    let dir = unique_dir("react-lost");
    let guard = hold(&near, &dir);
    let id = guard.id().to_owned();
    observer.delete(&id);
    let changed = guard.commit(|changes| changes.create(&format!("{dir}-late"), ""));
    assert_reaction(changed, ErrorKind::LockAgain, ErrorReason::NotOwner, &id);
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
    assert_reaction(guard.unlock(), ErrorKind::LockAgain, ErrorReason::NodeDeleted, &id);

    let options = LockOptions::new().max_hold(Duration::from_millis(100));
    let limited = BlockingWriteLock::with_options(&near, &dir, options).unwrap().lock().unwrap();
    let id = limited.id().to_owned();
    assert_eq!(next(limited.lost()), LossReason::HeldTooLong);
    assert_reaction(limited.unlock(), ErrorKind::LockAgain, ErrorReason::HeldTooLong, &id);

    let released = WriteLock::new(&near, &dir).unwrap();
    assert_reaction(released.fencing_token(), ErrorKind::LockAgain, ErrorReason::NotOwner, &dir);

    let guard = hold(&near, &dir);
    let id = guard.id().to_owned();
    observer.delete(&id);
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
    near.close();
    assert_reaction(guard.unlock(), ErrorKind::Permanent, ErrorReason::NodeDeleted, &id);
}

#[test]
fn lease_ends_before_its_session_and_the_kind_follows() {
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), scaled(SHORT));
    let dirs = ["first", "second"].map(|name| unique_dir(&format!("react-lease-{name}")));
    let [first, second] = dirs.each_ref().map(|dir| hold(&far, dir));
    let ids = [&first, &second].map(|guard| guard.id().to_owned());
    relay.refuse();
    assert_eq!(next(first.lost()), LossReason::LeaseExpired);
    assert_reaction(first.unlock(), ErrorKind::LockAgain, ErrorReason::LeaseExpired, &ids[0]);
    eventually_within(2 * deadline(), "the session is lost", || far.state() == SessionState::Lost);
    assert_reaction(second.unlock(), ErrorKind::Reconnect, ErrorReason::LeaseExpired, &ids[1]);
    let locked = lock_on(&far, &dirs[0]).lock();
    assert_reaction(locked, ErrorKind::Reconnect, ErrorReason::SessionLost, &dirs[0]);
    let read = znodes_of(&far).exists(&dirs[0]);
    assert_reaction(read, ErrorKind::Reconnect, ErrorReason::SessionLost, &dirs[0]);
}

// ---- retry

#[test]
fn full_session_and_lost_contact_and_absent_servers_are_tried_again() {
    let address = server::shared().connect_string();
    let small = Session::builder(address).session_timeout(LONG).jute_max_buffer(4096).connect().unwrap();
    let dir = unique_dir("react-full");
    let mut locks = Vec::new();
    let refused = loop {
        assert!(locks.len() < 100, "a session must have a limit");
        let lock = WriteLock::new(&small, &dir).unwrap();
        match lock.lock() {
            Ok(_) => locks.push(lock),
            Err(error) => break Err::<(), _>(error),
        }
    };
    assert_reaction(refused, ErrorKind::Retry, ErrorReason::SessionFull, &dir);

    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), LONG);
    relay.swallow_from(Request { operation: EXISTS, path: dir.clone() });
    thread::scope(|scope| {
        let lost = scope.spawn(|| znodes_of(&far).exists(&dir));
        eventually("the request is sent", || relay.bytes_held() > 0);
        relay.cut();
        let lost = lost.join().unwrap();
        assert_reaction(lost, ErrorKind::Retry, ErrorReason::ConnectionLoss, &dir);
    });

    let nobody = format!("127.0.0.1:{}", free_port());
    let waiting = Session::builder(&nobody).wait_for_server(Duration::from_millis(100));
    assert_reaction(waiting.connect(), ErrorKind::Retry, ErrorReason::NoServer, &nobody);
}

#[test]
fn used_up_quota_is_what_each_call_and_each_deadline_reports() {
    let jvm_flags = vec!["-Dzookeeper.enforceQuota=true".to_owned()];
    let server = Server::with(ServerOptions { jvm_flags, ..ServerOptions::default() });
    if !server.enforces_quotas() {
        return;
    }
    let (near, observer) = (session(&server), Observer::at(&server));
    let guard = hold(&near, "/free/lock");
    observer.create_persistent("/full/lock");
    server.run_in_shell(&["setquota", "-N", "2", "/full"]);
    let lock = lock_on(&near, "/full/lock");
    let begun = Instant::now();
    for outcome in [lock.try_lock(), lock.try_lock_for(Duration::from_millis(300))] {
        assert_reaction(outcome, ErrorKind::Retry, ErrorReason::Refused, "lock '/full/lock'");
    }
    assert!(begun.elapsed() >= Duration::from_millis(300), "the wait must last until its deadline");
    let created = znodes_of(&near).create("/full/new", b"", &Acl::open_unsafe(), CreateMode::Persistent);
    assert_reaction(created, ErrorKind::Retry, ErrorReason::Refused, "create '/full/new'");
    let changed = guard.commit(|changes| changes.set_data("/full", "new").create("/full/new", ""));
    assert_reaction(changed, ErrorKind::Retry, ErrorReason::Refused, "create '/full/new'");
    assert!(guard.is_owner() && observer.data("/full").is_empty());
    server.run_in_shell(&["delquota", "-N", "/full"]);
    assert!(lock.try_lock().unwrap().is_some(), "the lock is free once there is room");
}

#[test]
fn process_without_descriptors_can_try_again() {
    const NAME: &str = "reactions::process_without_descriptors_can_try_again";
    if let Some((address, _)) = ChildTest::arguments() {
        let limit = getrlimit(Resource::Nofile);
        let next = File::open("/dev/null").unwrap().as_raw_fd();
        setrlimit(Resource::Nofile, Rlimit { current: u64::try_from(next).ok(), ..limit }).unwrap();
        let refused = Session::builder(&address).session_timeout(LONG).connect();
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_reaction(refused, ErrorKind::Retry, ErrorReason::Thread, "os error 24");
        drop(connect(&address, LONG));
        return ChildTest::send("connected");
    }
    assert_eq!(ChildTest::start(NAME, "/").receive(), "connected");
}

// ---- the call, the operator

#[test]
fn denied_access_names_the_permission_and_the_znode_that_lacks_it() {
    let (near, observer) = (session(server::shared()), Observer::at(server::shared()));
    let (address, dir) = (server::shared().connect_string(), unique_dir("react-denied"));
    let denied = |outcome, text: &str| {
        assert_reaction(outcome, ErrorKind::Permanent, ErrorReason::AccessDenied, text);
    };
    observer.create_persistent(&dir);
    let guard = hold(&near, &dir);
    let child = format!("{dir}/child");
    acl::set(&address, &dir, &[Acl::new(Permissions::READ | Permissions::ADMIN, "world", "anyone")]);
    denied(
        lock_on(&near, &dir).lock().map(drop),
        &format!("the ACL of '{dir}' must grant this client CREATE"),
    );
    let of_parent = |permission| format!("the ACL of its parent '{dir}' must grant this client {permission}");
    let znodes = znodes_of(&near);
    let created = znodes.create(&child, b"", &Acl::open_unsafe(), CreateMode::Persistent);
    denied(created.map(drop), &of_parent("CREATE"));
    denied(guard.commit(|changes| changes.create(&child, "")).map(drop), &of_parent("CREATE"));
    denied(znodes.delete(guard.id(), None), &of_parent("DELETE"));
    denied(
        znodes.set_data(&dir, b"new", None).map(drop),
        &format!("the ACL of '{dir}' must grant this client WRITE"),
    );
    denied(guard.unlock().map(drop), &of_parent("DELETE"));
    acl::set(&address, &dir, &Acl::open_unsafe());
    observer.await_children(&dir, 0);

    let nobody = LockOptions::new().acl([]);
    let invalid = BlockingWriteLock::with_options(&near, &dir, nobody).unwrap().lock();
    assert_reaction(invalid, ErrorKind::Permanent, ErrorReason::InvalidAcl, &dir);
}

#[test]
fn connection_that_an_operator_must_correct_is_permanent() {
    let address = server::shared().connect_string();
    let astray = connect(&format!("{address}/react/no-such-chroot"), LONG);
    let locked = lock_on(&astray, "/locks/a").lock();
    assert_reaction(locked, ErrorKind::Permanent, ErrorReason::NoChroot, "'/react/no-such-chroot'");
    let stranger = Session::builder(&address).session_timeout(LONG).auth("no-such-scheme", "ada:secret");
    let refused = stranger.connect();
    assert_reaction(refused, ErrorKind::Permanent, ErrorReason::CredentialsRefused, &address);
    let wrong = Session::builder(&address).session_timeout(Duration::ZERO).connect();
    assert_reaction(wrong, ErrorKind::Permanent, ErrorReason::InvalidArgument, "session timeout");
}

/// ClickHouse Keeper answers a connect request without saying whether it is read-only, and with a password of zeros.
#[test]
fn servers_that_are_not_zookeeper_are_permanent() {
    let listener = listen();
    let address = listener.local_addr().unwrap().to_string();
    let keeper = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.read_exact(&mut [0; 49]).unwrap();
        let [length, version, timeout, password] = [36, 0, 10_000, 16].map(i32::to_be_bytes);
        let answer = [&length[..], &version, &timeout, &1_i64.to_be_bytes(), &password, &[0; 16]];
        client.write_all(&answer.concat()).unwrap();
    });
    let refused = Session::builder(&address).session_timeout(LONG).connect();
    assert_reaction(refused, ErrorKind::Permanent, ErrorReason::NotZooKeeper, &address);
    keeper.join().unwrap();
}

#[test]
fn request_that_ends_each_connection_is_permanent() {
    const BUFFER: usize = 20_000;
    let jvm_flags = vec![format!("-Djute.maxbuffer={BUFFER}")];
    let server = Server::with(ServerOptions { jvm_flags, ..ServerOptions::default() });
    // The session does not know of this small buffer.
    let near = session(&server);
    let options = LockOptions::new().data(vec![0; BUFFER]);
    let locked = BlockingWriteLock::with_options(&near, "/locks/a", options).unwrap().lock();
    assert_reaction(locked, ErrorKind::Permanent, ErrorReason::EndsConnection, "/locks/a");
    drop(hold(&near, "/locks/a"));
}

#[test]
fn server_that_has_diverged_is_permanent() {
    let ensemble = Ensemble::start(3);
    let (leader, follower) = (ensemble.leader(), ensemble.follower());
    let near = connect(&ensemble.connect_string_of(leader), LONG);
    let guard = hold(&near, "/locks/a");
    let id = guard.id().to_owned();
    ensemble.diverge(follower, || {
        guard.unlock().unwrap();
    });
    let diverged = ensemble.connect_string_of(follower);
    let asked = Revoker::new(&connect(&diverged, LONG)).request_revocation(&id);
    assert_reaction(asked, ErrorKind::Permanent, ErrorReason::ServerDiverged, &diverged);
}

#[test]
fn outcome_that_the_program_must_handle_is_permanent() {
    let (near, observer) = (session(server::shared()), Observer::at(server::shared()));
    let dir = unique_dir("react-handled");
    observer.create_persistent(&dir);
    let permanent = |outcome, reason, text: &str| {
        assert_reaction(outcome, ErrorKind::Permanent, reason, text);
    };
    let (guard, lock) = (hold(&near, &dir), lock_on(&near, &dir));
    let id = guard.id().to_owned();

    let relative = BlockingWriteLock::new(&near, "locks/a");
    permanent(relative.map(drop), ErrorReason::InvalidArgument, "'locks/a'");
    let long = guard.commit(|changes| changes.set_data(&dir, vec![0; 1 << 20]));
    permanent(long.map(drop), ErrorReason::CallTooLong, &id);

    let cancel = CancelToken::new();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.try_lock_for(Wait::forever().cancelled_by(&cancel)));
        observer.await_children(&dir, 2);
        cancel.cancel();
        permanent(waiting.join().unwrap().map(drop), ErrorReason::Cancelled, &dir);
    });

    let znodes = znodes_of(&near);
    let server_says = |outcome, error, path: &str| permanent(outcome, ErrorReason::Server(error), path);
    let missing = format!("{dir}/missing");
    server_says(znodes.set_data(&missing, b"", None).map(drop), ZkError::NoNode, &missing);
    server_says(znodes.set_data(&dir, b"", Some(7)).map(drop), ZkError::BadVersion, &dir);
    server_says(znodes.delete(&dir, None), ZkError::NotEmpty, &dir);
    server_says(guard.commit(|changes| changes.delete(&missing)).map(drop), ZkError::NoNode, &missing);
    let below = znodes.create(&format!("{id}/below"), b"", &Acl::open_unsafe(), CreateMode::Persistent);
    server_says(below.map(drop), ZkError::NoChildrenForEphemerals, &id);
    guard.unlock().unwrap();

    let revoker = Revoker::new(&near);
    permanent(revoker.request_revocation(&id).map(drop), ErrorReason::NoSuchRequest, &id);
    permanent(revoker.request_revocation(&dir).map(drop), ErrorReason::NotALock, &dir);
    observer.zk().set_data(&dir, b"data").unwrap();
    let removed = LockDirectory::new(&near, &dir).unwrap().remove_if_empty();
    permanent(removed.map(drop), ErrorReason::NotALock, &dir);

    let closed = WriteLock::new(&near, &dir).unwrap();
    closed.close();
    permanent(closed.lock().map(drop), ErrorReason::Closed, &dir);
    near.close();
    permanent(lock.lock().map(drop), ErrorReason::Closed, &dir);
    permanent(znodes.exists(&dir).map(drop), ErrorReason::Closed, &dir);
}
