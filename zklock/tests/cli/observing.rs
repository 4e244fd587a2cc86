//! `zklock who` and `zklock leader`.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use serde_json::Value;
use zookeeper_recipes_lock::client::{Acl, CreateMode};
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::locks::{ReadWriteLock, Semaphore};
use zookeeper_recipes_lock::{LockListener, LockOptions, RetryPolicy, Session, WriteLock};

use crate::program::{Fixture, Piped, Program, command, run, zklock};
use crate::support::relay::Relay;
use crate::support::wait::{eventually, eventually_some};

fn options(data: &str) -> LockOptions {
    LockOptions::new().data(data)
}

/// A request of another client.
fn request(fixture: &Fixture, data: &str) -> WriteLock {
    let lock = WriteLock::with_options(&fixture.session, &fixture.dir, options(data), NoListener).unwrap();
    lock.lock().unwrap();
    lock
}

struct NoListener;

impl LockListener for NoListener {
    fn lock_acquired(&self) {}
    fn lock_released(&self) {}
}

/// Applies `read` to the JSON object of each line.
fn each(lines: &str, read: impl Fn(&Value) -> String) -> Vec<String> {
    lines.lines().map(|line| read(&serde_json::from_str(line).unwrap())).collect()
}

fn names(queue: &Value) -> String {
    let names = queue["queue"].as_array().unwrap().iter().map(|request| request["who"].as_str().unwrap());
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn queue_is_a_table() {
    let fixture = Fixture::new();
    let requests = [request(&fixture, "alice"), request(&fixture, "bob")];
    fixture.await_requests(2);
    let ended = fixture.zklock(&["who"]);
    ended.assert_succeeded();
    let lines: Vec<Vec<&str>> = ended.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["#", "STATE", "KIND", "WHO", "SESSION", "SINCE", "AGE", "ZNODE"]);
    assert_eq!(lines[1][..4], ["1", "owner", "exclusive", "alice"]);
    assert_eq!(lines[2][..4], ["2", "waiter", "exclusive", "bob"]);
    assert!(lines[1][4].starts_with("0x") && lines[1][5].ends_with('Z'), "{}", ended.out);
    assert!(requests[0].id().unwrap().ends_with(lines[1][7]), "{}", ended.out);
    let column = ended.out.lines().map(|line| line.find("alice").or(line.find("bob")).or(line.find("WHO")));
    let columns: Vec<_> = column.collect();
    assert!(columns.iter().all(|column| *column == columns[0]), "{}", ended.out);
}

#[test]
fn json_has_the_whole_queue() {
    let fixture = Fixture::new();
    let guard = fixture.hold();
    let persistent = fixture.create("x-late-lock-0000000007", b"quote \" and\nline", CreateMode::Persistent);
    let ended = fixture.zklock(&["who", "--json"]);
    ended.assert_succeeded();
    assert_eq!(ended.out.lines().count(), 1);
    let shown: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(shown["dir"], *fixture.dir);
    let [owner, waiter] = shown["queue"].as_array().unwrap().as_slice() else { panic!("{shown}") };
    assert_eq!((&owner["position"], &owner["state"]), (&1.into(), &"owner".into()));
    assert_eq!((&owner["path"], &owner["persistent"]), (&guard.id().into(), &false.into()));
    assert_eq!(owner["fencing_token"], guard.fencing_token().unwrap());
    assert!(owner["session"].as_str().unwrap().starts_with("0x"));
    assert_eq!((&waiter["position"], &waiter["state"]), (&2.into(), &"waiter".into()));
    assert_eq!((&waiter["path"], &waiter["session"]), (&persistent.into(), &Value::Null));
    assert_eq!(waiter["who"], "quote \" and\nline");
}

#[test]
fn readers_own_together() {
    let fixture = Fixture::new();
    let lock = ReadWriteLock::new(&fixture.session, &fixture.dir).unwrap();
    let _readers = [lock.read().unwrap(), lock.read().unwrap()];
    let ended = fixture.zklock(&["who", "--json"]);
    let shown: Value = serde_json::from_str(&ended.out).unwrap();
    for request in shown["queue"].as_array().unwrap() {
        assert_eq!((&request["state"], &request["kind"]), (&"owner".into(), &"read".into()), "{shown}");
    }
}

