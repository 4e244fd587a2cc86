//! [`LockInfo`]: a request in a lock directory.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::{Rfc3339Timestamp, format_rfc3339_seconds};
use zookeeper_connection::support::text::OneLine;

use crate::client::Stat;
use crate::error::{ZkError, ZkResult};
use crate::recipe::is_directory;
use crate::recipe::kind::LockKind;
use crate::recipe::order::count_owners;
use crate::recipe::path::ZNodePath;
use crate::recipe::revocation::is_requested;
use crate::recipe::znode_name::generated_sequence;

/// The maximum number of characters of the data to print.
const SHOWN: usize = 64;

/// The last second of the year 9999. RFC 3339 cannot express later times.
const LAST_PRINTED: Duration = Duration::from_secs(253_402_300_799);

/// A request in a lock directory, as it was when it was read.
///
/// `Display` prints the request as one line, whatever its data contains:
///
/// ```text
/// /locks/report/x-0b2e-lock-0000000007: exclusive, 'web-1/4711', session 0x100004b5c3d0002, since 2026-11-21T09:51:03Z, czxid 812
/// ```
///
/// If this client lacks READ permission on the znode, it knows only the name, from which it derives the place
/// in the queue. All optional fields are then `None`. Servers before 3.8.4 and 3.9.2 deny only the data.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The full path of the znode.
    pub path: String,
    /// The requested lock mode.
    pub kind: LockKind,
    /// The sequence number, which orders the queue. It wraps after 2147483647.
    pub sequence: i32,
    /// The data that the application wrote, by default `host/pid`.
    ///
    /// A client that [asks for the release of the lock](LockInfo::is_revocation_requested) replaces the data.
    /// `None` if READ is denied.
    pub data: Option<Vec<u8>>,
    /// The id of the session that owns the request.
    ///
    /// The request ends with this session. `None` for a persistent request, and if the session is unknown.
    pub ephemeral_owner: Option<i64>,
    /// Whether the request is known to be persistent. A persistent request outlives every session.
    pub is_persistent: bool,
    /// The id of the transaction that created the znode, which is the request's fencing token. (A reader that was
    /// downgraded from a writer has the writer's token, which is smaller.)
    pub czxid: Option<i64>,
    /// The creation time of the request, by the server's clock.
    pub created: Option<SystemTime>,
    /// The version of the data.
    pub(super) version: Option<i32>,
}

/// What there is at a path that was in a listing.
pub(super) enum Found {
    Request(LockInfo),
    /// A directory is not a request, whatever its name.
    Directory,
    /// The znode was deleted after the listing.
    Nothing,
}

impl Found {
    pub(super) fn request(self) -> Option<LockInfo> {
        match self {
            Found::Request(request) => Some(request),
            Found::Directory | Found::Nothing => None,
        }
    }
}

impl LockInfo {
    pub(super) fn new(path: &ZNodePath, data: Vec<u8>, stat: &Stat) -> LockInfo {
        LockInfo { data: Some(data), ..LockInfo::unreadable(path, Some(stat)) }
    }

    /// Describes, from the reply to an `exists` call, a znode whose data this client is not permitted to read. Servers
    /// since 3.8.4 and 3.9.2 deny the metadata as well.
    pub(super) fn without_data(path: &ZNodePath, found: ZkResult<Option<Stat>>) -> ZkResult<Found> {
        match found {
            Ok(None) => Ok(Found::Nothing),
            Ok(Some(stat)) if is_directory(&stat) => Ok(Found::Directory),
            Ok(Some(stat)) => Ok(Found::Request(LockInfo::unreadable(path, Some(&stat)))),
            Err(ZkError::NoAuth) => Ok(Found::Request(LockInfo::unreadable(path, None))),
            Err(error) => Err(error),
        }
    }

    fn unreadable(path: &ZNodePath, stat: Option<&Stat>) -> LockInfo {
        let session = stat.and_then(Stat::session);
        LockInfo {
            path: path.to_string(),
            kind: LockKind::of(path.name()).unwrap_or(LockKind::Other),
            sequence: generated_sequence(path.name()).unwrap_or_default(),
            data: None,
            ephemeral_owner: session,
            is_persistent: stat.is_some() && session.is_none(),
            czxid: stat.map(|stat| stat.czxid),
            created: stat.map(Stat::created),
            version: stat.map(|stat| stat.version),
        }
    }

    /// Returns the data as text, with replacement characters for invalid UTF-8.
    ///
    /// Empty if READ is denied.
    #[must_use]
    pub fn data_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.data.as_deref().unwrap_or_default())
    }

    /// Returns whether another client has asked the holder to release the lock.
    ///
    /// If so, `data` is the message of that client, and no longer the holder's own data. See
    /// [`Revoker`](crate::queue::Revoker).
    #[must_use]
    pub fn is_revocation_requested(&self) -> bool {
        self.data.as_deref().zip(self.version).is_some_and(|(data, version)| is_requested(data, version))
    }

    /// Returns the requests in a queue that hold the lock.
    ///
    /// `queue` is the result of [`contenders`](crate::queue::LockDirectory::contenders). The owners are the first
    /// request, or all readers before the first request that is not a reader. For a semaphore, only the first
    /// request is returned, because the queue does not show how many permits are held.
    #[must_use]
    pub fn owners(queue: &[LockInfo]) -> &[LockInfo] {
        &queue[..count_owners(queue.iter().map(|request| request.kind))]
    }

    #[cfg(test)]
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for LockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, ", OneLine(&self.path), self.kind)?;
        match &self.data {
            Some(_) => write!(f, "'{}'", printable(&self.data_lossy()))?,
            None => f.write_str("READ denied")?,
        }
        let (Some(created), Some(czxid)) = (self.created, self.czxid) else { return Ok(()) };
        match self.ephemeral_owner {
            None => f.write_str(", persistent")?,
            Some(session) => write!(f, ", session {session:#x}")?,
        }
        write!(f, ", since {}, czxid {czxid}", in_utc(created))
    }
}

