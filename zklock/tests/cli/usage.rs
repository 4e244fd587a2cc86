//! Tests of arguments, and of servers that cannot be reached.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::program::{Ended, Piped, Program, command, file, run};
use crate::support::relay::Relay;
use crate::support::server;
use crate::support::wait::{deadline, eventually};

/// A port without a server. It notices whether anybody has connected.
struct Unused(TcpListener);

impl Unused {
    fn listen() -> Unused {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Unused(listener)
    }

    fn address(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }

    fn was_used(&self) -> bool {
        self.0.accept().is_ok()
    }
}

/// Every subcommand that connects, with the required arguments before the directory and after it.
const SUBCOMMANDS: [(&[&str], &[&str]); 7] = [
    (&["run"], &["true"]),
    (&["once", "--key", "%F"], &["true"]),
    (&["who"], &[]),
    (&["leader"], &[]),
    (&["revoke"], &[]),
    (&["reap", "--older-than", "1d"], &[]),
    (&["doctor"], &[]),
];

#[test]
fn unreachable_servers_are_one_line_and_69() {
    for (connect, why) in
        [("127.0.0.1:1", "Connection refused"), ("no-such-host.invalid", "no-such-host.invalid")]
    {
        for args in [
            &["who", "/a"][..],
            &["leader", "/a"],
            &["revoke", "/a"],
            &["reap", "--older-than", "1d", "/a"],
            &["run", "/a", "true"],
        ] {
            let args = [&["--session-timeout", "1s"], args].concat();
            run(command(connect, &args)).assert_failed(69, why);
        }
    }
}

#[test]
fn wrong_usage_is_64() {
    for args in [&["who"][..], &["run", "/a"], &["who", "/a", "--unknown"], &["unknown"], &[]] {
        let ended = run(command("127.0.0.1:1", args));
        assert_eq!((ended.code, ended.out.as_str()), (64, ""), "{args:?}: {ended:?}");
        assert!(ended.err.contains("Usage: zklock"), "{args:?}: {ended:?}");
    }
    for connect in ["zk1:port", "", "zk1/a//b"] {
        let ended = run(command(connect, &["who", "/a"]));
        assert_eq!(ended.code, 64, "{connect}: {ended:?}");
    }
}

#[test]
fn wrong_usage_of_each_subcommand_is_found_before_connecting() {
    let unused = Unused::listen();
    let server = unused.address();
    let check = |connect: &str, options: &[&str], dir: &str| {
        for (subcommand, rest) in SUBCOMMANDS {
            let args = [subcommand, options, &[dir], rest].concat();
            let ended = run(command(connect, &args));
            assert_eq!((ended.code, ended.out.as_str()), (64, ""), "{connect} {args:?}: {ended:?}");
            assert!(!ended.err.is_empty() && !unused.was_used(), "{connect} {args:?}: {ended:?}");
        }
    };
    for dir in ["relative", "", "/", "/a/", "/a//b", "/a/../b", "/a\u{1}"] {
        check(&server, &[], dir);
    }
    for options in [
        &["--session-timeout", "1ms"][..],
        &["--session-timeout", "2d"],
        &["--session-timeout", "soon"],
        &["--max-tick", "-1s"],
        &["--tick", "-1s"],
        &["--jute-max-buffer", "4095"],
        &["--jute-max-buffer", "1M"],
        &["--tick", "2s", "--max-tick", "1s"],
        &["--auth", "secret"],
        &["--auth", ""],
        &["--cert", "file"],
        &["--cert-key-password-file", "file"],
        &["--unknown"],
    ] {
        check(&server, options, "/a");
    }
    for connect in ["", ",", "/app", "::1:2181", "h1:1;h2:2", "[::1", "127.0.0.1:port"] {
        check(connect, &[], "/a");
    }
    for chroot in ["/a//b", "/../a", "/app,h2:2181/app"] {
        check(&format!("{server}{chroot}"), &[], "/a");
    }
}

