//! Tests of connecting: connect strings, chroots, ACLs and credentials.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use zookeeper_recipes_lock::client::{Acl, CreateMode, Permissions, ZkError};
use zookeeper_recipes_lock::events::SessionEvent;
use zookeeper_recipes_lock::{
    BlockingWriteLock, ErrorReason, LockOptions, ProtocolSupport, Session, SessionState, WriteLock,
};

use crate::acl;
use crate::fixtures::{ErrorVariant, LONG, Observer, SHORT, connect, session, unique_dir};
use crate::support::net::free_port;
use crate::support::relay::Relay;
use crate::support::server::{self, Server};
use crate::support::wait::{deadline, eventually, eventually_within, scaled};

#[test]
fn session_is_connected_when_connect_returns() {
    let session = session(server::shared());
    assert_eq!(session.state(), SessionState::Connected);
    assert_eq!(session.session_timeout(), LONG);
    let states = session.subscribe();
    session.close();
    assert_eq!(session.state(), SessionState::Lost);
    assert_eq!(states.iter().next(), None, "a close by the application must not be reported");
}

#[test]
fn session_timeout_is_the_granted_one() {
    let granted = |timeout| {
        let builder = Session::builder(server::shared().connect_string()).session_timeout(timeout);
        builder.wait_for_server(deadline()).connect().unwrap().session_timeout()
    };
    assert_eq!(granted(Duration::from_secs(300)), Duration::from_secs(40));
    assert_eq!(granted(Duration::from_millis(200)), Duration::from_secs(1));
}

#[test]
fn out_of_range_timeouts_are_refused() {
    for timeout in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
        let error = Session::connect(&server::shared().connect_string(), timeout).unwrap_err();
        assert!(error.is_invalid_argument(), "{timeout:?}: {error}");
    }
}

#[test]
fn invalid_connect_string_is_refused() {
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
        assert_eq!(error.reason(), ErrorReason::NoServer, "{error}");
        for server in servers.trim_end_matches("/app").split(',') {
            assert!(error.to_string().contains(server), "{server} must be in: {error}");
        }
    }
    assert!(start.elapsed() < scaled(Duration::from_secs(4 * 3)), "{:?}", start.elapsed());
}

/// Starts a server that grants a session to each connection and then sends nothing. It grants the second
/// session late.
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
        // Keep the sockets open until the test has ended.
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
    assert_eq!(error.reason(), ErrorReason::NoServer, "{error}");
    // The first answer must not add a second timeout.
    assert!(begun.elapsed() < SHORT * 7 / 4, "{:?}", begun.elapsed());
}

#[test]
fn serving_server_is_found_behind_others() {
    let closed = format!("127.0.0.1:{}", free_port());
    for _ in 0..4 {
        let servers = format!("{closed},{},no-such-host.invalid:2181", server::shared().connect_string());
        let session = connect(&servers, LONG);
        assert_eq!(session.state(), SessionState::Connected);
    }
}

#[test]
fn paths_do_not_include_the_chroot() {
    let root = unique_dir("chroot");
    let observer = Observer::at(server::shared());
    observer.create_persistent(&root);
    let relay = Relay::to(server::shared().connect_string());
    let inside = connect(&format!("{}{root}", relay.connect_string()), LONG);
    let other = connect(&format!("{}{root}", server::shared().connect_string()), LONG);
    let guard = BlockingWriteLock::new(&other, "/locks/a").unwrap().lock().unwrap();
    assert!(guard.id().starts_with("/locks/a/x-"), "{}", guard.id());
    assert!(observer.exists(&format!("{root}{}", guard.id())));
    let waiter = WriteLock::new(&inside, "/locks/a").unwrap();
    assert!(!waiter.lock().unwrap());
    guard.unlock().unwrap();
    eventually("the waiter owns the lock", || waiter.is_owner());
    observer.delete(&format!("{root}{}", waiter.id().unwrap()));
    eventually("the owner notices", || !waiter.is_owner());
}

#[test]
fn missing_chroot_is_named_in_the_error_of_lock() {
    let connect_string = format!("{}/no/such/chroot", server::shared().connect_string());
    let session = connect(&connect_string, LONG);
    let error = BlockingWriteLock::new(&session, "/locks/a").unwrap().lock().unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NoChroot, "{error:?}");
    let text = error.to_string();
    assert!(text.contains("the chroot '/no/such/chroot' of the connect string does not exist"), "{text}");
    assert!(text.contains("create_chroot(true)"), "{text}");
}

