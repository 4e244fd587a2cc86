//! `zklock once`.

use std::fs;
use std::process::Command;

use tempfile::TempDir;
use zookeeper_recipes_lock::locks::Semaphore;

use crate::program::{Ended, Fixture, Program, command, file, zklock};
use crate::support::wait::eventually;

impl Fixture {
    fn once(&self, options: &[&str], script: &str) -> Program {
        self.once_with(options, &["sh", "-c", script])
    }

    fn once_with(&self, options: &[&str], command: &[&str]) -> Program {
        let args = [&["once", "--max-tick", "500ms"], options, &[self.dir.as_str(), "--"], command];
        Program::start(self.server, &args.concat())
    }
}

impl Ended {
    fn assert_code_and_out(&self, code: i32, out: &str) {
        assert_eq!((self.code, self.out.as_str()), (code, out), "{self:?}");
    }
}

#[test]
fn command_runs_once_for_a_key() {
    let fixture = Fixture::new();
    fixture.once(&["--key", "a"], "echo ran; exit 3").end().assert_code_and_out(3, "ran\n");
    let again = fixture.once(&["--key", "a"], "echo ran").end();
    again.assert_code_and_out(79, "");
    assert!(again.err.contains("'a' was run by "), "{again:?}");
    let quiet = fixture.once(&["--key", "a", "--quiet"], "echo ran").end();
    assert_eq!((quiet.code, quiet.err.as_str()), (79, ""), "{quiet:?}");
    let who = zklock(fixture.server, &["who", &format!("{}/a", fixture.dir)]);
    who.assert_failed(65, "it is a key of 'zklock once', and marked");
    fixture.once(&["--key", "b"], "echo ran").end().assert_code_and_out(0, "ran\n");
}

/// A machine without the command uses up no key, and never keeps another machine from running the command.
#[test]
fn command_that_cannot_be_started_is_found_out_without_a_server() {
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let script = file(files.path(), "script", "#!/bin/sh\n");
    for (program, code) in [("no-such-program", 127), ("./no-such-program", 127), (&*script, 126), ("/", 126)]
    {
        let args = ["once", "--key", "a", &fixture.dir, "--", program];
        Program::spawn(command("127.0.0.1:1", &args)).end().assert_failed(code, program);
    }
    fixture.once(&["--key", "a"], "echo ran").end().assert_code_and_out(0, "ran\n");
}

/// `/proc/self/exe` is then the other program, so the guardian of the command cannot be started.
#[cfg(target_os = "linux")]
#[test]
fn program_that_cannot_start_itself_uses_up_no_key() {
    let fixture = Fixture::new();
    let connect = fixture.server.connect_string();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let loader = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let loader = loader.into_iter().find(|path| path.contains("/ld-") || path.contains("/ld.")).unwrap();
    let mut through_loader = Command::new(loader);
    through_loader.arg(env!("CARGO_BIN_EXE_zklock")).args(["once", "-c", &connect, "--max-tick", "500ms"]);
    through_loader.args(["--key", "a", &fixture.dir, "--", "sh", "-c", "echo ran"]);
    let ended = Program::spawn(through_loader).end();
    assert_eq!((ended.code, ended.out.as_str()), (70, ""), "{ended:?}");
    assert!(ended.err.contains("zklock cannot start itself a second time"), "{ended:?}");
    fixture.once(&["--key", "a"], "echo ran").end().assert_code_and_out(0, "ran\n");
}

/// The file looks like a program, but its interpreter is missing.
#[test]
fn program_that_cannot_be_executed_uses_up_no_key() {
    use std::os::unix::fs::PermissionsExt;
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let script = file(files.path(), "script", "#!/no/such/interpreter\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let run = || fixture.once_with(&["--key", "a"], &[&script]).end();
    run().assert_failed(127, &script);
    fs::write(&script, "#!/bin/sh\necho ran\n").unwrap();
    run().assert_code_and_out(0, "ran\n");
}

/// With some of these limits, the command cannot be started after its key was marked.
#[cfg(target_os = "linux")]
#[test]
fn command_that_lacks_descriptors_uses_up_no_key() {
    let fixture = Fixture::new();
    let connect = fixture.server.connect_string();
    let mut could_not_begin = false;
    for limit in 3..24 {
        let key = format!("limit {limit}");
        let limited = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            &limited,
            env!("CARGO_BIN_EXE_zklock"),
            "once",
            "--max-tick",
            "500ms",
            "-c",
            &connect,
        ]);
        shell.args(["--key", &key, &fixture.dir, "--", "true"]);
        let first = Program::spawn(shell).end();
        let again = fixture.once(&["--key", &key], "true").end();
        assert_eq!(again.code, if first.code == 0 { 79 } else { 0 }, "{limit}: {first:?}, {again:?}");
        could_not_begin |= first.code == 70 && first.err.contains("zklock: true: ");
    }
    assert!(could_not_begin, "at no limit");
}

