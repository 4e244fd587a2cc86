//! Tests of connecting to servers that are not ready, that refuse, that serve only reads, or that are not
//! ZooKeeper servers.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::client::{Acl, Permissions};
use zookeeper_recipes_lock::queue::LockDirectory;
use zookeeper_recipes_lock::{
    BlockingWriteLock, CancelToken, ErrorKind, ErrorReason, LockError, LockOptions, Session, SessionBuilder,
    SessionState, Wait, WriteLock,
};

use crate::acl;
use crate::fixtures::{ErrorVariant, LONG, Observer, session, unique_dir};
use crate::support::ensemble::Ensemble;
use crate::support::net::{free_port, listen};
use crate::support::relay::Relay;
use crate::support::server::{self, Server, ServerOptions};
use crate::support::wait::{deadline, eventually, scaled};

/// Returns how long connecting to servers that do not serve may take.
fn limit() -> Duration {
    scaled(Duration::from_secs(2))
}

/// Returns the error from an attempt to connect. Asserts that the error comes in time and names each server.
#[track_caller]
fn connect_error(servers: &str) -> LockError {
    let begun = Instant::now();
    let error =
        Session::builder(servers).session_timeout(LONG).wait_for_server(limit()).connect().unwrap_err();
    assert!(begun.elapsed() < limit() + deadline() / 6, "{:?}", begun.elapsed());
    for server in servers.split(',') {
        assert!(error.to_string().contains(server), "{server} must be in: {error}");
    }
    error
}

fn assert_locks(session: &Session, test: &str) {
    let lock = BlockingWriteLock::new(session, &unique_dir(test)).unwrap();
    lock.lock().unwrap().unlock().unwrap();
}

// ---- a server that starts later

#[test]
fn session_connects_to_a_server_that_starts_later() {
    let server = Server::start();
    server.stop();
    let timeout = Duration::from_secs(2);
    thread::scope(|scope| {
        let connecting = [false, true].map(|replaces| {
            let builder = Session::builder(server.connect_string()).session_timeout(timeout);
            let builder = builder.replace_lost_sessions(replaces).wait_for_server(Wait::forever());
            scope.spawn(|| builder.connect())
        });
        thread::sleep(timeout * 5 / 4);
        assert!(connecting.iter().all(|thread| !thread.is_finished()), "no server is running yet");
        server.restart();
        for thread in connecting {
            // The session's first write was answered, but a session with such a short timeout may end soon.
            drop(thread.join().unwrap().unwrap());
        }
    });
}

#[test]
fn session_connects_to_an_ensemble_that_gets_its_quorum_later() {
    let ensemble = Ensemble::start(3);
    let leader = ensemble.leader();
    (0..3).filter(|&index| index != leader).for_each(|index| ensemble.stop(index));
    let builder = Session::builder(ensemble.connect_string()).session_timeout(Duration::from_secs(10));
    thread::scope(|scope| {
        let connecting = scope.spawn(|| builder.wait_for_server(4 * deadline()).connect());
        eventually("the leader gives up", || ensemble.mode(leader).is_none());
        (0..3).filter(|&index| index != leader).for_each(|index| ensemble.restart(index));
        assert_locks(&connecting.join().unwrap().unwrap(), "quorum-later");
    });
}

#[test]
fn cancelled_wait_for_a_server_is_an_error_that_names_it() {
    let servers = format!("127.0.0.1:{}", free_port());
    for replaces in [false, true] {
        let token = CancelToken::new();
        let builder = Session::builder(&*servers).replace_lost_sessions(replaces);
        let builder = builder.wait_for_server(Wait::forever().cancelled_by(&token));
        thread::scope(|scope| {
            let connecting = scope.spawn(|| builder.clone().connect());
            thread::sleep(Duration::from_millis(300));
            assert!(!connecting.is_finished());
            let begun = Instant::now();
            token.cancel();
            let error = connecting.join().unwrap().unwrap_err();
            assert!(begun.elapsed() < deadline() / 6, "{:?}", begun.elapsed());
            assert_eq!(error.reason(), ErrorReason::Cancelled, "{error}");
            assert!(error.to_string().contains(&servers), "{error}");
        });
        assert!(
            matches!(builder.connect(), Err(ref error) if error.reason() == ErrorReason::Cancelled),
            "later calls, too"
        );
    }
}