#[test]
fn missing_chroot_is_created_if_asked_for() {
    let root = unique_dir("created-chroot");
    let connect_string = format!("{}{root}/prod/app", server::shared().connect_string());
    let sessions: Vec<Session> = (0..4)
        .map(|_| {
            let connect_string = connect_string.clone();
            thread::spawn(move || Session::builder(connect_string).create_chroot(true).connect().unwrap())
        })
        .collect::<Vec<_>>()
        .into_iter()
        .map(|connecting| connecting.join().unwrap())
        .collect();
    for session in &sessions {
        BlockingWriteLock::new(session, "/locks/a").unwrap().lock().unwrap().unlock().unwrap();
    }
    let observer = Observer::at(server::shared());
    assert!(observer.exists(&format!("{root}/prod/app/locks/a")));
}

#[test]
fn chroot_that_may_not_be_created_ends_the_connect_with_the_path_of_its_parent() {
    let root = unique_dir("denied-chroot");
    let owner = digest_session("secret");
    let znodes = ProtocolSupport::new(&owner);
    znodes.ensure_exists(&root, b"", &Acl::creator_all(), CreateMode::Persistent).unwrap();
    let connect_string = format!("{}{root}/prod/app", server::shared().connect_string());
    let error = Session::builder(&connect_string).create_chroot(true).connect().unwrap_err();
    assert!(error.is_access_denied() && error.path() == Some(&root), "{error:?}");
    // This session has an identity that may create the chroot.
    let builder = Session::builder(&connect_string).create_chroot(true).auth("digest", "user:secret");
    builder.connect().unwrap().close();
    // The chroot exists now.
    Session::builder(&connect_string).create_chroot(true).connect().unwrap().close();
}

fn digest_session(password: &str) -> Session {
    let builder = Session::builder(server::shared().connect_string()).session_timeout(LONG);
    builder.auth("digest", format!("user:{password}")).connect().unwrap()
}

#[test]
fn digest_acl_admits_its_user_and_denies_others_by_permission() {
    let dir = unique_dir("digest");
    let options = LockOptions::new().acl(Acl::creator_all());
    let member = digest_session("secret");
    let guard = BlockingWriteLock::with_options(&member, &dir, options.clone()).unwrap().lock().unwrap();
    assert!(guard.is_owner());

    let stranger = session(server::shared());
    let error = BlockingWriteLock::new(&stranger, &dir).unwrap().lock().unwrap_err();
    assert!(error.is_access_denied(), "{error}");
    assert!(error.to_string().contains("CREATE") && error.to_string().contains(&dir), "{error}");

    let other_member = digest_session("secret");
    let waiter = WriteLock::with_options(&other_member, &dir, options, ()).unwrap();
    assert!(!waiter.lock().unwrap());
    drop(guard);
    eventually("the waiter owns the lock", || waiter.is_owner());
}

#[test]
fn predecessor_without_read_permission_is_watched() {
    let dir = unique_dir("unreadable");
    let observer = Observer::at(server::shared());
    observer.create_persistent(&dir);
    let nobody_reads = [Acl::new(Permissions::ALL, "digest", "nobody:x")];
    let path = format!("{dir}/x-lock-");
    let ahead = observer.zk().create(&path, b"", &nobody_reads, CreateMode::EphemeralSequential).unwrap();
    let session = session(server::shared());
    let waiter = WriteLock::new(&session, &dir).unwrap();
    assert!(!waiter.lock().unwrap());
    observer.delete(&ahead);
    eventually("the waiter owns the lock", || waiter.is_owner());
}

#[test]
fn invalid_acl_is_an_error_that_names_it() {
    let session = session(server::shared());
    let options = LockOptions::new().acl([]);
    let lock = WriteLock::with_options(&session, &unique_dir("no-acl"), options, ()).unwrap();
    let error = lock.lock().unwrap_err();
    assert_eq!(error.reason(), ErrorReason::InvalidAcl, "{error}");
}

#[test]
fn path_is_ensured_with_its_parents_and_its_acl() {
    let session = session(server::shared());
    let observer = Observer::at(server::shared());
    let dir = unique_dir("ensure");
    let support = ProtocolSupport::new(&session);
    support.ensure_path_exists(&format!("{dir}/a/b")).unwrap();
    support.ensure_path_exists(&format!("{dir}/a/b")).unwrap();
    assert!(observer.exists(&format!("{dir}/a/b")));
    let entries = [Acl::new(Permissions::READ, "world", "anyone")];
    let path = format!("{dir}/c/data");
    support.ensure_exists(&path, b"first", &entries, CreateMode::Persistent).unwrap();
    support.ensure_exists(&path, b"second", &entries, CreateMode::Persistent).unwrap();
    assert_eq!(observer.data(&path), b"first", "an existing znode must not change");
    assert_eq!(acl::get(&server::shared().connect_string(), &path), entries);
    let sequential = support.ensure_exists(&path, b"", &entries, CreateMode::PersistentSequential);
    assert!(sequential.unwrap_err().is_invalid_argument());
    let denied = support.ensure_path_exists(&format!("{path}/below"));
    assert!(denied.unwrap_err().is_access_denied());
}

