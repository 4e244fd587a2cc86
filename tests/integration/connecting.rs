//! Connecting: connect strings good and bad, chroots, ACLs, handles that the application has already.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use zookeeper::ZooKeeper;
use zookeeper_recipes_lock::{
    Acl, BlockingWriteLock, CreateMode, LockError, LockOptions, Permissions, ProtocolSupport, Session,
    SessionState, WriteLock,
};

use crate::fixtures::{ErrorVariant, LONG, Onlooker, SHORT, connect, session, unique_dir};
use crate::support::net::free_port;
use crate::support::relay::Relay;
use crate::support::server;
use crate::support::wait::{eventually, scaled};

#[test]
fn a_session_is_connected_when_connect_returns() {
    let session = session(server::shared());
    assert_eq!(session.state(), SessionState::Connected);
    assert_eq!(session.session_timeout(), LONG);
    let states = session.subscribe();
    session.close();
    assert_eq!(session.state(), SessionState::Lost);
    assert_eq!(states.iter().next(), Some(SessionState::Lost));
}

#[test]
fn the_session_timeout_is_what_the_server_grants() {
    let connect_string = server::shared().connect_string();
    assert_eq!(connect(&connect_string, Duration::from_secs(300)).session_timeout(), Duration::from_secs(40));
    assert_eq!(
        connect(&connect_string, Duration::from_millis(200)).session_timeout(),
        Duration::from_secs(1)
    );
}

#[test]
fn absurd_timeouts_are_refused() {
    for timeout in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
        let error = Session::connect(&server::shared().connect_string(), timeout).unwrap_err();
        assert!(error.is_invalid_argument(), "{timeout:?}: {error}");
    }
}

#[test]
fn a_connect_string_that_cannot_be_parsed_is_refused() {
    for text in ["", "host:port", "a b", "127.0.0.1:0", "127.0.0.1:2181/a//b", ","] {
        assert!(Session::connect(text, SHORT).unwrap_err().is_invalid_argument(), "{text:?}");
    }
}

#[test]
fn unreachable_servers_are_named_within_the_session_timeout() {
    let closed = format!("127.0.0.1:{}", free_port());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let start = Instant::now();
    for servers in
        [closed.clone(), silent.clone(), format!("{closed},{silent}/app"), "no-such-host.invalid".into()]
    {
        let error = Session::connect(&servers, Duration::from_secs(2)).unwrap_err();
        assert!(matches!(error, LockError::Connect { .. }), "{error}");
        for server in servers.trim_end_matches("/app").split(',') {
            assert!(error.to_string().contains(server), "{server} is not in: {error}");
        }
    }
    assert!(start.elapsed() < scaled(Duration::from_secs(4 * 3)), "{:?}", start.elapsed());
}

/// A server that grants a session to each connection, slowly to the second, and says nothing after that.
fn server_that_answers_late_and_then_never(late: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let begun = Instant::now();
    thread::spawn(move || {
        let mut open = Vec::new();
        for number in 1..=3 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 49];
            stream.read_exact(&mut request).unwrap();
            if number == 2 {
                thread::sleep(late.saturating_sub(begun.elapsed()));
            }
            let granted = i32::try_from(SHORT.as_millis()).unwrap();
            let answer = [&37_i32.to_be_bytes()[..], &[0; 4], &granted.to_be_bytes(), &[7; 8]].concat();
            let answer = [&answer[..], &16_i32.to_be_bytes(), &[0; 17]].concat();
            stream.write_all(&answer).unwrap();
            open.push(stream);
        }
        // Until the test ends, or long enough.
        thread::sleep(LONG);
        drop(open);
    });
    address
}

#[test]
fn connecting_takes_no_longer_than_the_session_timeout() {
    let address = server_that_answers_late_and_then_never(SHORT * 7 / 8);
    let begun = Instant::now();
    let error = Session::connect(&address, SHORT).unwrap_err();
    assert!(matches!(error, LockError::Connect { .. }), "{error}");
    // Not as long again for the first answer.
    assert!(begun.elapsed() < SHORT * 3 / 2, "{:?}", begun.elapsed());
}

