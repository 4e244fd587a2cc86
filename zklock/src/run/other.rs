//! Processes on systems other than Unix: no signal is forwarded, and a command that must end is
//! killed at once.

use std::io;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, bounded, never};
use shared_child::SharedChild;

pub(super) fn signals() -> io::Result<Receiver<i32>> {
    Ok(never())
}

pub(super) fn ends_wait(_signal: i32) -> bool {
    true
}

/// A running command.
pub(super) struct Child {
    child: Arc<SharedChild>,
    ended: Receiver<io::Error>,
}

impl Child {
    pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
        let child = Arc::new(SharedChild::spawn(command)?);
        let (sender, ended) = bounded(1);
        let waited = Arc::clone(&child);
        let waiting = thread::Builder::new().name("child".to_owned()).spawn(move || {
            if let Err(error) = waited.wait() {
                let _ = sender.send(error);
            }
        });
        if let Err(error) = waiting {
            let _ = child.kill();
            return Err(error);
        }
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
        self.child.kill()
    }

    /// Its processes are not known.
    pub(super) fn kill_rest(&self) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn reap(&self) {}

    /// The exit code of the command, which has ended.
    pub(super) fn code(self) -> io::Result<u8> {
        let code = self.child.wait()?.code();
        Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
    }
}
