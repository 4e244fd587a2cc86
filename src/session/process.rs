//! [`Process`]: detects a forked child.

/// The process that opened a session. One that it forks has a copy of everything but the threads:
/// a mutex may be held there by a thread that does not exist.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    pub(super) fn current() -> Process {
        Process(std::process::id())
    }

    /// Whether this is that process, and not a forked child. Takes no mutex.
    pub(crate) fn is_current(self) -> bool {
        std::process::id() == self.0
    }
}
