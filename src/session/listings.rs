//! [`Listings`]: makes one listing of a directory at a time, and shares it among the requests that
//! wait for one.
//!
//! After a reconnect, all requests of a session in one queue must find their positions. Listing a
//! long queue is the most expensive call, so they share it. A listing that was sent before a
//! request asked may be outdated for it, so the request gets the next one. At most one is in
//! progress, and one waits for it to end.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::{Arc, Weak};

use super::lease::LeaseEpoch;
use super::registry::ParticipantId;
use super::state::Core;
use crate::client::ZkResult;
use crate::lock_order::{Mutex, rank::LISTINGS};
use crate::recipe::path::ZNodePath;

/// The children of a directory.
pub(crate) struct Listing {
    /// The lease's epoch when the listing was sent.
    pub(crate) epoch: Arc<LeaseEpoch>,
    pub(crate) children: ZkResult<Vec<String>>,
}

/// A participant that asks for listings.
pub(crate) trait ListingReader: Send + Sync {
    /// Takes a listing that was sent after it was asked for. Must return at once.
    fn take(self: Arc<Self>, listing: &Arc<Listing>);
}

/// The listings of one session.
#[derive(Default)]
pub(crate) struct Listings {
    /// The directories of which a listing is under way, each with the readers that have asked since
    /// it was sent.
    under_way: Mutex<LISTINGS, HashMap<ZNodePath, Readers>>,
}

type Readers = BTreeMap<ParticipantId, Weak<dyn ListingReader>>;

impl Listings {
    /// Lists a directory, on the calling worker. If a listing is under way already, returns `None`:
    /// the reader gets the next one.
    pub(crate) fn list(
        core: &Arc<Core>,
        dir: &ZNodePath,
        id: ParticipantId,
        reader: Weak<dyn ListingReader>,
    ) -> Option<Arc<Listing>> {
        match core.listings().under_way.lock().entry(dir.clone()) {
            Entry::Vacant(entry) => drop(entry.insert(Readers::new())),
            Entry::Occupied(mut entry) => {
                entry.get_mut().insert(id, reader);
                return None;
            }
        }
        Some(Listings::list_now(core, dir))
    }

    fn list_now(core: &Arc<Core>, dir: &ZNodePath) -> Arc<Listing> {
        let _under_way = UnderWay { core, dir };
        let epoch = core.current_epoch();
        let children = core.read(|client| client.get_children(dir.as_str(), false));
        Arc::new(Listing { epoch, children })
    }

    /// Makes the listing for which the readers wait, and passes it to them.
    fn list_next(core: &Arc<Core>, dir: &ZNodePath) {
        let readers = core.listings().under_way.lock().get_mut(dir).map(std::mem::take);
        let listing = Listings::list_now(core, dir);
        for reader in readers.into_iter().flatten().filter_map(|(_, reader)| reader.upgrade()) {
            reader.take(&listing);
        }
    }

    /// How many wait for the next listing of a directory.
    #[cfg(test)]
    pub(crate) fn waiting(&self, dir: &ZNodePath) -> usize {
        self.under_way.lock().get(dir).map_or(0, BTreeMap::len)
    }
}

/// A listing under way. When it is dropped, by a panic too, the next one begins if there are
/// readers that wait for it.
struct UnderWay<'a> {
    core: &'a Arc<Core>,
    dir: &'a ZNodePath,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let is_last = {
            let mut under_way = self.core.listings().under_way.lock();
            let is_last = under_way.get(self.dir).is_none_or(BTreeMap::is_empty);
            if is_last {
                under_way.remove(self.dir);
            }
            is_last
        };
        if !is_last {
            let dir = self.dir.clone();
            self.core.submit(move |core| Listings::list_next(core, &dir));
        }
    }
}
