//! Tests of `zklock run` at a terminal, as a job of an interactive shell.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tempfile::TempDir;
use zookeeper_recipes_lock::BlockingWriteLock;

use crate::program::{Fixture, file, give_descriptors_back, is_alive, leave_descriptors, pid_of, state_of};
use crate::support::relay::Relay;
use crate::support::wait::{deadline, eventually, eventually_some};

/// A script that only SIGKILL ends.
const STUBBORN: &str = "trap '' TERM; exec >/dev/null 2>&1; while :; do sleep 0.05; done";

/// A script that waits for a signal that it traps. A loop of `sleep` could not always be stopped: a shell that uses
/// `vfork` handles no signal until its child has executed a program, and the child may be stopped before that.
const WAITING: &str = "sleep 1000 & echo pid $$; wait";

/// A terminal with its first program: in most tests an interactive shell, which has job control.
struct Terminal {
    shell: Child,
    input: File,
    output: Arc<Mutex<String>>,
    /// The length of the output up to the end of the line that was expected last.
    seen: usize,
}

impl Terminal {
    /// Starts a shell in which `$zklock` is the program, and `$dir` the directory of a lock.
    fn new(fixture: &Fixture) -> Terminal {
        let shell = ["setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"];
        let mut terminal = Terminal::with(fixture, &shell);
        terminal.expect("prompt> ");
        // Without echo, so that what is typed is not taken for output.
        terminal
            .type_line("stty -echo; bind 'set enable-bracketed-paste off'; PS1='prompt''> '; set +o emacs");
        terminal.type_line("echo 're''ady'");
        terminal.expect("ready");
        terminal
    }

    /// Starts a program, which must make the terminal its controlling terminal.
    fn with(fixture: &Fixture, program: &[&str]) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let stdio = || OwnedFd::from(File::from(slave.try_clone().unwrap()));
        // These tests may run under nohup(1), and a shell leaves ignored signals ignored.
        let mut shell = Command::new("env");
        shell.arg("--default-signal").args(program);
        shell.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let of_zklock = ["ZK_AUTH", "ZK_CERT_KEY_PASSWORD", "ZK_SASL", "ZK_SERVER_PRINCIPAL", "ZKLOCK_PATH"];
        for name in of_zklock.into_iter().chain(["RUST_LOG", "PROMPT_COMMAND"]) {
            shell.env_remove(name);
        }
        shell.env("ZK_CONNECT", fixture.server.connect_string()).env("PS1", "prompt> ").env("TERM", "dumb");
        // These tests wait for messages of the shell.
        shell.env("LC_ALL", "C.UTF-8");
        shell.env("zklock", env!("CARGO_BIN_EXE_zklock")).env("dir", &fixture.dir);
        let shell = shell.spawn().unwrap();
        let mut reader = File::from(master.try_clone().unwrap());
        let output = Arc::new(Mutex::new(String::new()));
        let read = Arc::clone(&output);
        thread::spawn(move || {
            let mut block = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut block) {
                read.lock().push_str(&String::from_utf8_lossy(&block[..length]));
            }
        });
        Terminal { shell, input: File::from(master), output, seen: 0 }
    }

    fn type_line(&mut self, line: &str) {
        self.type_keys(&format!("{line}\n"));
    }

    fn type_keys(&mut self, keys: &str) {
        self.input.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a text in the output after the line that was expected last. Returns the line from this text on.
    fn expect(&mut self, text: &str) -> String {
        let found = eventually_some(&format!("'{text}' is on the terminal"), || {
            let output = self.output.lock();
            let start = self.seen + output[self.seen..].find(text)?;
            // A line is read when it is complete, except for a prompt, which never ends.
            let line = &output[start..];
            let length = line.find('\r').or(text.ends_with(' ').then_some(line.len()))?;
            Some((line[..length].to_owned(), start + length))
        });
        self.seen = found.1;
        found.0
    }

    /// Types a command line that runs a script under the lock.
    fn run(&mut self, options: &str, script: &str, rest: &str) {
        self.type_line(&format!(
            "$zklock run --max-tick 500ms {options} $dir -- sh -c '{}' {rest}",
            script.replace('\'', "'\\''")
        ));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("the terminal shows:\n{}", self.output.lock());
        }
        // The shell sends SIGHUP to its jobs. A shell that is about to read a line handles no signal until the line has
        // been read, unless the signal comes again.
        while let Ok(None) = self.shell.try_wait() {
            let _ = kill_process(Pid::from_child(&self.shell), Signal::HUP);
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn has_python() -> bool {
    let has_python = Command::new("python3").arg("--version").output().is_ok_and(|ran| ran.status.success());
    if !has_python {
        println!("skipped: it needs Python");
    }
    has_python
}

// ---- in the foreground

#[test]
fn command_has_the_terminal_of_its_shell() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    terminal.run("", "stty -a | head -1; read x; echo got:$x", "");
    terminal.expect("speed");
    terminal.type_line("hello");
    terminal.expect("got:hello");
    terminal.type_line("echo the shell has it again");
    terminal.expect("the shell has it again");
}

/// In a pipeline, a pager may read from the terminal as well. A password prompt opens `/dev/tty`.
#[test]
fn command_in_a_pipeline_gets_the_terminal_when_it_uses_it() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    terminal.run(
        "",
        "stty echo </dev/tty; stty -echo </dev/tty; echo asks; read x </dev/tty; echo got:$x",
        "| cat",
    );
    terminal.expect("asks");
    terminal.type_line("hello");
    terminal.expect("got:hello");
}

