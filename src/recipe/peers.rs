//! The requests that may be in a lock directory although they do not respect each other: those of other libraries, and
//! those of a lock beside a semaphore. Both are recognized by their names.
//!
//! A library *counts* a request if it recognizes the name as that of a request. This crate counts every name with a
//! sequence number, so it never takes a lock that another library holds. A library that does not count a request of
//! this crate may take a lock that this crate holds.
//!
//! A lock and a semaphore do not count each other, because their requests are in different directories: those of a
//! semaphore are in two directories below its own. All kinds of locks, and readers and writers, count each other.

use super::kind::LockKind;
use super::permit::{LEASES, TURNS};
use super::znode_name::split_generated;

/// The library that made a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Apache's `WriteLock`, in Java or C.
    Apache,
    /// Curator's `InterProcessMutex` and `LeaderSelector`, and other clients with such names.
    CuratorMutex,
    /// A reader of Curator's `InterProcessReadWriteLock`.
    CuratorReader,
    /// A writer of Curator's `InterProcessReadWriteLock`.
    CuratorWriter,
    /// Curator's `LeaderLatch`.
    CuratorLatch,
    /// kazoo's `Lock`, `Election` or `WriteLock`, whose requests have the same names.
    Kazoo,
    /// kazoo's `ReadLock`.
    KazooReader,
    /// A reader of HBase's `InterProcessReadWriteLock`.
    HbaseReader,
}

impl Peer {
    /// Returns the library that made the request with this name. Returns `None` if that library counts every request,
    /// as this crate does, or fails on a name that it cannot read, as go-zookeeper does. Also returns `None` for a name
    /// that no library known here uses.
    ///
    /// A request of this crate under the scheme of a library counts as a request of that library.
    fn of(name: &str) -> Option<Peer> {
        let before = before_number(name)?;
        let is_apache = |id: &str| id.chars().all(|digit| digit.is_ascii_hexdigit());
        let session_id = before.strip_prefix("x-").and_then(|rest| rest.strip_suffix('-'));
        if let Some(guid) = before.strip_prefix("_c_") {
            let ends = [
                ("-latch-", Peer::CuratorLatch),
                ("__READ__", Peer::CuratorReader),
                ("__WRIT__", Peer::CuratorWriter),
            ];
            let of_end = ends.into_iter().find(|(end, _)| before.ends_with(end)).map(|(_, peer)| peer);
            // The GUIDs of go-zookeeper have no dashes.
            let is_curators = guid.strip_suffix("-lock-").is_some_and(|guid| guid.contains('-'));
            return of_end.or(is_curators.then_some(Peer::CuratorMutex));
        }
        if before == "read-" {
            return Some(Peer::HbaseReader);
        }
        if session_id.is_some_and(|id| is_apache(id.strip_prefix('-').unwrap_or(id))) {
            return Some(Peer::Apache);
        }
        let ends = [("__lock__", Peer::Kazoo), ("__rlock__", Peer::KazooReader)];
        ends.into_iter().find(|(end, _)| before.ends_with(end)).map(|(_, peer)| peer)
    }

    /// Returns whether a request of this library waits for a request with the name `ahead` that is ahead of it.
    fn counts(self, ahead: &str) -> bool {
        let Some(before) = before_number(ahead) else { return false };
        let ends_with_any = |ends: &[&str]| ends.iter().any(|end| before.ends_with(end));
        match self {
            // Apache's class reads the number after the last dash.
            Peer::Apache => before.ends_with('-'),
            // Curator sorts a name that lacks this marker by its whole text.
            Peer::CuratorMutex => ends_with_any(&["lock-"]),
            Peer::CuratorReader => ends_with_any(&["__WRIT__"]),
            Peer::CuratorWriter => ends_with_any(&["__READ__", "__WRIT__"]),
            Peer::CuratorLatch => ends_with_any(&["latch-"]),
            // A `Lock` does not count readers, but its name looks like that of a `WriteLock`.
            Peer::Kazoo => ends_with_any(&["__lock__", "__rlock__"]),
            Peer::KazooReader => ends_with_any(&["__lock__"]),
            Peer::HbaseReader => before.starts_with("write-"),
        }
    }

