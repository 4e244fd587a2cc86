//! The warning about requests of other libraries that do not count those of this crate.

use std::sync::Arc;

use super::{Phase, Request};
use crate::client::Call;
use crate::logging;
use crate::recipe::names::Names;
use crate::recipe::path::ZNodePath;
use crate::recipe::peers::mismatch;

impl Request {
    /// Lists the directory of an owner: requests that do not count it may have come after it.
    pub(super) fn look_for_peers(self: &Arc<Self>) {
        let znode = match &self.state.lock().phase {
            Phase::Owner { znode, .. } => znode.clone(),
            _ => return,
        };
        let request = Arc::clone(self);
        self.core.submit(move |core| {
            let children = core.ask(Call::get_children(&request.spec.dir, false));
            // The next routine look repeats one that failed.
            request.warn_of_peers(&znode, &children.unwrap_or_default());
        });
    }

    /// Names in the log a request of another library that may own beside this one. Once per session
    /// and directory.
    pub(super) fn warn_of_peers(&self, znode: &ZNodePath, children: &Names) {
        let Some(mismatch) = mismatch(znode.name(), children) else { return };
        let dir = &self.spec.dir;
        if self.core.mentions_first(dir) {
            logging::warn!("in {dir}, {mismatch}");
        }
    }
}
