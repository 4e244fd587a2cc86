//! Tests of the test kit. Without them, the success of the other tests would prove little.

use std::env;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::panic::catch_unwind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::client::{Acl, CreateMode, ZkResult};

use crate::raw_client::RawClient;
use crate::support::ensemble::Ensemble;
use crate::support::leaks::{assert_no_threads, threads_named};
use crate::support::net::listen;
use crate::support::relay::Relay;
use crate::support::server::{self, Server};
use crate::support::wait::{deadline, eventually, eventually_within, scaled};

// --- waits and leaks ---

#[test]
fn failed_wait_names_its_condition() {
    let limit = Duration::from_millis(20);
    let failure = catch_unwind(|| eventually_within(limit, "pigs fly", || false)).unwrap_err();
    let message = failure.downcast_ref::<String>().unwrap();
    assert!(message.contains("pigs fly"), "{message}");
}

#[test]
fn threads_are_found_by_the_first_fifteen_bytes_of_their_name() {
    let (stop, stopped) = crossbeam_channel::bounded::<()>(0);
    let thread = thread::Builder::new().name("kit-leak-with-a-long-name".to_owned());
    let thread = thread.spawn(move || stopped.recv()).unwrap();
    eventually("the thread has its name", || {
        threads_named("kit-leak-with-a-long-name") == ["kit-leak-with-a"]
    });
    drop(stop);
    assert_no_threads("kit-leak-");
    thread.join().unwrap().unwrap_err();
}

// --- one server ---

#[test]
fn server_serves_when_start_returns() {
    let server = server::shared();
    assert_eq!(server.four_letter("ruok"), "imok");
    assert!(server.four_letter("srvr").contains("Mode: standalone"));
    assert!(server.is_running());
}

#[test]
fn server_grants_session_timeouts_from_one_second_to_forty() {
    let configuration = server::shared().four_letter("conf");
    assert!(configuration.contains("minSessionTimeout=1000\n"), "{configuration}");
    assert!(configuration.contains("maxSessionTimeout=40000\n"), "{configuration}");
}

#[test]
fn paused_server_answers_again_after_resume() {
    let server = Server::start();
    let mut stream = TcpStream::connect(server.connect_string()).unwrap();
    stream.write_all(b"ru").unwrap();
    server.pause();
    assert!(server.is_running() && !server.is_awake());
    stream.write_all(b"ok").unwrap();
    assert_silent(&stream);

    server.resume();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "imok");
}

#[test]
fn server_restarts_on_the_same_data() {
    let server = Server::start();
    let paths = ["/stopped", "/killed", "/killed-while-paused"];
    for path in paths {
        put(&connect(&server.connect_string()), path).unwrap();
        match path {
            "/stopped" => server.stop(),
            "/killed" => server.kill(),
            _ => {
                server.pause();
                server.kill();
            }
        }
        assert!(!server.is_running());
        assert_eq!(refusal(&server.connect_string()), ErrorKind::ConnectionRefused);
        server.restart();
    }
    let client = connect(&server.connect_string());
    for path in paths {
        assert!(client.exists(path).unwrap().is_some(), "{path} must exist");
    }
}

#[test]
fn server_counts_its_sessions_and_watches() {
    let server = Server::start();
    assert_eq!((server.session_count(), server.watch_count()), (0, 0));
    let clients = [connect(&server.connect_string()), connect(&server.connect_string())];
    clients[0].watch("/").unwrap();
    // For a moment, a new connection has a second session, with which it finds out the server's tick.
    eventually("only these are left", || (server.session_count(), server.watch_count()) == (2, 1));
    drop(clients);
    eventually("sessions and watches are gone", || (server.session_count(), server.watch_count()) == (0, 0));
}

#[test]
fn dropped_server_leaves_neither_process_nor_data() {
    let server = Server::start();
    let remains = remains_of(&server);
    assert!(remains.iter().all(|path| Path::new(path).exists()));
    drop(server);
    assert_eq!(remains.map(|path| Path::new(&path).exists()), [false, false]);
}

