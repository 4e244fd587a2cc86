//! [`LockInfo`]: one request in a lock directory, as it was read.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::utc::Utc;
use crate::client::Stat;
use crate::recipe::kind::LockKind;
use crate::recipe::order::count_owners;
use crate::recipe::path::ZNodePath;
use crate::recipe::znode_name::generated_sequence;

/// The maximum number of characters of the data that are printed.
const SHOWN: usize = 64;

/// A request in a lock directory: its kind, its creator, and its creation time.
///
/// Prints as one line, whatever its data is:
///
/// ```text
/// /locks/report/x-0b2e-lock-0000000007: exclusive, 'web-1/4711', session 0x100004b5c3d0002, since 2026-11-21T09:51:03Z, czxid 812
/// ```
///
/// This client may lack READ permission on the znode. Then only the name is known, and with it the
/// place in the queue; the rest is `None`. Servers before 3.8.4 and 3.9.2 deny only the data.
#[derive(Clone, PartialEq, Eq)]
pub struct LockInfo {
    path: ZNodePath,
    data: Option<Vec<u8>>,
    origin: Option<Origin>,
}

/// The metadata of the znode: its creator, its creation, and the version of its data.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Origin {
    czxid: i64,
    created: SystemTime,
    /// `None` for a persistent znode.
    session: Option<i64>,
    version: i32,
}

impl LockInfo {
    pub(super) fn new(path: ZNodePath, data: Vec<u8>, stat: &Stat) -> LockInfo {
        LockInfo { path, data: Some(data), origin: Some(Origin::of(stat)) }
    }

    /// A request whose data may not be read.
    pub(super) fn unreadable(path: ZNodePath, stat: Option<&Stat>) -> LockInfo {
        LockInfo { path, data: None, origin: stat.map(Origin::of) }
    }

    /// Returns the full path of the znode.
    #[must_use]
    pub fn path(&self) -> &str {
        self.path.as_str()
    }

    /// Returns the name of the znode.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.name()
    }

    /// Returns the kind of lock requested.
    #[must_use]
    pub fn kind(&self) -> LockKind {
        LockKind::of(self.name()).unwrap_or(LockKind::Other)
    }

    /// Returns the sequence number, which orders the queue. It wraps after 2147483647.
    #[must_use]
    pub fn sequence(&self) -> i32 {
        generated_sequence(self.name()).unwrap_or_default()
    }

    /// Returns the data: what the application wrote, by default `host/pid`; `None` where READ is
    /// denied.
    #[must_use]
    pub fn data(&self) -> Option<&[u8]> {
        self.data.as_deref()
    }

    /// Returns the data as text, with bytes that are not UTF-8 replaced. Empty where READ is
    /// denied.
    #[must_use]
    pub fn data_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.data.as_deref().unwrap_or_default())
    }

    /// Returns the session that owns the znode; `None` for a persistent znode, and where the
    /// session is not known.
    #[must_use]
    pub fn ephemeral_owner(&self) -> Option<i64> {
        self.origin.and_then(|origin| origin.session)
    }

    /// Returns whether the request is persistent, so that it outlives every session; `false` where
    /// that is not known.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.origin.is_some_and(|origin| origin.session.is_none())
    }

    /// Returns the id of the transaction that created the znode: the fencing token of this request.
    #[must_use]
    pub fn czxid(&self) -> Option<i64> {
        self.origin.map(|origin| origin.czxid)
    }

    /// Returns when the request was made, by the server's clock.
    #[must_use]
    pub fn created(&self) -> Option<SystemTime> {
        self.origin.map(|origin| origin.created)
    }

    /// Returns the part of a queue that holds the lock: the first request, or all readers before
    /// the first request of another kind.
    ///
    /// `queue` is a result of [`contenders`](crate::LockDirectory::contenders).
    #[must_use]
    pub fn owners(queue: &[LockInfo]) -> &[LockInfo] {
        &queue[..count_owners(queue.iter().map(LockInfo::kind))]
    }

    /// The version of the data, where it is known.
    pub(super) fn version(&self) -> Option<i32> {
        self.origin.map(|origin| origin.version)
    }
}

impl Origin {
    fn of(stat: &Stat) -> Origin {
        /// The owner that the server gives to a container. It is no session id.
        const CONTAINER: i64 = i64::MIN;
        let since_epoch = Duration::from_millis(u64::try_from(stat.ctime).unwrap_or_default());
        Origin {
            czxid: stat.czxid,
            created: UNIX_EPOCH.checked_add(since_epoch).unwrap_or(UNIX_EPOCH),
            session: (!matches!(stat.ephemeral_owner, 0 | CONTAINER)).then_some(stat.ephemeral_owner),
            version: stat.version,
        }
    }
}

