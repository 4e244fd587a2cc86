//! `zklock run`.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use zookeeper_recipes_lock::client::CreateMode;
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::locks::Semaphore;
use zookeeper_recipes_lock::queue::LockDirectory;
use zookeeper_recipes_lock::recipe::LockKind;
use zookeeper_recipes_lock::{BlockingWriteLock, RetryPolicy};

use crate::program::{Ended, Fixture, Program, command, file, is_alive, run, zklock};
use crate::support::relay::Relay;
use crate::support::server::{Server, ServerOptions};
use crate::support::wait::{deadline, eventually, eventually_some};

/// A script that reads its input to the end.
const WAITING: &str = "echo pid $$; cat >/dev/null";
/// A script that only SIGKILL ends.
const STUBBORN: &str = "trap '' TERM; echo pid $$; while :; do sleep 0.05; done";

// ---- the command

#[test]
fn command_finds_its_znode_and_its_token_and_its_code_is_passed_on() {
    let fixture = Fixture::new();
    let ended = fixture.run(&[], "echo $ZKLOCK_PATH $ZKLOCK_FENCING_TOKEN; exit 3").end();
    assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{ended:?}");
    let (path, token) = ended.out.trim().split_once(' ').unwrap();
    assert!(path.starts_with(&format!("{}/x-", fixture.dir)), "{path}");
    assert!(token.parse::<i64>().unwrap() > 0, "{token}");
    fixture.await_requests(0);
}

#[test]
fn command_that_excludes_no_other_has_no_token() {
    for options in [&["--shared"][..], &["--permits", "2"]] {
        let fixture = Fixture::new();
        let mut command = command(&fixture.server.connect_string(), &fixture.run_args(options, "env"));
        command.env("ZKLOCK_FENCING_TOKEN", "7");
        let ended = Program::spawn(command).end();
        ended.assert_succeeded();
        assert!(
            ended.out.contains("ZKLOCK_PATH=") && !ended.out.contains("FENCING"),
            "{options:?}: {ended:?}"
        );
    }
}

#[test]
fn naming_is_that_of_the_chosen_library() {
    // The name of the scheme, and what precedes and follows the GUID.
    let schemes = [
        ("recipe", "x-", "-lock-"),
        ("curator", "_c_", "-lock-"),
        ("curator-latch", "_c_", "-latch-"),
        ("kazoo", "", "__lock__"),
    ];
    for (naming, start, middle) in schemes {
        let fixture = Fixture::new();
        let program = fixture.run(&["--naming", naming], "echo path $ZKLOCK_PATH; cat >/dev/null");
        let path = program.line_with("path").replace("path ", "");
        let name = path.strip_prefix(&format!("{}/", fixture.dir)).unwrap();
        assert!(name.starts_with(start) && name.contains(middle), "{naming}: {name}");
        let owner = fixture.directory().current_owner().unwrap().unwrap();
        assert_eq!((owner.path, owner.kind), (path, LockKind::Exclusive), "{naming}");
        fixture.zklock(&["leader"]).assert_succeeded();
    }
}

#[test]
fn request_that_does_not_count_ours_is_a_warning_once() {
    let fixture = Fixture::new();
    let kazoo = |number| format!("5f0a5bd197a14c3c9b2ea7a4ab4c1ac9__lock__00000000{number}");
    // The first foreign request comes while the command runs. The second is there before the command starts.
    let mut program = fixture.run(&[], WAITING);
    program.line_with("pid");
    fixture.create(&kazoo(77), b"", CreateMode::Ephemeral);
    program.close_input();
    let ended = program.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.assert_warned_of(&kazoo(77));
    fixture.create(&kazoo(88), b"", CreateMode::Ephemeral);
    fixture.zookeeper().delete(&format!("{}/{}", fixture.dir, kazoo(77)), None).unwrap();
    let mut program = fixture.run(&[], WAITING);
    eventually("the warning comes at once", || program.err().contains(&kazoo(88)));
    program.close_input();
    program.end().assert_warned_of(&kazoo(88));
    fixture.run(&["--naming", "kazoo", "--try"], "true").end().assert_succeeded();
}

