//! [`Listings`]: one listing of a directory at a time, shared by the requests that wait for one.
//!
//! After a reconnect, many requests of a session may have to find their positions in one queue. The listing of a long
//! queue is the most expensive call, so they share it. A listing that was sent before a request asked for one may be
//! outdated for that request, which therefore gets the next one. At most one shared listing of a directory is under
//! way, and at most one waits for it to end.

use std::collections::{BTreeMap, BTreeSet};

use super::border::ParticipantId;
use super::calls::Pending;
use super::commons::Commons;
use super::contender::Activity;
use crate::client::Call;
use crate::recipe::path::ZNodePath;
use crate::time::Priority;

/// The directories that are being listed, or whose next listing has readers waiting for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Listings {
    by_dir: BTreeMap<ZNodePath, Dir>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Dir {
    activity: Activity,
    /// The requests that get the next listing.
    readers: BTreeSet<ParticipantId>,
}

impl Listings {
    /// Registers a reader for a listing that is sent no earlier than now. If none is under way, returns the readers of
    /// the listing to send; otherwise returns nobody.
    pub(super) fn ask(&mut self, dir: &ZNodePath, reader: ParticipantId) -> Vec<ParticipantId> {
        let entry = self.by_dir.entry(dir.clone()).or_default();
        entry.readers.insert(reader);
        if entry.activity == Activity::Idle {
            return entry.begin();
        }
        entry.activity = Activity::Woken;
        Vec::new()
    }

    /// Registers a reader for the next listing that another request asks for.
    pub(super) fn share_next(&mut self, dir: &ZNodePath, reader: ParticipantId) {
        self.by_dir.entry(dir.clone()).or_default().readers.insert(reader);
    }

    pub(super) fn forget(&mut self, dir: &ZNodePath, reader: ParticipantId) {
        let Some(entry) = self.by_dir.get_mut(dir) else { return };
        entry.readers.remove(&reader);
        self.drop_if_done(dir);
    }

    /// Notes that a listing has ended. Returns the readers of the next listing to send, or nobody if there is none.
    pub(super) fn on_ended(&mut self, dir: &ZNodePath) -> Vec<ParticipantId> {
        let Some(entry) = self.by_dir.get_mut(dir) else { return Vec::new() };
        if entry.activity == Activity::Woken && !entry.readers.is_empty() {
            return entry.begin();
        }
        entry.activity = Activity::Idle;
        self.drop_if_done(dir);
        Vec::new()
    }

    fn drop_if_done(&mut self, dir: &ZNodePath) {
        let is_done = |entry: &Dir| entry.activity == Activity::Idle && entry.readers.is_empty();
        if self.by_dir.get(dir).is_some_and(is_done) {
            self.by_dir.remove(dir);
        }
    }

    #[cfg(test)]
    pub(super) fn readers(&self, dir: &ZNodePath) -> usize {
        self.by_dir.get(dir).map_or(0, |entry| entry.readers.len())
    }
}

impl Commons {
    /// Sends a listing for these readers.
    pub(super) fn list(&mut self, dir: ZNodePath, readers: Vec<ParticipantId>) {
        let connection = self.lease.connection();
        let list = Call::get_children(&dir, false);
        self.submit(list, Priority::Other, Pending::Listing { dir, connection, readers });
    }
}

impl Dir {
    fn begin(&mut self) -> Vec<ParticipantId> {
        self.activity = Activity::UnderWay;
        std::mem::take(&mut self.readers).into_iter().collect()
    }
}