#[test]
fn interrupt_ends_the_command_and_the_script_around_it() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    // With `exec`, because a shell that has just forked may ignore the signal.
    terminal.type_line(
        "bash -c 'for i in 1 2; do $zklock run $dir -- sh -c \"echo up; exec sleep 1000\"; done; echo m\"\"ore'",
    );
    terminal.expect("up");
    terminal.type_keys("\x03");
    terminal.expect("prompt> ");
    terminal.type_line("echo code:$?");
    terminal.expect("code:130");
    assert!(!terminal.output.lock().contains("more"));
    fixture.await_requests(0);
}

/// As under `make -j2`: another part of the job must not have to wait until the command has ended.
#[test]
fn rest_of_the_job_is_interrupted_as_well() {
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let script = "import os, signal, subprocess
signal.signal(signal.SIGINT, lambda *_: os.write(1, b'the rest is told\\n'))
script = \"trap 'echo the command is told' INT; echo up; sleep 1000 & wait; wait\"
program = subprocess.Popen([os.environ['zklock'], 'run', os.environ['dir'], '--', 'sh', '-c', script])
program.wait()
";
    let script = file(files.path(), "script.py", script);
    if !has_python() {
        return;
    }
    let mut terminal = Terminal::new(&fixture);
    terminal.type_line(&format!("python3 {script}"));
    terminal.expect("up");
    terminal.type_keys("\x03");
    eventually("all are told", || {
        let output = terminal.output.lock();
        output.contains("the rest is told") && output.contains("the command is told")
    });
}

/// The inner program asks the outer one for the terminal.
#[test]
fn command_of_a_program_within_a_program_gets_the_terminal() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    for inner in ["exec $zklock", "$zklock"] {
        terminal.run(
            "",
            &format!("{inner} run $dir/inner -- sh -c \"echo up; read x; echo got:\\$x\"; :"),
            "",
        );
        terminal.expect("up");
        terminal.type_line("hello");
        terminal.expect("got:hello");
        terminal.expect("prompt> ");
    }
}

/// The lock of an inner program may be lost before that of the outer one, which stops all its descendants.
#[test]
fn guardian_of_a_program_within_a_program_is_not_stopped_with_the_job() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    terminal.run(
        "",
        "$zklock run $dir/inner -- sh -c \"echo guardian \\$PPID; echo command \\$\\$; sleep 1000\"; :",
        "",
    );
    let guardian = pid_of(&terminal.expect("guardian "));
    let command = pid_of(&terminal.expect("command "));
    terminal.type_keys("\x1a");
    terminal.expect("Stopped");
    assert_eq!((state_of(command), state_of(guardian)), ('T', 'S'));
}

