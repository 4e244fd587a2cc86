//! [`Process`]: detects a forked child.

/// The process that has made something. One that it forks has a copy of everything but the threads: a
/// mutex may be held there by a thread that does not exist, and a socket is shared.
///
/// The process id alone distinguishes them, and costs a system call: a public call asks once when it begins,
/// and a connection before it writes. Whatever a process could remember instead, its child remembers, too;
/// and handlers that the C library runs at a fork are not run for a child of `clone` or `_Fork`.
///
/// A child of process 1 that is process 1 of another PID namespace is not detected (`clone` with
/// `CLONE_NEWPID`, without `exec`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    #[inline]
    pub fn current() -> Process {
        Process(std::process::id())
    }

    /// Returns whether this is that process, and not a forked child. Takes no mutex.
    #[inline]
    pub fn is_current(self) -> bool {
        self == Process::current()
    }
}

#[cfg(test)]
impl Process {
    pub const fn of_id(id: u32) -> Process {
        Process(id)
    }
}
