//! [`Sight`]: what a read of a znode has shown.

use crate::client::Stat;
use crate::error::{ZkError, ZkResult};
use crate::recipe::is_directory;

/// The outcome of an attempt to watch a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// The znode exists and is watched. Its data has been written `version` times since its creation. A
    /// persistent znode stays when its creator's session ends.
    Watched { data: Vec<u8>, version: i32, is_persistent: bool },
    /// The znode is a directory, which is not a request. It may be watched.
    Directory,
    /// The znode exists, but READ is denied. Servers since 3.8.4 set the watch, but never report its event.
    Unreadable,
    /// The znode does not exist. If a read of its data has shown this, no watch is left. If an existence
    /// check has, a watch for the znode's creation is left.
    Gone,
}

impl Sight {
    /// Returns what a read of a znode's data has shown.
    pub(crate) fn of_data(result: ZkResult<(Vec<u8>, Stat)>) -> ZkResult<Sight> {
        match result {
            Ok((_, stat)) if is_directory(&stat) => Ok(Sight::Directory),
            Ok((data, stat)) => {
                let is_persistent = stat.ephemeral_owner == 0;
                Ok(Sight::Watched { data, version: stat.version, is_persistent })
            }
            Err(ZkError::NoNode) => Ok(Sight::Gone),
            Err(error) => Err(error),
        }
    }

    /// Returns what an existence check has shown for a znode whose data this session may not read. If the znode exists,
    /// servers since 3.8.4 refuse this check, too.
    pub(crate) fn of_exists(result: ZkResult<Option<Stat>>) -> ZkResult<Sight> {
        match result {
            Ok(Some(stat)) if is_directory(&stat) => Ok(Sight::Directory),
            Ok(Some(_)) | Err(ZkError::NoAuth) => Ok(Sight::Unreadable),
            Ok(None) => Ok(Sight::Gone),
            Err(error) => Err(error),
        }
    }
}