#[test]
fn permits_of_a_semaphore_are_in_its_leases() {
    let fixture = Fixture::new();
    let semaphore = Semaphore::new(&fixture.session, &fixture.dir, 2).unwrap();
    let _permits = [semaphore.acquire().unwrap(), semaphore.acquire().unwrap()];
    let leases = format!("{}/leases", fixture.dir);
    for args in [&["who"][..], &["leader"], &["revoke"], &["reap", "--older-than", "1d"]] {
        fixture.zklock(args).assert_failed(65, &format!("it is a semaphore: see {leases}"));
    }
    let shown = zklock(fixture.server, &["who", "--json", &leases]);
    let states = |shown: &Value| {
        let states = shown["queue"].as_array().unwrap().iter().map(|permit| permit["state"].to_string());
        states.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(each(&shown.out, states), ["\"owner\" \"unknown\""]);
    let doctor = zklock(fixture.server, &["doctor", &leases]);
    assert!(doctor.out.contains("permits held or waited for 2"), "{doctor:?}");
}

#[test]
fn free_lock_is_an_empty_queue() {
    let fixture = Fixture::new();
    fixture.create_dir();
    fixture.hold().unlock().unwrap();
    let ended = fixture.zklock(&["who"]);
    ended.assert_succeeded();
    assert_eq!(ended.out, format!("nobody holds {}, and nobody waits for it\n", fixture.dir));
    assert_eq!(names(&serde_json::from_str(&fixture.zklock(&["who", "--json"]).out).unwrap()), "");
}

#[test]
fn container_without_requests_is_a_free_lock() {
    let fixture = Fixture::new();
    // Servers keep a container that has never had a child.
    let container = CreateMode::Container;
    fixture.zookeeper().create(&fixture.dir, b"", &Acl::open_unsafe(), container).unwrap();
    fixture.zklock(&["who"]).assert_succeeded();
}

#[test]
fn what_is_no_lock_is_an_error() {
    let fixture = Fixture::new();
    for args in [&["who"][..], &["leader"], &["revoke"], &["reap", "--older-than", "1d"]] {
        fixture.zklock(args).assert_failed(66, "does not exist");
        zklock(fixture.server, &[args, &["relative"]].concat()).assert_failed(64, "invalid path 'relative'");
    }
    fixture.create("config", b"", CreateMode::Persistent);
    for args in [&["who"][..], &["leader"], &["revoke"], &["reap", "--older-than", "1d"]] {
        fixture.zklock(args).assert_failed(65, "is not a lock: its child is not a request");
    }
    let file = fixture.create("file", b"text", CreateMode::Persistent);
    zklock(fixture.server, &["who", &file]).assert_failed(65, "it has 4 bytes of data and no children");
}

#[test]
fn queue_is_shown_again_at_each_change() {
    let fixture = Fixture::new();
    let program = Program::start(fixture.server, &["who", "--watch", "--json", &fixture.dir]);
    program.line_with("\"queue\":[]");
    let alice = request(&fixture, "alice");
    program.line_with("alice");
    let bob = request(&fixture, "bob");
    program.line_with("bob");
    alice.unlock().unwrap();
    eventually_some("bob is alone", || {
        let seen = each(&complete(&program.out()), names);
        (seen.last().unwrap() == "bob").then_some(())
    });
    let seen = each(&complete(&program.out()), names);
    assert_eq!(seen, ["", "alice", "alice bob", "bob"]);
    drop(bob);
}

/// The output without an incomplete last line.
fn complete(out: &str) -> String {
    out.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect()
}

#[test]
fn leader_is_shown_by_its_data() {
    let fixture = Fixture::new();
    let alice = request(&fixture, "alice");
    let _bob = request(&fixture, "bob");
    let ended = fixture.zklock(&["leader"]);
    ended.assert_succeeded();
    assert_eq!(ended.out, "alice\n");
    let program = Program::start(fixture.server, &["leader", "--watch", &fixture.dir]);
    assert!(program.line_with("alice").ends_with("Z alice"));
    alice.unlock().unwrap();
    program.line_with("Z bob");
    assert_eq!(program.out().lines().count(), 2);
}

#[test]
fn leader_that_is_asked_to_step_down_leads_until_it_does() {
    let fixture = Fixture::new();
    let alice = request(&fixture, "alice");
    let _bob = request(&fixture, "bob");
    let program = Program::start(fixture.server, &["leader", "--watch", &fixture.dir]);
    program.line_with("Z alice");
    fixture.zklock(&["revoke"]).assert_succeeded();
    let shown: Value = serde_json::from_str(&fixture.zklock(&["who", "--json"]).out).unwrap();
    let asked = &shown["queue"][0];
    assert_eq!((&asked["who"], &asked["revocation_requested"]), (&Value::Null, &true.into()), "{shown}");
    let ended = fixture.zklock(&["leader"]);
    ended.assert_failed(1, "is asked to step down");
    assert_eq!(ended.out, "");
    let late = Program::start(fixture.server, &["leader", "--watch", &fixture.dir]);
    late.line_with("Z -");
    let shown: Value = serde_json::from_str(&fixture.zklock(&["leader", "--json"]).out).unwrap();
    let leader = &shown["leader"];
    assert_eq!((&leader["who"], &leader["revocation_requested"]), (&Value::Null, &true.into()), "{shown}");
    alice.unlock().unwrap();
    program.line_with("Z bob");
    assert_eq!(program.out().lines().count(), 2, "{}", program.out());
}

#[test]
fn data_of_the_leader_are_printed_as_they_are() {
    let fixture = Fixture::new();
    let data = format!("{{\"url\": \"http://a/{}\", 'b': \"\\u0007\"}}", "long".repeat(50));
    let request = request(&fixture, &data);
    assert_eq!(fixture.zklock(&["leader"]).out, format!("{data}\n"));
    let program = Program::start(fixture.server, &["leader", "--watch", "--json", &fixture.dir]);
    let shown: Value = serde_json::from_str(&program.line_with("http")).unwrap();
    assert_eq!(shown["leader"]["who"], *data);
    assert_eq!(shown["leader"]["path"], request.id().unwrap());
    request.unlock().unwrap();
    program.line_with("\"leader\":null");
    let _control = self::request(&fixture, "a\nb\x1b[2J");
    assert_eq!(fixture.zklock(&["leader"]).out, "a\\nb\\u{1b}[2J\n");
}

#[test]
fn watching_says_that_there_is_no_contact() {
    let fixture = Fixture::new();
    let _alice = request(&fixture, "alice");
    for subcommand in ["who", "leader"] {
        let relay = Relay::to(("127.0.0.1", fixture.server.port()));
        let args = [subcommand, "--watch", &fixture.dir];
        let program = Program::spawn(command(&relay.connect_string(), &args));
        program.line_with("alice");
        assert_eq!(program.err(), "", "{subcommand}");
        relay.refuse();
        eventually("the outage is reported", || program.err().contains("no contact with the servers"));
        relay.restore();
        eventually("its end is reported", || program.err().contains("the servers answer again"));
        assert_eq!(program.err().lines().count(), 2, "{}", program.err());
    }
}

#[test]
fn persistent_znode_of_no_known_kind_has_one_way_out() {
    let fixture = Fixture::new();
    let path = fixture.create("job0000000001", b"", CreateMode::Persistent);
    let _waits = fixture.create("x-waits-lock-0000000002", b"", CreateMode::Ephemeral);
    let way_out = format!("zkCli.sh -server HOST:PORT[/CHROOT] delete {path}");
    let who = fixture.zklock(&["who"]);
    who.assert_succeeded();
    assert!(who.out.contains(&way_out) && !who.out.contains("owner"), "{who:?}");
    let shown: Value = serde_json::from_str(&fixture.zklock(&["who", "--json"]).out).unwrap();
    assert_eq!(
        (&shown["queue"][0]["state"], &shown["queue"][1]["state"]),
        (&"unknown".into(), &"waiter".into())
    );
    fixture.zklock(&["revoke"]).assert_failed(65, &way_out);
    let reap = fixture.zklock(&["reap", "--older-than", "0s", "--yes"]);
    reap.assert_failed(0, &way_out);
    assert!(reap.out.starts_with("no persistent request of a known kind"), "{reap:?}");
    let doctor = fixture.zklock(&["doctor"]);
    assert!(doctor.code == 1 && doctor.out.contains(&way_out), "{doctor:?}");
    assert!(doctor.out.ends_with("1 warning\n"), "{doctor:?}");
    assert!(fixture.exists(&path));
}

#[test]
fn election_without_a_leader_is_1() {
    let fixture = Fixture::new();
    fixture.create_dir();
    fixture.hold().unlock().unwrap();
    fixture.zklock(&["leader"]).assert_failed(1, "nobody leads");
    let ended = fixture.zklock(&["leader", "--json"]);
    ended.assert_failed(1, "nobody leads");
    assert!(ended.out.contains("\"leader\":null"), "{ended:?}");
    let program = Program::start(fixture.server, &["leader", "--watch", &fixture.dir]);
    program.line_with("Z -");
}

// ---- closed pipes

#[test]
fn closed_pipe_ends_the_program_quietly() {
    let fixture = Fixture::new();
    let _guard = fixture.hold();
    let _persistent = fixture.create("x-late-lock-0000000007", b"", CreateMode::Persistent);
    for args in [
        &["who"][..],
        &["who", "--json"],
        &["leader"],
        &["doctor"],
        &["who", "--watch"],
        &["leader", "--watch"],
        &["reap", "--older-than", "0s"],
        &["revoke"],
    ] {
        let connect = fixture.server.connect_string();
        let mut program = Piped::spawn(command(&connect, &[args, &[&fixture.dir]].concat()));
        drop(program.0.stdout.take());
        let code = program.code();
        let mut err = String::new();
        program.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!((code, err.as_str()), (Some(141), ""), "{args:?}");
    }
}

#[test]
fn closed_pipe_is_noticed_while_nothing_changes() {
    let fixture = Fixture::new();
    let _guard = fixture.hold();
    for subcommand in ["who", "leader"] {
        let connect = fixture.server.connect_string();
        let mut program = Piped::spawn(command(&connect, &[subcommand, "--watch", &fixture.dir]));
        let mut line = String::new();
        BufReader::new(program.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(program.code(), Some(141), "{subcommand}");
    }
}

// ---- identities

#[test]
fn identity_comes_from_the_environment_or_a_file() {
    let fixture = Fixture::new();
    let connect = fixture.server.connect_string();
    let owner = Session::builder(&*connect).auth("digest", "user:secret").connect().unwrap();
    let zookeeper = RecoverableZooKeeper::new(&owner, RetryPolicy::constant(Duration::from_millis(100)));
    zookeeper
        .with_plain_data()
        .create(&fixture.dir, b"", &Acl::creator_all(), CreateMode::Persistent)
        .unwrap();
    fixture.zklock(&["who"]).assert_failed(77, "access denied");

    let mut with_environment = command(&connect, &["who", &fixture.dir]);
    with_environment.env("ZK_AUTH", "digest:user:secret");
    run(with_environment).assert_succeeded();
    fixture.zklock(&["who", "--auth", "digest:user:secret"]).assert_succeeded();

    let files = tempfile::TempDir::new().unwrap();
    let file = crate::program::file(files.path(), "auth", "# comment\ndigest:user:secret\n");
    fixture.zklock(&["who", "--auth-file", &file]).assert_succeeded();
    fixture.zklock(&["who", "--auth-file", "/nowhere"]).assert_failed(78, "/nowhere");
    let ended = fixture.zklock(&["who", "--auth", "secret"]);
    assert!(ended.code == 64 && ended.err.contains("SCHEME:CREDENTIAL"), "{ended:?}");
}
