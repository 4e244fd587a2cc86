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

/// How much of the data is printed, in characters.
const SHOWN: usize = 64;

/// A request in a lock directory: what it asks for, who made it, and since when it waits, or holds the lock.
///
/// Prints as one line, whatever its data holds:
///
/// ```text
/// /locks/report/x-0b2e-lock-0000000007: exclusive, 'web-1/4711', session 0x100004b5c3d0002, since 2026-11-21T09:51:03Z, czxid 812
/// ```
///
/// What the server tells of a znode may be denied to this client (READ): then the name is known, and with it the place in
/// the queue, and the rest is `None`. Servers before 3.8.4 and 3.9.2 deny the data alone.
#[derive(Clone, PartialEq, Eq)]
pub struct LockInfo {
    path: ZNodePath,
    data: Option<Vec<u8>>,
    origin: Option<Origin>,
}

/// Where a request comes from, and at which version its data is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Origin {
    czxid: i64,
    created: SystemTime,
    /// `None` for a persistent one.
    session: Option<i64>,
    version: i32,
}

impl LockInfo {
    pub(super) fn new(path: ZNodePath, data: Vec<u8>, stat: &Stat) -> LockInfo {
        LockInfo { path, data: Some(data), origin: Some(Origin::of(stat)) }
    }

    /// One whose data may not be read.
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

    /// Returns what is asked for.
    #[must_use]
    pub fn kind(&self) -> LockKind {
        LockKind::of(self.name()).unwrap_or(LockKind::Other)
    }

    /// Returns the sequence number, by which the queue is ordered. It wraps after 2147483647.
    #[must_use]
    pub fn sequence(&self) -> i32 {
        generated_sequence(self.name()).unwrap_or_default()
    }

    /// Returns the data, which is whatever the application wrote (`host/pid` unless it did); `None` where READ is denied.
    #[must_use]
    pub fn data(&self) -> Option<&[u8]> {
        self.data.as_deref()
    }

    /// Returns the data as text; what is not UTF-8 in it is replaced. Empty where READ is denied.
    #[must_use]
    pub fn data_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.data.as_deref().unwrap_or_default())
    }

    /// Returns the session with which the request ends; `None` for a persistent one, which ends with
    /// none, and where the session is not known.
    #[must_use]
    pub fn ephemeral_owner(&self) -> Option<i64> {
        self.origin.and_then(|origin| origin.session)
    }

    /// Returns whether the request is persistent, so that no session's end deletes it; `false` where
    /// that is not known.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.origin.is_some_and(|origin| origin.session.is_none())
    }

    /// Returns the transaction id that created the znode: the fencing token of this request.
    #[must_use]
    pub fn czxid(&self) -> Option<i64> {
        self.origin.map(|origin| origin.czxid)
    }

    /// Returns when the request was made, by the server's clock.
    #[must_use]
    pub fn created(&self) -> Option<SystemTime> {
        self.origin.map(|origin| origin.created)
    }

    /// Returns the part of a queue that holds the lock: the first request, or all readers before the first that is none.
    ///
    /// `queue` is what [`contenders`](crate::LockDirectory::contenders) returned.
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
        /// By which the server marks a container, which no session owns.
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

/// Data as a terminal and a log can bear it: on one line, without control characters, and cut when it is long.
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
    fn a_request_tells_all_about_itself() {
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
    fn what_is_not_known_is_not_made_up() {
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
    fn times_that_no_server_tells_are_borne() {
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
