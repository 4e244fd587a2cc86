//! [`LockKind`]: the lock mode of a request, derived from its name, whichever library made it.

use std::fmt;

use super::znode_name::split_generated;

/// The lock mode of a request in a lock directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// An exclusive request.
    ///
    /// The names are `x-…` (this crate and Apache's `WriteLock`), `…-lock-` (Curator, Go and others), `…-latch-`
    /// (Curator's `LeaderLatch`), and `…__lock__` (kazoo, whose writers have that name, too).
    Exclusive,
    /// A reader of a read/write lock.
    ///
    /// The names are `read-…` (ZooKeeper's recipe and HBase), `…__READ__` (Curator), and `…__rlock__` (kazoo).
    Read,
    /// A writer of a read/write lock.
    ///
    /// The names are `write-…` (ZooKeeper's recipe and HBase), and `…__WRIT__` (Curator).
    Write,
    /// A permit of a semaphore.
    ///
    /// The names are `…-lease-` (this crate and Curator). Several permits may be held at once; the names do not show
    /// how many.
    Permit,
    /// A request of unknown kind.
    ///
    /// Its name has a sequence number, but no library known here uses such names. In the queue, it counts as an
    /// exclusive request. It may not be a request for a lock at all, so it is never
    /// [reaped](crate::queue::LockDirectory::reap_expired).
    Other,
}

impl LockKind {
    /// Returns the kind for the name of a child. Returns `None` if the name does not end in a sequence number in
    /// ZooKeeper's format, because such a child is not a request.
    pub(crate) fn of(name: &str) -> Option<LockKind> {
        let (prefix, _) = split_generated(name)?;
        let kind = if name.starts_with("read-")
            || ["__READ__", "__rlock__"].iter().any(|end| prefix.ends_with(end))
        {
            LockKind::Read
        } else if name.starts_with("write-") || prefix.ends_with("__WRIT__") {
            LockKind::Write
        } else if name.starts_with("x-")
            || prefix == "lock"
            || ["-lock", "-latch", "__lock__"].iter().any(|end| prefix.ends_with(end))
        {
            LockKind::Exclusive
        } else if prefix.ends_with("-lease") {
            LockKind::Permit
        } else {
            LockKind::Other
        };
        Some(kind)
    }

    /// Returns whether several requests of this kind may hold the lock at the same time.
    pub(crate) fn is_shared(self) -> bool {
        self == LockKind::Read
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LockKind::Exclusive => "exclusive",
            LockKind::Read => "read",
            LockKind::Write => "write",
            LockKind::Permit => "permit",
            LockKind::Other => "other",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::access::Access;
    use crate::recipe::naming_scheme::NamingScheme;
    use crate::recipe::znode_name::generated_sequence;
    use proptest::prelude::*;
    use uuid::Uuid;

    /// The prefixes that the libraries write before the number.
    const PREFIXES: [(&str, LockKind); 17] = [
        ("x-0b2e47a1-lock-", LockKind::Exclusive),
        ("x-72057594037927936-", LockKind::Exclusive),
        ("x--8646911284551352320-", LockKind::Exclusive),
        ("_c_0b2e-lock-", LockKind::Exclusive),
        ("lock-", LockKind::Exclusive),
        ("_c_0b2e-latch-", LockKind::Exclusive),
        ("00ff__lock__", LockKind::Exclusive),
        ("_c_0b2e-__READ__", LockKind::Read),
        ("read-", LockKind::Read),
        ("read-0b2e-lock-", LockKind::Read),
        ("00ff__rlock__", LockKind::Read),
        ("_c_0b2e-__WRIT__", LockKind::Write),
        ("write-", LockKind::Write),
        ("write-0b2e-lock-", LockKind::Write),
        ("qn-", LockKind::Other),
        ("block-", LockKind::Other),
        ("_c_0b2e-lease-", LockKind::Permit),
    ];

    #[test]
    fn requests_of_all_peers_are_recognized() {
        for (prefix, kind) in PREFIXES {
            for sequence in [0, 7, i32::MAX, i32::MIN, -5] {
                let name = format!("{prefix}{sequence:010}");
                assert_eq!(LockKind::of(&name), Some(kind), "{name}");
            }
        }
    }

    #[test]
    fn requests_of_this_crate_are_recognized() {
        let of = |access: Access| LockKind::of(&format!("{}0000000007", access.prefix(Uuid::nil()))).unwrap();
        let schemes =
            [NamingScheme::Recipe, NamingScheme::Curator, NamingScheme::CuratorLatch, NamingScheme::Kazoo];
        for scheme in schemes {
            assert_eq!(of(Access::Exclusive(scheme)), LockKind::Exclusive, "{scheme:?}");
        }
        for scheme in [NamingScheme::Recipe, NamingScheme::Curator, NamingScheme::Kazoo] {
            assert_eq!(of(Access::Read(scheme)), LockKind::Read, "{scheme:?}");
            let writer = if scheme == NamingScheme::Kazoo { LockKind::Exclusive } else { LockKind::Write };
            assert_eq!(of(Access::Write(scheme)), writer, "{scheme:?}");
        }
        assert_eq!(of(Access::Permit(std::num::NonZeroU32::MIN)), LockKind::Permit);
    }

    #[test]
    fn child_without_a_number_is_not_a_request() {
        for name in ["config", "read-", "x-3", "lock-12", "__lock__", ""] {
            assert_eq!(LockKind::of(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn kind_is_independent_of_the_number(index in 0..PREFIXES.len(), sequence: i32) {
            let (prefix, kind) = PREFIXES[index];
            prop_assert_eq!(LockKind::of(&format!("{prefix}{sequence:010}")), Some(kind));
        }

        #[test]
        fn child_has_a_kind_exactly_if_it_counts_in_the_queue(name in ".*[0-9-]{0,12}") {
            prop_assert_eq!(LockKind::of(&name).is_some(), generated_sequence(&name).is_some());
        }
    }
}
