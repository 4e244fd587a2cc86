//! Tests of the bound on calls. Servers write more than they are sent, and cannot read what is longer than their
//! `jute.maxbuffer`. The servers here have a small buffer without the extra that they have by default.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;
#[cfg(feature = "tls")]
use rcgen::{CertificateParams, DnType, KeyPair};
#[cfg(feature = "tls")]
use zookeeper_connection::TlsConfig;
use zookeeper_connection::{
    Acl, Call, ClientEvent, ConnectString, Connection, ConnectionOptions, CreateMode, Credential, MaxBuffer,
    Op, Permissions, Transacted, Verbs, ZkError,
};
use zookeeper_recipes_lock::{BlockingWriteLock, ErrorReason, LockGuard, LockOptions, Session};

use crate::fixtures::{LONG, Observer, connect};
#[cfg(feature = "tls")]
use crate::support::certificates::{Authority, Files, Identity};
use crate::support::ensemble::Ensemble;
#[cfg(feature = "tls")]
use crate::support::server::ServerTls;
use crate::support::server::{Server, ServerOptions};
use crate::support::wait::{deadline, eventually, eventually_some};

const BUFFER: usize = 32 * 1024;

/// The bytes of a transaction beside its record: the header, the digest, and the number of operations.
const HEADERS: usize = 32 + 12 + 4;

/// The least extra that a server can be configured with.
const EXTRA: usize = 1024;

/// Returns the identities of a session: one as they usually are, and one as long as the name in a certificate may be.
fn identities() -> [String; 2] {
    ["user:secret".to_owned(), format!("{}:secret", "user".repeat(75))]
}

fn options() -> ServerOptions {
    let jvm_flags =
        vec![format!("-Djute.maxbuffer={BUFFER}"), format!("-Dzookeeper.jute.maxbuffer.extrasize={EXTRA}")];
    ServerOptions { jvm_flags, ..ServerOptions::default() }
}

fn credentials() -> Vec<Credential> {
    let credential = |auth: String| Credential { scheme: "digest".to_owned(), auth: auth.into() };
    identities().map(credential).into()
}

fn connection(server: &Server) -> Arc<Connection> {
    let servers = ConnectString::parse(&server.connect_string()).unwrap();
    let mut options = ConnectionOptions::new(LONG);
    options.credentials = credentials();
    options.jute_max_buffer = BUFFER;
    Connection::connect(&servers, &options, None).unwrap()
}

fn create(path: &str, acl: Vec<Acl>, mode: CreateMode) -> Op {
    Op::Create { path: path.to_owned(), data: Vec::new(), acl, mode }
}

/// Returns calls of several kinds. Each is made from a number, with which it grows.
fn growing_calls() -> [fn(usize) -> Call; 6] {
    [
        |count| {
            Call::multi(vec![create("/a/item-", Acl::creator_all(), CreateMode::PersistentSequential); count])
                .call
        },
        |count| {
            let creates = |number| create(&format!("/b-{number}"), Acl::open_unsafe(), CreateMode::Ephemeral);
            Call::multi((0..count).map(creates).collect::<Vec<_>>()).call
        },
        |count| Call::multi(vec![Op::Check { path: "/a".to_owned(), version: None }; count]).call,
        |count| {
            // A server removes duplicates.
            let entry = |number: usize| {
                let permissions = Permissions::from_bits((number % 31) as u8 + 1).unwrap();
                match number {
                    0..31 => Acl::new(permissions, "auth", ""),
                    _ => Acl::new(permissions, "digest", format!("user-{number}:\u{1f600}")),
                }
            };
            Call::create("/c", [], (0..count).map(entry).collect::<Vec<_>>(), CreateMode::Container).call
        },
        |count| Call::create("/d", vec![0; count], Acl::creator_all(), CreateMode::PersistentSequential).call,
        |count| Call::set_data("/a", vec![1; count], None).call,
    ]
}

/// Returns the longest call that is allowed, and the next one.
fn longest(bound: &MaxBuffer, grown: fn(usize) -> Call) -> (Call, Call) {
    let (mut allowed, mut refused) = (1, BUFFER);
    while refused - allowed > 1 {
        let middle = usize::midpoint(allowed, refused);
        let half = if bound.check(&grown(middle)).is_ok() { &mut allowed } else { &mut refused };
        *half = middle;
    }
    (grown(allowed), grown(refused))
}

