//! Tests that show which processes `zklock run` ends, and that nothing delays it.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid, kill_process};
use tempfile::TempDir;
use zookeeper_recipes_lock::BlockingWriteLock;

use crate::program::{Fixture, Program, command, file, is_alive, pid_of, state_of, zklock};
#[cfg(target_os = "linux")]
use crate::program::{give_descriptors_back, guardian_of, leave_descriptors};
use crate::support::relay::{Relay, Request};
use crate::support::wait::{deadline, eventually, eventually_some, scaled};

/// A script that only SIGKILL ends.
const STUBBORN: &str = "trap '' TERM; echo pid $$; while :; do sleep 0.05; done";
const CREATE: i32 = 1;
const DELETE: i32 = 2;
const CREATE_WITH_STAT: i32 = 15;
/// Less time than all retries of a call during an outage take.
const PROMPT: Duration = Duration::from_secs(8);

/// A standard error that accepts no more bytes, and its reader.
fn full() -> (Stdio, UnixStream) {
    let (mut writer, reader) = UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    // The last bytes may not fit as a whole block.
    for block in [&[b'x'; 4096][..], b"x"] {
        while let Ok(written) = writer.write(block) {
            assert!(written > 0);
        }
    }
    assert_eq!(writer.write(b"x").unwrap_err().kind(), ErrorKind::WouldBlock);
    writer.set_nonblocking(false).unwrap();
    (OwnedFd::from(writer).into(), reader)
}

/// Deletes the znode of the owner, which takes the lock away.
fn delete_owner(fixture: &Fixture) {
    let owner = fixture.directory().current_owner().unwrap().unwrap();
    fixture.zookeeper().delete(&owner.path, None).unwrap();
}

// ---- blocked output

#[test]
fn command_is_killed_in_time_while_standard_error_is_blocked() {
    let fixture = Fixture::new();
    let relay = Relay::to(("127.0.0.1", fixture.server.port()));
    // With -vv, the log of the library goes to standard error as well.
    let args = fixture.run_args(&["-vv", "--session-timeout", "6s"], STUBBORN);
    let (stderr, _reader) = full();
    let program = Program::spawn_with(command(&relay.connect_string(), &args), stderr);
    let pid = program.line_with("pid");
    let lock = BlockingWriteLock::new(&fixture.session, &fixture.dir).unwrap();
    relay.swallow();
    let guard = lock.try_lock_for(deadline()).unwrap().expect("the session of the program ends");
    assert!(!is_alive(&pid));
    assert_eq!(program.end().code, 76);
    guard.unlock().unwrap();
}

#[test]
fn signals_are_forwarded_while_standard_error_is_blocked() {
    let fixture = Fixture::new();
    // A shell reports how its own commands ended.
    let script = "exec 2>/dev/null; trap 'echo usr1' USR1; trap 'exit 7' TERM; echo ready
        while :; do sleep 0.05; done";
    let args = fixture.run_args(&[], script);
    let (stderr, _reader) = full();
    let program = Program::spawn_with(command(&fixture.server.connect_string(), &args), stderr);
    program.line_with("ready");
    program.signal(Signal::USR1);
    program.line_with("usr1");
    program.signal(Signal::TERM);
    assert_eq!(program.end().code, 7);
}

// ---- commands that were asked to end