/// Unlike Ctrl-C, the signal is meant for the program and its command alone.
#[test]
fn interrupt_of_the_program_alone_leaves_the_script_around_it() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    let script = r#"echo program $(cut -d" " -f4 /proc/$PPID/stat); exec sleep 1000"#;
    terminal.type_line(&format!("bash -c '$zklock run $dir -- sh -c \"$0\"; echo co\"\"de:$?' '{script}'"));
    let program = pid_of(&terminal.expect("program "));
    kill_process(program, Signal::INT).unwrap();
    terminal.expect("code:130");
    terminal.expect("prompt> ");
}

/// The first process of a container gets Ctrl-C, for example.
#[cfg(target_os = "linux")]
#[test]
fn interrupt_ends_a_program_that_is_process_1() {
    let fixture = Fixture::new();
    let unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
    if !Command::new(unshare[0]).args(&unshare[1..]).arg("true").status().is_ok_and(|status| status.success())
    {
        println!("skipped: it needs namespaces");
        return;
    }
    let program = ["setsid", "--ctty", env!("CARGO_BIN_EXE_zklock"), "run", &fixture.dir, "--", "sh", "-c"];
    let mut terminal =
        Terminal::with(&fixture, &[&unshare[..], &program, &["echo up; exec sleep 1000"]].concat());
    terminal.expect("up");
    terminal.type_keys("\x03");
    let status = eventually_some("the program ends", || terminal.shell.try_wait().unwrap());
    assert_eq!(status.code(), Some(130), "{status}");
    fixture.await_requests(0);
}

/// The shell takes the terminal when the script has ended. The command runs on.
#[test]
fn terminal_that_the_shell_has_taken_stays_with_the_shell() {
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let go = files.path().join("go");
    let mut terminal = Terminal::new(&fixture);
    let script = format!(
        "echo program $(cut -d\" \" -f4 /proc/$PPID/stat); until [ -e {} ]; do sleep 0.05; done; read x; sleep 1000",
        go.display()
    );
    terminal.type_line(&format!("bash -c 'echo script $$; $zklock run $dir -- sh -c \"$0\"; :' '{script}'"));
    let outer = pid_of(&terminal.expect("script "));
    let program = pid_of(&terminal.expect("program "));
    kill_process(outer, Signal::KILL).unwrap();
    terminal.expect("prompt> ");
    fs::write(&go, "").unwrap();
    terminal.expect("the command is stopped while it holds the lock, because it reads from the terminal");
    kill_process(program, Signal::TERM).unwrap();
    fixture.await_requests(0);
    eventually("the program has ended", || !is_alive(&format!("pid {}", program.as_raw_nonzero())));
    terminal.type_line("echo the shell has it again");
    terminal.expect("the shell has it again");
}

/// A command that has given the terminal to another group and then reads from it would be stopped again as soon as it is
/// continued. If that group has ended, the command gets the terminal again.
#[test]
fn command_that_has_given_its_terminal_away_is_not_continued_in_vain() {
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let script = "import os, signal, sys, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
me = os.getpid()
child = os.fork()
if child == 0:
    while os.getppid() == me:
        time.sleep(0.05)
    os._exit(0)
os.setpgid(child, child)
os.tcsetpgrp(0, child)
if sys.argv[1] == 'ended':
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print('reads', flush=True)
print('got:' + input(), flush=True)
";
    let script = file(files.path(), "script.py", script);
    if !has_python() {
        return;
    }
    let mut terminal = Terminal::new(&fixture);
    terminal.run("", &format!("exec python3 {script} ended"), "");
    terminal.expect("reads");
    terminal.type_line("hello");
    terminal.expect("got:hello");
    terminal.run("--stopped-for 100ms", &format!("exec python3 {script} alive"), "");
    terminal.expect("reads");
    terminal.expect("the command is stopped while it holds the lock");
    terminal.expect("the command was stopped for too long");
    terminal.type_line("echo the shell has it again");
    terminal.expect("the shell has it again");
}

#[test]
fn command_is_stopped_and_continued_as_a_job() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    // A process outside the reach of the terminal must not run on.
    terminal.run(
        "",
        "setsid sh -c 'echo pid $$; exec sleep 1000' & echo up; read x; echo got:$x; kill $!",
        "",
    );
    let pid = pid_of(&terminal.expect("pid "));
    terminal.type_keys("\x1a");
    terminal.expect("stopped; the command is ended unless");
    terminal.expect("Stopped");
    assert_eq!(state_of(pid), 'T');
    terminal.type_line("fg");
    eventually("the process is continued", || state_of(pid) == 'S');
    terminal.type_line("hello");
    terminal.expect("got:hello");
}