#[test]
fn a_server_that_serves_is_found_behind_those_that_do_not() {
    let closed = format!("127.0.0.1:{}", free_port());
    for _ in 0..4 {
        let servers = format!("{closed},{},no-such-host.invalid:2181", server::shared().connect_string());
        let session = connect(&servers, LONG);
        assert_eq!(session.state(), SessionState::Connected);
    }
}

#[test]
fn a_chroot_is_kept_out_of_every_path() {
    let root = unique_dir("chroot");
    let onlooker = Onlooker::at(server::shared());
    onlooker.create_persistent(&root);
    let relay = Relay::to(server::shared().connect_string());
    let inside = connect(&format!("{}{root}", relay.connect_string()), LONG);
    let other = connect(&format!("{}{root}", server::shared().connect_string()), LONG);
    let guard = BlockingWriteLock::new(&other, "/locks/a").unwrap().lock().unwrap();
    assert!(guard.id().starts_with("/locks/a/x-"), "{}", guard.id());
    assert!(onlooker.exists(&format!("{root}{}", guard.id())));
    let waiter = WriteLock::new(&inside, "/locks/a").unwrap();
    assert!(!waiter.lock().unwrap());
    guard.unlock().unwrap();
    eventually("the waiter owns the lock", || waiter.is_owner());
    onlooker.delete(&format!("{root}{}", waiter.id().unwrap()));
    eventually("the owner has noticed", || !waiter.is_owner());
}

#[test]
fn a_chroot_that_does_not_exist_is_named_when_a_lock_needs_it() {
    let connect_string = format!("{}/no/such/chroot", server::shared().connect_string());
    let session = connect(&connect_string, LONG);
    let error = BlockingWriteLock::new(&session, "/locks/a").unwrap().lock().unwrap_err();
    assert!(matches!(&error, LockError::NoChroot { .. }), "{error:?}");
}

fn digest_handle(password: &str) -> Arc<ZooKeeper> {
    let zk = ZooKeeper::connect(&server::shared().connect_string(), LONG, |_| {}).unwrap();
    zk.add_auth("digest", format!("user:{password}").into_bytes()).unwrap();
    Arc::new(zk)
}

#[test]
fn a_digest_acl_lets_in_who_has_the_password_and_names_what_is_denied_to_others() {
    let dir = unique_dir("digest");
    let options = LockOptions::new().acl(Acl::creator_all());
    let member = Session::from_zookeeper(digest_handle("secret"), LONG).unwrap();
    let guard = BlockingWriteLock::with_options(&member, &dir, options.clone()).unwrap().lock().unwrap();
    assert!(guard.is_owner());

    let stranger = session(server::shared());
    let error = BlockingWriteLock::new(&stranger, &dir).unwrap().lock().unwrap_err();
    assert!(error.is_access_denied(), "{error}");
    assert!(error.to_string().contains("CREATE") && error.to_string().contains(&dir), "{error}");

    let other_member = Session::from_zookeeper(digest_handle("secret"), LONG).unwrap();
    let waiter = WriteLock::with_options(&other_member, &dir, options, ()).unwrap();
    assert!(!waiter.lock().unwrap());
    drop(guard);
    eventually("the waiter owns the lock", || waiter.is_owner());
}

#[test]
fn a_predecessor_that_may_not_be_read_is_watched_all_the_same() {
    let dir = unique_dir("unreadable");
    let onlooker = Onlooker::at(server::shared());
    onlooker.create_persistent(&dir);
    let nobody_reads = vec![zookeeper::Acl::new(zookeeper::Permission::ALL, "digest", "nobody:x")];
    let path = format!("{dir}/x-lock-");
    let ahead = onlooker
        .zk()
        .create(&path, Vec::new(), nobody_reads, zookeeper::CreateMode::EphemeralSequential)
        .unwrap();
    let session = session(server::shared());
    let waiter = WriteLock::new(&session, &dir).unwrap();
    assert!(!waiter.lock().unwrap());
    onlooker.delete(&ahead);
    eventually("the waiter owns the lock", || waiter.is_owner());
}