#[test]
fn command_that_does_not_end_when_asked_is_killed_before_its_lease_ends() {
    let fixture = Fixture::new();
    let relay = Relay::to(("127.0.0.1", fixture.server.port()));
    let script = "trap 'echo asked' TERM; echo pid $$; while :; do sleep 0.05; done";
    let asked = ["stopped", "revoked", "signalled"].map(|way| {
        let dir = format!("{}-{way}", fixture.dir);
        let args = ["run", "--max-tick", "500ms", "--session-timeout", "6s"];
        let times = ["--stopped-for", "300ms", "--grace", "10m"];
        let args = [&args[..], &times, &[&dir, "--", "sh", "-c", script]].concat();
        let program = Program::spawn(command(&relay.connect_string(), &args));
        let pid = program.line_with("pid");
        match way {
            "stopped" => kill_process(pid_of(&pid), Signal::STOP).unwrap(),
            "revoked" => zklock(fixture.server, &["revoke", &dir]).assert_succeeded(),
            _ => program.signal(Signal::TERM),
        }
        program.line_with("asked");
        (way, program, pid)
    });
    relay.swallow();
    for (way, program, pid) in asked {
        let ended = program.end();
        assert_eq!(ended.code, 76, "{way}: {ended:?}");
        assert!(ended.err.contains("the lock can be lost in"), "{way}: {ended:?}");
        assert!(!is_alive(&pid), "{way}: {pid}");
    }
}

#[test]
fn command_that_stops_while_it_is_ended_is_not_said_to_hold_the_lock() {
    let fixture = Fixture::new();
    let script = "exec 2>/dev/null; trap 'while :; do kill -STOP $$; done' TERM; echo pid $$
        while :; do sleep 0.05; done";
    let program = fixture.run(&["--grace", "2s"], script);
    let pid = pid_of(&program.line_with("pid"));
    delete_owner(&fixture);
    eventually("the command is stopped", || state_of(pid) == 'T');
    let ended = program.end();
    ended.assert_failed(76, "the lock is lost");
}

#[test]
fn command_that_was_stopped_for_too_long_is_killed_at_once_if_its_znode_is_deleted() {
    let fixture = Fixture::new();
    let script = "trap 'echo asked' TERM; echo pid $$; while :; do sleep 0.05; done";
    let program = fixture.run(&["--stopped-for", "100ms", "--grace", "10m"], script);
    kill_process(pid_of(&program.line_with("pid")), Signal::STOP).unwrap();
    program.line_with("asked");
    delete_owner(&fixture);
    let ended = program.end();
    assert_eq!((ended.code, ended.out.matches("asked").count()), (76, 1), "{ended:?}");
}

// ---- processes outside the group

