//! The warning about requests of other libraries that do not count those of this crate.

use super::Request;
use crate::logging;
use crate::recipe::path::ZNodePath;
use crate::recipe::peers::find_overlooking;

impl Request {
    /// Names in the log a request of another library that may own beside this one. Once per session
    /// and directory.
    pub(super) fn warn_of_peers(&self, znode: &ZNodePath, children: &[String]) {
        let Some((theirs, peer)) = find_overlooking(znode.name(), children) else { return };
        let dir = &self.spec.dir;
        if self.core.mentions_first(dir) {
            logging::warn!(
                "{} in {dir} ({theirs}) does not count requests such as {}, so both may own at once; use {}",
                peer.class(),
                znode.name(),
                peer.remedy(),
            );
        }
    }
}