/// Returns the lengths of the transactions of a session in a server's log, by the number of their request.
fn written(server: &Server, session: i64) -> Vec<(i32, usize)> {
    let logs = fs::read_dir(server.dir().join("data/version-2")).unwrap().map(|file| file.unwrap().path());
    let mut written = Vec::new();
    for log in logs.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("log.")) {
        let bytes = fs::read(log).unwrap();
        // The header of the file. Then each entry: a checksum, the length, the transaction and an end mark.
        let mut rest = &bytes[16..];
        while let Some((length, entry)) = rest.get(8..).and_then(<[u8]>::split_first_chunk::<4>) {
            let length = u32::from_be_bytes(*length) as usize;
            if length == 0 {
                break;
            }
            let transaction = &entry[..length];
            let number = |at: usize| i32::from_be_bytes(transaction[at..at + 4].try_into().unwrap());
            let (of, request, kind) = (transaction[..8].try_into().unwrap(), number(8), number(28));
            if i64::from_be_bytes(of) == session && kind > 0 {
                written.push((request, length));
            }
            rest = &entry[length + 1..];
        }
    }
    written.sort_unstable();
    written
}

#[test]
fn server_reads_the_longest_transactions_that_are_allowed_and_none_is_longer_than_its_bound() {
    let server = Server::with(options());
    let connection = connection(&server);
    connection.create("/a", b"", &Acl::open_unsafe(), CreateMode::Persistent).unwrap();
    let bound = credentials().iter().fold(MaxBuffer::new(BUFFER), MaxBuffer::with_credential);
    let mut bounds =
        vec![bound.bytes(&Call::create("/a", [], Acl::open_unsafe(), CreateMode::Persistent).call)];
    for grown in growing_calls() {
        let (allowed, refused) = longest(&bound, grown);
        bounds.push(bound.bytes(&allowed));
        let reply = connection.make(allowed.clone());
        let is_done = reply.as_ref().is_ok_and(|reply| {
            !matches!(reply, zookeeper_connection::Reply::Multi(Transacted::Failed { .. }))
        });
        assert!(is_done, "{allowed:?}: {:?}", reply.map(|_| "another reply"));
        let reply = connection.make(refused);
        assert!(matches!(reply, Err(ZkError::CallTooLong { .. })), "{reply:?}");
    }
    let written = written(&server, connection.session_id());
    let lengths: Vec<usize> = written.iter().map(|(_, length)| *length).collect();
    println!("at most {bounds:?}, written {lengths:?}");
    assert_eq!(lengths.len(), bounds.len());
    for (length, bytes) in lengths.into_iter().zip(bounds) {
        assert!(length <= bytes + HEADERS, "a transaction of {length} bytes, bound {bytes}");
        assert!(length < BUFFER && 3 * length > bytes, "a transaction of {length} bytes, bound {bytes}");
    }
    server.kill();
    server.restart();
    eventually("the session is served again", || connection.exists("/c", false).is_ok());
    assert_eq!(connection.get_data("/c", false).unwrap().0, b"");
}

/// A server makes an identity of the certificate. It writes out the names in it, and those of unknown kinds in
/// hexadecimal digits.
#[cfg(feature = "tls")]
#[test]
fn names_in_a_certificate_are_bounded_by_its_length() {
    let (authority, files) = (Authority::new(), Files::new());
    let mut params = CertificateParams::new(vec!["client".to_owned()]).unwrap();
    let unknown = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 32473, 1]);
    for (kind, name) in [(DnType::OrganizationName, "name, \"quoted\"; "), (unknown, "unknown ")] {
        params.distinguished_name.push(kind, name.repeat(60));
    }
    let key = KeyPair::generate().unwrap();
    let client = Identity { certificate: params.signed_by(&key, &authority.issuer).unwrap(), key };

    let identity = files.write_server_identity(&authority.issue(&["localhost"]));
    let tls = Some(ServerTls { identity, authorities: files.write_authority(&authority) });
    let server = Server::with(ServerOptions { tls, ..options() });
    let (certificate, key) = files.write_identity(&client);
    let tls =
        TlsConfig::new().ca_file(files.write_authority(&authority)).client_certificate(certificate, key);
    let mut options = ConnectionOptions::new(LONG);
    options.tls = Some(tls);
    options.jute_max_buffer = BUFFER;
    let servers = ConnectString::parse(&server.tls_connect_string()).unwrap();
    let connection = Connection::connect(&servers, &options, None).unwrap();

    // The connection counts the names in the certificate by itself.
    let make = |count| {
        let create = create("/item-", Acl::creator_all(), CreateMode::PersistentSequential);
        connection.make(Call::multi(vec![create; count]).call)
    };
    let is_allowed = |outcome: &Result<_, _>| !matches!(outcome, Err(ZkError::CallTooLong { .. }));
    let (count, outcome) =
        (1..1000).rev().map(|count| (count, make(count))).find(|(_, outcome)| is_allowed(outcome)).unwrap();
    assert!(outcome.is_ok() && count < 999, "{count}: {outcome:?}");
    let (_, length) = written(&server, connection.session_id())[0];
    let limit = BUFFER - 1024;
    println!("{count} creates, at most {limit}, written {length}");
    assert!(length <= limit + HEADERS && 5 * length > limit, "a transaction of {length} bytes");
}

