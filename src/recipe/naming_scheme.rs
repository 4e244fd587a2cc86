//! [`NamingScheme`]: the naming of a lock's requests.

use uuid::Uuid;

/// The format of the names of a lock's requests.
///
/// Other libraries recognize requests by their names. Set the scheme with
/// [`LockOptions::naming`](crate::LockOptions::naming) if the lock shares its directory with another library.
///
/// | scheme | an exclusive request | a reader | a writer |
/// |---|---|---|---|
/// | `Recipe` | `x-<guid>-lock-<sequence>` | `read-<guid>-<sequence>` | `write-<guid>-<sequence>` |
/// | `Curator` | `_c_<guid>-lock-<sequence>` | `_c_<guid>-__READ__<sequence>` | `_c_<guid>-__WRIT__<sequence>` |
/// | `CuratorLatch` | `_c_<guid>-latch-<sequence>` | refused | refused |
/// | `Kazoo` | `<guid>__lock__<sequence>` | `<guid>__rlock__<sequence>` | `<guid>__lock__<sequence>` |
///
/// The exclusive requests are those of [`WriteLock`](crate::WriteLock),
/// [`BlockingWriteLock`](crate::BlockingWriteLock), [`ReentrantLock`](crate::locks::ReentrantLock),
/// [`MultiLock`](crate::locks::MultiLock), [`NamedLocks`](crate::locks::NamedLocks),
/// [`CohortLock`](crate::locks::CohortLock), [`RunOnce`](crate::locks::RunOnce) and [`Candidate`](crate::Candidate).
/// Readers and writers are those of a [`ReadWriteLock`](crate::locks::ReadWriteLock).
///
/// # Which scheme
/// If a directory is shared with another library, all its clients must use one kind of lock, with names that all of
/// them recognize:
///
/// | with | the lock here | scheme |
/// |---|---|---|
/// | Apache's `WriteLock` 3.8 and later | exclusive, with [`container(false)`](crate::LockOptions::container) | `Recipe` |
/// | Curator's `InterProcessMutex` or `LeaderSelector`, go-zookeeper's `Lock` | exclusive | `Recipe` or `Curator` |
/// | Curator's `LeaderLatch` | exclusive | `CuratorLatch` |
/// | Curator's `InterProcessReadWriteLock` | `ReadWriteLock` | `Curator` |
/// | kazoo's `Lock` or `Election` | exclusive | `Kazoo` |
/// | kazoo's `Lock`, if all of them have `extra_lock_patterns=["-lock-"]` | exclusive, with `container(false)` | `Recipe` |
/// | kazoo's `ReadLock` and `WriteLock` | `ReadWriteLock` | `Kazoo` |
/// | shared locks of ZooKeeper's recipe page or of HBase 1, whose names have no GUID | `ReadWriteLock` | `Recipe` |
///
/// Requests of this crate take every other request into account, whatever its name: a reader waits for every request
/// ahead of it except readers of the same scheme, and a writer or an exclusive request waits for all requests ahead.
/// Most other libraries count only the names in their own row. If one of their requests ignores a request of this
/// crate, both may hold the lock at once.
///
/// If a request of this crate finds another request that would ignore it, a warning in the log names the other request
/// and the scheme to use, once per session and directory. A request looks for such requests when it joins the queue,
/// when a listing makes it the owner, and at least every half minute while it holds the lock. There are two exceptions:
/// an exclusive request does not look when it joins behind another exclusive request of its session, and no request
/// looks when it joins if the reply to its create was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NamingScheme {
    /// The names of ZooKeeper's recipes; the default.
    #[default]
    Recipe,
    /// The names of Apache Curator's locks.
    Curator,
    /// The names of Apache Curator's `LeaderLatch`. It has no readers, so a
    /// [`ReadWriteLock`](crate::locks::ReadWriteLock) refuses this scheme.
    CuratorLatch,
    /// The names of the Python library kazoo.
    Kazoo,
}

impl NamingScheme {
    pub(super) fn exclusive_prefix(self, guid: Uuid) -> String {
        match self {
            NamingScheme::Recipe => around(guid, "x-", "-lock-"),
            NamingScheme::Curator => around(guid, "_c_", "-lock-"),
            NamingScheme::CuratorLatch => around(guid, "_c_", "-latch-"),
            NamingScheme::Kazoo => self.writer_prefix(guid),
        }
    }

