//! The launcher: this program, run in the new process, until it becomes the command.
//!
//! It does what only a process can do for itself, and then stops itself. The supervising process continues it when
//! everything is ready. Nothing of the command runs before that.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use nix::sys::signal::SigSet;
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

use super::terminal_stops;
use crate::failure::{NOT_EXECUTABLE, NOT_FOUND, SYSTEM};
use crate::run::systemd;

/// The program name (`argv[0]`) by which this program knows that it is the launcher.
const NAME: &str = "zklock: launcher";

/// Returns a command that starts the launcher of `program`, in a separate process group.
pub(super) fn launcher_of(program: &OsString, arguments: &[OsString]) -> Command {
    // /proc/self/exe is this program even if the file has been replaced since it started.
    let mut launcher = match cfg!(target_os = "linux") && Path::new("/proc/self/exe").exists() {
        true => Command::new("/proc/self/exe"),
        false => Command::new(env::current_exe().map_or_else(|_| own_name(), OsString::from)),
    };
    launcher.arg0(NAME).arg(process::id().to_string()).arg(program).args(arguments);
    launcher.process_group(0);
    launcher
}

fn own_name() -> OsString {
    env::args_os().next().unwrap_or_default()
}

/// Becomes the command, if this process is the launcher. Returns the exit code if that fails.
pub(crate) fn launch() -> Option<u8> {
    let mut arguments = env::args_os();
    if arguments.next()? != NAME {
        return None;
    }
    let (supervisor, program) = (arguments.next()?, arguments.next()?);
    let Err(error) = wait_for_start(&supervisor) else {
        let arguments: Vec<OsString> = arguments.collect();
        let mut error = Command::new(&program).args(&arguments).envs(systemd::own_ids()).exec();
        if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) {
            // The program is a script without #!. Some implementations of execvp(3) run such a script in a shell.
            error = Command::new("/bin/sh")
                .arg(path_of(&program))
                .args(&arguments)
                .envs(systemd::own_ids())
                .exec();
        }
        let _ = writeln!(io::stderr(), "zklock: {}: {error}", program.to_string_lossy());
        return Some(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE });
    };
    let _ = writeln!(io::stderr(), "zklock: {}: {error}", program.to_string_lossy());
    Some(SYSTEM)
}

/// The path of a program: a name without a slash is looked up in PATH.
fn path_of(program: &OsString) -> PathBuf {
    let program = PathBuf::from(program);
    let path = env::var_os("PATH").filter(|_| program.components().count() == 1).unwrap_or_default();
    let found = env::split_paths(&path).map(|dir| dir.join(&program)).find(|file| file.is_file());
    found.unwrap_or(program)
}

/// Returns why this program cannot be executed, if its file shows a reason.
pub(crate) fn check_program(program: &OsString) -> io::Result<()> {
    if Path::new(program).components().count() > 1 {
        return check_file(Path::new(program));
    }
    // Without PATH, the system uses its own list of directories.
    let Some(path) = env::var_os("PATH") else { return Ok(()) };
    let mut failure = Errno::NOENT.into();
    for dir in env::split_paths(&path) {
        match check_file(&dir.join(program)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
}

fn check_file(path: &Path) -> io::Result<()> {
    let file = fs::metadata(path)?;
    let is_executable = file.is_file() && file.permissions().mode() & 0o111 != 0;
    if is_executable { Ok(()) } else { Err(Errno::ACCESS.into()) }
}

/// Blocks until the supervising process continues this one.
fn wait_for_start(supervisor: &OsString) -> io::Result<()> {
    end_with_supervisor(supervisor)?;
    kill_process(getpid(), Signal::STOP)?;
    let unblocked: SigSet = terminal_stops();
    Ok(unblocked.thread_unblock()?)
}

/// Asks the kernel to kill this process, and so the command, when the supervising process ends.
#[cfg(target_os = "linux")]
fn end_with_supervisor(supervisor: &OsString) -> io::Result<()> {
    use rustix::process::{getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The supervising process may have ended before this call.
    let parent = getppid().map(|parent| parent.as_raw_nonzero().to_string());
    if parent.as_deref().map(OsString::from).as_ref() == Some(supervisor) {
        return Ok(());
    }
    Err(io::Error::other("zklock has ended"))
}

#[cfg(not(target_os = "linux"))]
#[allow(clippy::unnecessary_wraps, reason = "as on Linux")]
fn end_with_supervisor(_supervisor: &OsString) -> io::Result<()> {
    Ok(())
}