#[test]
fn wait_for_a_server_ends_at_its_deadline() {
    let servers = format!("127.0.0.1:{}", free_port());
    for wait in [Duration::ZERO, Duration::from_millis(700)] {
        let begun = Instant::now();
        let builder = Session::builder(&*servers).session_timeout(LONG).wait_for_server(wait);
        let error = builder.connect().unwrap_err();
        let elapsed = begun.elapsed();
        assert_eq!(error.reason(), ErrorReason::NoServer, "{error}");
        assert!(error.to_string().contains(&format!("within {wait:?}")), "{error}");
        assert!(elapsed >= wait && elapsed < wait + deadline() / 6, "{elapsed:?}");
    }
}

// ---- hosts without a server

#[test]
fn unknown_host_and_closed_port_are_named_with_their_causes() {
    let closed = format!("127.0.0.1:{}", free_port());
    let unknown = "no-such-host.invalid:2181";
    let error = connect_error(&format!("{closed},{unknown}"));
    assert_eq!(error.reason(), ErrorReason::NoServer, "{error:?}");
    let message = error.to_string();
    assert!(message.contains(&format!("{closed} (Connection refused")), "{message}");
    assert!(message.contains(&format!("{unknown} (failed to lookup")), "{message}");
}

/// On many machines, `localhost` has the addresses `127.0.0.1` and `::1`. The server listens only on the first.
#[test]
fn name_is_resolved_to_the_address_that_serves() {
    let servers = format!("localhost:{}", server::shared().port());
    for _ in 0..4 {
        let session = Session::connect(&servers, LONG).unwrap();
        assert_locks(&session, "localhost");
    }
}

// ---- no ZooKeeper servers

/// Starts a server that serves each connection on its own thread, until the test process ends.
fn odd_server(serve: fn(TcpStream) -> io::Result<()>) -> String {
    let listener = listen();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(stream));
        }
    });
    address
}

fn wait_for_the_end(mut stream: &TcpStream) -> io::Result<()> {
    while stream.read(&mut [0; 1024])? > 0 {}
    Ok(())
}

fn echo(stream: TcpStream) -> io::Result<()> {
    io::copy(&mut &stream, &mut &stream).map(drop)
}

fn send_and_wait(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)?;
    wait_for_the_end(stream)
}

fn end_after_the_request(mut stream: TcpStream) -> io::Result<()> {
    stream.read_exact(&mut [0; 49])
}

/// Closes the connection at once. The client may see a reset.
fn end_at_once(_: TcpStream) -> io::Result<()> {
    Ok(())
}

/// Opens a session that no other server knows, then sends a reply to no request.
fn reply_without_a_request(mut stream: TcpStream) -> io::Result<()> {
    stream.read_exact(&mut [0; 49])?;
    let accepted = [&37_i32.to_be_bytes()[..], &[0; 4], &30_000_i32.to_be_bytes(), &[7; 8]];
    stream.write_all(&[&accepted.concat()[..], &16_i32.to_be_bytes(), &[7; 16], &[0]].concat())?;
    let reply = [&16_i32.to_be_bytes()[..], &99_i32.to_be_bytes(), &[0; 8], &[0; 4]];
    send_and_wait(&stream, &reply.concat())
}

