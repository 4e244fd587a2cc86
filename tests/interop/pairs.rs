//! Which classes share a directory.

use zookeeper_recipes_lock::recipe::NamingScheme::{self, Curator, CuratorLatch, Kazoo, Recipe};

/// The number of contenders on each side.
pub const CONTENDERS: usize = 3;

/// A class of another library, and our locks on the same directory.
#[derive(Debug)]
pub struct Pair {
    /// The name of the pair and of its directory.
    pub name: &'static str,
    pub theirs: &'static str,
    pub library: Library,
    /// The name of the class in their program.
    pub kind: &'static str,
    pub ours: Ours,
    /// The scheme of each of our contenders.
    pub schemes: [NamingScheme; CONTENDERS],
    pub expected: Expected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    Java,
    Kazoo,
}

/// The locks that our contenders use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    /// A `BlockingWriteLock`, a `WriteLock` with a listener, and a `CohortLock`.
    Exclusive,
    /// Candidates.
    Election,
    ReadWrite,
    /// Semaphores.
    Semaphore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nobody overlaps, and our log advises no other scheme.
    Shared,
    /// Nobody overlaps, but our log advises another scheme, because it cannot see their settings.
    SharedWithAdvice,
    /// Holders overlap and our log gives advice, because the names are wrong. This shows that the referee sees
    /// overlaps.
    Overlaps,
}

/// The number of permits of a semaphore.
const PERMITS: usize = 2;

pub const PAIRS: [Pair; 13] = [
    Pair {
        name: "apache",
        theirs: "Apache WriteLock",
        library: Library::Java,
        kind: "apache",
        ours: Ours::Exclusive,
        schemes: [Recipe; CONTENDERS],
        expected: Expected::Shared,
    },
    Pair {
        name: "mutex",
        theirs: "Curator InterProcessMutex",
        library: Library::Java,
        kind: "mutex",
        ours: Ours::Exclusive,
        schemes: [Recipe, Curator, Curator],
        expected: Expected::Shared,
    },
    Pair {
        name: "read-write",
        theirs: "Curator InterProcessReadWriteLock",
        library: Library::Java,
        kind: "read-write",
        ours: Ours::ReadWrite,
        schemes: [Curator; CONTENDERS],
        expected: Expected::Shared,
    },
    Pair {
        name: "latch",
        theirs: "Curator LeaderLatch",
        library: Library::Java,
        kind: "latch",
        ours: Ours::Election,
        schemes: [CuratorLatch; CONTENDERS],
        expected: Expected::Shared,
    },
    Pair {
        name: "selector",
        theirs: "Curator LeaderSelector",
        library: Library::Java,
        kind: "selector",
        ours: Ours::Election,
        schemes: [Recipe, Curator, Recipe],
        expected: Expected::Shared,
    },
    Pair {
        name: "semaphore",
        theirs: "Curator InterProcessSemaphoreV2",
        library: Library::Java,
        kind: "semaphore",
        ours: Ours::Semaphore,
        schemes: [Curator; CONTENDERS],
        expected: Expected::Shared,
    },
    Pair {
        name: "kazoo",
        theirs: "kazoo Lock",
        library: Library::Kazoo,
        kind: "lock",
        ours: Ours::Exclusive,
        schemes: [Kazoo; CONTENDERS],
        expected: Expected::Shared,
    },
    Pair {
        name: "kazoo-patterns",
        theirs: "kazoo Lock, extra_lock_patterns",
        library: Library::Kazoo,
        kind: "patterns",
        ours: Ours::Exclusive,
        schemes: [Recipe; CONTENDERS],
        expected: Expected::SharedWithAdvice,
    },
    Pair {
        name: "kazoo-read-write",
        theirs: "kazoo ReadLock and WriteLock",
        library: Library::Kazoo,
        kind: "read-write",
        ours: Ours::ReadWrite,
        schemes: [Kazoo; CONTENDERS],
        expected: Expected::Shared,
    },
    Pair {
        name: "kazoo-election",
        theirs: "kazoo Election",
        library: Library::Kazoo,
        kind: "election",
        ours: Ours::Election,
        schemes: [Kazoo; CONTENDERS],
        expected: Expected::Shared,
    },
    Pair {
        name: "wrong-latch",
        theirs: "Curator LeaderLatch",
        library: Library::Java,
        kind: "latch",
        ours: Ours::Election,
        schemes: [Recipe; CONTENDERS],
        expected: Expected::Overlaps,
    },
    Pair {
        name: "wrong-read-write",
        theirs: "Curator InterProcessReadWriteLock",
        library: Library::Java,
        kind: "read-write",
        ours: Ours::Exclusive,
        schemes: [Curator; CONTENDERS],
        expected: Expected::Overlaps,
    },
    Pair {
        name: "wrong-kazoo",
        theirs: "kazoo Lock",
        library: Library::Kazoo,
        kind: "lock",
        ours: Ours::Exclusive,
        schemes: [Recipe; CONTENDERS],
        expected: Expected::Overlaps,
    },
];

impl Pair {
    pub fn dir(&self) -> String {
        format!("/interop/{}", self.name)
    }

    /// Returns how many contenders may hold at once, not counting readers.
    pub fn permits(&self) -> usize {
        if self.ours == Ours::Semaphore { PERMITS } else { 1 }
    }

    /// Returns whether the contenders of a side read in some of their rounds.
    pub fn reads(&self, side: &str) -> bool {
        match side {
            "ours" => self.ours == Ours::ReadWrite,
            _ => self.kind == "read-write",
        }
    }

    /// Returns whether their class fails when the server deletes an empty directory, which our locks would create
    /// again. With kazoo's names, our locks create no directory that the server deletes.
    pub fn needs_persistent_directory(&self) -> bool {
        let is_kazoo = self.library == Library::Kazoo && !self.schemes.contains(&Kazoo);
        is_kazoo || self.kind == "apache"
    }

    pub fn named(name: &str) -> &'static Pair {
        PAIRS.iter().find(|pair| pair.name == name).unwrap_or_else(|| panic!("no pair is named {name}"))
    }
}