#[test]
fn no_message_shows_a_secret() {
    let unused = Unused::listen();
    let server = unused.address();
    for (subcommand, rest) in SUBCOMMANDS {
        for (connect, auth) in [
            (format!("user:secret@{server}"), "digest:user:password"),
            (format!("zk://user:secret@{server}/app"), "digest:user:password"),
            (server.clone(), "secret"),
            (server.clone(), "digest:secret"),
        ] {
            let ended = run(command(&connect, &[subcommand, &["--auth", auth, "/a"], rest].concat()));
            assert_eq!((ended.code, ended.out.as_str()), (64, ""), "{ended:?}");
            assert!(!ended.err.is_empty() && !ended.err.contains("secret"), "{ended:?}");
            assert!(!unused.was_used());
        }
    }
    run(command("zk://zk1", &["who", "/a"])).assert_failed(64, "leave 'zk://' out");
}

#[test]
fn wrong_arguments_of_a_subcommand_are_found_before_connecting() {
    let unused = Unused::listen();
    for args in [
        &["run", "/a"][..],
        &["run", "--try", "--timeout", "1s", "/a", "true"],
        &["run", "--timeout", "soon", "/a", "true"],
        &["run", "--grace", "soon", "/a", "true"],
        &["run", "--naming", "java", "/a", "true"],
        &["run", "--timeout", "1M", "/a", "true"],
        &["run", "--stopped-for", "five", "/a", "true"],
        &["run", "--permits", "0", "/a", "true"],
        &["run", "--permits", "2", "--shared", "/a", "true"],
        &["run", "/zookeeper/locks", "true"],
        &["run", "/zookeeper", "true"],
        &["once", "/a", "true"],
        &["once", "--key", "", "/a", "true"],
        &["once", "--key", "%s", "/a", "true"],
        &["once", "--key", "%F", "--keep", "1y", "/a", "true"],
        &["once", "--key", "%F", "--keep", "0s", "/a", "true"],
        &["run", "--max-tick", "0", "/a", "true"],
        &["revoke", "--force-after", "soon", "/a"],
        &["reap", "/a"],
        &["reap", "--older-than", "soon", "/a"],
        &["who", "/a", "/b"],
        &["leader"],
    ] {
        let ended = run(command(&unused.address(), args));
        assert_eq!((ended.code, ended.out.as_str()), (64, ""), "{args:?}: {ended:?}");
        assert!(!unused.was_used(), "{args:?}: {ended:?}");
    }
}

#[test]
fn empty_identity_in_the_environment_is_none() {
    let with_identity = |value: &str| {
        let mut program = command("127.0.0.1:1", &["who", "/a", "--session-timeout", "1s"]);
        program.env("ZK_AUTH", value);
        run(program)
    };
    with_identity("").assert_failed(69, "Connection refused");
    let wrong = with_identity("secret");
    wrong.assert_failed(64, "ZK_AUTH");
    assert!(!wrong.err.contains("secret"), "{wrong:?}");
}

#[cfg(unix)]
#[test]
fn variables_with_secrets_must_be_valid_utf_8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let [cert, key] = ["/nowhere/cert", "/nowhere/key"];
    for name in ["ZK_AUTH", "ZK_SASL", "ZK_CERT_KEY_PASSWORD"] {
        let mut program = command("127.0.0.1:1", &["who", "/a", "--cert", cert, "--cert-key", key]);
        program.env(name, OsStr::from_bytes(b"digest-md5:ada:s\xe4cret"));
        let ended = run(program);
        ended.assert_failed(64, &format!("{name}: it is not valid UTF-8"));
        assert!(!ended.err.contains("cret"), "{ended:?}");
    }
}

