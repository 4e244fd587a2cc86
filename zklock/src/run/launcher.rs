//! The launcher: this program, run in the new process, until it becomes the command.
//!
//! It does what only a process can do for itself, and then waits for the guardian. Nothing of the command runs before
//! that.

use std::convert::Infallible;
use std::env;
use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use nix::sys::signal::SigSet;
#[cfg(target_os = "linux")]
use nix::unistd::execvpe;
use rustix::io::Errno;
use rustix::stdio::{dup2_stdin, stdin};

use super::unix::terminal_stops;
use super::{systemd, wire};
use crate::failure::{NOT_EXECUTABLE, NOT_FOUND, SYSTEM};

/// The program name (`argv[0]`) by which this program knows that it is the launcher.
const NAME: &str = "zklock: launcher";

/// Returns a command that starts the launcher of `program`, in a separate process group. Its standard input must be a
/// socket.
pub(super) fn launcher_of(
    own_path: &OsString,
    ignores_pipe: &OsString,
    program: &OsString,
    arguments: &[OsString],
) -> Command {
    let mut launcher = this_program(own_path, NAME);
    launcher.arg(process::id().to_string()).arg(ignores_pipe).arg(program).args(arguments);
    launcher.process_group(0);
    launcher
}

/// Returns a command that runs this program under another name (`argv[0]`). Without /proc, `own_path` is this program.
pub(super) fn this_program(own_path: &OsString, name: &str) -> Command {
    // This is the program even if the file has been replaced since it started.
    let link = Path::new("/proc/self/exe");
    let is_shown = cfg!(target_os = "linux") && link.exists();
    let mut program = Command::new(if is_shown { link.as_os_str() } else { own_path });
    program.arg0(name);
    program
}

/// The path of this program, as far as the system shows it.
pub(super) fn own_path() -> OsString {
    env::current_exe().map_or_else(|_| env::args_os().next().unwrap_or_default(), OsString::from)
}

/// Becomes the command, if this process is the launcher. Returns the exit code if that fails.
pub(super) fn launch() -> Option<u8> {
    let mut arguments = env::args_os();
    if arguments.next()? != NAME {
        return None;
    }
    let (guardian, ignores_pipe, program) = (arguments.next()?, arguments.next()?, arguments.next()?);
    let (error, code) = match wait_for_start(&guardian) {
        Err(error) => (error, SYSTEM),
        Ok(guardian) => {
            let error = become_command(&program, &arguments.collect::<Vec<_>>(), ignores_pipe == "true");
            // The guardian may have ended.
            let _ = (&guardian).write_all(&error.raw_os_error().unwrap_or_default().to_le_bytes());
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            (error, if is_missing { NOT_FOUND } else { NOT_EXECUTABLE })
        }
    };
    let _ = writeln!(io::stderr(), "zklock: {}: {error}", program.to_string_lossy());
    Some(code)
}

/// Returns only if that fails.
fn become_command(program: &OsString, arguments: &[OsString], ignores_pipe: bool) -> io::Error {
    #[cfg(target_os = "linux")]
    if ignores_pipe {
        let Err(error) = exec_as_it_is(program, arguments);
        return error;
    }
    let error = Command::new(program).args(arguments).envs(systemd::own_ids()).exec();
    if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) {
        // The program is a script without #!. Some implementations of execvp(3) run such a script in a shell.
        return Command::new("/bin/sh").arg(path_of(program)).args(arguments).envs(systemd::own_ids()).exec();
    }
    error
}

/// Becomes a program without what [`Command::exec`] does before: it makes SIGPIPE end the program, although Rust programs
/// ignore it.
#[cfg(target_os = "linux")]
fn exec_as_it_is(program: &OsString, arguments: &[OsString]) -> io::Result<Infallible> {
    let variables = env::vars_os().filter(|(name, _)| !systemd::own_ids().any(|(own, _)| own == name));
    let own_ids = systemd::own_ids().map(|(name, id)| (name.into(), id.into()));
    let variables = variables.chain(own_ids).map(|(mut variable, value): (OsString, OsString)| {
        variable.push("=");
        variable.push(value);
        variable
    });
    let all = |texts: Vec<OsString>| {
        texts.into_iter().map(|text| CString::new(text.into_vec())).collect::<Result<Vec<_>, _>>()
    };
    let arguments = all([std::slice::from_ref(program), arguments].concat())?;
    let variables = all(variables.collect())?;
    Ok(execvpe(&arguments[0], &arguments, &variables)?)
}

/// The path of a program: a name without a slash is looked up in PATH.
fn path_of(program: &OsString) -> PathBuf {
    let program = PathBuf::from(program);
    let path = env::var_os("PATH").filter(|_| program.components().count() == 1).unwrap_or_default();
    let found = env::split_paths(&path).map(|dir| dir.join(&program)).find(|file| file.is_file());
    found.unwrap_or(program)
}

/// Returns why this program cannot be executed, if its file shows a reason.
pub(super) fn check_program(program: &OsString) -> io::Result<()> {
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

/// Blocks until the guardian lets this process become the command, and takes the standard input of the command. Returns
/// the socket to the guardian, which is closed when this process becomes the command.
fn wait_for_start(guardian: &OsString) -> io::Result<UnixStream> {
    end_with_guardian(guardian)?;
    let socket = UnixStream::from(stdin().try_clone_to_owned()?);
    let ([_], input) = wire::receive(&socket)?;
    dup2_stdin(&input)?;
    let unblocked: SigSet = terminal_stops();
    unblocked.thread_unblock()?;
    Ok(socket)
}

/// Asks the kernel to kill this process, and so the command, when the guardian ends.
#[cfg(target_os = "linux")]
fn end_with_guardian(guardian: &OsString) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The guardian may have ended before this call.
    let parent = getppid().map(|parent| parent.as_raw_nonzero().to_string());
    if parent.as_deref().map(OsString::from).as_ref() == Some(guardian) {
        return Ok(());
    }
    Err(io::Error::other("the guardian of the command has ended"))
}

#[cfg(not(target_os = "linux"))]
#[allow(clippy::unnecessary_wraps, reason = "as on Linux")]
fn end_with_guardian(_guardian: &OsString) -> io::Result<()> {
    Ok(())
}