/// Runs this test in another process, which starts servers and is then killed.
#[test]
fn no_server_outlives_a_killed_test_process() {
    const NAME: &str = "kit::no_server_outlives_a_killed_test_process";
    const CHILD: &str = "ZK_TEST_KIT_CHILD";
    if env::var_os(CHILD).is_some() {
        let own = Server::start();
        own.pause();
        for path in [remains_of(server::shared()), remains_of(&own)].concat() {
            println!("\nremains: {path}");
        }
        loop {
            thread::park();
        }
    }

    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let remains: Vec<_> =
        lines.filter_map(|line| Some(line.unwrap().strip_prefix("remains: ")?.to_owned())).take(4).collect();
    assert_eq!(remains.len(), 4);
    assert!(remains.iter().all(|path| Path::new(path).exists()), "{remains:?}");

    child.kill().unwrap();
    child.wait().unwrap();
    eventually("processes and data are gone", || remains.iter().all(|path| !Path::new(path).exists()));
}

// --- an ensemble ---

#[test]
fn ensemble_elects_another_leader_when_its_leader_is_killed() {
    let ensemble = Ensemble::start(3);
    let first = ensemble.leader();
    put(&connect(&ensemble.connect_string_of(first)), "/kept").unwrap();

    ensemble.kill(first);
    assert_ne!(ensemble.leader(), first);
    ensemble.restart(first);
    ensemble.await_quorum();
    let client = connect(&ensemble.connect_string_of(first));
    assert!(client.exists("/kept").unwrap().is_some());
}

#[test]
fn ensemble_does_not_serve_without_a_quorum() {
    let ensemble = Ensemble::start(3);
    let leader = ensemble.leader();
    for index in (0..3).filter(|&index| index != leader) {
        ensemble.pause(index);
    }
    eventually("the leader without a quorum gives up", || {
        ensemble.mode(leader).is_none() && !ensemble.node(leader).serves()
    });
    for index in (0..3).filter(|&index| index != leader) {
        ensemble.resume(index);
    }
    ensemble.await_quorum();
}

// --- the relay ---

#[test]
fn relay_forwards_bytes_and_ends_in_both_directions() {
    let relay = Relay::to(echo());
    let mut stream = TcpStream::connect(relay.connect_string()).unwrap();
    assert_echoes(&stream, "hello");
    assert_eq!(relay.connections(), 1);

    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    eventually("the connection is closed", || relay.connections() == 0);
}

#[test]
fn relay_accepts_new_connections_after_a_cut() {
    let relay = Relay::to(echo());
    let old = TcpStream::connect(relay.connect_string()).unwrap();
    assert_echoes(&old, "before");
    relay.cut();
    assert_closed(&old);
    assert_eq!(relay.connections(), 0);
    assert_echoes(&TcpStream::connect(relay.connect_string()).unwrap(), "after");
}

#[test]
fn refusing_relay_restores_the_same_port() {
    let relay = Relay::to(echo());
    let old = TcpStream::connect(relay.connect_string()).unwrap();
    assert_echoes(&old, "before");
    relay.refuse();
    assert_closed(&old);
    for _ in 0..100 {
        assert_eq!(refusal(&relay.connect_string()), ErrorKind::ConnectionRefused);
    }
    relay.restore();
    assert_echoes(&TcpStream::connect(relay.connect_string()).unwrap(), "after");
}

#[test]
fn relay_in_blackout_closes_connections_and_silences_new_ones() {
    let relay = Relay::to(echo());
    let old = TcpStream::connect(relay.connect_string()).unwrap();
    assert_echoes(&old, "before");
    relay.black_out();
    assert_closed(&old);
    let new = TcpStream::connect(relay.connect_string()).unwrap();
    (&new).write_all(b"new").unwrap();
    eventually("the relay holds the bytes", || relay.bytes_held() == 3);
    assert_silent(&new);
    relay.restore();
    assert_reads(&new, "new");
}

#[test]
fn swallowing_relay_delivers_after_restore() {
    let relay = Relay::to(echo());
    let old = TcpStream::connect(relay.connect_string()).unwrap();
    assert_echoes(&old, "before");

    relay.swallow();
    let new = TcpStream::connect(relay.connect_string()).unwrap();
    (&old).write_all(b"old").unwrap();
    (&new).write_all(b"new").unwrap();
    eventually("the relay holds both", || relay.bytes_held() == 6);
    assert_silent(&old);
    assert_silent(&new);

    relay.restore();
    assert_reads(&old, "old");
    assert_reads(&new, "new");
    assert_eq!(relay.bytes_held(), 0);
    assert_echoes(&old, "after");
}

