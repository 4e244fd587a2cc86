//! [`Watching`]: reads that leave a watch for one participant of a session, and take note of where.

use std::sync::Arc;

use super::Fetched;
use crate::client::{Ask, Call, Stat};
use crate::engine::{ParticipantId, WatchOutcome};
use crate::error::ZkResult;
use crate::lock_order::{Mutex, rank::WATCHING};
use crate::recipe::names::Names;
use crate::recipe::path::ZNodePath;
use crate::session::Core;

/// The watches of one participant. Its reads may block, so only workers make them.
pub(crate) struct Watching {
    core: Arc<Core>,
    id: ParticipantId,
    /// Where it has registered since the last look; `None` when it has stopped.
    paths: Mutex<WATCHING, Option<Vec<ZNodePath>>>,
}

impl Watching {
    pub(super) fn new(core: Arc<Core>) -> Watching {
        let id = core.new_id();
        Watching { core, id, paths: Mutex::new(Some(Vec::new())) }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(super) fn id(&self) -> ParticipantId {
        self.id
    }

    /// Looks at a znode, even at one that may not be read; the watch fires when it changes or goes.
    pub(crate) fn watch(&self, path: &ZNodePath) -> ZkResult<WatchOutcome> {
        self.while_registered(path, || self.core.set_watch(path))
    }

    /// Reads a znode; the watch fires when it changes or goes. None is left where there is no such
    /// znode.
    pub(crate) fn data(&self, path: &ZNodePath) -> ZkResult<(Vec<u8>, Stat)> {
        self.read(path, Call::get_data(path, true))
    }

    /// Looks whether a znode that was not found is still missing, which is seen as `value`; the
    /// watch fires when it comes.
    pub(crate) fn absence<T>(&self, path: &ZNodePath, value: T) -> ZkResult<Fetched<T>> {
        Ok(match self.read(path, Call::exists(path, true))? {
            None => Fetched::Seen(value),
            Some(_) => Fetched::ChangedMeanwhile,
        })
    }

    /// Lists the children of a znode; the watch fires when one comes or goes. None is left where
    /// there is no such znode.
    pub(crate) fn children(&self, path: &ZNodePath) -> ZkResult<Names> {
        self.read(path, Call::get_children(path, true))
    }

    fn read<T>(&self, path: &ZNodePath, ask: Ask<T>) -> ZkResult<T> {
        self.while_registered(path, || self.core.ask(ask))
    }

    fn while_registered<T>(&self, path: &ZNodePath, look: impl FnOnce() -> T) -> T {
        self.register(path);
        let seen = look();
        if self.has_stopped() {
            self.core.remove_watch(path, self.id);
        }
        seen
    }

    /// Registers before the watch is set, so that no event is missed.
    fn register(&self, path: &ZNodePath) {
        let mut paths = self.paths.lock();
        let Some(paths) = &mut *paths else { return };
        if !paths.contains(path) {
            paths.push(path.clone());
        }
        self.core.watch(path, self.id);
    }

    /// Begins a new look. Returns where the last one has left watches.
    pub(super) fn begin(&self) -> Vec<ZNodePath> {
        self.paths.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Ends the watches of the last look that the present one does not need.
    pub(super) fn forget(&self, last: Vec<ZNodePath>) {
        let is_needed =
            |path: &ZNodePath| self.paths.lock().as_ref().is_some_and(|paths| paths.contains(path));
        for path in last.into_iter().filter(|path| !is_needed(path)) {
            self.core.remove_watch(&path, self.id);
        }
    }

    pub(super) fn stop(&self) {
        let last = self.paths.lock().take();
        for path in last.into_iter().flatten() {
            self.core.remove_watch(&path, self.id);
        }
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.paths.lock().is_none()
    }
}