#[test]
fn credentials_are_presented_after_a_reconnect_and_by_a_session_that_replaces_a_lost_one() {
    let relay = Relay::to(server::shared().connect_string());
    let builder = Session::builder(relay.connect_string()).session_timeout(SHORT);
    let ours = builder.auth("digest", "ada:secret").replace_lost_sessions(true).connect().unwrap();
    let dir = unique_dir("credentials");
    let options = LockOptions::new().acl(Acl::creator_all());
    let lock = BlockingWriteLock::with_options(&ours, &dir, options).unwrap();
    lock.lock().unwrap().unlock().unwrap();
    let stranger = BlockingWriteLock::new(&session(server::shared()), &dir).unwrap();
    assert!(stranger.lock().unwrap_err().is_access_denied());

    relay.cut();
    lock.lock().unwrap().unlock().unwrap();

    relay.refuse();
    eventually_within(2 * deadline(), "the session is lost", || ours.state() == SessionState::Lost);
    relay.restore();
    eventually("another session is connected", || ours.state() == SessionState::Connected);
    lock.lock().unwrap().unlock().unwrap();
}

#[test]
fn session_with_refused_credentials_is_closed_at_the_server() {
    let server = Server::start();
    // Servers accept any password for the scheme `digest`, and refuse schemes that they do not know.
    let builder = Session::builder(server.connect_string()).session_timeout(LONG);
    let error = builder.auth("no-such-scheme", "ada:secret").connect().unwrap_err();
    assert_eq!(error.reason(), ErrorReason::CredentialsRefused, "{error}");
    let begun = Instant::now();
    eventually("the session is closed", || server.session_count() == 0);
    assert!(begun.elapsed() < LONG, "the session must end before it expires");
}

#[test]
fn hook_of_the_builder_gets_the_first_contact() {
    let server = Server::start();
    let (sender, contacts) = unbounded();
    for replaces in [false, true] {
        let builder = Session::builder(server.connect_string()).replace_lost_sessions(replaces);
        let sender = sender.clone();
        let hook = move |event: &SessionEvent| {
            if let SessionEvent::Connected(contact) = event {
                let _ = sender.send(contact.session_id);
            }
        };
        let session = builder.event_hook(hook).connect().unwrap();
        assert_eq!(contacts.recv_timeout(LONG).unwrap(), session.id());
    }
}

#[test]
fn session_knows_its_number_and_its_server() {
    let server = Server::start();
    let session = Session::connect(&server.connect_string(), LONG).unwrap();
    let number = session.id().unwrap();
    let guard = BlockingWriteLock::new(&session, "/locks/number").unwrap().lock().unwrap();
    let stat = Observer::at(&server).zk().exists(guard.id()).unwrap().unwrap();
    assert_eq!(stat.ephemeral_owner, number);
    assert!(server.connect_string().contains(&session.server().unwrap()), "{:?}", session.server());
    let other = Session::connect(&server.connect_string(), LONG).unwrap();
    assert_ne!(other.id(), Some(number));
}

#[test]
fn ephemeral_znode_is_ensured_only_if_it_belongs_to_the_session() {
    let [own, other] = [(); 2].map(|()| session(server::shared()));
    let path = unique_dir("member");
    let ensure = |session: &Session| {
        let support = ProtocolSupport::new(session);
        support.ensure_exists(&path, b"", &Acl::open_unsafe(), CreateMode::Ephemeral)
    };
    ensure(&other).unwrap();
    ensure(&other).unwrap();
    let error = ensure(&own).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::Server(ZkError::NodeExists), "{error}");
    let owner = format!("{:#x}", other.id().unwrap());
    assert!(error.to_string().contains(&owner), "{error}");
    other.close();
    ensure(&own).unwrap();
    let observer = Observer::at(server::shared());
    observer.delete(&path);
    observer.create_persistent(&path);
    let error = ensure(&own).unwrap_err();
    assert!(error.to_string().contains("persistent"), "{error}");
}
