//! Revocation: a client asks the holder of a lock to release it, through a message in the data of the holder's znode.
//!
//! Origin: "Recoverable Shared Locks" on ZooKeeper's recipe page; Curator's `LockInternals.REVOKE_MESSAGE`.

/// The message that the recipe page defines. The data may contain nothing else.
pub(crate) const MESSAGE: &[u8] = b"unlock";

/// The message that Curator's holders wait for.
const CURATORS_MESSAGE: &[u8] = b"__REVOKE__";

/// The beginning of the names of Curator's requests.
const CURATORS_PREFIX: &str = "_c_";

/// Returns the message that the holder of a request with this name understands. Holders of this crate understand both
/// messages.
pub(crate) fn message_for(name: &str) -> &'static [u8] {
    if name.starts_with(CURATORS_PREFIX) { CURATORS_MESSAGE } else { MESSAGE }
}

/// Returns whether the data of a holder's znode ask it to release the lock. Data at version 0 are the holder's own.
pub(crate) fn is_requested(data: &[u8], version: i32) -> bool {
    version > 0 && (data == MESSAGE || data == CURATORS_MESSAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_message_written_by_another_client_requests_revocation() {
        assert!(is_requested(b"unlock", 1));
        assert!(is_requested(b"unlock", i32::MAX));
        assert!(is_requested(b"__REVOKE__", 1));
        for own in [&b"unlock"[..], b"__REVOKE__"] {
            assert!(!is_requested(own, 0), "the holder's own data");
        }
        for data in [&b""[..], b"Unlock", b"unlock\n", b"unloc", b"__revoke__", b"__REVOKE__ "] {
            assert!(!is_requested(data, 1), "{data:?}");
        }
    }

    #[test]
    fn holders_with_names_of_curator_get_its_message() {
        assert_eq!(message_for("_c_0a-lock-0000000003"), b"__REVOKE__");
        for name in ["x-0a-lock-0000000003", "0a__lock__0000000003", "0a-latch-_c_-0000000003"] {
            assert_eq!(message_for(name), b"unlock", "{name}");
        }
    }
}