#[test]
fn error_in_a_file_of_identities_names_the_line() {
    let files = TempDir::new().unwrap();
    let file = file(files.path(), "auth", "# comment\n\ndigest:user:password\nsecret\n");
    let ended = run(command("127.0.0.1:1", &["who", "/a", "--auth-file", &file]));
    ended.assert_failed(78, &format!("{file}:4: "));
    assert!(!ended.err.contains("secret"), "{ended:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_74() {
    for args in [&["--help"][..], &["run", "--help"], &["--version"], &["completions", "bash"]] {
        let mut program = command("127.0.0.1:1", args);
        program.stdout(File::options().write(true).open("/dev/full").unwrap());
        let ended = program.output().unwrap();
        assert_eq!(ended.status.code(), Some(74), "{args:?}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains("cannot be written"), "{args:?}: {ended:?}");
    }
}

// ---- the time for connecting

fn with_timeout(connect: &str, timeout: &str, dir: &str) -> Program {
    Program::spawn(command(
        connect,
        &["run", "--max-tick", "500ms", "--timeout", timeout, dir, "--", "echo", "mine"],
    ))
}

#[test]
fn no_time_for_the_lock_is_time_enough_to_connect() {
    let server = server::shared();
    let dir = format!("/no-time-{}", uuid::Uuid::new_v4());
    let run = || with_timeout(&server.connect_string(), "0", &dir).end();
    let ended = run();
    assert_eq!((ended.code, ended.out.as_str()), (0, "mine\n"), "{ended:?}");
    let session = zookeeper_recipes_lock::Session::connect(&server.connect_string(), deadline()).unwrap();
    let lock = zookeeper_recipes_lock::BlockingWriteLock::new(&session, &dir).unwrap();
    let _guard = lock.lock().unwrap();
    run().assert_failed(75, "is held");
}

#[test]
fn servers_may_restart_for_as_long_as_the_timeout() {
    let server = server::shared();
    let relay = Relay::to(("127.0.0.1", server.port()));
    relay.refuse();
    let dir = format!("/restart-{}", uuid::Uuid::new_v4());
    let args =
        ["--session-timeout", "3s", "run", "--max-tick", "500ms", "--timeout", "10m", &dir, "echo", "mine"];
    let mut program = Program::spawn(command(&relay.connect_string(), &args));
    // Without `--timeout`, the program would wait for a server only for the session timeout.
    let begun = Instant::now();
    eventually("a session timeout and a half have passed", || {
        assert!(program.is_running(), "{}", program.err());
        begun.elapsed() > Duration::from_millis(4500)
    });
    relay.restore();
    let ended: Ended = program.end();
    assert_eq!((ended.code, ended.out.as_str()), (0, "mine\n"), "{ended:?}");
}

#[test]
fn help_and_completions_are_printed() {
    for args in [&["--help"][..], &["run", "--help"], &["help", "doctor"], &["--version"]] {
        let ended = run(command("127.0.0.1:1", args));
        ended.assert_succeeded();
        assert!(ended.out.contains("zklock") && !ended.out.contains('\x1b'), "{args:?}: {ended:?}");
    }
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ended = run(command("127.0.0.1:1", &["completions", shell]));
        ended.assert_succeeded();
        assert!(ended.out.contains("zklock"), "{shell}");
    }
}

#[test]
fn manual_pages_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let man = |dir: &Path| run(command("127.0.0.1:1", &["man", dir.to_str().unwrap()]));
    man(dir.path()).assert_succeeded();
    for page in ["zklock.1", "zklock-run.1", "zklock-doctor.1"] {
        let text = fs::read_to_string(dir.path().join(page)).unwrap();
        assert!(text.contains(".SH") && text.contains("Exit codes"), "{page}: {text}");
    }
    let missing = man(&dir.path().join("missing"));
    assert_eq!(missing.code, 74, "{missing:?}");
    assert!(missing.err.contains("missing"), "{missing:?}");
}

#[test]
fn help_and_completions_need_no_reader() {
    for args in [&["--help"][..], &["run"], &["completions", "bash"]] {
        let mut program = Piped::spawn(command("127.0.0.1:1", args));
        drop((program.0.stdout.take(), program.0.stderr.take()));
        // After a panic, the code would be 101.
        assert!([Some(0), Some(64), Some(141)].contains(&program.code()), "{args:?}: {:?}", program.code());
    }
}

#[test]
fn help_does_not_show_the_credentials() {
    let mut help = command("127.0.0.1:1", &["--help"]);
    help.env("ZK_AUTH", "digest:user:secret-8d1c2f");
    assert!(!run(help).out.contains("secret-8d1c2f"));
}
