//! Processes on systems other than Unix: no signal is forwarded, and a command that must end is
//! killed at once.

use std::io;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded, never};

const POLL: Duration = Duration::from_millis(20);

pub(super) fn signals() -> io::Result<Receiver<i32>> {
    Ok(never())
}

pub(super) fn ends_wait(_signal: i32) -> bool {
    true
}

/// A running command.
pub(super) struct Child {
    child: Arc<Mutex<std::process::Child>>,
    ended: Receiver<io::Error>,
}

impl Child {
    pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
        let child = Arc::new(Mutex::new(command.spawn()?));
        let (sender, ended) = bounded(1);
        let waited = Arc::clone(&child);
        thread::Builder::new().name("child".to_owned()).spawn(move || {
            loop {
                match try_wait(&waited) {
                    Ok(None) => thread::sleep(POLL),
                    Ok(Some(_)) => break,
                    Err(error) => {
                        let _ = sender.send(error);
                        break;
                    }
                }
            }
        })?;
        Ok(Child { child, ended })
    }

    /// Disconnected when the command has ended. An error says that nobody knows whether it has.
    pub(super) fn ended(&self) -> &Receiver<io::Error> {
        &self.ended
    }

    pub(super) fn forward(&self, _signal: i32) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn terminate(&self) -> io::Result<()> {
        self.kill()
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).kill()
    }

    /// Its processes are not known.
    pub(super) fn kill_rest(&self) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn reap(&self) {}

    /// The exit code of the command, which has ended.
    pub(super) fn code(self) -> io::Result<u8> {
        let code = try_wait(&self.child)?.and_then(|status| status.code());
        Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
    }
}

fn try_wait(child: &Mutex<std::process::Child>) -> io::Result<Option<ExitStatus>> {
    child.lock().unwrap_or_else(PoisonError::into_inner).try_wait()
}