impl Ended {
    fn assert_warned_of(&self, name: &str) {
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        assert!(self.err.contains(name) && self.err.contains("use --naming kazoo"), "{self:?}");
    }
}

/// The options of commands that do not exclude each other, in both orders.
const MIXTURES: [(&[&str], &[&str]); 4] = [
    (&[], &["--permits", "1"]),
    (&["--permits", "2", "--try"], &[]),
    (&["--shared"], &["--permits", "1", "--try"]),
    (&["--permits", "1"], &["--shared", "--timeout", "30s"]),
];

#[test]
fn lock_and_semaphore_on_one_path_are_refused() {
    for (first, second) in MIXTURES {
        let fixture = Fixture::new();
        let mut running = fixture.run(first, WAITING);
        running.line_with("pid");
        let refused = fixture.run(second, "echo ran").end();
        refused.assert_failed(65, "do not exclude each other, so both may own at once");
        let theirs = if first.contains(&"--permits") { "a semaphore" } else { "a lock" };
        assert!(refused.err.contains(&format!("{} is in use as {theirs}: ", fixture.dir)), "{refused:?}");
        assert!(refused.err.contains("session 0x") && refused.out.is_empty(), "{refused:?}");
        // What was there first is not disturbed.
        running.close_input();
        running.end().assert_succeeded();
        // Nothing of the refused command is left, and what was there has gone.
        let again = fixture.run(second, "echo ran").end();
        assert_eq!((again.code, again.out.as_str()), (0, "ran\n"), "{again:?}");
    }
}

/// The request of the other kind comes while the program waits, as it may if both begin at once.
#[test]
fn lock_that_is_acquired_beside_a_permit_is_given_up_before_the_command() {
    let fixture = Fixture::new();
    let held = fixture.hold();
    let waiting = fixture.run(&[], "echo ran");
    fixture.await_requests(2);
    let semaphore = Semaphore::new(&fixture.session, &fixture.dir, 1).unwrap();
    let permit = semaphore.try_acquire().unwrap().unwrap();
    // Who comes now does not wait for the lock first.
    let late = fixture.run(&[], "echo ran").end();
    assert_eq!((late.code, late.out.as_str()), (65, ""), "{late:?}");
    held.unlock().unwrap();
    let ended = waiting.end();
    assert_eq!((ended.code, ended.out.as_str()), (65, ""), "{ended:?}");
    assert!(ended.err.contains("is in use as a semaphore: permit "), "{ended:?}");
    fixture.await_requests(0);
    drop(permit);
}

#[test]
fn semaphore_that_nobody_uses_or_that_comes_later_is_a_warning_once() {
    let fixture = Fixture::new();
    for name in ["leases", "locks"] {
        fixture.create(name, b"", CreateMode::Persistent);
    }
    let begin = "zklock: a semaphore (leases) and a lock (x-";
    let idle = fixture.run(&[], "echo ran").end();
    assert_eq!((idle.code, idle.out.as_str()), (0, "ran\n"), "{idle:?}");
    assert!(idle.err.starts_with(begin) && idle.err.lines().count() == 1, "{idle:?}");

    let fixture = Fixture::new();
    let mut program = fixture.run(&[], WAITING);
    program.line_with("pid");
    let permit = Semaphore::new(&fixture.session, &fixture.dir, 1).unwrap().acquire().unwrap();
    let who = fixture.zklock(&["who"]);
    who.assert_succeeded();
    let warning = "a semaphore (leases) and a lock (x-";
    assert!(who.out.lines().last().is_some_and(|last| last.starts_with(warning)), "{who:?}");
    assert!(fixture.zklock(&["doctor"]).out.contains(&format!("{}: {warning}", fixture.dir)));
    program.close_input();
    let ended = program.end();
    assert_eq!((ended.code, ended.err.lines().count()), (0, 1), "{ended:?}");
    assert!(ended.err.contains("is in use as a semaphore: permit "), "{ended:?}");
    drop(permit);
}

