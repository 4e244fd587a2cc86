//! [`Acl`] and [`Permissions`]: access control of znodes.

use std::fmt;

bitflags::bitflags! {
    /// What an [`Acl`] grants.
    ///
    /// ```
    /// use zookeeper_recipes_lock::Permissions;
    ///
    /// let permissions = Permissions::READ | Permissions::CREATE;
    /// assert!(permissions.contains(Permissions::READ));
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Permissions: u32 {
        /// To read the data and list the children.
        const READ = 1;
        /// To write the data.
        const WRITE = 1 << 1;
        /// To create children.
        const CREATE = 1 << 2;
        /// To delete children.
        const DELETE = 1 << 3;
        /// To change the ACL.
        const ADMIN = 1 << 4;
        /// To do anything.
        const ALL = 0b1_1111;
    }
}

/// One entry of an access control list: permissions for one identity.
///
/// The ACL of a znode does not extend to its children.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acl {
    /// What is granted.
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

    /// Returns the ACL that grants everything to the identities of the session that creates the
    /// znode: ZooKeeper's `CREATOR_ALL_ACL`.
    #[must_use]
    pub fn creator_all() -> Vec<Acl> {
        vec![Acl::new(Permissions::ALL, "auth", "")]
    }

    /// Returns the ACL that lets everybody read: ZooKeeper's `READ_ACL_UNSAFE`.
    #[must_use]
    pub fn read_unsafe() -> Vec<Acl> {
        vec![Acl::new(Permissions::READ, "world", "anyone")]
    }
}

impl fmt::Display for Acl {
    /// In the format of ZooKeeper's command line: `world:anyone:READ | CREATE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.scheme, self.id)?;
        bitflags::parser::to_writer(&self.permissions, f)
    }
}
