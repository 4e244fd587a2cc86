//! Access control of znodes: [`Acl`] and [`Permissions`].

use std::fmt;
use std::ops::BitOr;

/// The permissions that an [`Acl`] grants.
///
/// ```
/// # use zookeeper_connection::Permissions;
/// let permissions = Permissions::READ | Permissions::CREATE;
/// assert!(permissions.contains(Permissions::READ));
/// assert!(!permissions.contains(Permissions::ALL));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permissions(u8);

impl Permissions {
    /// No permission.
    pub const NONE: Permissions = Permissions(0);
    /// Permission to read the data and list the children.
    pub const READ: Permissions = Permissions(1);
    /// Permission to write the data.
    pub const WRITE: Permissions = Permissions(1 << 1);
    /// Permission to create children.
    pub const CREATE: Permissions = Permissions(1 << 2);
    /// Permission to delete children.
    pub const DELETE: Permissions = Permissions(1 << 3);
    /// Permission to change the ACL.
    pub const ADMIN: Permissions = Permissions(1 << 4);
    /// All permissions.
    pub const ALL: Permissions = Permissions(0b1_1111);

    /// Each single permission, with its name.
    pub const EACH: [(Permissions, &str); 5] = [
        (Permissions::READ, "READ"),
        (Permissions::WRITE, "WRITE"),
        (Permissions::CREATE, "CREATE"),
        (Permissions::DELETE, "DELETE"),
        (Permissions::ADMIN, "ADMIN"),
    ];

    /// Returns the number that ZooKeeper uses for these permissions.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the permissions with this number, or `None` if the number has bits that are not permissions.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Permissions> {
        if bits & !Permissions::ALL.0 == 0 { Some(Permissions(bits)) } else { None }
    }

    /// Returns whether these permissions include all of `others`.
    #[must_use]
    pub const fn contains(self, others: Permissions) -> bool {
        self.0 & others.0 == others.0
    }
}

impl BitOr for Permissions {
    type Output = Permissions;

    fn bitor(self, other: Permissions) -> Permissions {
        Permissions(self.0 | other.0)
    }
}

impl fmt::Debug for Permissions {
    /// Writes `READ|CREATE`, for example, or `NONE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let granted = Permissions::EACH.into_iter().filter(|(permission, _)| self.contains(*permission));
        let names: Vec<_> = granted.map(|(_, name)| name).collect();
        f.write_str(if names.is_empty() { "NONE".to_owned() } else { names.join("|") }.as_str())
    }
}

/// One entry of an access control list: permissions for one identity.
///
/// Children do not inherit the ACL of a znode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acl {
    /// The granted permissions.
    pub permissions: Permissions,
    /// The authentication scheme: `world`, `auth`, `digest`, `x509`, `ip` and others.
    pub scheme: String,
    /// The identity within the scheme.
    pub id: String,
}

impl Acl {
    /// Grants permissions to an identity.
    pub fn new(permissions: Permissions, scheme: impl Into<String>, id: impl Into<String>) -> Acl {
        Acl { permissions, scheme: scheme.into(), id: id.into() }
    }

    /// Returns the ACL that grants everything to everybody: ZooKeeper's `OPEN_ACL_UNSAFE`.
    #[must_use]
    pub fn open_unsafe() -> Vec<Acl> {
        vec![Acl::new(Permissions::ALL, "world", "anyone")]
    }

    /// Returns the ACL that grants everything to the creator of the znode.
    ///
    /// This is ZooKeeper's `CREATOR_ALL_ACL`. Every identity of the session that creates the znode counts as its
    /// creator.
    #[must_use]
    pub fn creator_all() -> Vec<Acl> {
        vec![Acl::new(Permissions::ALL, "auth", "")]
    }
}

impl fmt::Display for Acl {
    /// Writes `world:anyone:READ|CREATE`, for example.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{:?}", self.scheme, self.id, self.permissions)
    }
}
