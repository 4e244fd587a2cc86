//! Tests of SASL with DIGEST-MD5 on real servers.

use std::fs;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::client::{Acl, Permissions};
use zookeeper_recipes_lock::{
    BlockingWriteLock, ErrorReason, LockOptions, Session, SessionBuilder, SessionState, WriteLock,
};

use crate::acl;
use crate::fixtures::{ErrorVariant, LONG, session, unique_dir};
use crate::support::relay::Relay;
use crate::support::server::{self, Server, ServerOptions};
use crate::support::test_server;
use crate::support::wait::{deadline, eventually, scaled};

/// Clients hash a text as Latin-1 if Latin-1 can encode it, otherwise as UTF-8. These names and passwords
/// cover both.
const USERS: [(&str, &str); 4] =
    [("ada", "secret"), ("other", "other"), ("bärbel", "pässwörd\"\\"), ("eu€o", "pa€€ ö")];

/// Returns the options of servers that support SASL but do not require it.
fn options() -> test_server::ServerOptions {
    ServerOptions::default().published().sasl_users(USERS)
}

fn builder(servers: &str, user: &str, password: &str) -> SessionBuilder {
    Session::builder(servers).session_timeout(LONG).sasl_digest(user, password)
}

fn ada(servers: &str) -> Session {
    builder(servers, "ada", "secret").connect().unwrap()
}

/// Returns options whose ACL grants everything to the session's user, and READ to others, so that the test
/// can read the znodes.
pub fn acl_of_the_user() -> LockOptions {
    let others = Acl::new(Permissions::READ, "world", "anyone");
    LockOptions::new().acl([Acl::creator_all(), vec![others]].concat())
}

pub fn lock(session: &Session, dir: &str) -> BlockingWriteLock {
    BlockingWriteLock::with_options(session, dir, acl_of_the_user()).unwrap()
}

/// Restarts a server with another JAAS configuration.
pub fn restart_with(server: &Server, change: impl FnOnce(&str) -> String) {
    let jaas = server.dir().join("jaas.conf");
    let text = fs::read_to_string(&jaas).unwrap();
    let changed = change(&text);
    assert_ne!(changed, text);
    server.stop();
    fs::write(&jaas, changed).unwrap();
    server.restart();
}

fn assert_locks(session: &Session) {
    let lock = BlockingWriteLock::new(session, &unique_dir("sasl")).unwrap();
    lock.lock().unwrap().unlock().unwrap();
}

/// Asserts that connecting fails long before the wait ends, with the reason but without the password.
#[track_caller]
fn assert_refused(servers: &str, user: &str, password: &str) {
    for replaces in [false, true] {
        let begun = Instant::now();
        let builder = builder(servers, user, password).replace_lost_sessions(replaces);
        let error = builder.wait_for_server(deadline()).connect().unwrap_err();
        assert!(begun.elapsed() < scaled(Duration::from_secs(5)), "{user}: {:?}", begun.elapsed());
        assert_eq!(error.reason(), ErrorReason::CredentialsRefused, "{user}: {error:?}");
        assert!(error.to_string().contains("SASL"), "{error}");
        assert!(!format!("{error} {error:?}").contains("pass-phrase"), "{error:?}");
    }
}

#[test]
fn users_with_their_passwords_are_served_in_any_encoding_and_no_others() {
    for options in [options(), options().require_sasl()] {
        let server = Server::published(&options);
        let servers = server.connect_string();
        for (user, password) in USERS {
            assert_locks(&builder(&servers, user, password).connect().unwrap());
        }
        assert_refused(&servers, "ada", "pass-phrase");
        assert_refused(&servers, "nobody", "pass-phrase");
    }
}

#[test]
fn lock_is_held_and_handed_over_under_the_acl_of_its_user() {
    let server = Server::published(&options());
    let relay = Relay::to(server.connect_string());
    let (holder, waiter) = (ada(&relay.connect_string()), ada(&server.connect_string()));
    let dir = unique_dir("sasl-acl");
    let guard = lock(&holder, &dir).lock().unwrap();
    let user = Acl::new(Permissions::ALL, "sasl", "ada");
    assert!(acl::get(&server.connect_string(), &dir).contains(&user));
    let other = builder(&server.connect_string(), "other", "other").connect().unwrap();
    for stranger in [other, session(&server)] {
        assert!(BlockingWriteLock::new(&stranger, &dir).unwrap().try_lock().unwrap_err().is_access_denied());
    }
    let waiting = WriteLock::with_options(&waiter, &dir, acl_of_the_user(), ()).unwrap();
    assert!(!waiting.lock().unwrap());

    let states = holder.subscribe();
    relay.cut();
    assert_eq!(states.recv_timeout(deadline()), Ok(SessionState::Suspended));
    assert_eq!(states.recv_timeout(deadline()), Ok(SessionState::Connected));
    assert!(guard.is_owner(), "{:?}", guard.loss());
    guard.unlock().unwrap();
    eventually("the waiter owns the lock", || waiting.is_owner());
}