/// Commits as many creates as are allowed, each of a sequential znode for all identities of the session.
fn commit_the_most(guard: &LockGuard, dir: &str) -> usize {
    for count in (1..1000).rev() {
        let path = format!("{dir}/item-");
        let committed = guard.commit(|changes| {
            (0..count).fold(changes, |changes, _| {
                changes.create_with(&path, "", &Acl::creator_all(), CreateMode::PersistentSequential)
            })
        });
        match committed {
            Ok(outcomes) => {
                assert_eq!(outcomes.len(), count);
                return count;
            }
            Err(error) => assert_eq!(error.reason(), ErrorReason::CallTooLong, "{count}: {error}"),
        }
    }
    panic!("no commit is allowed");
}

#[test]
fn ensemble_survives_the_longest_commit_of_an_owner_with_two_identities() {
    let ensemble = Ensemble::with(3, &options());
    let leader = ensemble.leader();
    let follower = (leader + 1) % 3;
    let mut builder = Session::builder(ensemble.connect_string_of(follower));
    for identity in identities() {
        builder = builder.auth("digest", identity);
    }
    let builder = builder.session_timeout(LONG).max_tick(Duration::from_millis(500));
    let session = builder.jute_max_buffer(BUFFER).connect().unwrap();
    let dir = "/commits";
    Observer::of(&ensemble.connect_string()).create_persistent(dir);
    let guard = BlockingWriteLock::new(&session, "/locks/commit").unwrap().lock().unwrap();
    let count = commit_the_most(&guard, dir);
    assert!(count > 40, "{count}");
    (0..3).for_each(|index| ensemble.kill(index));
    (0..3).for_each(|index| ensemble.restart(index));
    ensemble.await_quorum();
    for index in 0..3 {
        let names = eventually_some("the server serves", || {
            let other = Connection::open(&ensemble.connect_string_of(index), LONG).ok()?;
            other.get_children(dir, false).ok()
        });
        assert_eq!(names.len(), count);
    }
}

#[test]
fn data_and_acl_of_a_lock_are_bounded_by_the_setting() {
    let server = Server::with(options());
    let builder = Session::builder(server.connect_string()).session_timeout(LONG);
    let session = builder.jute_max_buffer(BUFFER).wait_for_server(deadline()).connect().unwrap();
    let lock = |options| BlockingWriteLock::with_options(&session, "/locks/a", options).unwrap().lock();
    let acl = vec![Acl::new(Permissions::ALL, "digest", "user:digest"); BUFFER / 20];
    for options in [LockOptions::new().data(vec![0; BUFFER]), LockOptions::new().acl(acl)] {
        let error = lock(options).unwrap_err();
        assert_eq!(error.reason(), ErrorReason::CallTooLong, "{error}");
        assert!(error.to_string().contains("SessionBuilder::jute_max_buffer"), "{error}");
    }
    lock(LockOptions::new().data(vec![0; BUFFER - 2048])).unwrap().unlock().unwrap();
}

/// A request that is longer than `jute.maxbuffer` would end each new connection, until the session expires.
#[test]
fn many_watches_are_set_again_on_servers_with_a_small_buffer() {
    const WATCHES: usize = 500;
    let server = Server::with(options());
    let connection = connection(&server);
    let (sender, events) = unbounded();
    connection.subscribe(Arc::new(move |event| drop(sender.send(event))));
    let path = |number: usize| format!("/a-znode-with-a-long-name-{number:0100}");
    for number in 0..WATCHES {
        connection.exists(&path(number), true).unwrap();
    }
    server.stop();
    server.restart();
    eventually("the session is served again", || connection.exists("/", false).is_ok());
    let other = connect(&server.connect_string(), LONG);
    let observer = Observer::at(&server);
    for number in [0, WATCHES - 1] {
        observer.create_persistent(&path(number));
        let fired = eventually_some("the watch fires", || {
            events.try_iter().find_map(|event| match event {
                ClientEvent::NodeChanged { path, .. } => Some(path),
                ClientEvent::SessionLost => panic!("the session is lost"),
                _ => None,
            })
        });
        assert_eq!(fired, path(number));
    }
    other.close();
}
