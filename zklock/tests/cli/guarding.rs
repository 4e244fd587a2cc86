//! Tests that show that nobody can take the leash of a command away: whoever stops, freezes or kills what.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};
use tempfile::TempDir;

use crate::program::{Fixture, Program, child_of, command, file, guardian_of, is_alive, pid_of, state_of};
use crate::support::relay::Relay;
use crate::support::server::Server;
use crate::support::wait::{eventually, eventually_some};

/// The options of programs whose lock is lost soon.
const SHORT: [&str; 4] = ["--session-timeout", "4s", "--grace", "500ms"];

/// A script that asks nobody, and says who it is.
const ENDLESS: &str = "trap 'echo asked' TERM; echo pid $$; while :; do sleep 0.05; done";

/// A worker outside the group of its command, which only SIGKILL ends.
const WORKER: &str =
    "setsid sh -c 'trap \"\" TERM; echo worker pid $$; while :; do sleep 0.05; done' & echo own pid $$";

/// A guardian that does nothing, and that nobody but the test can continue: a debugger does that, or the freezer of a
/// container.
struct Frozen(Pid);

impl Frozen {
    fn guardian_of(program: &Program) -> Frozen {
        let guardian = guardian_of(program.pid());
        let traced = nix::unistd::Pid::from_raw(guardian.as_raw_nonzero().get());
        ptrace::seize(traced, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(traced).unwrap();
        eventually("the guardian is frozen", || state_of(guardian) == 't');
        Frozen(guardian)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // It has been killed, and this process may have to wait for it first.
        let _ = kill_process(self.0, Signal::KILL);
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

// ---- the holder, the guardian or the command alone

/// A program that is stopped or frozen for longer than its lease.
#[test]
fn command_of_a_frozen_program_has_ended_before_another_client_owns_the_lock() {
    let fixture = Fixture::new();
    let program = fixture.run(&SHORT, ENDLESS);
    let pid = program.line_with("pid");
    program.signal(Signal::STOP);
    let guard = fixture.hold();
    assert!(!is_alive(&pid), "{pid}");
    assert!(program.out().contains("asked"), "it has its grace");
    program.signal(Signal::CONT);
    let ended = program.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    guard.unlock().unwrap();
}

/// A short freeze costs the command, but nobody owned the lock meanwhile.
#[test]
fn program_that_was_frozen_says_why_its_command_has_ended() {
    let fixture = Fixture::new();
    let program = fixture.run(&["--session-timeout", "8s", "--grace", "100ms"], ENDLESS);
    let pid = program.line_with("pid");
    program.signal(Signal::STOP);
    eventually("the command has ended", || !is_alive(&pid));
    program.signal(Signal::CONT);
    let ended = program.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert!(ended.err.contains("did not run for so long") || ended.err.contains("lost"), "{ended:?}");
}

/// A supervisor of services kills the whole process group of its service.
#[test]
fn nothing_of_the_command_outlives_the_process_group_of_the_program() {
    let fixture = Fixture::new();
    let script = format!("trap '' TERM; (sleep 1000) & {WORKER}; wait");
    let mut zklock = command(&fixture.server.connect_string(), &fixture.run_args(&SHORT, &script));
    zklock.process_group(0);
    let program = Program::spawn(zklock);
    let pids = ["worker pid", "own pid"].map(|text| program.line_with(text));
    let guardian = guardian_of(program.pid());
    kill_process_group(program.pid(), Signal::KILL).unwrap();
    let guard = fixture.hold();
    for pid in pids {
        assert!(!is_alive(&pid), "{pid}");
    }
    eventually("the guardian has ended", || ['-', 'Z'].contains(&state_of(guardian)));
    guard.unlock().unwrap();
}

/// Somebody who stops and continues the command, such as cpulimit(1), frees nothing.
#[test]
fn command_that_is_stopped_and_continued_by_somebody_is_supervised_all_the_time() {
    let fixture = Fixture::new();
    let program = fixture.run(&SHORT, ENDLESS);
    let pid = pid_of(&program.line_with("pid"));
    kill_process(pid, Signal::STOP).unwrap();
    eventually("the stop is reported", || program.err().contains("a signal has stopped it"));
    assert_ne!(state_of(program.pid()), 'T');
    kill_process(pid, Signal::CONT).unwrap();
    eventually("the command goes on", || state_of(pid) != 'T');
    program.signal(Signal::KILL);
    eventually("the command has ended", || ['-', 'Z'].contains(&state_of(pid)));
}

#[test]
fn guardian_that_somebody_has_stopped_goes_on_and_heeds_no_other_signal() {
    let fixture = Fixture::new();
    let mut program = fixture.run(&SHORT, ENDLESS);
    let pid = program.line_with("pid");
    let guardian = guardian_of(program.pid());
    for signal in [Signal::STOP, Signal::TSTP, Signal::TERM, Signal::HUP, Signal::INT, Signal::USR1] {
        kill_process(guardian, signal).unwrap();
    }
    eventually("the guardian goes on", || state_of(guardian) == 'S');
    assert!(is_alive(&pid) && program.is_running());
    // Without its orders, a guardian that is stopped again ends nothing. The program does.
    program.signal(Signal::TERM);
    kill_process(guardian, Signal::STOP).unwrap();
    kill_process(pid_of(&pid), Signal::KILL).unwrap();
    program.end();
}

/// Neither a guardian without its program nor a program without its guardian waits for the end of the lease.
#[test]
fn killed_program_or_guardian_costs_no_time() {
    let options = ["--session-timeout", "40s", "--grace", "100ms"];
    for is_guardian in [true, false] {
        // The machine may be slow in one attempt.
        let is_prompt = (0..5).any(|_| {
            let fixture = Fixture::new();
            let program = fixture.run(&options, &format!("{WORKER}; wait"));
            let pid = program.line_with("worker pid");
            let killed = if is_guardian { guardian_of(program.pid()) } else { program.pid() };
            let begun = Instant::now();
            kill_process(killed, Signal::KILL).unwrap();
            eventually("the worker has ended", || !is_alive(&pid));
            begun.elapsed() < Duration::from_millis(500)
        });
        assert!(is_prompt, "guardian: {is_guardian}");
    }
}

/// The program can do nothing, so the kernel ends the command.
#[test]
fn command_does_not_outlive_its_guardian_while_the_program_is_frozen() {
    let fixture = Fixture::new();
    let program = fixture.run(&["--session-timeout", "40s"], ENDLESS);
    let pid = program.line_with("pid");
    program.signal(Signal::STOP);
    kill_process(guardian_of(program.pid()), Signal::KILL).unwrap();
    eventually("the command has ended", || !is_alive(&pid));
    program.signal(Signal::CONT);
    assert!([70, 76].contains(&program.end().code));
}

#[test]
fn program_whose_guardian_is_frozen_ends_everything_itself_and_then_ends() {
    let fixture = Fixture::new();
    let relay = Relay::to(("127.0.0.1", fixture.server.port()));
    let script = format!("{WORKER}; trap '' TERM; while :; do sleep 0.05; done");
    let program = Program::spawn(command(&relay.connect_string(), &fixture.run_args(&SHORT, &script)));
    let pids = ["worker pid", "own pid"].map(|text| program.line_with(text));
    let frozen = Frozen::guardian_of(&program);
    relay.swallow();
    let guard = fixture.hold();
    for pid in pids {
        assert!(!is_alive(&pid), "{pid}");
    }
    let ended = program.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert!(ended.err.contains("the guardian of the command is frozen"), "{ended:?}");
    guard.unlock().unwrap();
    drop(frozen);
}

/// The lock is not lost then, and is released.
#[test]
fn program_whose_guardian_is_frozen_ends_a_command_that_was_stopped_for_too_long() {
    let fixture = Fixture::new();
    let script = format!("trap '' TERM; {WORKER}; while :; do sleep 0.05; done");
    let program = fixture.run(&["--stopped-for", "100ms", "--grace", "100ms"], &script);
    let pids = ["worker pid", "own pid"].map(|text| program.line_with(text));
    kill_process(pid_of(&pids[1]), Signal::STOP).unwrap();
    eventually("the stop is reported", || program.err().contains("a signal has stopped it"));
    let frozen = Frozen::guardian_of(&program);
    let ended = program.end();
    assert_eq!(ended.code, 70, "{ended:?}");
    assert!(ended.err.contains("the guardian of the command is frozen"), "{ended:?}");
    for pid in pids {
        assert!(!is_alive(&pid), "{pid}");
    }
    fixture.await_requests(0);
    drop(frozen);
}

/// The lock is not lost then, and each process of the chain starts the next one.
#[test]
fn command_that_was_stopped_for_too_long_is_killed_by_the_guardian_of_a_frozen_program() {
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let links = files.path().join("links");
    let chain = file(files.path(), "chain", &format!("echo >>{}\nsetsid sh \"$0\" &\n", links.display()));
    let length = || fs::metadata(&links).map_or(0, |links| links.len());
    let script = format!("trap '' TERM; sh {chain} & echo pid $$; kill -STOP $$; sleep 1000");
    let times = ["--session-timeout", "40s", "--stopped-for", "100ms", "--grace", "3s"];
    let program = fixture.run(&times, &script);
    let pid = program.line_with("pid");
    eventually("the command is asked to end", || program.err().contains("stopped for too long"));
    assert!(is_alive(&pid));
    program.signal(Signal::STOP);
    eventually("the command has ended", || !is_alive(&pid));
    program.signal(Signal::CONT);
    let ended = program.end();
    assert_eq!(ended.code, 137, "{ended:?}");
    assert!(!ended.err.contains("can be lost"), "{ended:?}");
    let before = length();
    std::thread::sleep(Duration::from_millis(300));
    assert!(before > 0 && length() == before, "{before} links");
    fixture.await_requests(0);
}

// ---- descendants

#[test]
fn lock_is_held_until_the_last_descendant_has_ended() {
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let go = files.path().join("go");
    let worker = format!("until [ -e {} ]; do sleep 0.05; done; echo worked", go.display());
    let script = format!("setsid sh -c '{worker}' & echo started; exit 3");
    let mut program = fixture.run(&["--until-all-end"], &script);
    program.line_with("started");
    let command = guardian_of(program.pid());
    eventually("the command has ended", || state_of(child_of(command)) == 'Z');
    assert!(program.is_running());
    fixture.await_requests(1);
    fs::write(&go, "").unwrap();
    let ended = program.end();
    assert_eq!((ended.code, ended.out.as_str()), (3, "started\nworked\n"), "{ended:?}");
    fixture.await_requests(0);
    let ended = fixture.run(&["--until-all-end"], "exit 4").end();
    assert_eq!(ended.code, 4, "{ended:?}");
}

/// The workers are asked to end, and the program passes signals on to them.
#[test]
fn workers_that_the_command_leaves_behind_are_on_its_leash() {
    for kills in [false, true] {
        let fixture = Fixture::new();
        let script =
            "sh -c \"trap 'echo asked; exit' TERM; echo pid \\$\\$; while :; do sleep 0.05; done\" & exit 3";
        let program = fixture.run(&[&["--until-all-end"], &SHORT[..]].concat(), script);
        let pid = program.line_with("pid");
        let command = child_of(guardian_of(program.pid()));
        eventually("the command has ended", || state_of(command) == 'Z');
        program.signal(if kills { Signal::KILL } else { Signal::TERM });
        eventually("the worker has ended", || !is_alive(&pid));
        eventually("the worker was asked", || program.out().contains("asked"));
        if !kills {
            assert_eq!(program.end().code, 3);
        }
    }
}

/// The lock was held until the command had ended, so its workers may live on.
#[test]
fn worker_outlives_a_program_that_is_killed_after_the_end_of_its_command() {
    let fixture = Fixture::new();
    let script = "setsid sh -c 'echo worker pid $$; exec sleep 1000' & echo own pid $$; cat >/dev/null";
    let mut program = fixture.run(&[], script);
    let [worker, own] = ["worker pid", "own pid"].map(|text| program.line_with(text));
    let guardian = guardian_of(program.pid());
    program.signal(Signal::STOP);
    program.close_input();
    eventually("the command has ended", || !is_alive(&own));
    program.signal(Signal::KILL);
    eventually("the guardian has ended", || ['-', 'Z'].contains(&state_of(guardian)));
    assert!(is_alive(&worker), "{worker}");
    kill_process(pid_of(&worker), Signal::KILL).unwrap();
}

// ---- signals

/// Some programs have a signal of their own that ends them, and a container runtime sends just that.
#[test]
fn all_signals_are_forwarded_even_by_process_1() {
    let namespace =
        ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let has_namespaces = Command::new("unshare").args(&namespace[1..]).arg("true").status();
    assert!(has_namespaces.is_ok_and(|status| status.success()), "this test needs namespaces");
    for is_process_1 in [false, true] {
        let fixture = Fixture::new();
        let connect = fixture.server.connect_string();
        let names = ["WINCH", "RTMIN+3", "RTMAX", "ABRT", "URG", "PWR"];
        let traps: String = names.map(|name| format!("trap 'echo got {name}' {name}; ")).concat();
        let script = format!("{traps} trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done");
        let prefix: &[&str] = if is_process_1 { &namespace } else { &["env"] };
        let mut zklock = Command::new(prefix[0]);
        zklock.args(&prefix[1..]).arg(env!("CARGO_BIN_EXE_zklock"));
        zklock.args([
            "run",
            "-c",
            &connect,
            "--max-tick",
            "500ms",
            &fixture.dir,
            "--",
            "bash",
            "-c",
            &script,
        ]);
        let program = Program::spawn(zklock);
        program.line_with("ready");
        let pid = if is_process_1 { child_of(program.pid()) } else { program.pid() };
        for name in names {
            let kill = ["-s", name, &pid.as_raw_nonzero().to_string()];
            assert!(
                Command::new("bash")
                    .args(["-c", "kill \"$@\"", "bash"])
                    .args(kill)
                    .status()
                    .unwrap()
                    .success()
            );
            program.line_with(&format!("got {name}"));
        }
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(program.end().code, 3, "process 1: {is_process_1}");
    }
}

/// The window of a terminal may be resized while the program waits for the lock.
#[test]
fn signal_that_means_nothing_by_default_does_not_end_the_wait() {
    let fixture = Fixture::new();
    let guard = fixture.hold();
    let program = fixture.run(&[], "exit 3");
    fixture.await_requests(2);
    program.signal(Signal::WINCH);
    program.signal(Signal::URG);
    guard.unlock().unwrap();
    assert_eq!(program.end().code, 3);
}

/// systemd starts services so. The command is not to be ended by a pipe whose reader has gone.
#[test]
fn command_ignores_what_the_program_was_started_to_ignore() {
    let connect = Fixture::new().server.connect_string();
    for (signals, bits) in [("", 0), ("PIPE", 1 << 12), ("PIPE HUP USR2", 1 << 12 | 1 | 1 << 11)] {
        let fixture = Fixture::new();
        let mut shell = Command::new("env");
        shell.args(["--default-signal", "sh", "-c"]);
        let traps: String = signals.split_whitespace().map(|name| format!("trap '' {name}; ")).collect();
        shell.args([&format!("{traps}exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_zklock")]);
        shell.args([
            "run",
            "-c",
            &connect,
            "--max-tick",
            "500ms",
            &fixture.dir,
            "--",
            "grep",
            "SigIgn",
            "/proc/self/status",
        ]);
        let ended = Program::spawn(shell).end();
        let ignored = ended.out.split_whitespace().nth(1).map(|bits| u64::from_str_radix(bits, 16).unwrap());
        // The C library has signals of its own beyond these.
        assert_eq!(ignored.map(|ignored| ignored & 0x7fff_ffff), Some(bits), "{signals}: {ended:?}");
    }
}

// ---- a storm

/// What can be done to a program and its command.
const ATTACKS: [&str; 12] = [
    "stop the program",
    "kill the program",
    "kill the group of the program",
    "stop the guardian",
    "kill the guardian",
    "stop the command",
    "stop and continue the command",
    "kill the command",
    "stop the group of the command",
    "kill the group of the command",
    "kill a worker",
    "stop a worker",
];

/// What can happen to the network and the server.
const FAULTS: [&str; 5] =
    ["lose contact", "refuse connections", "freeze the server", "kill the server", "restart the server"];

/// The longest time until everything goes on. The programs have sessions of two lengths, so such a fault costs some of
/// them their lock, and others not.
const MAX_FAULT: Duration = Duration::from_secs(6);
const SESSION_TIMEOUTS: [&str; 3] = ["4s", "9s", "4s"];

/// Programs acquire the lock in turn, while somebody stops, continues and kills the program, the guardian, the command,
/// the workers and their groups at any moment, beside losses of contact, and freezes and restarts of the server.
/// `ZKLOCK_STORM=600` makes the storm last ten minutes.
#[test]
fn no_attack_lets_a_command_run_beside_the_next_owner() {
    let seconds = std::env::var("ZKLOCK_STORM").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(15);
    // The server ends with this process.
    let (fixture, files) = (Fixture::on(Box::leak(Box::new(Server::start()))), TempDir::new().unwrap());
    let beats = file(files.path(), "beats", "");
    let running = TempDir::new().unwrap();
    let script = Storm::script(running.path(), &beats);
    let mut storm = Storm {
        fixture: &fixture,
        beats,
        script,
        programs: Vec::new(),
        counts: BTreeMap::new(),
        last: (Vec::new(), 0),
    };
    for timeout in SESSION_TIMEOUTS {
        let relay = Relay::to(("127.0.0.1", fixture.server.port()));
        let program = storm.start(&relay, timeout);
        storm.programs.push((relay, timeout, program));
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    // However short the storm is, there is another owner.
    storm.attack(&["kill the program"]);
    while Instant::now() < end {
        let any = |choice: &[&'static str]| choice[fastrand::usize(..choice.len())];
        match fastrand::u8(..4) {
            0 => storm.attack(&[any(&FAULTS)]),
            1 => storm.attack(&[any(&FAULTS), any(&ATTACKS)]),
            _ => storm.attack(&[any(&ATTACKS)]),
        }
    }
    eventually_some("an owner works at the end", || {
        storm.replace_ended();
        storm.worker()
    });
    drop(running);
    let beats = fs::read_to_string(&storm.beats).unwrap();
    let tokens: Vec<i64> =
        beats.lines().map(|beat| beat.split(' ').next().unwrap().parse().unwrap()).collect();
    let wrong = tokens.windows(2).position(|pair| pair[0] > pair[1]);
    let around = wrong.map(|at| beats.lines().skip(at.saturating_sub(5)).take(10).collect::<Vec<_>>());
    let mut owners = tokens.clone();
    owners.dedup();
    println!("{} owners, {} beats", owners.len(), tokens.len());
    for (attack, Count { times, survived }) in storm.counts {
        println!("{attack}: {times} times, the owner stayed {survived} times");
    }
    assert!(wrong.is_none(), "{around:#?}");
    assert!(owners.len() > 1);
}

struct Storm<'a> {
    fixture: &'a Fixture,
    /// The file to which each process of a command writes the token of its lock and its own id.
    beats: String,
    script: String,
    programs: Vec<(Relay, &'static str, Program)>,
    counts: BTreeMap<&'static str, Count>,
    /// The last attacks, and the token of the owner that they met.
    last: (Vec<&'static str>, i64),
}

#[derive(Default)]
struct Count {
    times: usize,
    /// How often the same owner worked after that.
    survived: usize,
}

impl Storm<'_> {
    /// A tree of processes: the command, a worker in its group, and two workers in sessions of their own, of which one has
    /// lost its parent.
    fn script(running: &Path, beats: &str) -> String {
        let beat = format!(
            "while [ -d {} ]; do echo $ZKLOCK_FENCING_TOKEN $$ >>{beats}; sleep 0.02; done",
            running.display()
        );
        format!(
            "trap '' TERM; sh -c '{beat}' & setsid sh -c '{beat}' & (setsid sh -c '{beat}' &); {beat}; wait"
        )
    }

    fn start(&self, relay: &Relay, timeout: &str) -> Program {
        let options = ["-q", "--until-all-end", "--session-timeout", timeout, "--grace", "300ms"];
        let args = self.fixture.run_args(&options, &self.script);
        let mut zklock = command(&relay.connect_string(), &args);
        zklock.process_group(0);
        Program::spawn(zklock)
    }

    /// The token of the owner, whose command works.
    fn worker(&self) -> Option<i64> {
        let owner = self.fixture.directory().current_owner().ok()??.czxid?;
        let beats = fs::read_to_string(&self.beats).unwrap();
        let prefix = format!("{owner} ");
        (beats.lines().rev().take(2000).filter(|beat| beat.starts_with(&prefix)).count() > 20)
            .then_some(owner)
    }

    /// The index of the program whose guardian has a child, with the ids of program, guardian and command.
    fn owner(&self) -> Option<(usize, [Pid; 3])> {
        self.programs.iter().enumerate().find_map(|(index, (_, _, program))| {
            let guardian = *children(program.pid()).first()?;
            Some((index, [program.pid(), guardian, *children(guardian).first()?]))
        })
    }

    /// Does all of this at once, and undoes it after a while.
    fn attack(&mut self, attacks: &[&'static str]) {
        let (token, (index, [program, guardian, command])) = eventually_some("an owner works", || {
            self.replace_ended();
            Some((self.worker()?, self.owner()?))
        });
        if self.last.1 == token {
            for &attack in &self.last.0 {
                self.counts.entry(attack).or_default().survived += 1;
            }
        }
        let worker = self.any_worker(token).unwrap_or(command);
        self.last = (attacks.to_vec(), token);
        for &attack in attacks {
            self.counts.entry(attack).or_default().times += 1;
        }
        let (relay, server) = (&self.programs[index].0, self.fixture.server);
        let one = |pid, signal| kill_process(pid, signal).unwrap_or_default();
        let group = |pid, signal| kill_process_group(pid, signal).unwrap_or_default();
        for &attack in attacks {
            match attack {
                "stop the program" => one(program, Signal::STOP),
                "kill the program" => one(program, Signal::KILL),
                "kill the group of the program" => group(program, Signal::KILL),
                "stop the guardian" => one(guardian, Signal::STOP),
                "kill the guardian" => one(guardian, Signal::KILL),
                "stop the command" => one(command, Signal::STOP),
                "stop and continue the command" => {
                    one(command, Signal::STOP);
                    one(command, Signal::CONT);
                }
                "kill the command" => one(command, Signal::KILL),
                "stop the group of the command" => group(command, Signal::STOP),
                "kill the group of the command" => group(command, Signal::KILL),
                "kill a worker" => one(worker, Signal::KILL),
                "stop a worker" => one(worker, Signal::STOP),
                "lose contact" => relay.swallow(),
                "refuse connections" => relay.refuse(),
                "freeze the server" => server.pause(),
                "kill the server" => server.kill(),
                "restart the server" => server.stop(),
                other => panic!("{other}"),
            }
        }
        // Sometimes, another owner comes before everything goes on.
        std::thread::sleep(MAX_FAULT.mul_f64(fastrand::f64()));
        one(program, Signal::CONT);
        group(command, Signal::CONT);
        one(worker, Signal::CONT);
        relay.restore();
        server.resume();
        if !server.is_running() {
            server.restart();
        }
    }

    fn any_worker(&self, token: i64) -> Option<Pid> {
        let beats = fs::read_to_string(&self.beats).unwrap();
        let prefix = format!("{token} ");
        let workers: Vec<&str> =
            beats.lines().rev().take(50).filter(|beat| beat.starts_with(&prefix)).collect();
        let worker = workers.get(fastrand::usize(0..workers.len().max(1)))?;
        Some(pid_of(worker)).filter(|worker| state_of(*worker) != '-')
    }

    fn replace_ended(&mut self) {
        for index in 0..self.programs.len() {
            if !self.programs[index].2.is_running() {
                let (relay, timeout, _) = &self.programs[index];
                self.programs[index].2 = self.start(relay, timeout);
            }
        }
    }
}

fn children(pid: Pid) -> Vec<Pid> {
    let pid = pid.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}