/// Without a descriptor, the program cannot tell whether a process is one that it has stopped.
#[test]
fn stopped_processes_are_continued_once_the_program_has_descriptors_again() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    let script = "echo program $(cut -d\" \" -f4 /proc/$PPID/stat); setsid sh -c 'echo pid $$; exec sleep 1000' & echo command $$
        read x; kill $!; echo got:$x";
    terminal.run("", script, "");
    let program = pid_of(&terminal.expect("program "));
    // These two lines come in any order.
    let [pid, command] = ["pid ", "command "].map(|text| {
        eventually_some(text, || {
            let output = terminal.output.lock();
            let (_, rest) = output.split_once(&format!("\n{text}"))?;
            rest.split_once('\r').map(|(pid, _)| pid_of(pid))
        })
    });
    terminal.type_keys("\x1a");
    terminal.expect("Stopped");
    leave_descriptors(program, 0);
    terminal.type_line("fg");
    eventually("the command is continued", || state_of(command) == 'S');
    assert_eq!(state_of(pid), 'T');
    give_descriptors_back(program);
    eventually("the process is continued", || state_of(pid) == 'S');
    terminal.type_line("hello");
    terminal.expect("got:hello");
}

/// `/proc/PID/stat` shows a process whose first thread has ended as a zombie, even when the process is stopped.
#[test]
fn job_is_stopped_even_if_the_first_thread_of_a_process_has_ended() {
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let script = "import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
print('pid', os.getpid(), flush=True)
ctypes.CDLL(None).pthread_exit(None)
";
    let script = file(files.path(), "script.py", script);
    if !has_python() {
        return;
    }
    let mut terminal = Terminal::new(&fixture);
    terminal.run("", &format!("python3 {script} & read x; kill $!; echo got:$x"), "");
    let pid = pid_of(&terminal.expect("pid "));
    eventually("the first thread has ended", || state_of(pid) == 'Z');
    terminal.type_keys("\x1a");
    terminal.expect("Stopped");
    terminal.type_line("fg");
    terminal.type_line("hello");
    terminal.expect("got:hello");
}

/// A process that waits for a `vfork` is not stopped before its child has executed a program. Here, the child waits for
/// a FIFO.
#[cfg(target_os = "linux")]
#[test]
fn job_with_a_process_that_cannot_be_stopped_goes_on() {
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let fifo = files.path().join("fifo");
    let script = format!(
        "import os
os.mkfifo('{fifo}')
print('pid', os.getpid(), flush=True)
os.posix_spawn('/bin/true', ['true'], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 9, '{fifo}', os.O_RDONLY, 0)])
",
        fifo = fifo.display()
    );
    let script = file(files.path(), "script.py", &script);
    if !has_python() {
        return;
    }
    let _opened = OpenedOnDrop(fifo);
    let mut terminal = Terminal::new(&fixture);
    terminal.run("", &format!("python3 {script} & read x; kill -9 $!; echo got:$x"), "");
    let pid = pid_of(&terminal.expect("pid "));
    eventually("the process waits", || state_of(pid) == 'D');
    terminal.type_keys("\x1a");
    terminal.expect("not stopped: a process of the command cannot be stopped");
    terminal.type_line("hello");
    terminal.expect("got:hello");
}

/// A FIFO that is opened in the end, so that nobody waits for it any longer.
struct OpenedOnDrop(PathBuf);

impl Drop for OpenedOnDrop {
    fn drop(&mut self) {
        // This fails if nobody waits.
        drop(open(&self.0, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()));
    }
}

