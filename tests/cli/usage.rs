//! Arguments, and servers that cannot be reached.

use crate::program::{Piped, command, run};

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
            let args = [&["--session-timeout", "300ms"], args].concat();
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
fn help_and_completions_need_no_reader() {
    for args in [&["--help"][..], &["run"], &["completions", "bash"]] {
        let mut program = Piped::spawn(command("127.0.0.1:1", args));
        drop((program.0.stdout.take(), program.0.stderr.take()));
        // 101 is a panic.
        assert!([Some(0), Some(64), Some(141)].contains(&program.code()), "{args:?}: {:?}", program.code());
    }
}

#[test]
fn help_does_not_show_the_credentials() {
    let mut help = command("127.0.0.1:1", &["--help"]);
    help.env("ZK_AUTH", "digest:user:secret-8d1c2f");
    assert!(!run(help).out.contains("secret-8d1c2f"));
}
