//! Revocation: a client asks the holder of a lock to release it, by a message in the data of the
//! holder's znode.
//!
//! Origin: "Recoverable Shared Locks" of ZooKeeper's recipe page.

/// The whole message.
pub(crate) const MESSAGE: &[u8] = b"unlock";

/// Returns whether a znode's data ask its holder to release. Data at version 0 are the holder's own.
pub(crate) fn is_requested(data: &[u8], version: i32) -> bool {
    version > 0 && data == MESSAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_message_written_by_another_client_requests_revocation() {
        assert!(is_requested(b"unlock", 1));
        assert!(is_requested(b"unlock", i32::MAX));
        assert!(!is_requested(b"unlock", 0), "the holder's own data");
        for data in [&b""[..], b"Unlock", b"unlock\n", b"unloc", b"__REVOKE__"] {
            assert!(!is_requested(data, 1), "{data:?}");
        }
    }
}