#[test]
fn locks_and_semaphores_in_parents_and_children_are_no_mixture() {
    let fixture = Fixture::new();
    let dirs = ["", "/leases", "/a", "/a/locks"].map(|end| format!("{}{end}", fixture.dir));
    let _held =
        dirs.clone().map(|dir| BlockingWriteLock::new(&fixture.session, &dir).unwrap().lock().unwrap());
    let _permit = Semaphore::new(&fixture.session, &format!("{}/pool", fixture.dir), 1).unwrap().acquire();
    for dir in [format!("{}/b", fixture.dir), format!("{}/pool/c", fixture.dir)] {
        zklock(fixture.server, &["run", &dir, "--", "true"]).assert_succeeded();
        zklock(fixture.server, &["run", "--permits", "2", &format!("{dir}/d"), "--", "true"])
            .assert_succeeded();
    }
    for dir in dirs {
        zklock(fixture.server, &["run", "--try", &dir, "--", "true"]).assert_failed(75, "is held");
    }
}

#[test]
fn signal_that_ends_the_command_is_its_code() {
    let fixture = Fixture::new();
    assert_eq!(fixture.run(&[], "kill -KILL $$").end().code, 137);
    assert_eq!(fixture.run(&[], "kill -TERM $$").end().code, 143);
}

#[test]
fn unknown_command_is_127_and_leaves_no_request() {
    let fixture = Fixture::new();
    let ended = zklock(fixture.server, &["run", &fixture.dir, "--", "no-such-command", "-x"]);
    ended.assert_failed(127, "no-such-command: ");
    fixture.await_requests(0);
}

#[test]
fn command_without_permission_is_126() {
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let script = files.path().join("script");
    fs::write(&script, "true").unwrap();
    let script = script.to_str().unwrap();
    zklock(fixture.server, &["run", &fixture.dir, "--", script]).assert_failed(126, script);
}

/// Some implementations of execvp(3) do the same.
#[test]
fn script_without_an_interpreter_is_run_by_a_shell() {
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let script = file(files.path(), "script", "echo ran $1 $ZKLOCK_PATH; exit 3");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let ended = zklock(fixture.server, &["run", &fixture.dir, "--", &script, "with"]);
    assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{ended:?}");
    assert!(ended.out.starts_with("ran with /cli-"), "{ended:?}");
    let mut by_name =
        command(&fixture.server.connect_string(), &["run", &fixture.dir, "--", "script", "with"]);
    let path = std::env::var("PATH").unwrap();
    by_name.env("PATH", format!("{}:{path}", files.path().display()));
    assert_eq!(Program::spawn(by_name).end().code, 3);
}

#[test]
fn wait_is_mentioned_once_with_the_holder() {
    let fixture = Fixture::new();
    let guard = fixture.hold();
    let waiting = [&[][..], &["--quiet"], &["--shared"]].map(|options| fixture.run(options, "echo mine"));
    eventually("the waits are mentioned", || {
        waiting[0].err().ends_with('\n') && waiting[2].err().ends_with('\n')
    });
    guard.unlock().unwrap();
    let [loud, quiet, _] = waiting.map(Program::end);
    assert_eq!((quiet.code, quiet.err.as_str()), (0, ""), "{quiet:?}");
    assert_eq!((loud.code, loud.err.lines().count()), (0, 1), "{loud:?}");
    assert!(
        loud.err.starts_with(&format!("zklock: waiting for {}, which is held: ", fixture.dir)),
        "{loud:?}"
    );
}

/// The length of a pause of the server.
const PAUSE: Duration = Duration::from_millis(2600);

