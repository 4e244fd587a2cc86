//! The variables with which systemd names the main process of a service.
//!
//! They name this program. The command looks for its own process id in them: if it finds another one, it ignores the
//! sockets that it was given, or the watchdog. So they must name the command, whose process id is that of the launcher.

use std::env;
use std::process::{self, Command};

/// The variables that hold the id of the main process.
const IDS: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];

/// Names the process of `LISTEN_PID` once more, in a way that the command cannot be given. It is optional.
const SECOND_LISTEN_ID: &str = "LISTEN_PIDFDID";

/// The value of a variable that the launcher replaces by its own process id. Any process may start the launcher.
const OF_THE_LAUNCHER: &str = "zklock: launcher";

/// Lets the variables that name this process name the launcher that `command` starts, directly or through other
/// processes.
pub(super) fn name_the_launcher(command: &mut Command) {
    let own = process::id().to_string();
    for name in IDS.into_iter().filter(|name| env::var(name).is_ok_and(|id| id == own)) {
        command.env(name, OF_THE_LAUNCHER);
        if name == "LISTEN_PID" {
            command.env_remove(SECOND_LISTEN_ID);
        }
    }
}

/// The variables that are to name this process, the launcher, once it has become the command.
pub(super) fn own_ids() -> impl Iterator<Item = (&'static str, String)> {
    let names = IDS.into_iter().filter(|name| env::var(name).is_ok_and(|id| id == OF_THE_LAUNCHER));
    names.map(|name| (name, process::id().to_string()))
}
