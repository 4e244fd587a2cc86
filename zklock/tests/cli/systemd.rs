//! `zklock` as the main process of a systemd service.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::program::{Ended, Fixture, Program, file};

/// Prints whether each variable names the process that reads it, and what it finds in the descriptor that it got.
const SERVICE: &str = "is_mine() { [ \"$1\" = $$ ] && echo mine || echo \"$1\"; }
    echo listen $(is_mine \"$LISTEN_PID\") $LISTEN_FDS ${LISTEN_PIDFDID-none}
    echo watchdog $(is_mine \"$WATCHDOG_PID\") exec $(is_mine \"$SYSTEMD_EXEC_PID\")
    read line <&3; echo $line";

impl Fixture {
    /// Runs the service under `zklock`, with these variables of systemd and a file as descriptor 3.
    fn serve(&self, options: &[&str], variables: &str) -> Ended {
        let files = TempDir::new().unwrap();
        let socket = file(files.path(), "socket", "passed on\n");
        let mut shell = Command::new("sh");
        // The shell becomes the program, so its process id is that of the program.
        let script = format!("exec 3<{socket}; export {variables}; exec \"$0\" \"$@\"");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_zklock")]).args(&options[..1]);
        shell.args(["--max-tick", "500ms", "-c", &self.server.connect_string()]).args(&options[1..]);
        Program::spawn({
            shell.args([&self.dir, "--", "sh", "-c", SERVICE]);
            shell
        })
        .end()
    }
}

#[test]
fn variables_that_name_the_program_name_the_command_and_descriptors_are_passed_on() {
    let variables = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_PIDFDID=77 WATCHDOG_PID=$$ SYSTEMD_EXEC_PID=$$";
    let fixture = Fixture::new();
    for options in [&["run"][..], &["once", "--key", "a"]] {
        let ended = fixture.serve(options, variables);
        let all = "listen mine 1 none\nwatchdog mine exec mine\npassed on\n";
        assert_eq!((ended.code, ended.out.as_str()), (0, all), "{options:?}: {ended:?}");
    }
}

#[test]
fn variables_that_name_another_process_stay() {
    let variables = "LISTEN_PID=1 LISTEN_FDS=2 LISTEN_PIDFDID=77 WATCHDOG_PID=2 SYSTEMD_EXEC_PID=3";
    let ended = Fixture::new().serve(&["run"], variables);
    assert_eq!(ended.out, "listen 1 2 77\nwatchdog 2 exec 3\npassed on\n", "{ended:?}");
}

#[test]
fn key_that_systemd_has_filled_is_a_warning() {
    let fixture = Fixture::new();
    let once = |key: &str| fixture.zklock_once(key);
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    if machine.trim().len() == 32 {
        let ended = once(&format!("2026-{}-01", machine.trim()));
        assert_eq!((ended.code, ended.err.lines().count()), (0, 1), "{ended:?}");
        assert!(ended.err.contains("the id of this machine, which systemd puts in place of %m"), "{ended:?}");
    } else {
        println!("skipped: this machine has no id; the unit test of placeholders has one");
    }
    let ended = once("/run/credentials/report.service");
    assert_eq!((ended.code, ended.err.lines().count()), (0, 1), "{ended:?}");
    assert!(ended.err.contains("write %% for each %"), "{ended:?}");
    once("%F").assert_succeeded();
}

impl Fixture {
    fn zklock_once(&self, key: &str) -> Ended {
        let args = ["once", "-q", "--max-tick", "500ms", "--key", key, &self.dir, "--", "true"];
        crate::program::zklock(self.server, &args)
    }
}