/// The program is stopped as well, so only the guardian can end the command, before another client owns the lock.
#[test]
fn command_that_is_stopped_as_a_job_has_ended_before_the_lock_is_lost() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    terminal.run("--session-timeout 4s", &format!("trap 'echo a\"\"sked' TERM; {WAITING}; sleep 1000"), "");
    let pid = pid_of(&terminal.expect("pid "));
    terminal.type_keys("\x1a");
    terminal.expect("Stopped");
    let lock = BlockingWriteLock::new(&fixture.session, &fixture.dir).unwrap();
    let guard = lock.try_lock_for(deadline()).unwrap().expect("the session of the program ends");
    assert!(['-', 'Z'].contains(&state_of(pid)));
    terminal.expect("asked");
    terminal.type_line("fg; echo code:$?");
    terminal.expect("code:76");
    guard.unlock().unwrap();
}

/// No shell could continue the command, so it would stay stopped.
#[test]
fn command_of_a_session_leader_is_not_stopped_by_its_terminal() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    terminal.type_line("exec $zklock run $dir -- sh -c 'echo up; read x; echo got:$x; read x'");
    terminal.expect("up");
    terminal.type_keys("\x1a");
    terminal.type_line("hello");
    terminal.expect("got:hello");
}

/// `unshare` in a container, for example, creates another PID namespace. In it, outer process groups and sessions have
/// the id 0.
#[cfg(target_os = "linux")]
#[test]
fn command_at_a_terminal_of_another_pid_namespace_reads_from_it_or_is_said_to_be_stopped() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    let unshare = "unshare --user --map-root-user --pid --fork --kill-child";
    terminal.type_line(&format!("{unshare} true && echo 'has ''namespaces' || echo 'has ''none'"));
    if terminal.expect("has n") == "has none" {
        println!("skipped: it needs namespaces");
        return;
    }
    // In the first run, the program is the first process of the namespace. In the second, it is the child of a shell
    // that is.
    terminal.type_line(&format!("{unshare} $zklock run $dir -- sh -c 'echo fi''rst'"));
    terminal.expect("first");
    terminal.type_line(&format!("exec {unshare} sh -c '$zklock run $dir -- sh -c \"read x\"; echo ended'"));
    terminal.expect("the command is stopped while it holds the lock");
}

/// As cpulimit(1) does. The program is not stopped, although the command had the terminal.
#[test]
fn command_that_somebody_stops_and_continues_is_supervised_and_gets_its_terminal_again() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    let script = "echo program $(cut -d\" \" -f4 /proc/$PPID/stat); echo command $$; read x; echo got:$x; read x; echo got:$x";
    terminal.run("", script, "");
    let program = pid_of(&terminal.expect("program "));
    let command = pid_of(&terminal.expect("command "));
    terminal.type_line("hello");
    terminal.expect("got:hello");
    kill_process(command, Signal::STOP).unwrap();
    terminal.expect("a signal has stopped it");
    assert_eq!((state_of(program), state_of(command)), ('S', 'T'));
    kill_process(command, Signal::CONT).unwrap();
    terminal.type_line("again");
    terminal.expect("got:again");
    terminal.expect("prompt> ");
}

#[test]
fn waiter_is_stopped_and_continued_as_a_job() {
    let fixture = Fixture::new();
    let guard = fixture.hold();
    let mut terminal = Terminal::new(&fixture);
    terminal.run("", "echo mine", "");
    fixture.await_requests(2);
    terminal.type_keys("\x1a");
    terminal.expect("Stopped");
    terminal.type_line("fg");
    guard.unlock().unwrap();
    terminal.expect("mine");
}

// ---- signals

