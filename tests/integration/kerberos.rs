//! Tests of SASL with Kerberos, on real servers with a real KDC.
//!
//! The environment variables of Kerberos apply to a whole process. So each test runs in a child process, with
//! its own realm and credential cache.

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::client::{Acl, KerberosConfig, Permissions};
use zookeeper_recipes_lock::{
    BlockingWriteLock, ErrorReason, LockError, LossReason, Session, SessionBuilder, SessionState, WriteLock,
};

use crate::acl;
use crate::child_test::end_with_the_input;
use crate::fixtures::{ErrorVariant, LONG, Observer, session, unique_dir};
use crate::sasl::{acl_of_the_user, lock, restart_with};
use crate::support::ensemble::Ensemble;
use crate::support::relay::Relay;
use crate::support::server::{Server, ServerOptions};
use crate::support::test_server::{self, TestKdc};
use crate::support::wait::{deadline, eventually, eventually_some, scaled};

/// The variable that names a directory for the child process.
const DIR: &str = "ZK_TEST_KERBEROS_DIR";

/// The KDC of a child process, and the credential cache of its sessions.
struct Realm {
    kdc: TestKdc,
    cache: PathBuf,
}

impl Realm {
    /// Replaces all tickets in the cache with the user's ticket.
    fn log_in(&self, user: &str) {
        self.kdc.kinit(user, &self.cache).unwrap();
    }

    /// Returns whether the cache has a ticket for the server on this host.
    fn has_ticket(&self, host: &str) -> bool {
        let list = Command::new("klist").output().unwrap();
        String::from_utf8_lossy(&list.stdout).contains(&format!("zookeeper/{host}@"))
    }

    /// Returns the options of servers that support Kerberos but do not require it.
    fn options(&self) -> test_server::ServerOptions {
        options().kerberos(&self.kdc)
    }
}

fn options() -> test_server::ServerOptions {
    ServerOptions::default().published()
}

/// Runs the body of the test with this name in a child process. Tickets come from
/// [`log_in`](Realm::log_in).
fn in_a_realm(name: &str, body: impl FnOnce(&Realm)) {
    run_in_a_realm(name, body, |command, dir| {
        command.env("KRB5CCNAME", dir.join("cache")).env_remove("KRB5_CLIENT_KTNAME");
    });
}

/// Like [`in_a_realm`], but tickets are obtained with a keytab of `app` and kept in the memory of the process.
fn in_a_realm_with_a_keytab(name: &str, body: impl FnOnce(&Realm)) {
    let in_child = |realm: &Realm| {
        let keytab = realm.kdc.keytab("app").unwrap();
        symlink(keytab, realm.cache.with_file_name("client.keytab")).unwrap();
        body(realm);
    };
    run_in_a_realm(name, in_child, |command, dir| {
        command.env("KRB5CCNAME", "MEMORY:").env("KRB5_CLIENT_KTNAME", dir.join("client.keytab"));
    });
}

/// Runs the body if this is the child process. Otherwise starts the child, in the environment that `set`
/// prepares.
fn run_in_a_realm(name: &str, body: impl FnOnce(&Realm), set: impl FnOnce(&mut Command, &Path)) {
    match env::var_os(DIR) {
        Some(dir) => {
            end_with_the_input();
            let (dir, kdc) = (PathBuf::from(dir), TestKdc::start().unwrap());
            symlink(kdc.krb5_conf(), dir.join("krb5.conf")).unwrap();
            body(&Realm { kdc, cache: dir.join("cache") });
        }
        None => run_in_a_child(name, set),
    }
}