impl fmt::Display for LockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, ", self.path, self.kind())?;
        match &self.data {
            Some(_) => write!(f, "'{}'", printable(&self.data_lossy()))?,
            None => f.write_str("READ denied")?,
        }
        let Some(Origin { czxid, created, session, .. }) = self.origin else { return Ok(()) };
        match session {
            None => f.write_str(", persistent")?,
            Some(session) => write!(f, ", session {session:#x}")?,
        }
        write!(f, ", since {}, czxid {czxid}", Utc(created))
    }
}

impl fmt::Debug for LockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockInfo({self})")
    }
}

/// Makes data safe for a terminal and a log: one line, no control characters, cut when it is long.
fn printable(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAT: Stat = Stat {
        czxid: 812,
        mzxid: 813,
        ctime: 1_795_254_663_217,
        mtime: 0,
        version: 3,
        cversion: 0,
        aversion: 0,
        ephemeral_owner: 0x0100_004b_5c3d_0002,
        data_length: 0,
        num_children: 0,
        pzxid: 0,
    };

    fn path(name: &str) -> ZNodePath {
        ZNodePath::parse(&format!("/locks/report/{name}")).unwrap()
    }

    #[test]
    fn lock_info_has_all_metadata_and_prints_it() {
        let info = LockInfo::new(path("x-0b2e-lock-0000000007"), b"web-1/4711".to_vec(), &STAT);
        assert_eq!(info.path(), "/locks/report/x-0b2e-lock-0000000007");
        assert_eq!(info.name(), "x-0b2e-lock-0000000007");
        assert_eq!((info.kind(), info.sequence()), (LockKind::Exclusive, 7));
        assert_eq!(info.data(), Some(&b"web-1/4711"[..]));
        assert_eq!((info.czxid(), info.ephemeral_owner()), (Some(812), Some(STAT.ephemeral_owner)));
        assert_eq!(info.created(), Some(UNIX_EPOCH + Duration::from_millis(1_795_254_663_217)));
        assert_eq!(
            info.to_string(),
            "/locks/report/x-0b2e-lock-0000000007: exclusive, 'web-1/4711', session 0x100004b5c3d0002, \
             since 2026-11-21T09:51:03Z, czxid 812"
        );
    }

    #[test]
    fn unknown_metadata_is_none_and_not_printed() {
        let persistent = Stat { ephemeral_owner: 0, ..STAT };
        let info = LockInfo::unreadable(path("read-0000000001"), Some(&persistent));
        assert_eq!((info.data(), info.data_lossy()), (None, "".into()));
        assert!(info.to_string().contains("read, READ denied, persistent, since"), "{info}");
        let info = LockInfo::unreadable(path("read-0000000001"), None);
        assert_eq!((info.created(), info.czxid(), info.ephemeral_owner()), (None, None, None));
        assert_eq!(info.to_string(), "/locks/report/read-0000000001: read, READ denied");
    }

    #[test]
    fn a_persistent_request_has_no_session() {
        for (owner, is_known) in [(0, true), (i64::MIN, true), (0, false)] {
            let stat = Stat { ephemeral_owner: owner, ..STAT };
            let info = LockInfo::unreadable(path("x-0000000001"), is_known.then_some(&stat));
            assert_eq!((info.ephemeral_owner(), info.is_persistent()), (None, is_known), "{owner}");
        }
        let info = LockInfo::unreadable(path("x-0000000001"), Some(&STAT));
        assert_eq!((info.ephemeral_owner(), info.is_persistent()), (Some(STAT.ephemeral_owner), false));
    }

    #[test]
    fn times_out_of_range_do_not_panic() {
        let of = |ctime| LockInfo::new(path("x-0000000001"), Vec::new(), &Stat { ctime, ..STAT });
        assert_eq!(of(i64::MIN).created(), Some(UNIX_EPOCH));
        assert_eq!(of(-1).created(), Some(UNIX_EPOCH));
        assert!(of(i64::MAX).to_string().contains("since 292278994-08-17T07:12:55Z"), "{}", of(i64::MAX));
    }

    #[test]
    fn long_data_is_cut() {
        let info = LockInfo::new(path("x-0000000001"), vec![b'a'; 1000], &STAT);
        assert!(info.to_string().contains("aaaa…'"), "{info}");
        assert!(info.to_string().len() < 250, "{info}");
        assert_eq!(info.data_lossy().len(), 1000);
    }

    proptest! {
        #[test]
        fn any_data_prints_as_one_line_without_control_characters(data: Vec<u8>) {
            let info = LockInfo::new(path("x-a-lock-0000000001"), data, &STAT);
            prop_assert!(!info.to_string().chars().any(char::is_control));
        }
    }
}