/// Sends four signals that end the program, in each state of the command, at each kind of terminal. Neither the command
/// nor the request may be left.
#[test]
fn signal_ends_the_command_in_each_state_at_each_terminal() {
    // What follows on the command line.
    for job in ["", "&", "</dev/null | cat", "</dev/null >/dev/null 2>&1 &"] {
        let fixture = Fixture::new();
        let mut terminal = Terminal::new(&fixture);
        let files = TempDir::new().unwrap();
        let file = |name: &str| files.path().join(name);
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
            for state in ["waiting", "running", "stopped"] {
                let context = format!("{signal:?} {state} {job}");
                let guard = (state == "waiting").then(|| fixture.hold());
                let script = match state {
                    "stopped" => "kill -STOP $$; exec sleep 1000",
                    _ => "exec sleep 1000",
                };
                // `exec` turns the shell into the program, so its process id stays the same.
                terminal.type_line(&format!(
                    "sh -c 'echo $$ >{program}; exec $zklock run --max-tick 500ms $dir -- sh -c \"echo \\$\\$ >{command}; {script}\"' {job}",
                    program = file("program").display(),
                    command = file("command").display(),
                    script = script.replace("$$", "\\$\\$"),
                ));
                let pid = |name: &str| {
                    let path = file(name);
                    let pid = eventually_some(&format!("the {name}, {context}"), || {
                        fs::read_to_string(&path).ok().filter(|pid| pid.ends_with('\n'))
                    });
                    fs::remove_file(&path).unwrap();
                    pid_of(pid.trim())
                };
                let program = pid("program");
                let command = guard.is_none().then(|| pid("command"));
                fixture.await_requests(if guard.is_some() { 2 } else { 1 });
                if state == "stopped" {
                    eventually(&context, || state_of(command.unwrap()) == 'T');
                }
                // Somebody has stopped only the command.
                assert_ne!(state_of(program), 'T', "{context}");
                kill_process(program, signal).unwrap();
                // A shell also continues a stopped job that it signals. The program may have ended already.
                let _ = kill_process(program, Signal::CONT);
                fixture.await_requests(usize::from(guard.is_some()));
                eventually(&context, || ['-', 'Z'].contains(&state_of(program)));
                assert!(command.is_none_or(|command| state_of(command) == '-'), "{context}");
                // The shell must have the terminal again.
                terminal.type_line("echo next'': $((6 * 7))");
                terminal.expect("next: 42");
                drop(guard);
            }
        }
    }
}

// ---- in the background

#[test]
fn message_does_not_stop_a_background_job_before_it_has_killed_its_command() {
    let fixture = Fixture::new();
    let relay = Relay::to(("127.0.0.1", fixture.server.port()));
    let mut terminal = Terminal::new(&fixture);
    terminal.type_line("stty tostop");
    let options = format!("-vv --session-timeout 6s -c {}", relay.connect_string());
    let files = TempDir::new().unwrap();
    let file = files.path().join("pid");
    terminal.run(&options, &format!("echo $$ >{}; {STUBBORN}", file.display()), "&");
    let pid = eventually_some("the command runs", || {
        fs::read_to_string(&file).ok().filter(|pid| pid.ends_with('\n')).map(|pid| pid.trim().to_owned())
    });
    let lock = BlockingWriteLock::new(&fixture.session, &fixture.dir).unwrap();
    relay.swallow();
    let guard = lock.try_lock_for(deadline()).unwrap().expect("the session of the program ends");
    assert!(!is_alive(&pid), "{}", terminal.output.lock());
    terminal.expect("no contact with ZooKeeper");
    guard.unlock().unwrap();
}

#[test]
fn background_command_that_reads_the_terminal_is_reported_and_ended() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    terminal.run("--stopped-for 300ms", "read x; echo got:$x", "&");
    terminal.expect("the command is stopped while it holds the lock");
    terminal.expect("stopped for too long");
    fixture.await_requests(0);
}

#[test]
fn background_command_that_reads_the_terminal_goes_on_in_the_foreground() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    terminal.run("--stopped-for 0", "read x; echo got:$x", "&");
    terminal.expect("the command is stopped while it holds the lock");
    terminal.type_line("fg");
    terminal.type_line("hello");
    terminal.expect("got:hello");
}

#[test]
fn stopped_job_that_is_continued_in_the_background_runs_there() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    terminal.run("", &format!("trap 'echo r\"\"un; kill $!; exit' USR1; {WAITING}"), "");
    let pid = pid_of(&terminal.expect("pid "));
    terminal.type_keys("\x1a");
    terminal.expect("Stopped");
    terminal.type_line("bg");
    kill_process(pid, Signal::USR1).unwrap();
    terminal.expect("run\r");
    fixture.await_requests(0);
}

#[test]
fn terminal_that_goes_away_ends_the_command() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::new(&fixture);
    terminal.run("", "echo pid $$; sleep 1000", "");
    let pid = pid_of(&terminal.expect("pid "));
    let _ = kill_process_group(Pid::from_child(&terminal.shell), Signal::HUP);
    drop(terminal);
    fixture.await_requests(0);
    eventually("the command ends", || state_of(pid) == '-');
}
