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

use super::lease::ConnectionNumber;
use super::registry::ParticipantId;
use super::state::{CallKind, Core};
use crate::client::{PipelinedClient, ZkResult};
use crate::lock_order::{Mutex, rank::LISTINGS};
use crate::recipe::path::ZNodePath;

/// The children of a directory.
pub(crate) struct Listing {
    /// The connection on which the listing was sent.
    pub(crate) connection: ConnectionNumber,
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
    /// Lists a directory for the reader. If a listing is under way already, the reader gets the next
    /// one. May block if the client does.
    pub(crate) fn ask(core: &Arc<Core>, dir: &ZNodePath, id: ParticipantId, reader: Weak<dyn ListingReader>) {
        match core.listings().under_way.lock().entry(dir.clone()) {
            Entry::Vacant(entry) => drop(entry.insert(Readers::new())),
            Entry::Occupied(mut entry) => {
                entry.get_mut().insert(id, reader);
                return;
            }
        }
        Listings::list(core, dir.clone(), Readers::from([(id, reader)]));
    }

    fn list(core: &Arc<Core>, dir: ZNodePath, readers: Readers) {
        core.prove_beside();
        let connection = core.connection();
        let call = |client: &dyn PipelinedClient, done| client.get_children(dir.as_str(), false, done);
        let (of_listing, of_dir) = (Arc::clone(core), dir.clone());
        core.begin(CallKind::Read, call, move |children| {
            // Before the readers get this one: they may ask for the next.
            Listings::list_next(&of_listing, of_dir);
            let listing = Arc::new(Listing { connection, children });
            for reader in readers.into_values().filter_map(|reader| reader.upgrade()) {
                reader.take(&listing);
            }
        });
    }

    /// Begins the listing for which readers wait.
    fn list_next(core: &Arc<Core>, dir: ZNodePath) {
        let readers = {
            let mut under_way = core.listings().under_way.lock();
            match under_way.get_mut(&dir) {
                Some(readers) if !readers.is_empty() => std::mem::take(readers),
                _ => {
                    under_way.remove(&dir);
                    return;
                }
            }
        };
        if core.is_pipelined() {
            Listings::list(core, dir, readers);
        } else {
            // Not within the call that has just ended.
            core.submit(move |core| Listings::list(core, dir, readers));
        }
    }

    /// How many wait for the next listing of a directory.
    #[cfg(test)]
    pub(crate) fn waiting(&self, dir: &ZNodePath) -> usize {
        self.under_way.lock().get(dir).map_or(0, BTreeMap::len)
    }
}