#[test]
fn key_in_progress_is_75() {
    let fixture = Fixture::new();
    let mut program = fixture.once(&["--key", "a"], "echo up; cat >/dev/null");
    program.line_with("up");
    fixture.once(&["--key", "a"], "echo ran").end().assert_failed(75, "in progress elsewhere");
    program.close_input();
    assert_eq!(program.end().code, 0);
    assert_eq!(fixture.once(&["--key", "a"], "echo ran").end().code, 79);
}

#[test]
fn key_is_done_only_after_a_success_if_asked_for() {
    let (fixture, files) = (Fixture::new(), TempDir::new().unwrap());
    let tries = file(files.path(), "tries", "");
    let script = format!("echo $ZKLOCK_FENCING_TOKEN >>{tries}; [ $(wc -l <{tries}) = 2 ]");
    let codes =
        [1, 0, 79].map(|code| (code, fixture.once(&["--key", "a", "--until-success"], &script).end().code));
    assert!(codes.iter().all(|(expected, code)| expected == code), "{codes:?}");
    let tokens: Vec<i64> =
        fs::read_to_string(&tries).unwrap().lines().map(|token| token.parse().unwrap()).collect();
    assert!(tokens.len() == 2 && tokens[0] < tokens[1], "{tokens:?}");
}

#[test]
fn signals_are_those_of_the_command() {
    let fixture = Fixture::new();
    let program = fixture.once(&["--key", "a"], "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done");
    program.line_with("up");
    program.signal(rustix::process::Signal::TERM);
    assert_eq!(program.end().code, 7);
}

#[test]
fn program_that_is_told_to_end_forgets_no_keys() {
    let fixture = Fixture::new();
    fixture.once(&["--key", "old"], "true").end().assert_code_and_out(0, "");
    let program = fixture.once(&["--key", "new", "--keep", "1ms"], "echo up; exec sleep 1000");
    program.line_with("up");
    program.signal(rustix::process::Signal::TERM);
    assert_eq!(program.end().code, 143);
    assert_eq!(fixture.once(&["--key", "old"], "echo ran").end().code, 79);
    let told_nothing = fixture.once(&["--key", "newer", "--keep", "1ms"], "true");
    told_nothing.end().assert_code_and_out(0, "");
    fixture.once(&["--key", "old"], "echo ran").end().assert_code_and_out(0, "ran\n");
}

#[test]
fn command_that_loses_its_lock_is_ended() {
    let fixture = Fixture::new();
    let program =
        fixture.once(&["--key", "a", "--grace", "100ms"], "echo path $ZKLOCK_PATH; exec sleep 1000");
    let path = program.line_with("path").replace("path ", "");
    fixture.zookeeper().delete(&path, None).unwrap();
    program.end().assert_failed(76, "the lock is lost");
}

#[test]
fn key_has_placeholders_and_old_keys_are_forgotten() {
    let fixture = Fixture::new();
    fixture.once(&["--key", "day %Y-%m-%d"], "true").end().assert_code_and_out(0, "");
    // The key is the same, unless midnight falls between the two calls. In that case, the second command runs as well.
    let same = fixture.once(&["--key", "day %F", "--keep", "1ms"], "true").end();
    assert!([0, 79].contains(&same.code), "{same:?}");
    eventually("the key is forgotten", || {
        fixture.once(&["--key", "day %F", "--keep", "1ms"], "echo ran").end().code == 0
    });
    fixture.once(&["--key", "%q"], "true").end().assert_failed(64, "'%q' is not a placeholder");
    fixture.once(&["--key", ""], "true").end().assert_failed(64, "1 to 255 bytes");
}

/// The key is done once all the same, so the command runs.
#[test]
fn lock_or_semaphore_on_the_path_of_the_keys_is_a_warning_once() {
    let fixture = Fixture::new();
    // The name of this key looks like that of a request.
    let key = "lock-0000000001";
    fixture.once(&["--key", key], "true").end().assert_succeeded();
    fixture.once(&["--key", "a"], "true").end().assert_succeeded();
    let held = fixture.hold();
    let beside_lock = fixture.once(&["--key", "b"], "echo ran").end();
    beside_lock.assert_code_and_out(0, "ran\n");
    let text = |theirs| {
        format!("{theirs} and the keys of 'zklock once' do not exclude each other, so both may own at once")
    };
    assert!(
        beside_lock.err.contains(&text("a lock")) && beside_lock.err.lines().count() == 1,
        "{beside_lock:?}"
    );
    held.unlock().unwrap();
    let _permit = Semaphore::new(&fixture.session, &fixture.dir, 1).unwrap().try_acquire().unwrap().unwrap();
    let beside_permit = fixture.once(&["--key", "c"], "echo ran").end();
    beside_permit.assert_code_and_out(0, "ran\n");
    assert!(beside_permit.err.contains(&text("a semaphore")), "{beside_permit:?}");
    // A machine on which the command does not run has nothing to warn of.
    let done = fixture.once(&["--key", "c", "--quiet"], "echo ran").end();
    assert_eq!((done.code, done.err.as_str()), (79, ""), "{done:?}");
}