    /// Returns the library and its class, for a message.
    fn class(self) -> &'static str {
        match self {
            Peer::Apache => "Apache's WriteLock",
            Peer::CuratorMutex => "Curator's InterProcessMutex or LeaderSelector",
            Peer::CuratorReader | Peer::CuratorWriter => "Curator's InterProcessReadWriteLock",
            Peer::CuratorLatch => "Curator's LeaderLatch",
            Peer::Kazoo => "kazoo's Lock, Election or WriteLock",
            Peer::KazooReader => "kazoo's ReadLock",
            Peer::HbaseReader => "HBase's InterProcessReadWriteLock",
        }
    }

    /// Returns what makes this library and a request of this crate count each other.
    fn remedy(self) -> &'static str {
        match self {
            Peer::Apache => "an exclusive lock with NamingScheme::Recipe",
            Peer::CuratorMutex => "an exclusive lock with NamingScheme::Curator",
            Peer::CuratorReader | Peer::CuratorWriter => "a ReadWriteLock with NamingScheme::Curator",
            Peer::CuratorLatch => "an exclusive lock with NamingScheme::CuratorLatch",
            Peer::Kazoo => "NamingScheme::Kazoo, unless each kazoo Lock has extra_lock_patterns=[\"-lock-\"]",
            Peer::KazooReader => "a ReadWriteLock with NamingScheme::Kazoo",
            Peer::HbaseReader => "a ReadWriteLock with NamingScheme::Recipe",
        }
    }
}

/// Returns the first child that may own the lock although the request `own` is ahead of it, and that child's library.
/// Two readers may share the lock, so such a pair is skipped.
fn find_overlooking<'a>(own: &str, children: &[&'a str]) -> Option<(&'a str, Peer)> {
    let overlooks = |child: &&'a str| {
        let peer = Peer::of(child)?;
        let both_read = LockKind::of(child)?.is_shared() && LockKind::of(own)?.is_shared();
        (!both_read && !peer.counts(own)).then_some((*child, peer))
    };
    children.iter().find_map(overlooks)
}

/// Returns the first child that shows that the path of a lock is the path of a semaphore, too. `own` is a request of
/// one of the two, and the child belongs to the other.
///
/// One child alone with the name of a semaphore's directory shows nothing, because it may be another lock.
fn find_other_kind<'a>(own: &str, children: &[&'a str]) -> Option<&'a str> {
    let own_is_permit = is_permit(own);
    if LockKind::of(own)? == LockKind::Other {
        return None;
    }
    let is_of_the_other = |child: &&'a str| match LockKind::of(child) {
        Some(LockKind::Permit) => !own_is_permit,
        Some(LockKind::Exclusive | LockKind::Read | LockKind::Write) => own_is_permit,
        Some(LockKind::Other) => false,
        None => !own_is_permit && *child == LEASES && children.contains(&TURNS),
    };
    children.iter().copied().find(is_of_the_other)
}

/// Returns a message with the reason and the remedy if one of the children may own the lock, or a permit, although the
/// request `own` is ahead of it.
pub(crate) fn mismatch<'a, N: AsRef<str> + ?Sized + 'a>(
    own: &str,
    children: impl IntoIterator<Item = &'a N>,
) -> Option<String> {
    let unlike: Vec<&str> =
        children.into_iter().map(N::as_ref).filter(|child| !is_alike(own, child)).collect();
    if let Some(theirs) = find_other_kind(own, &unlike) {
        let (permit, request) = if is_permit(own) { (own, theirs) } else { (theirs, own) };
        return Some(format!(
            "a semaphore ({permit}) and a lock ({request}) do not exclude each other, so both may own at once; use \
             another path for one of them"
        ));
    }
    let (theirs, peer) = find_overlooking(own, &unlike)?;
    let (class, remedy) = (peer.class(), peer.remedy());
    Some(format!(
        "{class} ({theirs}) does not count requests such as {own}, so both may own at once; use {remedy}"
    ))
}

