//! [`Credential`]: what a client presents to a server.

use std::fmt;

/// An identity that a connection presents to every server, by ZooKeeper's `addauth`.
#[derive(Clone)]
pub struct Credential {
    /// The scheme, `digest` for example.
    pub scheme: String,
    /// What is presented, `user:password` with `digest`.
    pub auth: Vec<u8>,
}

impl fmt::Debug for Credential {
    /// Names the scheme only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}