fn next_frame(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

/// Opens a session with the requested timeout, then replies only to pings.
fn reply_to_pings_alone(mut stream: TcpStream) -> io::Result<()> {
    let request = next_frame(&stream)?;
    let accepted = [&37_i32.to_be_bytes()[..], &[0; 4], &request[12..16], &[7; 8]];
    stream.write_all(&[&accepted.concat()[..], &16_i32.to_be_bytes(), &[7; 16], &[0]].concat())?;
    loop {
        let request = next_frame(&stream)?;
        if request[4..8] == 11_i32.to_be_bytes() {
            stream.write_all(&[&16_i32.to_be_bytes()[..], &request[..4], &[0; 12]].concat())?;
        }
    }
}

/// Returns the servers, each with a name and a part of the expected error.
fn odd_servers() -> [(&'static str, String, &'static str); 11] {
    let no_server = "is not a ZooKeeper server";
    [
        (
            "garbage",
            odd_server(|stream| send_and_wait(&stream, b"HTTP/1.1 400 Bad Request\r\n\r\n")),
            no_server,
        ),
        // Like a socket that has connected to itself.
        ("an echo", odd_server(echo), ""),
        ("silence", odd_server(|stream| wait_for_the_end(&stream)), "no answer"),
        ("an end", odd_server(end_after_the_request), "closed the connection"),
        ("an end at once", odd_server(end_at_once), ""),
        ("2 GiB", odd_server(|stream| send_and_wait(&stream, &[0x7f, 0xff, 0xff, 0xff, 0, 0])), no_server),
        ("a negative length", odd_server(|stream| send_and_wait(&stream, &[0xff; 8])), no_server),
        ("an empty frame", odd_server(|stream| send_and_wait(&stream, &[0; 4])), no_server),
        ("half an answer", odd_server(|stream| send_and_wait(&stream, &[0, 0, 0, 37, 0, 0])), "no answer"),
        ("a reply without a request", odd_server(reply_without_a_request), ""),
        ("replies to pings alone", odd_server(reply_to_pings_alone), "answered no call"),
    ]
}

/// Connects to a server that replies only to pings, and to one that serves. Returns how long that took.
fn time_to_connect(builder: SessionBuilder) -> Duration {
    let begun = Instant::now();
    let session = builder.connect().unwrap();
    let time = begun.elapsed();
    assert_eq!(session.server(), Some(server::shared().connect_string()));
    session.close();
    time
}

fn beside_one_that_replies_to_pings_alone(session_timeout: Duration) -> SessionBuilder {
    let servers = format!("{},{}", odd_server(reply_to_pings_alone), server::shared().connect_string());
    Session::builder(servers).session_timeout(session_timeout)
}

/// `CONNECTS` sets the number of connects; only with many of them, one in a hundred is more than the slowest.
#[test]
fn connecting_beside_a_server_that_answers_pings_only_takes_less_than_a_quarter_of_the_session_timeout() {
    let connects = std::env::var("CONNECTS").map_or(12, |text| text.parse().unwrap());
    let timeout = Duration::from_secs(10);
    let connect = |_| time_to_connect(beside_one_that_replies_to_pings_alone(timeout));
    let mut times: Vec<_> = (0..connects).map(connect).collect();
    times.sort_unstable();
    let slow = times[times.len() * 99 / 100];
    println!("{connects} connects, T = {timeout:?}: 99 % in {slow:?}, all in {:?}", times.last());
    assert!(slow < scaled(timeout / 4), "{times:?}");
}

#[test]
fn clones_of_a_builder_try_a_server_that_answers_pings_only_once() {
    let timeout = Duration::from_secs(6);
    let builder = beside_one_that_replies_to_pings_alone(timeout);
    let times: Vec<_> = (0..10).map(|_| time_to_connect(builder.clone())).collect();
    // The session leaves that server when the second ping is answered, and the call before it is not.
    assert!(times.iter().filter(|time| **time >= timeout / 6).count() <= 1, "{times:?}");
}

#[test]
fn server_that_is_none_is_an_error_in_time() {
    thread::scope(|scope| {
        for (case, address, cause) in odd_servers() {
            scope.spawn(move || {
                let error = connect_error(&address);
                println!("{case}: {error}");
                assert_eq!(error.reason(), ErrorReason::NoServer, "{case}: {error:?}");
                assert!(error.to_string().contains(cause), "{case}: {error}");
            });
        }
    });
}

#[test]
fn serving_server_is_found_beside_one_that_is_none() {
    let good = server::shared().connect_string();
    thread::scope(|scope| {
        for (case, address, _) in odd_servers() {
            let servers = format!("{address},{good}");
            scope.spawn(move || {
                for _ in 0..4 {
                    // The server that replies only to pings may come first several times in a row. The client
                    // leaves that server after a ping. The wait ends long before this limit.
                    let builder = Session::builder(&*servers).session_timeout(Duration::from_secs(10));
                    let session = builder.wait_for_server(4 * deadline()).connect();
                    let session = session.unwrap_or_else(|error| panic!("{case}: {error}"));
                    assert_locks(&session, "beside-none");
                }
            });
        }
    });
}

#[test]
fn serving_server_is_found_in_a_list_of_servers_that_reply_to_pings_alone() {
    let odd: Vec<String> = (0..3).map(|_| odd_server(reply_to_pings_alone)).collect();
    let servers = format!("{},{}", odd.join(","), server::shared().connect_string());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let builder = Session::builder(&*servers).session_timeout(Duration::from_secs(4));
                // The wait ends long before this limit.
                let session = builder.wait_for_server(4 * deadline()).connect().unwrap();
                assert_locks(&session, "pings-alone");
            });
        }
    });
}