    pub(super) fn reader_prefix(self, guid: Uuid) -> String {
        match self {
            NamingScheme::Recipe => around(guid, "read-", "-"),
            NamingScheme::Curator | NamingScheme::CuratorLatch => around(guid, "_c_", "-__READ__"),
            NamingScheme::Kazoo => format!("{}__rlock__", guid.simple()),
        }
    }

    pub(super) fn writer_prefix(self, guid: Uuid) -> String {
        match self {
            NamingScheme::Recipe => around(guid, "write-", "-"),
            NamingScheme::Curator | NamingScheme::CuratorLatch => around(guid, "_c_", "-__WRIT__"),
            NamingScheme::Kazoo => format!("{}__lock__", guid.simple()),
        }
    }

    /// Returns whether a `ReadWriteLock` can use the scheme.
    pub(crate) fn has_readers(self) -> bool {
        self != NamingScheme::CuratorLatch
    }

    /// Returns whether this is the name of a reader of this scheme.
    pub(super) fn is_reader(self, name: &str) -> bool {
        let before_number =
            name.trim_end_matches(|character: char| character.is_ascii_digit() || character == '-');
        match self {
            NamingScheme::Recipe => name.starts_with("read-"),
            NamingScheme::Curator | NamingScheme::CuratorLatch => before_number.ends_with("__READ__"),
            NamingScheme::Kazoo => before_number.ends_with("__rlock__"),
        }
    }
}

/// Returns the GUID between two texts.
pub(super) fn around(guid: Uuid, before: &str, after: &str) -> String {
    [before, guid.hyphenated().encode_lower(&mut Uuid::encode_buffer()), after].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMES: [NamingScheme; 3] = [NamingScheme::Recipe, NamingScheme::Curator, NamingScheme::Kazoo];

    #[test]
    fn requests_are_named_as_in_the_schemes_library() {
        let guid = Uuid::from_u128(0x0b2e);
        let names = SCHEMES.map(|scheme| [scheme.reader_prefix(guid), scheme.writer_prefix(guid)]);
        assert_eq!(
            names,
            [
                ["read-00000000-0000-0000-0000-000000000b2e-", "write-00000000-0000-0000-0000-000000000b2e-"],
                [
                    "_c_00000000-0000-0000-0000-000000000b2e-__READ__",
                    "_c_00000000-0000-0000-0000-000000000b2e-__WRIT__"
                ],
                ["00000000000000000000000000000b2e__rlock__", "00000000000000000000000000000b2e__lock__"],
            ]
        );
    }

    #[test]
    fn exclusive_requests_are_named_as_in_the_schemes_library() {
        let guid = Uuid::from_u128(0x0b2e);
        let names = [
            (NamingScheme::Recipe, "x-00000000-0000-0000-0000-000000000b2e-lock-"),
            (NamingScheme::Curator, "_c_00000000-0000-0000-0000-000000000b2e-lock-"),
            (NamingScheme::CuratorLatch, "_c_00000000-0000-0000-0000-000000000b2e-latch-"),
            (NamingScheme::Kazoo, "00000000000000000000000000000b2e__lock__"),
        ];
        for (scheme, name) in names {
            assert_eq!(scheme.exclusive_prefix(guid), name);
            assert!(!scheme.is_reader(&format!("{name}0000000007")));
        }
    }

    #[test]
    fn reader_is_recognized_by_its_name_beyond_the_wrap() {
        let guid = Uuid::from_u128(0x0b2e);
        for scheme in SCHEMES {
            for number in ["0000000007", "2147483647", "-2147483648", "-000000005"] {
                assert!(scheme.is_reader(&format!("{}{number}", scheme.reader_prefix(guid))), "{scheme:?}");
                assert!(!scheme.is_reader(&format!("{}{number}", scheme.writer_prefix(guid))), "{scheme:?}");
            }
        }
        assert!(NamingScheme::Recipe.is_reader("read-0000000006"), "a name of HBase");
    }

    #[test]
    fn request_of_another_scheme_is_not_a_reader() {
        let guid = Uuid::from_u128(0x0b2e);
        for scheme in SCHEMES {
            for other in SCHEMES.into_iter().filter(|other| *other != scheme) {
                assert!(!scheme.is_reader(&format!("{}0000000007", other.reader_prefix(guid))));
            }
            for name in
                ["x-0b2e-lock-0000000007", "x-72057594037927936-0000000007", "_c_0b2e-lock-0000000007"]
            {
                assert!(!scheme.is_reader(name), "{scheme:?} {name}");
            }
        }
    }
}
