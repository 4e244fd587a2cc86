//! [`Process`]: detects a forked child.

/// The process in which an object was created.
///
/// A forked child has a copy of everything but the threads. In the child, a mutex may be held by a thread that does not
/// exist there, and sockets are shared with the parent.
///
/// Only the process id distinguishes the child from the parent. Reading it costs a system call, so a public call reads
/// it once when it begins, and a connection reads it before it writes. Anything else that a process could remember
/// would be copied to its child. Fork handlers of the C library do not run for a child of `clone` or `_Fork`.
///
/// Two kinds of children are not detected: a child of process 1 that is itself process 1 of another PID namespace
/// (`clone` with `CLONE_NEWPID`, without `exec`), and a descendant that the system gives the id of this process after
/// this process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    #[inline]
    pub fn current() -> Process {
        Process(std::process::id())
    }

    /// Returns whether the calling process is this process and not a forked child. Takes no mutex.
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
