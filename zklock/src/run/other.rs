//! Processes on non-Unix systems. No signal is forwarded, and a command that must end is killed at once.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, bounded, never};
use shared_child::SharedChild;

use super::supervision::{Change, End, Stop};

pub(super) fn signals() -> io::Result<Receiver<i32>> {
    Ok(never())
}

pub(super) fn check_program(_program: &OsString) -> io::Result<()> {
    Ok(())
}

pub(super) fn ends_wait(_signal: i32) -> bool {
    true
}

pub(super) fn ends(_signal: i32) -> bool {
    true
}

pub(super) fn is_continuing(_signal: i32) -> bool {
    false
}

pub(super) fn cause_of_stop(_signal: i32) -> &'static str {
    "a signal has stopped it"
}

pub(super) fn is_shortage(_error: &io::Error) -> bool {
    false
}

pub(super) fn end_as_interrupted() {}

/// A running command.
pub(super) struct Child {
    child: Arc<SharedChild>,
    changes: Receiver<Change>,
}

impl Child {
    pub(super) fn spawn(
        program: &OsString,
        arguments: &[OsString],
        set_variables: impl FnOnce(&mut Command),
    ) -> io::Result<Child> {
        let mut command = Command::new(program);
        command.args(arguments);
        set_variables(&mut command);
        let (sender, changes) = bounded(1);
        let (started, launched) = bounded::<Arc<SharedChild>>(1);
        let waiting = move || {
            let Ok(child) = launched.recv() else { return };
            if let Err(error) = child.wait() {
                let _ = sender.send(Change::Unknown(error));
            }
        };
        // The thread is started first: if this function fails, nothing of the command has run.
        thread::Builder::new().name("child".to_owned()).spawn(waiting)?;
        let child = Arc::new(SharedChild::spawn(&mut command)?);
        // Cannot fail: the thread waits for it.
        let _ = started.send(Arc::clone(&child));
        Ok(Child { child, changes })
    }

    /// The changes of the command. The channel is disconnected when the command has ended.
    pub(super) fn changes(&self) -> &Receiver<Change> {
        &self.changes
    }

    pub(super) fn forward(&self, _signal: i32) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn handle_stop(&self, _signal: i32) -> Stop {
        Stop::Passing
    }

    pub(super) fn stop(&self) -> bool {
        false
    }

    pub(super) fn stop_with_the_job(&self) {}

    pub(super) fn go_on(&self) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn continue_rest(&self) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn may_go_on(&self) -> bool {
        false
    }

    pub(super) fn terminate(&self) -> io::Result<()> {
        self.kill()
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        self.child.kill()
    }

    /// Does nothing: the other processes of the command are not known here.
    pub(super) fn kill_rest(&self) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn reap(&self) {}

    /// Returns how the command ended. Call it only when the command has ended.
    pub(super) fn end(self) -> io::Result<End> {
        let code = self.child.wait()?.code();
        Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX).into())
    }
}