/// Does what [`mismatch`] does, for any two of the children.
pub(crate) fn any_mismatch<'a>(children: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut unlike: Vec<&str> = Vec::new();
    for child in children {
        let matters = before_number(child).is_some() || [TURNS, LEASES].contains(&child);
        if matters && !unlike.iter().any(|other| is_alike(other, child)) {
            unlike.push(child);
        }
    }
    let mut requests = unlike.iter().filter(|child| before_number(child).is_some());
    requests.find_map(|own| mismatch(own, unlike.iter().copied()))
}

fn is_permit(name: &str) -> bool {
    LockKind::of(name) == Some(LockKind::Permit)
}

/// Returns whether two names seem to differ only in GUID and number. A quick test that skips most children.
fn is_alike(own: &str, child: &str) -> bool {
    let ends = |name: &str| {
        let name = name.as_bytes();
        Some((
            name.len(),
            *name.first()?,
            <[u8; 6]>::try_from(name.get(name.len().checked_sub(16)?..)?.get(..6)?).ok()?,
        ))
    };
    ends(own).is_some_and(|of_own| ends(child) == Some(of_own))
}

/// Returns the part of a request's name before the number, with the separator.
fn before_number(name: &str) -> Option<&str> {
    let prefix = split_generated(name)?.0.len();
    // A dash that is not a minus sign belongs to the separator.
    let has_dash = name[prefix..].starts_with('-') && !name[..prefix].ends_with('_');
    Some(&name[..prefix + usize::from(has_dash)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    use crate::recipe::access::Access;
    use crate::recipe::naming_scheme::NamingScheme;
    use uuid::Uuid;

    const APACHE: &str = "x-72057594037927936-";
    const APACHE_C: &str = "x-0100004b5c3d0002-";
    const MUTEX: &str = "_c_5f0a5bd1-97a1-4c3c-9b2e-a7a4ab4c1ac9-lock-";
    const LATCH: &str = "_c_5f0a5bd1-97a1-4c3c-9b2e-a7a4ab4c1ac9-latch-";
    const READ: &str = "_c_5f0a5bd1-97a1-4c3c-9b2e-a7a4ab4c1ac9-__READ__";
    const WRIT: &str = "_c_5f0a5bd1-97a1-4c3c-9b2e-a7a4ab4c1ac9-__WRIT__";
    const GO: &str = "_c_5f0a5bd197a14c3c9b2ea7a4ab4c1ac9-lock-";
    const KAZOO: &str = "5f0a5bd197a14c3c9b2ea7a4ab4c1ac9__lock__";
    const KAZOO_READER: &str = "5f0a5bd197a14c3c9b2ea7a4ab4c1ac9__rlock__";
    const HBASE_READER: &str = "read-";
    const HBASE_WRITER: &str = "write-";

    const RECIPE: Access = Access::Exclusive(NamingScheme::Recipe);
    const CURATOR: Access = Access::Exclusive(NamingScheme::Curator);
    const CURATOR_LATCH: Access = Access::Exclusive(NamingScheme::CuratorLatch);
    const KAZOO_LOCK: Access = Access::Exclusive(NamingScheme::Kazoo);
    const RECIPE_READER: Access = Access::Read(NamingScheme::Recipe);
    const RECIPE_WRITER: Access = Access::Write(NamingScheme::Recipe);
    const CURATOR_READER: Access = Access::Read(NamingScheme::Curator);
    const CURATOR_WRITER: Access = Access::Write(NamingScheme::Curator);
    const KAZOOS_READER: Access = Access::Read(NamingScheme::Kazoo);
    const KAZOOS_WRITER: Access = Access::Write(NamingScheme::Kazoo);

    const PERMIT: Access = Access::Permit(NonZeroU32::MIN);

    const ALL: [Access; 10] = [
        RECIPE,
        CURATOR,
        CURATOR_LATCH,
        KAZOO_LOCK,
        RECIPE_READER,
        RECIPE_WRITER,
        CURATOR_READER,
        CURATOR_WRITER,
        KAZOOS_READER,
        KAZOOS_WRITER,
    ];

    /// For each library, the requests of this crate that it counts, or that may share the lock with its reader.
    const TABLE: [(&str, &[Access]); 11] = [
        (APACHE, &[RECIPE, CURATOR, CURATOR_LATCH, RECIPE_READER, RECIPE_WRITER]),
        (APACHE_C, &[RECIPE, CURATOR, CURATOR_LATCH, RECIPE_READER, RECIPE_WRITER]),
        (MUTEX, &[RECIPE, CURATOR]),
        (LATCH, &[CURATOR_LATCH]),
        (READ, &[CURATOR_WRITER, RECIPE_READER, CURATOR_READER, KAZOOS_READER]),
        (WRIT, &[CURATOR_READER, CURATOR_WRITER]),
        (GO, &ALL),
        (KAZOO, &[KAZOO_LOCK, KAZOOS_READER, KAZOOS_WRITER]),
        (KAZOO_READER, &[KAZOO_LOCK, KAZOOS_WRITER, RECIPE_READER, CURATOR_READER, KAZOOS_READER]),
        (HBASE_READER, &[RECIPE_WRITER, RECIPE_READER, CURATOR_READER, KAZOOS_READER]),
        (HBASE_WRITER, &ALL),
    ];

    fn name(access: Access, sequence: i32) -> String {
        format!("{}{sequence:010}", access.prefix(Uuid::from_u128(0x0b2e)))
    }

    #[test]
    fn each_library_counts_the_names_of_its_scheme_and_no_others() {
        for sequence in [7, 1_999_999_999, i32::MIN, -5] {
            for (theirs, counted) in TABLE {
                let child = format!("{theirs}0000000008");
                for access in ALL {
                    let own = name(access, sequence);
                    let overlooking = find_overlooking(&own, &[&child]);
                    assert_eq!(overlooking.is_none(), counted.contains(&access), "{theirs} {own}");
                }
            }
        }
    }

    #[test]
    fn requests_of_this_crate_under_one_scheme_do_not_overlook_each_other() {
        let schemes =
            [NamingScheme::Recipe, NamingScheme::Curator, NamingScheme::CuratorLatch, NamingScheme::Kazoo];
        for scheme in schemes {
            let mut together = vec![Access::Exclusive(scheme)];
            check_together(&together);
            if scheme.has_readers() {
                together = vec![Access::Read(scheme), Access::Write(scheme)];
                check_together(&together);
            }
        }
        // Requests of this scheme count all others.
        check_together(&[RECIPE, RECIPE_READER, RECIPE_WRITER]);
    }

    fn check_together(together: &[Access]) {
        let others: Vec<String> = together.iter().map(|access| name(*access, 8)).collect();
        for access in together {
            assert_eq!(mismatch(&name(*access, 7), &others), None, "{access:?}");
        }
    }

    #[test]
    fn remedy_makes_the_library_count() {
        for (theirs, counted) in TABLE {
            let child = format!("{theirs}0000000008");
            for own in ALL {
                let Some((_, peer)) = find_overlooking(&name(own, 7), &[&child]) else { continue };
                let remedy = peer.remedy();
                let advised = ALL.into_iter().filter(|access| match access {
                    Access::Exclusive(scheme) => is_advised(remedy, "exclusive", *scheme),
                    Access::Read(scheme) | Access::Write(scheme) => {
                        is_advised(remedy, "ReadWriteLock", *scheme)
                    }
                    Access::Permit(_) => false,
                });
                let advised: Vec<Access> = advised.collect();
                assert!(!advised.is_empty(), "{remedy}");
                assert!(advised.iter().all(|access| counted.contains(access)), "{theirs}: {remedy}");
            }
        }
    }

    fn is_advised(remedy: &str, kind: &str, scheme: NamingScheme) -> bool {
        let name = format!("NamingScheme::{scheme:?}");
        let is_named = remedy.split([' ', ',']).any(|word| word == name);
        is_named && (remedy.contains(kind) || !remedy.contains("with"))
    }

    #[test]
    fn children_that_are_no_known_requests_overlook_nothing() {
        let children = ["config", "qn-0000000001", "x-0000000001", "task-0000000001", "x-backup-0000000001"];
        assert_eq!(mismatch(&name(RECIPE, 7), children), None);
    }

    #[test]
    fn mismatch_of_any_two_is_found_wherever_they_are() {
        let (recipe, kazoo) = (name(RECIPE, 7), format!("{KAZOO}0000000009"));
        let others: Vec<String> = (10..13).map(|number| name(RECIPE, number)).collect();
        let alike = others.iter().map(String::as_str).chain([recipe.as_str(), "config"]);
        assert_eq!(any_mismatch(alike.clone()), None);
        for children in [vec![kazoo.as_str()], vec![recipe.as_str(), kazoo.as_str()]] {
            let message = any_mismatch(children.into_iter().chain(alike.clone())).unwrap();
            assert!(message.starts_with("kazoo's Lock") && message.contains(&kazoo), "{message}");
            assert!(message.contains("NamingScheme::Kazoo"), "{message}");
        }
    }

    #[test]
    fn first_request_that_overlooks_is_found_among_others() {
        let own = name(RECIPE, 7);
        let latch = format!("{LATCH}0000000009");
        let children = [own.as_str(), &name(RECIPE, 8), "config", &latch];
        assert_eq!(find_overlooking(&own, &children), Some((latch.as_str(), Peer::CuratorLatch)));
    }

    #[test]
    fn semaphore_on_the_path_of_a_lock_is_found_from_both_sides() {
        let lease = name(PERMIT, 8);
        for access in ALL {
            let own = name(access, 7);
            let expected = |permit: &str| {
                format!(
                    "a semaphore ({permit}) and a lock ({own}) do not exclude each other, so both may own at once; \
                     use another path for one of them"
                )
            };
            let in_its_directory = ["config", TURNS, &own, LEASES];
            assert_eq!(mismatch(&own, in_its_directory), Some(expected(LEASES)));
            assert_eq!(any_mismatch(in_its_directory), Some(expected(LEASES)));
            let in_one_queue = [lease.as_str(), &own];
            assert_eq!(mismatch(&own, in_one_queue), Some(expected(&lease)));
            assert_eq!(mismatch(&lease, in_one_queue), Some(expected(&lease)));
            assert_eq!(mismatch(&lease, in_its_directory), Some(expected(&lease)));
        }
    }

    /// A warning without a reason is worse than none.
    #[test]
    fn locks_in_parents_and_children_and_semaphores_alone_are_no_mixture() {
        let lock = name(RECIPE, 7);
        let (permit, other) = (name(PERMIT, 8), name(PERMIT, 9));
        for children in [
            vec![lock.as_str(), LEASES],
            vec![lock.as_str(), TURNS, "LEASES", "a", "done"],
            vec![TURNS, LEASES],
            vec![TURNS, LEASES, "job-0000000001", "2026112902", "config"],
            vec![permit.as_str(), &other],
            vec![permit.as_str(), &other, "qn-0000000001"],
        ] {
            assert_eq!(any_mismatch(children.clone()), None, "{children:?}");
            for own in [&lock, &permit] {
                let is_there = children.contains(&own.as_str());
                assert!(!is_there || mismatch(own, children.clone()).is_none(), "{children:?}");
            }
        }
        assert_eq!(mismatch(&permit, [TURNS, LEASES, "job-0000000001", "2026112902"]), None);
    }
}