/// The lease of a lock that is acquired after a pause is at first shorter than usual.
#[test]
fn command_that_begins_after_a_pause_of_the_server_is_not_ended() {
    let server = Server::with(ServerOptions { tick_time_ms: 4000, ..Default::default() });
    let connect = server.connect_string();
    // The first call on a new server is slow.
    zklock(&server, &["run", "/first", "true"]).assert_succeeded();
    let args = ["run", "--quiet", "--session-timeout", "8s", "/after-a-pause", "--", "sleep", "8"];
    let run = || {
        server.pause();
        let begun = Instant::now();
        let program = Program::spawn(command(&connect, &args));
        thread::sleep(PAUSE);
        server.resume();
        (begun.elapsed() < PAUSE + Duration::from_millis(300)).then_some(program)
    };
    // The lease falls to less than an eighth of the session timeout before a new one is proven. After a longer pause,
    // the lease would end. If the machine is so busy that the pause is longer, the test tries again.
    eventually_some("the pause is not too long", run).end().assert_succeeded();
}

#[test]
fn session_timeout_of_two_ticks_is_a_warning() {
    let fixture = Fixture::new();
    let run =
        |options: &[&str]| zklock(fixture.server, &[&["run"], options, &[&fixture.dir, "true"]].concat());
    let ended = run(&["--session-timeout", "5s"]);
    assert_eq!((ended.code, ended.err.lines().count()), (0, 1), "{ended:?}");
    assert!(ended.err.contains("less than three ticks") && ended.err.contains("use 6s"), "{ended:?}");
    run(&["--session-timeout", "5s", "--quiet"]).assert_succeeded();
    run(&["--session-timeout", "6s"]).assert_succeeded();
    run(&["--session-timeout", "5s", "--max-tick", "500ms"]).assert_succeeded();
    run(&["--session-timeout", "5s", "--tick", "500ms"]).assert_succeeded();
}

#[test]
fn log_says_which_tick_counts_and_why_and_which_outage_a_lock_survives() {
    let fixture = Fixture::new();
    let lines = |options: &[&str]| {
        let ended =
            zklock(fixture.server, &[&["run", "-v"], options, &[&fixture.dir, "sleep", "1"]].concat());
        assert_eq!(ended.code, 0, "{ended:?}");
        let lines = ended
            .err
            .lines()
            .filter_map(|line| Some(line.split_once("the tick of the ZooKeeper servers ")?.1));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let survives = "; an owner of a lock survives an outage of up to 11.2s";
    assert_eq!(lines(&["--tick", "500ms"]), [format!("is 500ms, as stated{survives}")]);
    let usual =
        "counts as 2s: the usual one, because none is stated (tick) and a server suggests a shorter one";
    assert_eq!(lines(&[]), [format!("{usual}{survives}")]);
}

#[test]
fn shared_lock_is_held_by_several_but_not_beside_an_exclusive_one() {
    let fixture = Fixture::new();
    let mut readers = [(); 2].map(|()| fixture.run(&["--shared"], WAITING));
    let pids = readers.each_ref().map(|reader| reader.line_with("pid"));
    fixture.run(&["--try"], "echo mine").end().assert_failed(75, "is held");
    readers[0].close_input();
    // The first reader may still be an owner. In that case, it is asked as well.
    fixture.zklock(&["revoke"]).assert_succeeded();
    let [first, second] = readers.map(Program::end);
    assert!(first.code == 0 || first.code == 143, "{first:?}");
    assert_eq!(second.code, 143, "{second:?}");
    assert!(pids.iter().all(|pid| !is_alive(pid)));
    fixture.run(&["--try"], "true").end().assert_succeeded();
}

#[test]
fn permits_are_held_by_so_many() {
    let fixture = Fixture::new();
    let mut holders = [(); 2].map(|()| fixture.run(&["--permits", "2", "--data", "pump 7"], WAITING));
    let pids = holders.each_ref().map(|holder| holder.line_with("pid"));
    fixture.run(&["--permits", "2", "--try"], "echo mine").end().assert_failed(75, "pump 7");
    let who = zklock(fixture.server, &["who", &format!("{}/leases", fixture.dir)]);
    assert_eq!(who.out.matches("pump 7").count(), 2, "{who:?}");
    holders[0].close_input();
    fixture.run(&["--permits", "2", "--timeout", "1m"], "true").end().assert_succeeded();
    // If a permit is taken away, its command is ended.
    let path = fixture.zookeeper().get_children(&format!("{}/leases", fixture.dir)).unwrap().remove(0);
    fixture.zookeeper().delete(&format!("{}/leases/{path}", fixture.dir), None).unwrap();
    let [first, second] = holders.map(Program::end);
    assert_eq!((first.code, second.code), (0, 76), "{first:?} {second:?}");
    assert!(pids.iter().all(|pid| !is_alive(pid)));
}

#[test]
fn commands_take_turns() {
    let fixture = Fixture::new();
    let guard = fixture.hold();
    let waiting = fixture.run(&["--timeout", "10m", "--quiet"], "echo mine");
    fixture.await_requests(2);
    assert_eq!(waiting.out(), "");
    guard.unlock().unwrap();
    let ended = waiting.end();
    assert_eq!((ended.code, ended.out.as_str()), (0, "mine\n"), "{ended:?}");
}

#[test]
fn lock_that_is_not_acquired_is_75_and_names_the_holder() {
    let fixture = Fixture::new();
    let guard = fixture.hold();
    let holder =
        String::from_utf8(fixture.directory().current_owner().unwrap().unwrap().data.unwrap()).unwrap();
    for options in [&["--try"][..], &["--timeout", "200ms"]] {
        let ended = fixture.run(options, "echo mine").end();
        ended.assert_failed(75, &holder);
        assert_eq!(ended.out, "");
    }
    fixture.await_requests(1);
    assert!(guard.is_owner());
}

#[test]
fn lock_that_is_not_acquired_is_not_reported_with_quiet() {
    let fixture = Fixture::new();
    let _guard = fixture.hold();
    for options in [&["--quiet", "--try"][..], &["--quiet", "--timeout", "200ms"]] {
        let ended = fixture.run(options, "echo mine").end();
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (75, "", ""), "{ended:?}");
    }
}