impl fmt::Debug for LockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockInfo({self})")
    }
}

/// Makes data safe for a terminal or a log: one line without control characters, cut if it is long.
fn printable(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Formats a time like 2026-11-21T09:51:03Z. Handles any time, because a server's clock may be wrong.
fn in_utc(time: SystemTime) -> Rfc3339Timestamp {
    let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    format_rfc3339_seconds(UNIX_EPOCH + since_1970.min(LAST_PRINTED))
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
        let info = LockInfo::new(&path("x-0b2e-lock-0000000007"), b"web-1/4711".to_vec(), &STAT);
        assert_eq!(info.path, "/locks/report/x-0b2e-lock-0000000007");
        assert_eq!(info.name(), "x-0b2e-lock-0000000007");
        assert_eq!((info.kind, info.sequence), (LockKind::Exclusive, 7));
        assert_eq!(info.data.as_deref(), Some(&b"web-1/4711"[..]));
        assert_eq!((info.czxid, info.ephemeral_owner), (Some(812), Some(STAT.ephemeral_owner)));
        assert_eq!(info.created, Some(UNIX_EPOCH + Duration::from_millis(1_795_254_663_217)));
        assert_eq!(
            info.to_string(),
            "/locks/report/x-0b2e-lock-0000000007: exclusive, 'web-1/4711', session 0x100004b5c3d0002, \
             since 2026-11-21T09:51:03Z, czxid 812"
        );
    }

    #[test]
    fn unknown_metadata_is_none_and_not_printed() {
        let persistent = Stat { ephemeral_owner: 0, ..STAT };
        let info = LockInfo::unreadable(&path("read-0000000001"), Some(&persistent));
        assert_eq!((info.data.as_deref(), info.data_lossy()), (None, "".into()));
        assert!(info.to_string().contains("read, READ denied, persistent, since"), "{info}");
        let info = LockInfo::unreadable(&path("read-0000000001"), None);
        assert_eq!((info.created, info.czxid, info.ephemeral_owner), (None, None, None));
        assert_eq!(info.to_string(), "/locks/report/read-0000000001: read, READ denied");
    }

    #[test]
    fn request_for_revocation_is_not_the_holders_data() {
        let of = |data: &[u8], version| {
            LockInfo::new(&path("x-0000000001"), data.to_vec(), &Stat { version, ..STAT })
        };
        assert!(of(b"unlock", 1).is_revocation_requested());
        assert!(!of(b"unlock", 0).is_revocation_requested());
        assert!(!of(b"web-1/4711", 1).is_revocation_requested());
        assert!(!LockInfo::unreadable(&path("x-0000000001"), Some(&STAT)).is_revocation_requested());
    }

    #[test]
    fn a_persistent_request_has_no_session() {
        for (owner, is_known) in [(0, true), (i64::MIN, true), (0, false)] {
            let stat = Stat { ephemeral_owner: owner, ..STAT };
            let info = LockInfo::unreadable(&path("x-0000000001"), is_known.then_some(&stat));
            assert_eq!((info.ephemeral_owner, info.is_persistent), (None, is_known), "{owner}");
        }
        let info = LockInfo::unreadable(&path("x-0000000001"), Some(&STAT));
        assert_eq!((info.ephemeral_owner, info.is_persistent), (Some(STAT.ephemeral_owner), false));
    }

    #[test]
    fn times_out_of_range_do_not_panic() {
        let of = |ctime| LockInfo::new(&path("x-0000000001"), Vec::new(), &Stat { ctime, ..STAT });
        assert_eq!(of(i64::MIN).created, Some(UNIX_EPOCH));
        assert_eq!(of(-1).created, Some(UNIX_EPOCH));
        assert!(of(i64::MAX).to_string().contains("since 9999-12-31T23:59:59Z"), "{}", of(i64::MAX));
    }

    #[test]
    fn long_data_is_cut() {
        let info = LockInfo::new(&path("x-0000000001"), vec![b'a'; 1000], &STAT);
        assert!(info.to_string().contains("aaaa…'"), "{info}");
        assert!(info.to_string().len() < 250, "{info}");
        assert_eq!(info.data_lossy().len(), 1000);
    }

    proptest! {
        #[test]
        fn any_data_prints_as_one_line_without_control_characters(data: Vec<u8>) {
            let info = LockInfo::new(&path("x-a-lock-0000000001"), data, &STAT);
            prop_assert!(!info.to_string().chars().any(char::is_control));
        }
    }
}
