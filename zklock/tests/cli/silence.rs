//! Servers that fall silent: signals and `--timeout` end every wait for them.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use zookeeper_recipes_lock::client::CreateMode;

use crate::program::{Ended, Fixture, Program, command, is_alive};
use crate::support::relay::{Relay, Request};
use crate::support::wait::{eventually, scaled};

const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const GET_CHILDREN: i32 = 8;
const MULTI: i32 = 14;
const CREATE_WITH_STAT: i32 = 15;

/// Without a signal, a silent server is waited for at least two fifths of this: 16 s.
const SESSION_TIMEOUT: &str = "40s";
/// A signal ends each wait in less time.
const PROMPT: Duration = Duration::from_secs(5);
/// By how much `--timeout` may be missed.
const LATE: Duration = Duration::from_millis(500);
const WAITING: &str = "echo pid $$; read line; exit 3";
const LEFT: &str = "no server has answered in time, so the request may stay in ";

impl Fixture {
    fn relay(&self) -> Relay {
        Relay::to(("127.0.0.1", self.server.port()))
    }

    /// Starts `zklock run` or `zklock once` behind a relay.
    fn through(&self, relay: &Relay, args: &[&str], script: &str) -> Program {
        let options = ["--max-tick", "500ms", "--session-timeout", SESSION_TIMEOUT];
        let args = [&args[..1], &options, &args[1..], &[&self.dir, "--", "sh", "-c", script]].concat();
        Program::spawn(command(&relay.connect_string(), &args))
    }
}

/// Sends a signal, and waits until the program has ended.
fn end_by(signal: Signal, program: Program) -> Ended {
    let begun = Instant::now();
    program.signal(signal);
    let ended = program.end();
    assert!(begun.elapsed() < PROMPT, "{:?}: {ended:?}", begun.elapsed());
    ended
}

#[test]
fn signal_after_the_command_ends_the_release_and_the_code_stays() {
    for args in [&["run"][..], &["run", "--permits", "2"], &["once", "--key", "a"]] {
        let fixture = Fixture::new();
        let relay = fixture.relay();
        let mut program = fixture.through(&relay, args, WAITING);
        let pid = program.line_with("pid");
        relay.swallow();
        program.close_input();
        eventually("the command has ended", || !is_alive(&pid));
        let ended = end_by(Signal::TERM, program);
        assert_eq!(ended.code, 3, "{args:?}: {ended:?}");
        if args[0] == "run" {
            assert!(ended.err.contains(LEFT) && ended.err.contains("about 40s"), "{args:?}: {ended:?}");
        }
    }
}

#[test]
fn signal_that_ends_the_command_limits_the_release_as_well() {
    let fixture = Fixture::new();
    for args in [&["run"][..], &["once", "--key", "a", "--keep", "1d"]] {
        let relay = fixture.relay();
        let program = fixture.through(&relay, args, "echo pid $$; exec sleep 1000");
        program.line_with("pid");
        relay.swallow();
        assert_eq!(end_by(Signal::TERM, program).code, 143, "{args:?}");
    }
}

/// A signal that comes with the end of the command must not keep the lock from being released.
#[test]
fn signal_leaves_a_server_that_answers_the_time_to_release_the_lock() {
    let fixture = Fixture::new();
    let relay = Relay::with_delay(("127.0.0.1", fixture.server.port()), Duration::from_millis(100));
    let program = fixture.through(
        &relay,
        &["run"],
        "trap 'exit 3' TERM INT; echo pid $$; while :; do sleep 0.01; done",
    );
    program.line_with("pid");
    program.signal(Signal::TERM);
    program.signal(Signal::INT);
    let ended = program.end();
    assert_eq!((ended.code, ended.err.contains(LEFT)), (3, false), "{ended:?}");
    fixture.await_requests(0);
}