#[test]
fn failures_are_reported_even_with_quiet() {
    let fixture = Fixture::new();
    let run = |args: &[&str]| zklock(fixture.server, &[args, &[&*fixture.dir, "no-such-command"]].concat());
    run(&["run", "--quiet"]).assert_failed(127, "no-such-command: ");
    run(&["once", "--quiet", "--key", "a"]).assert_failed(127, "no-such-command: ");
    run(&["run", "--quiet", "-c", "127.0.0.1:1", "--session-timeout", "1s"]).assert_failed(69, "refused");
    // A command that was started, and then lost its lock.
    let program = fixture.run(&["--quiet"], WAITING);
    program.line_with("pid");
    let path = fixture.directory().current_owner().unwrap().unwrap().path;
    fixture.zookeeper().delete(&path, None).unwrap();
    program.end().assert_failed(76, "the lock is lost");
}

// ---- signals

#[test]
fn signals_are_forwarded_to_the_command() {
    let fixture = Fixture::new();
    let script = "trap 'echo usr1' USR1; trap 'echo usr2' USR2; trap 'exit 7' TERM; echo ready
        while :; do sleep 0.05; done";
    let program = fixture.run(&[], script);
    program.line_with("ready");
    program.signal(Signal::USR1);
    program.line_with("usr1");
    program.signal(Signal::USR2);
    program.line_with("usr2");
    program.signal(Signal::TERM);
    let ended = program.end();
    // The shell may report on standard error how its own commands ended.
    assert!(ended.code == 7 && !ended.err.contains("zklock"), "{ended:?}");
    fixture.await_requests(0);
}

