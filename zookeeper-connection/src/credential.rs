//! [`Credential`]: what a client presents to a server.

use std::fmt;

/// An identity that a connection presents to every server, as `addauth` does.
#[derive(Clone)]
pub struct Credential {
    /// The scheme, for example `digest`.
    pub scheme: String,
    /// The contents, for example `user:password` for `digest`.
    pub auth: Vec<u8>,
}

impl fmt::Debug for Credential {
    /// Writes only the scheme, because the contents are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}
