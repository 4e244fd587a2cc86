//! [`Caller`]: in whose name a request is made, and what the ACLs grant to it.

use crate::client::{Acl, Permissions, ZkError, ZkResult};

/// Where the server asks for READ besides `get_data` and `get_children`, which differs between releases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadChecks {
    /// Nowhere, as releases before 3.8.4 and 3.9.2 do.
    ReadsOnly,
    /// An event is withheld from a client that may not read the znode, and its watch is used up for nothing
    /// (CVE-2024-23944). So does the 3.8.0 of Debian 12, where only this fix was brought back.
    Events,
    /// In addition `exists` fails with `NoAuth` on a znode that is there and may not be read (ZOOKEEPER-2590), as 3.8.4,
    /// 3.9.2 and later releases do. The default.
    #[default]
    EventsAndExists,
}

/// Who a client has proven to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) scheme: String,
    pub(super) id: String,
}

/// In whose name a request is made.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    /// The owner of the ephemeral znodes that it creates.
    pub(super) session: i64,
    pub(super) rights: Rights<'a>,
}

#[derive(Debug)]
pub(super) enum Rights<'a> {
    /// Those of a client with these identities.
    Of(&'a [Identity]),
    /// Every right: the test itself, when it acts as somebody else.
    All,
}

impl Caller<'_> {
    /// The test, acting as somebody else outside any session.
    pub(super) const ANYBODY_ELSE: Caller<'static> = Caller { session: 0, rights: Rights::All };

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

    /// Returns the ACL that a new znode gets: the scheme `auth` stands for the creator's identities.
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
