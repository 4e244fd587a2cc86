//! [`Process`]: detects a forked child.

/// The process that opened a session. One that it forks has a copy of everything but the threads:
/// a mutex may be held there by a thread that does not exist.
///
/// The process id alone distinguishes them, as asking for more costs a system call at each
/// `is_owner()`. So a child of process 1 that is process 1 of another PID namespace is not
/// detected (`clone` with `CLONE_NEWPID`, without `exec`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    pub(super) fn current() -> Process {
        Process(std::process::id())
    }

    /// Returns whether this is that process, and not a forked child. Takes no mutex.
    pub(crate) fn is_current(self) -> bool {
        std::process::id() == self.0
    }
}