/// The default action of the signal would end the program and let the command run on.
#[test]
fn signal_of_a_timer_is_forwarded_and_ends_the_wait() {
    let fixture = Fixture::new();
    let program = fixture.run(&[], "trap 'exit 7' ALRM; echo ready; while :; do sleep 0.05; done");
    program.line_with("ready");
    let waiting = fixture.run(&[], "echo mine");
    fixture.await_requests(2);
    waiting.signal(Signal::ALARM);
    assert_eq!(waiting.end().code, 142);
    fixture.await_requests(1);
    program.signal(Signal::ALARM);
    assert_eq!(program.end().code, 7);
    fixture.await_requests(0);
}

#[test]
fn signal_ends_a_stopped_command() {
    let fixture = Fixture::new();
    let program = fixture.run(&[], "echo pid $$; kill -STOP $$; echo continued");
    let pid = program.line_with("pid").split_whitespace().last().unwrap().to_owned();
    eventually("the command is stopped", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    });
    program.signal(Signal::TERM);
    assert_eq!(program.end().code, 143);
    fixture.await_requests(0);
}

#[test]
fn signals_reach_the_whole_process_group() {
    let fixture = Fixture::new();
    let program = fixture.run(&[], "sh -c 'echo pid $$; exec sleep 1000' & wait");
    let pid = program.line_with("pid");
    program.signal(Signal::TERM);
    assert_eq!(program.end().code, 143);
    eventually("the background process ends", || !is_alive(&pid));
}

#[test]
fn signal_ends_the_wait_for_the_lock() {
    let fixture = Fixture::new();
    let _guard = fixture.hold();
    let mut program = fixture.run(&[], "echo mine");
    fixture.await_requests(2);
    program.signal(Signal::USR1);
    assert!(program.is_running(), "the signal is meant for the command");
    program.signal(Signal::TERM);
    let ended = program.end();
    assert_eq!((ended.code, ended.out.as_str()), (143, ""), "{ended:?}");
    fixture.await_requests(1);
}

#[test]
fn signal_ends_the_wait_for_the_servers() {
    // This server accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = silent.local_addr().unwrap().to_string();
    let args = ["run", "--timeout", "10m", "/locks/silent", "echo", "mine"];
    let program = Program::spawn(command(&connect, &args));
    // The program handles signals before it connects.
    drop(silent.accept().unwrap());
    program.signal(Signal::TERM);
    let ended = program.end();
    assert_eq!((ended.code, ended.out.as_str()), (143, ""), "{ended:?}");
}

#[test]
fn signal_that_the_program_was_started_to_ignore_is_not_forwarded() {
    let fixture = Fixture::new();
    let connect = fixture.server.connect_string();
    let mut shell = Command::new("sh");
    // As nohup(1) does.
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_zklock")]);
    shell.args(
        fixture.run_args(&["-c", &connect], "trap 'exit 7' USR1; echo ready; while :; do sleep 0.05; done"),
    );
    let program = Program::spawn(shell);
    program.line_with("ready");
    program.signal(Signal::HUP);
    program.signal(Signal::USR1);
    assert_eq!(program.end().code, 7);
}

#[test]
fn program_without_a_terminal_is_not_stopped_while_it_holds_the_lock() {
    let fixture = Fixture::new();
    let connect = fixture.server.connect_string();
    let mut setsid = Command::new("setsid");
    setsid.arg(env!("CARGO_BIN_EXE_zklock")).args(fixture.run_args(&["-c", &connect], WAITING));
    let mut program = Program::spawn(setsid);
    program.line_with("pid");
    program.signal(Signal::TSTP);
    eventually("the program refuses to stop", || program.err().contains("not stopped"));
    program.close_input();
    assert_eq!(program.end().code, 0);
}

// ---- a lost lock

#[test]
fn command_is_ended_when_its_znode_is_deleted() {
    let fixture = Fixture::new();
    let program = fixture.run(&[], WAITING);
    let pid = program.line_with("pid");
    let owner = fixture.directory().current_owner().unwrap().unwrap();
    fixture.zookeeper().delete(&owner.path, None).unwrap();
    let ended = program.end();
    ended.assert_failed(76, "znode deleted by another client");
    assert!(!is_alive(&pid));
}