// ---- credentials

#[test]
fn refused_credential_is_an_error_at_once() {
    let servers = server::shared().connect_string();
    for replaces in [false, true] {
        let builder = Session::builder(&*servers).replace_lost_sessions(replaces);
        let begun = Instant::now();
        let error = builder.auth("no-such-scheme", "ada:secret").connect().unwrap_err();
        assert!(begun.elapsed() < scaled(Duration::from_secs(5)), "{:?}", begun.elapsed());
        assert_eq!(error.reason(), ErrorReason::CredentialsRefused, "{error:?}");
        assert!(error.to_string().contains(&servers), "{error}");
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
}

/// Starts a server with additional configuration lines.
fn server_with(lines: &[&str]) -> Server {
    let config = lines.iter().map(|&line| line.to_owned()).collect();
    Server::with(ServerOptions { config, ..ServerOptions::default() })
}

#[test]
fn servers_that_demand_an_authentication_refuse_a_session_and_end_one_that_holds_a_lock() {
    let demand = "enforce.auth.enabled=true";
    let server = server_with(&["enforce.auth.enabled=false", "enforce.auth.schemes=digest"]);
    let timeout = Duration::from_secs(6);
    let holder = Session::builder(server.connect_string()).session_timeout(timeout).connect().unwrap();
    let dir = unique_dir("demand");
    let guard = BlockingWriteLock::new(&holder, &dir).unwrap().lock().unwrap();
    server.stop();
    server.reconfigure("enforce.auth.enabled=false", demand);
    server.restart();
    eventually("the session is lost", || holder.state() == SessionState::Lost);
    assert!(!guard.is_owner());
    for replaces in [false, true] {
        let builder = Session::builder(server.connect_string()).replace_lost_sessions(replaces);
        let error = builder.wait_for_server(Wait::forever()).connect().unwrap_err();
        assert_eq!(error.reason(), ErrorReason::CredentialsRefused, "{error:?}");
        assert!(error.to_string().contains("requires SASL authentication"), "{error}");
    }
    // The former holder must not have sent connect requests, because each would have renewed its session.
    let identified = Session::builder(server.connect_string()).auth("digest", "ada:secret");
    let next = identified.session_timeout(timeout).connect().unwrap();
    let lock = BlockingWriteLock::new(&next, &dir).unwrap();
    assert!(
        lock.try_lock_for(deadline()).unwrap().is_some(),
        "the znode of the former holder must have been deleted"
    );
}

#[test]
fn lock_is_held_where_the_server_refuses_a_second_connection() {
    let server = server_with(&["maxClientCnxns=1"]);
    let session = session(&server);
    let guard = BlockingWriteLock::new(&session, &unique_dir("one-connection")).unwrap().lock().unwrap();
    let error = connect_error(&server.connect_string()).to_string();
    assert!(error.contains("too many connections from this machine (maxClientCnxns)"), "{error}");
    assert!(guard.is_owner(), "{:?}", guard.loss());
}

#[test]
fn acl_of_a_lock_directory_holds_over_a_restart_of_the_server() {
    let server = Server::start();
    let as_ada = || Session::builder(server.connect_string()).auth("digest", "ada:secret").connect().unwrap();
    let (ours, stranger) = (as_ada(), session(&server));
    let dir = unique_dir("acl-restart");
    let lock = |session| {
        let options = LockOptions::new().acl(Acl::creator_all());
        BlockingWriteLock::with_options(session, &dir, options).unwrap()
    };
    let (lock_of_ours, lock_of_stranger) = (lock(&ours), BlockingWriteLock::new(&stranger, &dir).unwrap());
    let guard = lock_of_ours.lock().unwrap();
    assert!(lock_of_stranger.try_lock().unwrap_err().is_access_denied());
    let states = ours.subscribe();
    server.stop();
    assert_eq!(states.recv_timeout(deadline()), Ok(SessionState::Suspended));
    server.restart();
    assert_eq!(states.recv_timeout(deadline()), Ok(SessionState::Connected));
    assert!(guard.is_owner(), "{:?}", guard.loss());
    eventually("the stranger is connected", || stranger.state() == SessionState::Connected);
    assert!(lock_of_stranger.try_lock().unwrap_err().is_access_denied());
    guard.unlock().unwrap();
    lock_of_ours.lock().unwrap().unlock().unwrap();
    lock(&as_ada()).lock().unwrap().unlock().unwrap();
}

// ---- a chroot

#[test]
fn chroot_may_be_created_after_the_session() {
    let root = unique_dir("late-chroot");
    let session = Session::connect(&format!("{}{root}", server::shared().connect_string()), LONG).unwrap();
    let lock = BlockingWriteLock::new(&session, "/locks/a").unwrap();
    let error = lock.lock().unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NoChroot, "{error:?}");
    assert!(error.to_string().contains(&format!("the chroot '{root}' of the connect string")), "{error}");
    Observer::at(server::shared()).create_persistent(&root);
    lock.lock().unwrap().unlock().unwrap();
}

