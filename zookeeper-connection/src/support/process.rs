//! [`Process`]: detects a forked child. [`PerProcess`]: a value that such a child makes anew.

use std::sync::OnceLock;

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

/// A value that each process makes for itself. So a forked child does not use the mutexes of its parent, which a thread
/// may hold that does not exist in the child.
///
/// The price: a child is stuck if it was forked while another thread made the parent's value.
#[derive(Debug)]
pub struct PerProcess<T> {
    made: OnceLock<Box<Made<T>>>,
}

#[derive(Debug)]
struct Made<T> {
    process: Process,
    value: T,
    /// For the children of that process.
    in_child: PerProcess<T>,
}

impl<T> PerProcess<T> {
    #[allow(clippy::new_without_default, reason = "a default cannot be constant")]
    pub const fn new() -> PerProcess<T> {
        PerProcess { made: OnceLock::new() }
    }

    /// Returns the value of the calling process, and makes it if necessary.
    pub fn get_or_make(&self, make: impl Fn() -> T) -> &T {
        self.of(Process::current(), make)
    }

    fn of(&self, process: Process, make: impl Fn() -> T) -> &T {
        let mut slot = self;
        loop {
            let make = || Box::new(Made { process, value: make(), in_child: PerProcess::new() });
            let made = slot.made.get_or_init(make);
            if made.process == process {
                return &made.value;
            }
            slot = &made.in_child;
        }
    }
}

#[cfg(test)]
impl Process {
    pub const fn of_id(id: u32) -> Process {
        Process(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_generation_has_its_own_value() {
        let (values, made) = (PerProcess::new(), std::cell::Cell::new(0));
        let of = |id: u32| {
            *values.of(Process::of_id(id), || {
                made.set(made.get() + 1);
                made.get()
            })
        };
        assert_eq!([1, 1, 2, 3, 1, 3, 2].map(of), [1, 1, 2, 3, 1, 3, 2]);
    }
}
