//! [`Caller`]: the identity behind a request, and the rights that ACLs grant it.

use crate::client::{Acl, Permissions};
use crate::error::{ZkError, ZkResult};

/// The operations that require READ, besides `get_data`, `get_children` and the checks of a transaction.
///
/// They differ between ZooKeeper releases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadChecks {
    /// No others, as in releases before 3.8.4 and 3.9.2.
    ReadsOnly,
    /// Events, too. They are withheld from clients that may not read the znode, but they still use up the
    /// watch (CVE-2024-23944). Version 3.8.0 in Debian 12 also behaves like this, because Debian backported
    /// only this fix.
    Events,
    /// Events and `exists`, which fails with `NoAuth` if the znode exists but the client may not read it
    /// (ZOOKEEPER-2590). Releases 3.8.4, 3.9.2 and later do this. This is the default.
    #[default]
    EventsAndExists,
}

/// An identity that a client has authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) scheme: String,
    pub(super) id: String,
}

/// The identity behind a request.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    /// The owner of the ephemeral znodes that the request creates.
    pub(super) session: i64,
    pub(super) rights: Rights<'a>,
}

#[derive(Debug)]
pub(super) enum Rights<'a> {
    /// The rights of a client with these identities.
    Of(&'a [Identity]),
    /// All rights: the test itself, acting as another client.
    All,
}

impl Caller<'_> {
    /// The test, acting as another client outside any session.
    pub(super) const OTHER_CLIENT: Caller<'static> = Caller { session: 0, rights: Rights::All };

    /// Checks that the ACL grants the permission.
    pub(super) fn check(&self, acl: &[Acl], permission: Permissions) -> ZkResult<()> {
        let granted = match self.rights {
            Rights::All => true,
            Rights::Of(identities) => acl.iter().any(|entry| {
                entry.permissions.contains(permission)
                    && (is_world(entry) || identities.iter().any(|identity| identity.is_named_by(entry)))
            }),
        };
        if granted { Ok(()) } else { Err(ZkError::NoAuth) }
    }

    /// Returns the ACL that a znode gets, with the scheme `auth` replaced by the caller's identities.
    pub(super) fn resolve(&self, acl: &[Acl]) -> ZkResult<Vec<Acl>> {
        let mut resolved = Vec::with_capacity(acl.len());
        for entry in acl {
            match entry.scheme.as_str() {
                "" => return Err(ZkError::InvalidAcl),
                "world" if !is_world(entry) => return Err(ZkError::InvalidAcl),
                "auth" => {
                    let identities = match self.rights {
                        Rights::Of(identities) => identities,
                        Rights::All => &[],
                    };
                    if identities.is_empty() {
                        return Err(ZkError::InvalidAcl);
                    }
                    resolved.extend(
                        identities.iter().map(|who| Acl::new(entry.permissions, &who.scheme, &who.id)),
                    );
                }
                _ => resolved.push(entry.clone()),
            }
        }
        if resolved.is_empty() { Err(ZkError::InvalidAcl) } else { Ok(resolved) }
    }
}

impl Identity {
    fn is_named_by(&self, entry: &Acl) -> bool {
        self.scheme == entry.scheme && self.id == entry.id
    }
}

fn is_world(entry: &Acl) -> bool {
    entry.scheme == "world" && entry.id == "anyone"
}