#[test]
fn command_may_clean_up_when_the_lock_is_lost() {
    let fixture = Fixture::new();
    let script = "trap 'sleep 0.2; echo clean; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let program = fixture.run(&["--grace", "10m"], script);
    program.line_with("ready");
    let owner = fixture.directory().current_owner().unwrap().unwrap();
    fixture.zookeeper().delete(&owner.path, None).unwrap();
    let ended = program.end();
    assert_eq!((ended.code, ended.out.as_str()), (76, "ready\nclean\n"), "{ended:?}");
}

#[test]
fn command_that_does_not_end_is_killed_after_the_grace() {
    let fixture = Fixture::new();
    let program = fixture.run(&["--grace", "300ms"], STUBBORN);
    let pid = program.line_with("pid");
    let owner = fixture.directory().current_owner().unwrap().unwrap();
    fixture.zookeeper().delete(&owner.path, None).unwrap();
    program.end().assert_failed(76, "the lock is lost");
    assert!(!is_alive(&pid));
}

#[test]
fn background_processes_do_not_survive_the_loss_of_the_lock() {
    let fixture = Fixture::new();
    let program = fixture.run(&[], "(trap '' TERM; exec sh -c 'echo pid $$; sleep 1000') & wait");
    let pid = program.line_with("pid");
    let owner = fixture.directory().current_owner().unwrap().unwrap();
    fixture.zookeeper().delete(&owner.path, None).unwrap();
    program.end().assert_failed(76, "the lock is lost");
    eventually("the background process ends", || !is_alive(&pid));
}

#[test]
fn command_is_killed_before_another_client_owns_the_lock() {
    let fixture = Fixture::new();
    let relay = Relay::to(("127.0.0.1", fixture.server.port()));
    let args = fixture.run_args(&["--session-timeout", "6s"], STUBBORN);
    let program = Program::spawn(command(&relay.connect_string(), &args));
    let pid = program.line_with("pid");
    let lock = BlockingWriteLock::new(&fixture.session, &fixture.dir).unwrap();
    relay.swallow();
    assert!(is_alive(&pid));
    let guard = lock.try_lock_for(deadline()).unwrap().expect("the session of the program ends");
    assert!(!is_alive(&pid), "{}", program.err());
    let ended = program.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert!(ended.err.contains("no contact with ZooKeeper"), "{ended:?}");
    guard.unlock().unwrap();
}

#[test]
fn command_survives_a_short_outage() {
    let fixture = Fixture::new();
    let relay = Relay::to(("127.0.0.1", fixture.server.port()));
    let args = fixture.run_args(&[], WAITING);
    let mut program = Program::spawn(command(&relay.connect_string(), &args));
    program.line_with("pid");
    relay.refuse();
    eventually("the connection is lost", || relay.connections() == 0);
    relay.restore();
    eventually("there is another connection", || relay.connections() > 0);
    program.close_input();
    let ended = program.end();
    // If no server serves the session again when the command ends, the request may outlive the program.
    let is_quiet = ended.err.lines().all(|line| line.contains("no server has answered in time"));
    assert!(ended.code == 0 && is_quiet, "{ended:?}");
}

#[test]
fn command_is_asked_to_end_when_another_client_asks_for_the_lock() {
    for (options, requests) in [(&[][..], ""), (&["--shared"], ""), (&["--permits", "2"], "/leases")] {
        let fixture = Fixture::new();
        let program = fixture.run(options, "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done");
        program.line_with("ready");
        let dir = format!("{}{requests}", fixture.dir);
        zklock(fixture.server, &["revoke", &dir]).assert_succeeded();
        let ended = program.end();
        assert_eq!(ended.code, 9, "{options:?}: {ended:?}");
        let message = "zklock: another client asks for the release of the lock";
        assert!(ended.err.contains(message), "{options:?}: {ended:?}");
        let directory = LockDirectory::new(&fixture.session, &dir).unwrap();
        eventually("the queue is empty", || directory.contenders().unwrap().is_empty());
    }
}