#[test]
fn swallowing_relay_hides_the_loss_of_the_server() {
    let target = listen();
    let relay = Relay::to(target.local_addr().unwrap());
    let old = TcpStream::connect(relay.connect_string()).unwrap();
    let (accepted, _) = target.accept().unwrap();

    relay.swallow();
    drop((accepted, target));
    let new = TcpStream::connect(relay.connect_string()).unwrap();
    eventually("the relay has both", || relay.connections() == 2);
    assert_silent(&old);
    assert_silent(&new);

    relay.restore();
    assert_closed(&old);
    assert_closed(&new);
}

#[test]
fn relay_that_holds_replies_forwards_requests() {
    let server = Server::start();
    let relay = Relay::to(server.connect_string());
    let client = connect(&relay.connect_string());
    relay.hold_replies();
    let create = thread::spawn(move || put(&client, "/held"));
    let direct = connect(&server.connect_string());
    eventually("the znode exists", || direct.exists("/held").unwrap().is_some());
    eventually("the reply is held", || relay.bytes_held() > 0);
    assert!(!create.is_finished());

    relay.restore();
    assert_eq!(create.join().unwrap().unwrap(), "/held");
}

#[test]
fn held_reply_is_lost_by_a_cut() {
    let relay = Relay::to(echo());
    let stream = TcpStream::connect(relay.connect_string()).unwrap();
    relay.hold_replies();
    (&stream).write_all(b"lost").unwrap();
    eventually("the echo is held", || relay.bytes_held() == 4);

    relay.cut();
    assert_closed(&stream);
    assert_echoes(&TcpStream::connect(relay.connect_string()).unwrap(), "after");
}

#[test]
fn delaying_relay_delays_both_directions_and_leaves_no_thread() {
    let delay = Duration::from_millis(50);
    let relay = Relay::with_delay(echo(), delay);
    let mut stream = TcpStream::connect(relay.connect_string()).unwrap();
    let sent = Instant::now();
    assert_echoes(&stream, "hello");
    assert!(sent.elapsed() >= 2 * delay, "after {:?}", sent.elapsed());

    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    let threads = format!("relay-{}", relay.port());
    drop(relay);
    assert_no_threads(&threads);
}

#[test]
fn dropped_relay_leaves_no_thread() {
    let relay = Relay::to(echo());
    let streams = [(); 3].map(|()| TcpStream::connect(relay.connect_string()).unwrap());
    for stream in &streams {
        assert_echoes(stream, "hello");
    }
    relay.swallow();
    (&streams[0]).write_all(b"held").unwrap();
    let threads = format!("relay-{}", relay.port());
    assert_eq!(threads_named(&threads).len(), 7);
    drop(relay);
    assert_no_threads(&threads);
}

// --- helpers ---

/// Opens a client whose session ends when it is dropped.
fn connect(connect_string: &str) -> RawClient {
    let timeout = scaled(Duration::from_secs(10));
    RawClient::connect(connect_string, timeout)
}

fn put(client: &RawClient, path: &str) -> ZkResult<String> {
    client.create(path, b"", &Acl::open_unsafe(), CreateMode::Persistent)
}

/// Returns two paths that exist as long as the server does: one for its process, and its directory.
fn remains_of(server: &Server) -> [String; 2] {
    let process = format!("/proc/{}", server.pid().unwrap());
    [process, server.dir().to_str().unwrap().to_owned()]
}

/// Starts a server that echoes its input. A connection's thread ends with the connection; the accepting
/// thread ends with the process.
fn echo() -> SocketAddr {
    let listener = listen();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || io::copy(&mut &stream, &mut &stream));
        }
    });
    address
}

fn assert_echoes(mut stream: &TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
    assert_reads(stream, text);
}

fn assert_reads(mut stream: &TcpStream, text: &str) {
    stream.set_read_timeout(Some(deadline())).unwrap();
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, text.as_bytes());
}

/// Asserts that neither data nor the end of the stream arrives for a while.
fn assert_silent(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
}

fn assert_closed(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(deadline())).unwrap();
    match stream.read(&mut [0]) {
        Ok(n) => assert_eq!(n, 0),
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
    }
}

fn refusal(address: &str) -> ErrorKind {
    TcpStream::connect(address).unwrap_err().kind()
}