fn run_in_a_child(name: &str, set: impl FnOnce(&mut Command, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    set(&mut command, dir.path());
    let mut child = command
        .args(["--exact", &format!("kerberos::{name}")])
        .env(DIR, dir.path())
        .env("KRB5_CONFIG", dir.path().join("krb5.conf"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The child ends with its standard input.
    let _stdin = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "in the child process:\n{text}");
    println!("{text}");
}

fn builder(servers: &str) -> SessionBuilder {
    Session::builder(servers).session_timeout(LONG).kerberos(KerberosConfig::new())
}

fn connect(servers: &str) -> Session {
    builder(servers).connect().unwrap()
}

fn assert_locks(session: &Session) {
    lock(session, &unique_dir("kerberos")).lock().unwrap().unlock().unwrap();
}

/// Returns the error from an attempt to connect. Asserts that the error comes in time.
#[track_caller]
fn connect_error(builder: SessionBuilder) -> LockError {
    let (wait, begun) = (scaled(Duration::from_secs(2)), Instant::now());
    let error = builder.wait_for_server(wait).connect().unwrap_err();
    assert!(begun.elapsed() < wait + deadline() / 6, "{:?}", begun.elapsed());
    error
}

#[test]
fn lock_is_held_and_handed_over_with_tickets_also_while_the_kdc_is_down() {
    in_a_realm("lock_is_held_and_handed_over_with_tickets_also_while_the_kdc_is_down", |realm| {
        let server = Server::published(&realm.options());
        let relay = Relay::to(server.connect_string());
        realm.log_in("app");
        let (holder, waiter) = (connect(&relay.connect_string()), connect(&server.connect_string()));
        let dir = unique_dir("kerberos-acl");
        let guard = lock(&holder, &dir).lock().unwrap();
        let user = Acl::new(Permissions::ALL, "sasl", "app@ZK.TEST");
        assert!(acl::get(&server.connect_string(), &dir).contains(&user));
        let stranger = BlockingWriteLock::new(&session(&server), &dir).unwrap();
        assert!(stranger.try_lock().unwrap_err().is_access_denied());
        let waiting = WriteLock::with_options(&waiter, &dir, acl_of_the_user(), ()).unwrap();
        assert!(!waiting.lock().unwrap());

        realm.kdc.stop().unwrap();
        let states = holder.subscribe();
        relay.cut();
        assert_eq!(states.recv_timeout(deadline()), Ok(SessionState::Suspended));
        assert_eq!(states.recv_timeout(deadline()), Ok(SessionState::Connected));
        assert!(guard.is_owner(), "{:?}", guard.loss());
        assert_locks(&connect(&server.connect_string()));
        guard.unlock().unwrap();
        eventually("the waiter owns the lock", || waiting.is_owner());
    });
}

#[test]
fn missing_ticket_is_an_error_in_time_and_a_later_one_is_used() {
    in_a_realm("missing_ticket_is_an_error_in_time_and_a_later_one_is_used", |realm| {
        let server = Server::published(&realm.options().require_sasl());
        let servers = server.connect_string();
        let assert_error = |cause: &str| {
            for replaces in [false, true] {
                let error = connect_error(builder(&servers).replace_lost_sessions(replaces));
                assert_eq!(error.reason(), ErrorReason::NoServer, "{error:?}");
                assert!(error.to_string().contains(cause), "{cause} is not in: {error}");
            }
        };
        assert_error("No Kerberos credentials available");

        realm.log_in("app");
        realm.kdc.stop().unwrap();
        assert_error("Cannot contact any KDC");
        realm.kdc.restart().unwrap();
        realm.kdc.pause().unwrap();
        assert_error("the KDC may not answer");
        thread::scope(|scope| {
            let connecting = scope.spawn(|| builder(&servers).wait_for_server(deadline()).connect());
            realm.kdc.resume();
            assert_locks(&connecting.join().unwrap().unwrap());
        });
    });
}

#[test]
fn client_uses_the_tickets_of_its_principal_only() {
    in_a_realm("client_uses_the_tickets_of_its_principal_only", |realm| {
        let server = Server::published(&realm.options().require_sasl());
        realm.log_in("app");
        let builder_for = |principal: &str| {
            builder(&server.connect_string()).kerberos(KerberosConfig::new().principal(principal))
        };
        assert_locks(&builder_for("app").connect().unwrap());
        let error = connect_error(builder_for("another"));
        assert_eq!(error.reason(), ErrorReason::NoServer, "{error:?}");
    });
}

#[test]
fn lock_outlives_its_ticket_but_not_the_connection() {
    in_a_realm("lock_outlives_its_ticket_but_not_the_connection", |realm| {
        let server = Server::published(&realm.options());
        let relay = Relay::to(server.connect_string());
        // Connect once before the ticket's life is limited, because the first exchange with a server is slow.
        realm.log_in("app");
        assert_locks(&connect(&server.connect_string()));
        realm.kdc.max_ticket_life("app", Duration::from_secs(4)).unwrap();
        realm.log_in("app");
        let timeout = scaled(Duration::from_secs(4));
        let builder = builder(&relay.connect_string()).session_timeout(timeout);
        let session = builder.replace_lost_sessions(true).connect().unwrap();
        let dir = unique_dir("kerberos-expiry");
        let guard = lock(&session, &dir).lock().unwrap();
        eventually("the ticket has expired", || !ticket_lives());
        assert_locks(&session);
        assert!(guard.is_owner(), "{:?}", guard.loss());

        relay.cut();
        assert_eq!(guard.lost().recv_timeout(deadline()), Ok(LossReason::LeaseExpired));
        // A connect request would renew the session, but the client sends none.
        Observer::at(&server).await_children(&dir, 0);
        let error = connect_error(self::builder(&server.connect_string()));
        assert!(error.to_string().contains("expired"), "{error}");

        realm.kdc.max_ticket_life("app", Duration::from_secs(600)).unwrap();
        realm.log_in("app");
        eventually("the session is replaced", || session.state() == SessionState::Connected);
        assert_locks(&session);
    });
}

fn ticket_lives() -> bool {
    Command::new("klist").arg("-s").status().unwrap().success()
}

#[test]
fn server_that_cannot_authenticate_is_left_for_another() {
    in_a_realm("server_that_cannot_authenticate_is_left_for_another", |realm| {
        realm.log_in("app");
        let keytab = realm.kdc.keytab("app").unwrap();
        let good = Server::published(&realm.options());
        let wrong_keytab =
            Server::published(&options().kerberos_as("zookeeper/127.0.0.1", &realm.kdc, keytab));
        let digest = Server::published(&options().sasl_users([("app", "secret")]));
        for other in [&wrong_keytab, &digest] {
            let servers = format!("{},{}", other.connect_string(), good.connect_string());
            for _ in 0..4 {
                assert_locks(&connect(&servers));
            }
        }
        let error = connect_error(builder(&wrong_keytab.connect_string()));
        assert_eq!(error.reason(), ErrorReason::CredentialsRefused, "{error:?}");
        let error = connect_error(builder(&digest.connect_string()));
        assert_eq!(error.reason(), ErrorReason::NoServer, "{error:?}");
        assert!(error.to_string().contains("a mechanism other than Kerberos"), "{error}");
        let with_password = Session::builder(good.connect_string()).sasl_digest("app", "secret");
        let error = connect_error(with_password);
        assert_eq!(error.reason(), ErrorReason::CredentialsRefused, "{error:?}");
        assert!(error.to_string().contains("mechanism"), "{error}");
    });
}

/// One server's principal differs from that of the others. Its ticket must be obtained in advance.
#[test]
fn rolling_restart_without_a_kdc_costs_no_lock() {
    in_a_realm("rolling_restart_without_a_kdc_costs_no_lock", |realm| {
        realm.log_in("app");
        let ensemble = Ensemble::published(3, &realm.options().require_sasl());
        let named = ensemble.node(2);
        rename(named, realm, "localhost");
        ensemble.await_quorum();
        let addresses = [ensemble.connect_string_of(0), ensemble.connect_string_of(1)];
        let servers = format!("{},localhost:{}", addresses.join(","), named.port());
        let builder = builder(&servers).session_timeout(Duration::from_secs(10));
        // Find a session that has not needed the ticket for the third server yet.
        let first = eventually_some("a session is on another server", || {
            realm.log_in("app");
            let session = builder.clone().connect().unwrap();
            (!realm.has_ticket("localhost")).then_some(session)
        });
        eventually("tickets are fetched", || {
            ["127.0.0.1", "localhost"].iter().all(|host| realm.has_ticket(host))
        });
        let sessions = [first, builder.clone().connect().unwrap(), builder.connect().unwrap()];
        let holders = sessions.map(|session| {
            let guard = lock(&session, &unique_dir("kerberos-rolling")).lock().unwrap();
            (session, guard)
        });
        realm.kdc.stop().unwrap();
        for index in 0..3 {
            ensemble.stop(index);
            ensemble.restart(index);
            ensemble.await_quorum();
            for (session, _) in &holders {
                eventually("the session is connected", || session.state() == SessionState::Connected);
            }
        }
        for (session, guard) in holders {
            assert!(guard.is_owner(), "{:?}", guard.loss());
            guard.unlock().unwrap();
            assert_locks(&session);
        }
    });
}

#[test]
fn tickets_that_a_client_keytab_fetches_ahead_serve_while_the_kdc_is_down() {
    in_a_realm_with_a_keytab(
        "tickets_that_a_client_keytab_fetches_ahead_serve_while_the_kdc_is_down",
        |realm| {
            let [first, other] = [0; 2].map(|_| Server::published(&realm.options().require_sasl()));
            // The session never needs the ticket for this name, because the name has no address.
            let name = "nowhere.invalid";
            rename(&other, realm, name);
            let servers = format!("{},{name}:2181", first.connect_string());
            let session = builder(&servers).session_timeout(Duration::from_secs(10)).connect().unwrap();
            let fetched = format!("for zookeeper/{name}@");
            eventually("the other ticket is fetched", || realm.kdc.log().contains(&fetched));
            realm.kdc.stop().unwrap();
            assert_locks(&session);
            assert_locks(&connect(&first.connect_string()));
            let other = Session::builder(other.connect_string()).kerberos(KerberosConfig::new().host(name));
            assert_locks(&other.connect().unwrap());
        },
    );
}

/// Restarts a server with a principal for another name of its host.
fn rename(server: &Server, realm: &Realm, host: &str) {
    let principal = format!("zookeeper/{host}");
    let keytab = realm.kdc.keytab(&principal).unwrap();
    let former = realm.kdc.keytab("zookeeper/127.0.0.1").unwrap();
    restart_with(server, |jaas| {
        let jaas = jaas.replace(former.to_str().unwrap(), keytab.to_str().unwrap());
        jaas.replace("zookeeper/127.0.0.1", &principal)
    });
}