#[test]
fn missing_chroot_is_73() {
    let fixture = Fixture::new();
    let connect = format!("{}/missing-chroot", fixture.server.connect_string());
    let program = Program::spawn(command(&connect, &fixture.run_args(&[], "echo mine")));
    program.end().assert_failed(73, "the chroot /missing-chroot does not exist; run with --create-chroot");
}

#[test]
fn missing_chroot_is_created_if_asked_for() {
    let fixture = Fixture::new();
    let connect = format!("{}{}/prod/app", fixture.server.connect_string(), fixture.dir);
    for _ in 0..2 {
        let ended = run(command(&connect, &["--create-chroot", "run", "/a", "true"]));
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let znodes = RecoverableZooKeeper::new(&fixture.session, RetryPolicy::constant(deadline() / 10));
    assert!(znodes.exists(&format!("{}/prod/app", fixture.dir)).unwrap().is_some());
}

#[test]
fn used_up_quota_is_73_at_once_and_at_the_deadline() {
    let jvm_flags = vec!["-Dzookeeper.enforceQuota=true".to_owned()];
    let server = Server::with(ServerOptions { jvm_flags, ..ServerOptions::default() });
    if !server.enforces_quotas() {
        return;
    }
    let run = |options: &[&str]| {
        zklock(&server, &[&["run", "--quiet", "--tick", "500ms"], options, &["/full/lock", "true"]].concat())
    };
    run(&[]).assert_succeeded();
    server.run_in_shell(&["setquota", "-N", "1", "/full"]);
    run(&["--try"]).assert_failed(73, "lock '/full/lock': the server refuses the request, because a quota");
    run(&["--timeout", "5s"])
        .assert_failed(73, "lock '/full/lock': the server refuses the request, because a quota");
}

#[test]
fn waiter_whose_session_is_lost_is_69() {
    let fixture = Fixture::new();
    let _guard = fixture.hold();
    let relay = Relay::to(("127.0.0.1", fixture.server.port()));
    let args = fixture.run_args(&["--session-timeout", "6s", "--quiet"], "echo mine");
    let program = Program::spawn(command(&relay.connect_string(), &args));
    fixture.await_requests(2);
    relay.refuse();
    let ended = program.end();
    ended.assert_failed(69, "run the command again");
    assert!(!ended.err.contains("connect a new"), "{ended:?}");
}

#[test]
fn command_that_waits_for_its_own_lock_is_64() {
    let fixture = Fixture::new();
    let (zklock, connect) = (env!("CARGO_BIN_EXE_zklock"), fixture.server.connect_string());
    let again = |options: &str, dir: &str| {
        let script = format!("{zklock} run --max-tick 500ms {options} -c {connect} {dir} echo mine");
        fixture.run(&[], &script).end()
    };
    for options in ["", "--timeout 10m"] {
        let ended = again(options, &fixture.dir);
        ended.assert_failed(64, "would wait for itself");
        assert_eq!(ended.out, "");
    }
    again("--try", &fixture.dir).assert_failed(75, "is held");
    assert_eq!(again("", &format!("{}-other", fixture.dir)).code, 0);
    // The outer lock was released, so the program would not wait for itself.
    let mut late = command(&connect, &fixture.run_args(&[], "echo mine"));
    late.env("ZKLOCK_PATH", format!("{}/x-0b2e-lock-0000000001", fixture.dir));
    assert_eq!(Program::spawn(late).end().code, 0);
    fixture.await_requests(0);
}

#[test]
fn timeout_covers_the_connection() {
    let fixture = Fixture::new();
    let begun = Instant::now();
    let program = Program::spawn(command("127.0.0.1:1", &fixture.run_args(&["--timeout", "300ms"], "true")));
    program.end().assert_failed(69, "Connection refused");
    assert!(begun.elapsed() < Duration::from_secs(10).min(deadline()), "{:?}", begun.elapsed());
}
