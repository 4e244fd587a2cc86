//! How somebody asks the holder of a lock to let go: by a message in the data of the holder's znode.
//!
//! Origin: "Recoverable Shared Locks" of ZooKeeper's recipe page.

/// The message, and nothing besides it.
pub(crate) const MESSAGE: &[u8] = b"unlock";

/// Whether a znode's data ask its holder to let go. At version 0 they are the holder's own.
pub(crate) fn is_requested(data: &[u8], version: i32) -> bool {
    version > 0 && data == MESSAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_message_written_by_another_asks_to_let_go() {
        assert!(is_requested(b"unlock", 1));
        assert!(is_requested(b"unlock", i32::MAX));
        assert!(!is_requested(b"unlock", 0), "the holder's own data");
        for data in [&b""[..], b"Unlock", b"unlock\n", b"unloc", b"__REVOKE__"] {
            assert!(!is_requested(data, 1), "{data:?}");
        }
    }
}