/// Without this rule, an unauthenticated session could use locks unnoticed, as long as no ACL names the user.
#[test]
fn session_is_never_opened_without_authentication() {
    let lenient = Server::published(&options().allow_failed_sasl());
    let good = Server::published(&options());
    let without = server::shared().connect_string();
    let cases = [("ada", "secret", without), ("ada", "wrong", lenient.connect_string())];
    for (user, password, servers) in cases {
        for replaces in [false, true] {
            let wait = scaled(Duration::from_secs(5));
            let builder = builder(&servers, user, password).replace_lost_sessions(replaces);
            let error = builder.wait_for_server(wait).connect().unwrap_err();
            assert_eq!(error.reason(), ErrorReason::NoServer, "{error:?}");
            assert!(error.to_string().contains("does not use SASL"), "{error}");
        }
    }
    for other in [lenient.connect_string(), server::shared().connect_string()] {
        let servers = format!("{other},{}", good.connect_string());
        for _ in 0..4 {
            assert_locks(&ada(&servers));
        }
    }
}

#[test]
fn session_without_sasl_is_lost_when_the_server_requires_it_and_one_with_sasl_goes_on() {
    let server = Server::published(&options());
    let timeout = scaled(Duration::from_secs(6));
    let plain = Session::builder(server.connect_string()).session_timeout(timeout).connect().unwrap();
    let kept = ada(&server.connect_string());
    let [dir, kept_dir] = ["sasl-required", "sasl-kept"].map(unique_dir);
    let guard = BlockingWriteLock::new(&plain, &dir).unwrap().lock().unwrap();
    let kept_guard = lock(&kept, &kept_dir).lock().unwrap();
    server.stop();
    server.reconfigure("sessionRequireClientSASLAuth=false", "sessionRequireClientSASLAuth=true");
    server.restart();
    eventually("the session without SASL is lost", || plain.state() == SessionState::Lost);
    assert!(!guard.is_owner());
    // The former holder must not have sent connect requests, because each would have renewed its session.
    let next = BlockingWriteLock::new(&kept, &dir).unwrap();
    assert!(
        next.try_lock_for(deadline()).unwrap().is_some(),
        "the znode of the former holder must have been deleted"
    );
    assert!(kept_guard.is_owner(), "{:?}", kept_guard.loss());
    kept_guard.unlock().unwrap();
}

#[test]
fn session_is_lost_when_the_server_refuses_its_user_and_its_lock_is_free_after_that() {
    let server = Server::published(&options());
    let timeout = scaled(Duration::from_secs(4));
    let holder =
        builder(&server.connect_string(), "ada", "secret").session_timeout(timeout).connect().unwrap();
    let dir = unique_dir("sasl-refused");
    let guard = BlockingWriteLock::new(&holder, &dir).unwrap().lock().unwrap();
    restart_with(&server, |jaas| jaas.replace("\"secret\"", "\"another\""));
    eventually("the session is lost", || holder.state() == SessionState::Lost);
    assert!(!guard.is_owner());
    let other = builder(&server.connect_string(), "other", "other").connect().unwrap();
    let next = BlockingWriteLock::new(&other, &dir).unwrap();
    assert!(
        next.try_lock_for(deadline()).unwrap().is_some(),
        "the znode of the former holder must have been deleted"
    );
}

/// The former holder must not have sent connect requests, because each would have renewed its session.
#[test]
fn lock_is_lost_and_free_when_the_server_does_not_use_sasl_any_more() {
    let server = Server::published(&options());
    let timeout = scaled(Duration::from_secs(4));
    let holder =
        builder(&server.connect_string(), "ada", "secret").session_timeout(timeout).connect().unwrap();
    let dir = unique_dir("sasl-gone");
    let guard = BlockingWriteLock::new(&holder, &dir).unwrap().lock().unwrap();
    restart_with(&server, |jaas| jaas.replace("Server {", "Unused {"));
    let next = BlockingWriteLock::new(&session(&server), &dir).unwrap();
    let won = next.try_lock_for(3 * timeout).unwrap();
    assert!(!guard.is_owner());
    assert!(won.is_some(), "the znode of the former holder must have been deleted");
    eventually("the session is lost", || holder.state() == SessionState::Lost);
}
