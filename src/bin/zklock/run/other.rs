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
    ended: Receiver<()>,
}

impl Child {
    pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
        let child = Arc::new(Mutex::new(command.spawn()?));
        let (sender, ended) = bounded::<()>(1);
        let waited = Arc::clone(&child);
        thread::Builder::new().name("child".to_owned()).spawn(move || {
            while matches!(try_wait(&waited), Ok(None)) {
                thread::sleep(POLL);
            }
            drop(sender);
        })?;
        Ok(Child { child, ended })
    }

    /// Disconnected when the command has ended.
    pub(super) fn ended(&self) -> &Receiver<()> {
        &self.ended
    }

    pub(super) fn forward(&self, _signal: i32) {}

    pub(super) fn terminate(&self) {
        self.kill();
    }

    pub(super) fn kill(&self) {
        // Fails only if it has ended.
        let _ = self.child.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }

    /// The exit code of the command, which has ended.
    pub(super) fn code(self) -> io::Result<u8> {
        let code = try_wait(&self.child)?.and_then(|status| status.code());
        Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
    }
}

fn try_wait(child: &Mutex<std::process::Child>) -> io::Result<Option<ExitStatus>> {
    child.lock().unwrap_or_else(PoisonError::into_inner).try_wait()
}
