//! [`Descendants`] of a command, where the system offers no way to know them: only the process group of the command is
//! ended.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::process::Pid;

/// Whether something descends from this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    None,
    Some,
    /// There is no way to tell.
    Unknown,
}

/// What was killed, and why more could not be killed.
#[derive(Debug, Default)]
pub(super) struct Killed {
    pub(super) found: Vec<Pid>,
    pub(super) failure: Option<io::Error>,
}

/// Waits until the processes of the group have ended.
#[derive(Debug, Default)]
pub(super) struct Hunt {
    pub(super) pause: Duration,
}

impl Hunt {
    pub(super) fn look(
        &mut self,
        _descendants: &Descendants,
        rest: Rest,
        _report: impl FnOnce(&Killed),
    ) -> Option<io::Result<()>> {
        self.pause = Duration::from_millis(10);
        (rest != Rest::Some).then_some(Ok(()))
    }
}

/// The descendants of a command.
#[derive(Debug, Default)]
pub(super) struct Descendants;

#[allow(
    clippy::unused_self,
    clippy::unnecessary_wraps,
    clippy::needless_pass_by_value,
    reason = "as on Linux"
)]
impl Descendants {
    pub(super) fn adopt(_has_child_ended: Arc<AtomicBool>) -> io::Result<Descendants> {
        Ok(Descendants)
    }

    pub(super) fn spare(&mut self, _guardian: Pid) {}

    pub(super) fn reap(&self, _kept: &[Pid]) {}

    pub(super) fn are_gone(&self) -> Rest {
        Rest::Unknown
    }

    pub(super) fn kill(&self) -> Killed {
        Killed::default()
    }

    pub(super) fn include_group(&self, _group: Pid) -> bool {
        false
    }

    pub(super) fn stop(&mut self) -> bool {
        true
    }

    pub(super) fn go_on(&mut self) -> io::Result<()> {
        Ok(())
    }
}