#[cfg(target_os = "linux")]
#[test]
fn no_descendant_survives_the_loss_of_the_lock() {
    let fixture = Fixture::new();
    let connect = fixture.server.connect_string();
    let zklock = env!("CARGO_BIN_EXE_zklock");
    let script = format!(
        "timeout 1000 sh -c \"$0\" timeout & setsid sh -c \"$0\" session &
        {zklock} -c {connect} run {}-inner -- sh -c \"$0\" nested & wait",
        fixture.dir
    );
    let stubborn = "trap '' TERM; echo $0 pid $$; while :; do sleep 0.05; done";
    let args = [&fixture.run_args(&["--grace", "300ms"], &script)[..], &[stubborn]].concat();
    let program = Program::spawn(command(&connect, &args));
    let pids = ["timeout pid", "session pid", "nested pid"].map(|text| program.line_with(text));
    delete_owner(&fixture);
    let ended = program.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    for pid in pids {
        assert!(!is_alive(&pid), "{pid}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn descendants_of_all_generations_are_killed_before_another_client_owns_the_lock() {
    let fixture = Fixture::new();
    let relay = Relay::to(("127.0.0.1", fixture.server.port()));
    // Each generation has its own session.
    let generation = "trap '' TERM; [ $1 = 0 ] && echo last pid $$
        [ $1 = 0 ] || setsid sh -c \"$0\" \"$0\" $(($1 - 1)) & while :; do sleep 0.5; done";
    let script = "setsid sh -c \"$0\" \"$0\" 28 & wait";
    let args = fixture.run_args(&["--session-timeout", "6s"], script);
    let args = [&args[..], &[generation]].concat();
    let program = Program::spawn(command(&relay.connect_string(), &args));
    let last = program.line_with("last pid");
    let lock = BlockingWriteLock::new(&fixture.session, &fixture.dir).unwrap();
    relay.swallow();
    let guard = lock.try_lock_for(deadline()).unwrap().expect("the session of the program ends");
    assert!(!is_alive(&last), "{}", program.err());
    assert_eq!(program.end().code, 76);
    guard.unlock().unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn descendant_whose_name_is_no_text_is_killed() {
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    // The kernel keeps 15 of these 16 bytes, so it cuts a letter in half.
    let shell = files.path().join("ЖЖЖЖЖЖЖЖ");
    symlink("/bin/sh", &shell).unwrap();
    let script = format!("setsid {} -c \"$0\" & wait", shell.display());
    let args = [&fixture.run_args(&["--grace", "100ms"], &script)[..], &[STUBBORN]].concat();
    let program = Program::start(fixture.server, &args);
    let pid = program.line_with("pid");
    delete_owner(&fixture);
    assert_eq!(program.end().code, 76);
    assert!(!is_alive(&pid), "{pid}");
}

/// Without a descriptor, the program cannot see which processes there are.
#[cfg(target_os = "linux")]
#[test]
fn descendants_are_killed_once_the_program_has_descriptors_again() {
    for count in [0, 1] {
        let fixture = Fixture::new();
        let script = "trap '' TERM; setsid sh -c \"$0\" & while :; do sleep 0.05; done";
        let args = [&fixture.run_args(&["--grace", "100ms"], script)[..], &[STUBBORN]].concat();
        let program = Program::start(fixture.server, &args);
        let pid = program.line_with("pid");
        let guardian = guardian_of(program.pid());
        leave_descriptors(program.pid(), count);
        leave_descriptors(guardian, count);
        delete_owner(&fixture);
        if count == 0 {
            eventually("the failure is reported", || program.err().contains("at the moment; /proc"));
            give_descriptors_back(guardian);
        }
        let ended = program.end();
        assert_eq!(ended.code, 76, "{count} left: {ended:?}");
        assert!(!is_alive(&pid), "{count} left: {pid}: {ended:?}");
    }
}

/// Each process of the chain starts the next one, in another process group, and ends. The chain must end with the
/// command, whether the lock is lost or the command is ended for another reason.
#[cfg(target_os = "linux")]
#[test]
fn chain_of_short_lived_processes_does_not_escape() {
    let files = TempDir::new().unwrap();
    let links = files.path().join("links");
    let chain = format!("echo >>{}\nsetsid sh \"$0\" &\n", links.display());
    let chain = file(files.path(), "chain", &chain);
    let length = || fs::metadata(&links).map_or(0, |links| links.len());
    for is_lost in [true, false] {
        let fixture = Fixture::new();
        let options: &[&str] = if is_lost { &[] } else { &["--stopped-for", "100ms"] };
        let end = if is_lost { "wait" } else { "kill -STOP $$" };
        let script = format!("trap '' TERM; sh {chain} & sleep 0.3; echo up; {end}; sleep 1000");
        let program = fixture.run(&[options, &["--grace", "100ms"]].concat(), &script);
        program.line_with("up");
        if is_lost {
            delete_owner(&fixture);
        }
        assert_eq!(program.end().code, if is_lost { 76 } else { 137 });
        let before = length();
        // Enough time for hundreds of links.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(length(), before, "lost: {is_lost}");
    }
}

/// The `/proc` of another namespace shows process ids that differ from those that the program uses.
#[cfg(target_os = "linux")]
#[test]
fn descendants_are_killed_where_proc_is_that_of_another_namespace() {
    // With this many groups, the ids are not within the first 4096 bytes of `/proc/PID/status`.
    let groups: Vec<String> = (0..1000).map(|group| (4_000_000_000_u32 + group).to_string()).collect();
    for groups in [None, Some(groups.join(","))] {
        let unshare = || {
            let mut command = Command::new(if groups.is_some() { "setpriv" } else { "env" });
            command.args(groups.iter().flat_map(|groups| ["--groups", groups]));
            command.args(["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
            command
        };
        if !unshare().arg("true").output().is_ok_and(|ran| ran.status.success()) {
            println!("skipped: it needs namespaces and, with groups, root");
            continue;
        }
        let fixture = Fixture::new();
        let connect = fixture.server.connect_string();
        let stubborn =
            "trap '' TERM; read pid rest </proc/self/stat; echo pid $pid; while :; do sleep 0.05; done";
        let mut program = unshare();
        // The shell keeps the namespace alive after the program has ended.
        program.args([
            "sh",
            "-c",
            "\"$0\" \"$@\" </dev/null; echo code $?; cat >/dev/null",
            env!("CARGO_BIN_EXE_zklock"),
        ]);
        program
            .args(fixture.run_args(&["-c", &connect, "--grace", "100ms"], "setsid sh -c \"$0\" & wait"))
            .arg(stubborn);
        let mut program = Program::spawn(program);
        let pid = program.line_with("pid");
        assert!(is_alive(&pid));
        delete_owner(&fixture);
        program.line_with("code 76");
        assert!(!is_alive(&pid), "{pid}");
        program.close_input();
        assert_eq!(program.end().code, 0);
    }
}

/// If the program is killed, only the kernel can kill the command. The kernel does not kill the command's children.
#[cfg(target_os = "linux")]
/// Whether the guardian or the holder is killed, the other one ends everything.
#[cfg(target_os = "linux")]
#[test]
fn nothing_of_the_command_outlives_the_program_or_its_guardian() {
    for is_guardian in [false, true] {
        let fixture = Fixture::new();
        let script = "trap 'echo asked' TERM; sh -c 'echo group pid $$; exec sleep 1000' &
            setsid sh -c 'echo session pid $$; trap \"\" TERM; while :; do sleep 0.05; done' & echo own pid $$; wait; wait";
        let program = fixture.run(&["--grace", "1s"], script);
        let pids = ["group pid", "session pid", "own pid"].map(|text| program.line_with(text));
        match is_guardian {
            true => kill_process(guardian_of(program.pid()), Signal::KILL).unwrap(),
            // As a supervisor of services does.
            false => kill_process(program.pid(), Signal::KILL).unwrap(),
        }
        for pid in pids {
            eventually(&format!("{pid} has ended ({is_guardian})"), || !is_alive(&pid));
        }
        if is_guardian {
            let ended = program.end();
            assert_eq!(ended.code, 70, "{ended:?}");
            assert!(ended.err.contains("the guardian of the command has ended"), "{ended:?}");
            fixture.await_requests(0);
        } else {
            assert!(program.out().contains("asked"), "{}", program.out());
        }
    }
}

#[test]
fn background_processes_survive_the_end_of_the_command() {
    let fixture = Fixture::new();
    let script = "sh -c 'echo group pid $$; exec sleep 1000' &
        setsid sh -c 'echo session pid $$; exec sleep 1000' & cat >/dev/null";
    // A shell gives its background processes /dev/null as standard input, so `cat` runs in the foreground.
    let mut program = fixture.run(&[], script);
    let pids = ["group pid", "session pid"].map(|text| program.line_with(text));
    program.close_input();
    assert_eq!(program.end().code, 0);
    fixture.await_requests(0);
    for pid in pids {
        assert!(is_alive(&pid), "{pid}");
        kill_process(pid_of(&pid), Signal::KILL).unwrap();
    }
}

#[test]
fn process_outside_the_group_survives_a_forwarded_signal() {
    let fixture = Fixture::new();
    let script = "setsid sh -c 'echo session pid $$; exec sleep 1000' &
        sh -c 'echo group pid $$; exec sleep 1000' & wait";
    let program = fixture.run(&[], script);
    let [session, group] = ["session pid", "group pid"].map(|text| program.line_with(text));
    program.signal(Signal::TERM);
    assert_eq!(program.end().code, 143);
    eventually("the process in the group ends", || !is_alive(&group));
    assert!(is_alive(&session), "{session}");
    kill_process(pid_of(&session), Signal::KILL).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn adopted_process_that_ends_leaves_no_zombie() {
    let fixture = Fixture::new();
    // The subshell ends first, so the program adopts its child.
    let mut program = fixture.run(&[], "(sh -c 'echo pid $$; sleep 0.1' &); cat >/dev/null");
    let pid = pid_of(&program.line_with("pid"));
    let entry = format!("/proc/{}", pid.as_raw_nonzero());
    eventually("the process is waited for", || !Path::new(&entry).exists());
    program.close_input();
    assert_eq!(program.end().code, 0);
}

/// A script that ends its background process may look for it until it has gone.
#[cfg(target_os = "linux")]
#[test]
fn adopted_process_leaves_no_zombie_while_the_command_must_end() {
    let fixture = Fixture::new();
    let program = fixture.run(
        &["--session-timeout", "10s"],
        "exec 2>/dev/null; pid=$(sh -c 'sleep 1000 >/dev/null & echo $!')
         trap 'kill $pid; while kill -0 $pid; do sleep 0.01; done; echo clean; exit 0' TERM
         echo path $ZKLOCK_PATH; while :; do sleep 0.01; done",
    );
    let path = program.line_with("path").replace("path ", "");
    fixture.zookeeper().delete(&path, None).unwrap();
    program.line_with("clean");
    program.end().assert_failed(76, "the lock is lost");
}

#[cfg(target_os = "linux")]
#[test]
fn process_from_before_the_program_is_not_ended() {
    let fixture = Fixture::new();
    let connect = fixture.server.connect_string();
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "sh -c 'echo before pid $$; exec sleep 1000' & exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_zklock"),
    ]);
    shell.args(fixture.run_args(&["-c", &connect, "--grace", "300ms"], STUBBORN));
    let program = Program::spawn(shell);
    let before = program.line_with("before pid");
    program.line_with("pid");
    eventually("the lock is held", || fixture.directory().current_owner().unwrap().is_some());
    delete_owner(&fixture);
    assert_eq!(program.end().code, 76);
    assert!(is_alive(&before));
    kill_process(pid_of(&before), Signal::KILL).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn process_that_may_not_be_signalled_is_reported() {
    // In a user namespace, there may be no other user.
    let mut other_user = Command::new("setpriv");
    other_user.args(["--reuid", "65534", "--clear-groups", "true"]);
    if !geteuid().is_root() || !other_user.output().is_ok_and(|ran| ran.status.success()) {
        println!("skipped: it needs root with other users, and setpriv(1)");
        return;
    }
    let fixture = Fixture::new();
    let connect = fixture.server.connect_string();
    // The command runs as another user, and the program has no right to signal it. The same happens with sudo(8).
    let mut program = Command::new("setpriv");
    program.args(["--bounding-set", "-kill", "--inh-caps", "-kill", env!("CARGO_BIN_EXE_zklock")]);
    program.args(["run", "-c", &connect, "--max-tick", "500ms", "--grace", "300ms", &fixture.dir, "--"]);
    program.args([
        "setpriv",
        "--reuid",
        "65534",
        "--clear-groups",
        "sh",
        "-c",
        "echo pid $$; cat >/dev/null",
    ]);
    let mut program = Program::spawn(program);
    program.line_with("pid");
    delete_owner(&fixture);
    eventually("the refusal is reported", || program.err().contains("cannot end the command"));
    assert!(program.is_running());
    program.close_input();
    let ended = program.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert_eq!(ended.err.matches("cannot end the command").count(), 1, "{ended:?}");
}

/// Two programs lose and acquire the lock in turn while their commands are trees of processes outside the group.
/// `ZKLOCK_STORM=600` makes the storm last ten minutes.
#[cfg(target_os = "linux")]
#[test]
fn nothing_of_a_command_is_seen_after_the_next_owner_in_a_storm_of_outages() {
    let seconds = std::env::var("ZKLOCK_STORM").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(12);
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let beats = file(files.path(), "beats", "");
    // The directory is removed when the test ends, however it ends, and then the commands end.
    let running = TempDir::new().unwrap();
    let is_running = running.path().display();
    // Four generations of processes that fork endlessly. All generations but the first are in sessions of their own.
    let beat = format!(
        "trap '' TERM; n=$1; [ $n = 0 ] || setsid sh -c \"$0\" \"$0\" $((n - 1)) &
        while [ -d {is_running} ]; do echo $ZKLOCK_FENCING_TOKEN $n >>{beats}; sleep 0.02; done"
    );
    let options = ["--quiet", "--session-timeout", "6s", "--grace", "300ms"];
    let script = "timeout 1000 sh -c \"$0\" \"$0\" 3 & wait";
    let relays = [(); 2].map(|()| Relay::to(("127.0.0.1", fixture.server.port())));
    let start = |relay: &Relay| {
        let args = [&fixture.run_args(&options, script)[..], &[&*beat]].concat();
        Program::spawn(command(&relay.connect_string(), &args))
    };
    let mut programs = relays.each_ref().map(&start);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut losses = 0;
    while Instant::now() < end {
        for (index, relay) in relays.iter().enumerate() {
            let owner = || fixture.directory().current_owner().unwrap().map(|owner| owner.path);
            let before = eventually_some("there is an owner", owner);
            // The program behind the relay owns the lock and loses it, or waits and loses its request.
            if index % 2 == 0 {
                relay.swallow()
            } else {
                relay.refuse()
            }
            eventually("the program ends, or is not the owner", || {
                !programs[index].is_running() || owner().is_some_and(|owner| owner != before)
            });
            relay.restore();
            if !programs[index].is_running() {
                losses += 1;
                programs[index] = start(relay);
            }
            eventually("the owner works", || {
                let token = fixture
                    .directory()
                    .current_owner()
                    .unwrap()
                    .and_then(|owner| Some(owner.czxid?.to_string()));
                let beats = fs::read_to_string(&beats).unwrap();
                token.is_some_and(|token| beats.lines().any(|beat| beat.starts_with(&token)))
            });
        }
    }
    // Without this wait, the program that was started last might not handle signals yet.
    fixture.await_requests(2);
    for program in programs {
        program.signal(Signal::TERM);
        program.end();
    }
    let beats = fs::read_to_string(&beats).unwrap();
    let tokens: Vec<i64> =
        beats.lines().map(|beat| beat.split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(tokens.is_sorted() && losses > 0, "{losses} losses: {tokens:?}");
    println!("{losses} losses, {} beats", tokens.len());
}

// ---- a loss that comes with the end of the command

/// `zklock` cannot know whether the znode was deleted before the command ended.
#[test]
fn znode_that_is_gone_when_its_deletion_comes_is_76() {
    let fixture = Fixture::new();
    let relay = Relay::to(("127.0.0.1", fixture.server.port()));
    relay.swallow_from(Request { operation: DELETE, path: fixture.dir.clone() });
    let program = Program::spawn(command(&relay.connect_string(), &fixture.run_args(&[], "exit 3")));
    eventually("the deletion is swallowed", || relay.bytes_held() > 0);
    delete_owner(&fixture);
    relay.restore();
    program.end().assert_failed(76, "the command ended with code 3, but without the lock: ");
}

/// The lock is taken away while the command is about to end on its own.
#[test]
fn command_that_ends_by_itself_after_an_unnoticed_loss_is_76() {
    let fixture = Fixture::new();
    let relay = Relay::to(("127.0.0.1", fixture.server.port()));
    let args = fixture.run_args(&[], "echo pid $$; read line; exit 3");
    let mut program = Program::spawn(command(&relay.connect_string(), &args));
    let pid = program.line_with("pid");
    relay.hold_replies();
    delete_owner(&fixture);
    program.close_input();
    eventually("the command has ended", || !is_alive(&pid));
    relay.restore();
    program.end().assert_failed(76, "another client deleted the znode");
}

// ---- how the program is started

#[cfg(target_os = "linux")]
#[test]
fn program_needs_neither_descriptors_nor_proc() {
    let fixture = Fixture::new();
    let connect = fixture.server.connect_string();
    let start = |preparation: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{preparation} exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_zklock")]);
        shell.args(fixture.run_args(&["-c", &connect], "setsid sleep 0.01; exit 3"));
        shell
    };
    assert_eq!(Program::spawn(start("exec <&- >&- 2>&-;")).end().code, 3);
    assert_eq!(Program::spawn(start("ulimit -n 16;")).end().code, 3);
    assert_eq!(Program::spawn(start("exec 2>/dev/full;")).end().code, 3);
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /proc && \"$@\"",
        "sh",
        "sh",
    ]);
    let without_proc = start("");
    unshare.args(without_proc.get_args());
    let ended = Program::spawn(unshare).end();
    assert!(ended.code == 3 || !ended.err.contains("zklock"), "{ended:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn command_that_cannot_be_started_for_lack_of_descriptors_is_70() {
    let fixture = Fixture::new();
    let guard = fixture.hold();
    let program = fixture.run(&[], "exit 3");
    fixture.await_requests(2);
    leave_descriptors(program.pid(), 0);
    guard.unlock().unwrap();
    program.end().assert_failed(70, "Too many open files");
}

/// Through an inherited connection, the session would outlive the program.
#[cfg(target_os = "linux")]
#[test]
fn command_inherits_no_descriptor_of_the_program() {
    let fixture = Fixture::new();
    // The shell starts no other process, because it would be a matter of chance whether that process has the
    // descriptors of a pipe.
    let script = "cd /proc/$$/fd && echo *";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]);
    let directly = Program::spawn(shell).end();
    let ended = fixture.run(&[], script).end();
    assert_eq!((ended.code, ended.out), (0, directly.out), "{}", ended.err);
}

#[cfg(target_os = "linux")]
#[test]
fn code_is_passed_on_where_ended_children_were_ignored() {
    let fixture = Fixture::new();
    let connect = fixture.server.connect_string();
    let mut env = Command::new("env");
    // `env`, because shells such as dash do not pass on an ignored SIGCHLD.
    env.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_zklock")]);
    env.args(fixture.run_args(&["-c", &connect], "sleep 0.2; exit 3"));
    let ended = Program::spawn(env).end();
    assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{ended:?}");
    fixture.await_requests(0);
}

// ---- outages

#[test]
fn signal_ends_an_attempt_during_an_outage() {
    let fixture = Fixture::new();
    fixture.create_dir();
    let guard = fixture.hold();
    for operation in [CREATE, CREATE_WITH_STAT] {
        let relay = Relay::to(("127.0.0.1", fixture.server.port()));
        relay.swallow_from(Request { operation, path: fixture.dir.clone() });
        let args = fixture.run_args(&["--try", "--session-timeout", "20s"], "echo mine");
        let mut program = Program::spawn(command(&relay.connect_string(), &args));
        eventually("the request is swallowed", || relay.bytes_held() > 0 || !program.is_running());
        if !program.is_running() {
            // This program creates its request with the other operation.
            assert_eq!(program.end().code, 75);
            continue;
        }
        let begun = Instant::now();
        program.signal(Signal::TERM);
        let ended = program.end();
        assert_eq!((ended.code, ended.out.as_str()), (143, ""), "{ended:?}");
        assert!(begun.elapsed() < scaled(PROMPT), "{:?}", begun.elapsed());
        return guard.unlock().map(drop).unwrap();
    }
    panic!("no request was swallowed");
}