#[test]
fn signal_ends_each_wait_before_the_command() {
    let fixture = Fixture::new();
    fixture.create_dir();
    fixture.create("a", b"", CreateMode::Persistent);
    let inside = [("ZKLOCK_PATH", format!("{}/x-0b2e-lock-0000000001", fixture.dir))];
    let key = format!("{}/a", fixture.dir);
    for (args, operation, path) in [
        (&["run"][..], EXISTS, &inside[0].1),
        (&["run"], CREATE_WITH_STAT, &fixture.dir),
        (&["once", "--key", "a"], GET_DATA, &key),
        (&["once", "--key", "a"], CREATE_WITH_STAT, &key),
        (&["once", "--key", "a"], MULTI, &key),
    ] {
        let relay = fixture.relay();
        relay.swallow_from(Request { operation, path: path.clone() });
        let options = ["--max-tick", "500ms", "--session-timeout", SESSION_TIMEOUT];
        let args = [&args[..1], &options, &args[1..], &[&fixture.dir, "--", "echo", "mine"]].concat();
        let mut started = command(&relay.connect_string(), &args);
        if operation == EXISTS {
            started.envs(inside.clone());
        }
        let mut program = Program::spawn(started);
        eventually("the request is swallowed", || relay.bytes_held() > 0 || !program.is_running());
        assert!(program.is_running(), "{operation} {args:?}: {}", program.err());
        let ended = end_by(Signal::TERM, program);
        assert_eq!((ended.code, ended.out.as_str()), (143, ""), "{operation} {args:?}: {ended:?}");
    }
}

/// The command has succeeded, but its key may not be marked.
#[test]
fn signal_ends_the_wait_for_the_mark_of_a_success() {
    let fixture = Fixture::new();
    let relay = fixture.relay();
    let mut program =
        fixture.through(&relay, &["once", "--key", "a", "--until-success"], "echo pid $$; read line; true");
    let pid = program.line_with("pid");
    relay.swallow();
    program.close_input();
    eventually("the command has ended", || !is_alive(&pid));
    let ended = end_by(Signal::TERM, program);
    assert_eq!(ended.code, 69, "{ended:?}");
}

#[test]
fn timeout_holds_while_servers_are_silent() {
    let timeout = Duration::from_secs(2);
    // From the start, before the queue is entered, and in the queue.
    for stage in ["connecting", "joining", "waiting"] {
        let fixture = Fixture::new();
        fixture.create_dir();
        let guard = fixture.hold();
        let relay = fixture.relay();
        match stage {
            "connecting" => relay.swallow(),
            "joining" => relay.swallow_from(Request { operation: GET_CHILDREN, path: fixture.dir.clone() }),
            _ => {}
        }
        let begun = Instant::now();
        let program = fixture.through(&relay, &["run", "--timeout", "2s"], "echo mine");
        if stage == "waiting" {
            fixture.await_requests(2);
            relay.swallow();
        }
        let ended = program.end();
        let took = begun.elapsed();
        assert_eq!(ended.code, if stage == "connecting" { 69 } else { 75 }, "{stage}: {ended:?}");
        assert!(took >= timeout && took < timeout + scaled(LATE), "{stage}: {took:?}: {ended:?}");
        if stage == "waiting" {
            assert!(ended.err.contains(LEFT), "{ended:?}");
        }
        println!("{stage}: {took:?}");
        assert!(guard.is_owner());
    }
}

/// A wait for itself is found out by a look at the servers.
#[test]
fn timeout_holds_while_a_silent_server_is_asked_about_an_outer_program() {
    let fixture = Fixture::new();
    fixture.create_dir();
    let relay = fixture.relay();
    let outer = format!("{}/x-0b2e-lock-0000000001", fixture.dir);
    relay.swallow_from(Request { operation: EXISTS, path: outer.clone() });
    let args = ["run", "--max-tick", "500ms", "--session-timeout", SESSION_TIMEOUT, "--timeout", "2s"];
    let mut program = command(&relay.connect_string(), &[&args[..], &[&fixture.dir, "true"]].concat());
    program.env("ZKLOCK_PATH", outer);
    let begun = Instant::now();
    let ended = Program::spawn(program).end();
    assert_eq!(ended.code, 75, "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(2) + scaled(LATE), "{:?}", begun.elapsed());
}

/// Without a signal, a lock that was held is released once the server answers again.
#[test]
fn release_waits_for_a_server_that_is_silent_for_a_while() {
    let fixture = Fixture::new();
    let relay = fixture.relay();
    let mut program = fixture.through(&relay, &["run"], WAITING);
    let pid = program.line_with("pid");
    relay.swallow();
    program.close_input();
    eventually("the command has ended", || !is_alive(&pid));
    // Longer than after a signal.
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        assert!(program.is_running(), "{}", program.err());
        thread::sleep(Duration::from_millis(50));
    }
    relay.restore();
    let ended = program.end();
    assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{ended:?}");
    fixture.await_requests(0);
}
