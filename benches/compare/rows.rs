//! What is compared.

/// How contenders share sessions and locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Threads of one session, each with a lock in a directory of its own. On bare sockets each thread has its
    /// own session.
    Directories,
    /// Threads that contend for one lock, each with a session of its own.
    Sessions,
    /// Threads of one session that contend for one lock. On bare sockets, and with Apache's lock, each thread
    /// has its own session.
    Threads,
}

impl Layout {
    /// Returns the name used in commands to a peer.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Layout::Directories => "directories",
            Layout::Sessions => "sessions",
            Layout::Threads => "threads",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Layout> {
        [Layout::Directories, Layout::Sessions, Layout::Threads].into_iter().find(|one| one.name() == name)
    }
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) layout: Layout,
    pub(crate) threads: usize,
    /// Whether a second process of the same library contends with one thread.
    pub(crate) is_contended: bool,
}

pub(crate) const ROWS: [Row; 6] = [
    row("one", "1 thread, nobody else", Layout::Directories, 1),
    row("sixteen", "16 threads, a lock each", Layout::Directories, 16),
    row("hand-over-8", "hand-over among 8 sessions", Layout::Sessions, 8),
    row("hand-over-100", "hand-over among 100 sessions", Layout::Sessions, 100),
    row("threads-8", "8 threads of one process on one lock", Layout::Threads, 8),
    Row {
        is_contended: true,
        ..row("threads-8-contended", "… and one thread of another process", Layout::Threads, 8)
    },
];

const fn row(name: &'static str, title: &'static str, layout: Layout, threads: usize) -> Row {
    Row { name, title, layout, threads, is_contended: false }
}
