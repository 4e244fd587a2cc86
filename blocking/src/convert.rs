//! Conversions between the types of the crate `zookeeper` and the types of `client::seam`.

use zookeeper_recipes_lock::client::{Acl, Permissions, ZkError};
use zookeeper_recipes_lock::client::{CreateMode, Stat};

pub(super) fn to_acl(acl: &[Acl]) -> Vec<zookeeper::Acl> {
    acl.iter()
        .map(|entry| zookeeper::Acl::new(to_permission(entry.permissions), &entry.scheme, &entry.id))
        .collect()
}

fn to_permission(permissions: Permissions) -> zookeeper::Permission {
    use zookeeper::Permission as Theirs;
    let pairs = [
        (Permissions::READ, Theirs::READ),
        (Permissions::WRITE, Theirs::WRITE),
        (Permissions::CREATE, Theirs::CREATE),
        (Permissions::DELETE, Theirs::DELETE),
        (Permissions::ADMIN, Theirs::ADMIN),
    ];
    let granted = pairs.into_iter().filter(|(ours, _)| permissions.contains(*ours));
    granted.fold(Theirs::NONE, |all, (_, theirs)| all | theirs)
}

pub(super) fn to_create_mode(mode: CreateMode) -> zookeeper::CreateMode {
    match mode {
        CreateMode::Persistent => zookeeper::CreateMode::Persistent,
        CreateMode::Ephemeral => zookeeper::CreateMode::Ephemeral,
        CreateMode::PersistentSequential => zookeeper::CreateMode::PersistentSequential,
        CreateMode::EphemeralSequential => zookeeper::CreateMode::EphemeralSequential,
        CreateMode::Container => zookeeper::CreateMode::Container,
    }
}

pub(super) fn from_stat(stat: zookeeper::Stat) -> Stat {
    Stat {
        czxid: stat.czxid,
        mzxid: stat.mzxid,
        ctime: stat.ctime,
        mtime: stat.mtime,
        version: stat.version,
        cversion: stat.cversion,
        aversion: stat.aversion,
        ephemeral_owner: stat.ephemeral_owner,
        data_length: stat.data_length,
        num_children: stat.num_children,
        pzxid: stat.pzxid,
    }
}

/// Converts an error of the crate `zookeeper` to the library's error.
#[must_use]
pub fn error_of(error: zookeeper::ZkError) -> ZkError {
    use zookeeper::ZkError as Theirs;
    match error {
        Theirs::ConnectionLoss => ZkError::ConnectionLoss,
        Theirs::OperationTimeout => ZkError::OperationTimeout,
        Theirs::SessionExpired => ZkError::SessionExpired,
        Theirs::SessionMoved => ZkError::SessionMoved,
        Theirs::AuthFailed => ZkError::AuthFailed,
        Theirs::NoAuth => ZkError::NoAuth,
        Theirs::NoNode => ZkError::NoNode,
        Theirs::NodeExists => ZkError::NodeExists,
        Theirs::NotEmpty => ZkError::NotEmpty,
        Theirs::BadVersion => ZkError::BadVersion,
        Theirs::NoChildrenForEphemerals => ZkError::NoChildrenForEphemerals,
        Theirs::InvalidACL => ZkError::InvalidAcl,
        Theirs::BadArguments => ZkError::BadArguments,
        Theirs::NotReadOnly => ZkError::NotReadOnly,
        Theirs::MarshallingError => ZkError::MarshallingError,
        Theirs::EphemeralOnLocalSession => ZkError::EphemeralOnLocalSession,
        // The crate does not know the codes for quotas and throttling, and reports `Unimplemented` instead.
        // The code cannot mean what it says, because every server implements the calls that the adapter
        // makes, except for containers.
        Theirs::Unimplemented => ZkError::Throttled,
        other => ZkError::Other(other as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_convert_by_name() {
        let each = [
            (Permissions::READ, "READ"),
            (Permissions::WRITE, "WRITE"),
            (Permissions::CREATE, "CREATE"),
            (Permissions::DELETE, "DELETE"),
            (Permissions::ADMIN, "ADMIN"),
        ];
        for (permission, name) in each {
            assert_eq!(to_permission(permission).to_string(), name);
        }
        assert_eq!(to_permission(Permissions::READ | Permissions::ADMIN).to_string(), "READ|ADMIN");
        assert_eq!(to_permission(Permissions::ALL).to_string(), "ALL");
        assert_eq!(to_permission(Permissions::NONE).to_string(), "NONE");
    }

    #[test]
    fn unknown_error_keeps_its_code() {
        assert_eq!(error_of(zookeeper::ZkError::NoWatcher), ZkError::Other(-121));
        assert_eq!(error_of(zookeeper::ZkError::InvalidACL), ZkError::InvalidAcl);
    }
}