// ---- a server without a quorum that serves reads

/// Starts an ensemble of three servers that serve reads without a quorum.
fn ensemble_that_serves_reads(config: &[&str]) -> Ensemble {
    let options = ServerOptions {
        jvm_flags: vec!["-Dreadonlymode.enabled=true".to_owned()],
        config: config.iter().map(|&line| line.to_owned()).collect(),
        ..ServerOptions::default()
    };
    Ensemble::with(3, &options)
}

/// Stops all servers but the first, which then serves only reads.
fn leave_one(ensemble: &Ensemble) -> &Server {
    (1..3).for_each(|index| ensemble.stop(index));
    let left = ensemble.node(0);
    eventually("the server that is left serves reads only", || left.four_letter("isro") == "ro");
    left
}

/// Asserts that connecting is refused. It must not succeed on a server that would not answer a write.
fn assert_refuses(server: &Server) {
    let error = connect_error(&server.connect_string());
    assert_eq!(error.reason(), ErrorReason::NoServer, "{error:?}");
    assert!(error.to_string().contains("closed the connection"), "{error}");
}

#[test]
fn read_only_server_is_not_taken_for_a_serving_one() {
    let ensemble = ensemble_that_serves_reads(&[]);
    let timeout = Duration::from_secs(40);
    let session = Session::connect(&ensemble.connect_string(), timeout).unwrap();
    let lock = BlockingWriteLock::new(&session, &unique_dir("read-only")).unwrap();
    let guard = lock.lock().unwrap();
    assert_refuses(leave_one(&ensemble));
    assert_eq!(session.state(), SessionState::Suspended);
    assert!(guard.is_owner(), "the guard must own while its lease lasts");
    (1..3).for_each(|index| ensemble.restart(index));
    eventually("the session is connected", || session.state() == SessionState::Connected);
    assert!(guard.is_owner(), "{:?}", guard.loss());
    guard.unlock().unwrap();
    lock.lock().unwrap().unlock().unwrap();
}

/// With local sessions, a read-only server opens a session for a client that asks only for a session.
#[test]
fn read_only_server_with_local_sessions_is_not_taken_for_a_serving_one() {
    let ensemble =
        ensemble_that_serves_reads(&["localSessionsEnabled=true", "localSessionsUpgradingEnabled=true"]);
    let session = Session::connect(&ensemble.connect_string(), LONG).unwrap();
    assert_locks(&session, "local-sessions");
    assert_refuses(leave_one(&ensemble));
}

// ---- servers that check ACLs themselves