#[test]
fn an_invalid_acl_is_refused_by_name() {
    let session = session(server::shared());
    let options = LockOptions::new().acl([]);
    let lock = WriteLock::with_options(&session, &unique_dir("no-acl"), options, ()).unwrap();
    let error = lock.lock().unwrap_err();
    assert!(matches!(error, LockError::InvalidAcl { .. }), "{error}");
}

#[test]
fn a_handle_of_the_applications_stays_the_applications() {
    let dir = unique_dir("borrowed");
    let (events, seen) = unbounded();
    let zk =
        ZooKeeper::connect(&server::shared().connect_string(), LONG, move |event| drop(events.send(event)));
    let zk = Arc::new(zk.unwrap());
    let session = Session::from_zookeeper(Arc::clone(&zk), LONG).unwrap();
    let onlooker = Onlooker::at(server::shared());
    let held = BlockingWriteLock::new(&session, &dir).unwrap().lock().unwrap();
    let waiter = WriteLock::new(&session, &dir).unwrap();
    assert!(!waiter.lock().unwrap());
    held.unlock().unwrap();
    eventually("the waiter owns the lock", || waiter.is_owner());
    let third = WriteLock::new(&session, &dir).unwrap();
    assert!(!third.lock().unwrap());
    session.close();
    assert!(onlooker.children(&dir).is_empty(), "close returns when our znodes are gone");
    assert!(!waiter.is_owner());
    assert!(zk.exists("/", false).unwrap().is_some(), "the handle works on");
    assert!(seen.try_recv().is_err(), "its default watcher saw nothing of the locks");
    drop((session, waiter, third));
    assert_eq!(Arc::strong_count(&zk), 1, "and nobody else holds it");
}

#[test]
fn a_borrowed_session_dropped_with_a_guard_leaves_no_znode() {
    let dir = unique_dir("borrowed-drop");
    let zk = Arc::new(ZooKeeper::connect(&server::shared().connect_string(), LONG, |_| {}).unwrap());
    let session = Session::from_zookeeper(Arc::clone(&zk), LONG).unwrap();
    let guard = BlockingWriteLock::new(&session, &dir).unwrap().lock().unwrap();
    drop(session);
    assert!(guard.is_owner(), "the guard holds the session");
    drop(guard);
    Onlooker::at(server::shared()).await_children(&dir, 0);
    eventually("the handle is let go", || Arc::strong_count(&zk) == 1);
}

#[test]
fn a_handle_that_is_closed_is_refused() {
    let zk = Arc::new(ZooKeeper::connect(&server::shared().connect_string(), LONG, |_| {}).unwrap());
    zk.exists("/", false).unwrap();
    zk.close().unwrap();
    let error = Session::from_zookeeper(zk, Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, LockError::Connect { .. }), "{error}");
}

#[test]
fn a_path_is_ensured_with_its_parents_and_its_acl() {
    let session = session(server::shared());
    let onlooker = Onlooker::at(server::shared());
    let dir = unique_dir("ensure");
    let support = ProtocolSupport::new(&session);
    support.ensure_path_exists(&format!("{dir}/a/b")).unwrap();
    support.ensure_path_exists(&format!("{dir}/a/b")).unwrap();
    assert!(onlooker.exists(&format!("{dir}/a/b")));
    let acl = vec![Acl::new(Permissions::READ, "world", "anyone")];
    let path = format!("{dir}/c/data");
    support.ensure_exists(&path, b"first", &acl, CreateMode::Persistent).unwrap();
    support.ensure_exists(&path, b"second", &acl, CreateMode::Persistent).unwrap();
    assert_eq!(onlooker.data(&path), b"first", "one that is there is left as it is");
    assert_eq!(
        onlooker.zk().get_acl(&path).unwrap().0,
        [zookeeper::Acl::new(zookeeper::Permission::READ, "world", "anyone")]
    );
    let sequential = support.ensure_exists(&path, b"", &acl, CreateMode::PersistentSequential);
    assert!(sequential.unwrap_err().is_invalid_argument());
    let denied = support.ensure_path_exists(&format!("{path}/below"));
    assert!(denied.unwrap_err().is_access_denied());
}