/// Such a server denies a write at once, ahead of the replies to earlier requests.
#[test]
fn deletion_that_a_server_denies_by_itself_costs_no_connection() {
    let options = ServerOptions {
        jvm_flags: vec!["-Dzookeeper.enableEagerACLCheck=true".to_owned()],
        ..ServerOptions::default()
    };
    let ensemble = Ensemble::with(3, &options);
    let session = Session::connect(&ensemble.connect_string(), Duration::from_secs(10)).unwrap();
    let (kept, denied) = (unique_dir("kept"), unique_dir("denied"));
    let lock = |dir: &str| BlockingWriteLock::new(&session, dir).unwrap().lock().unwrap();
    let (kept, guard) = (lock(&kept), lock(&denied));
    let observer = Observer::of(&ensemble.connect_string());
    let set_acl = |entries: &[Acl]| acl::set(&ensemble.connect_string(), &denied, entries);
    let all_but_delete = Permissions::READ | Permissions::CREATE | Permissions::ADMIN;
    set_acl(&[Acl::new(all_but_delete, "world", "anyone")]);
    let states = session.subscribe();
    let (stop, begun) = (AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        // These threads ensure that replies are outstanding at all times.
        for _ in 0..4 {
            scope.spawn(|| {
                let busy = BlockingWriteLock::new(&session, &unique_dir("busy")).unwrap();
                while !stop.load(Ordering::Relaxed) && begun.elapsed() < 3 * deadline() {
                    busy.lock().unwrap().unlock().unwrap();
                }
            });
        }
        let outcome = guard.unlock();
        observer.await_children(&denied, 1);
        set_acl(&Acl::open_unsafe());
        observer.await_children(&denied, 0);
        stop.store(true, Ordering::Relaxed);
        assert!(outcome.as_ref().is_err_and(LockError::is_access_denied), "{outcome:?}");
    });
    assert!(states.is_empty(), "{:?}", states.try_iter().collect::<Vec<_>>());
    assert!(kept.is_owner(), "{:?}", kept.loss());
}

// ---- the bound on a session's znodes

/// The transaction that ends a session names the session's ephemeral znodes. If the transaction is longer
/// than servers can read, they exit and cannot restart. The buffer is small here, so a few hundred requests
/// are enough.
#[test]
fn server_survives_the_end_of_a_session_with_as_many_requests_as_that_may_have() {
    const BUFFER: usize = 20_000;
    for expires in [false, true] {
        let jvm_flags = vec![format!("-Djute.maxbuffer={BUFFER}")];
        let server = Server::with(ServerOptions { jvm_flags, ..ServerOptions::default() });
        let relay = Relay::to(server.connect_string());
        let builder = Session::builder(relay.connect_string()).jute_max_buffer(BUFFER);
        let builder = builder.session_timeout(Duration::from_secs(10));
        let many = builder.max_tick(Duration::from_millis(500)).connect().unwrap();
        let dir = unique_dir("full");
        let (mut locks, mut refused) = (Vec::new(), 0);
        for _ in 0..900 {
            let lock = WriteLock::new(&many, &dir).unwrap();
            match lock.lock() {
                Ok(_) => locks.push(lock),
                Err(error) if error.reason() == ErrorReason::SessionFull => {
                    assert_eq!(error.kind(), ErrorKind::Retry);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        let bytes: usize = locks.iter().map(|lock| lock.id().unwrap().len() + 4).sum();
        assert!(
            refused > 100 && bytes < BUFFER && bytes > BUFFER * 3 / 4,
            "{refused} refused, {bytes} bytes"
        );
        assert!(locks[0].is_owner(), "the session must survive");
        drop(locks.pop());
        let next = WriteLock::new(&many, &dir).unwrap();
        eventually("there is room again", || next.lock().is_ok());
        if expires {
            relay.refuse();
        } else {
            many.close();
        }
        let other = session(&server);
        let directory = LockDirectory::new(&other, &dir).unwrap();
        eventually("the session has ended", || directory.contenders().unwrap().is_empty());
        server.stop();
        server.restart();
        eventually("the server serves again", || other.state() == SessionState::Connected);
        assert_locks(&other, "after-full");
    }
}

#[test]
fn jute_max_buffer_that_no_server_works_with_is_refused() {
    let error = Session::builder("localhost:1").jute_max_buffer(0).check().unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("4096"), "{error}");
}
