//! [`Listings`]: makes one listing of a directory at a time, and shares it among the requests that
//! wait for one.
//!
//! After a reconnect, all requests of a session in one queue must find their positions. Listing a
//! long queue is the most expensive call, so they share it. A listing that was sent before a
//! request asked may be outdated for it, so the request gets the next one. At most one is in
//! progress, and one waits for it to end.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock, Weak};

use super::lease::ConnectionNumber;
use super::registry::ParticipantId;
use super::state::Core;
use crate::client::Call;
use crate::error::ZkResult;
use crate::lock_order::{Mutex, rank::LISTINGS};
use crate::recipe::access::Access;
use crate::recipe::names::Names;
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::{Decision, Ordered, Outlook, decide, outlook};
use crate::time::Priority;

/// The children of a directory.
pub(crate) struct Listing {
    /// The connection on which the listing was sent.
    pub(crate) connection: ConnectionNumber,
    pub(crate) children: ZkResult<Names>,
    /// Made for the first of many readers.
    ordered: Option<OnceLock<Option<Ordered>>>,
}

impl Listing {
    /// A listing for one reader.
    pub(crate) fn new(connection: ConnectionNumber, children: ZkResult<Names>) -> Listing {
        Listing { connection, children, ordered: None }
    }

    /// Decides for a request by the children.
    pub(crate) fn decide<'a>(&self, access: Access, own: &str, children: &'a Names) -> Decision<'a> {
        match self.ordered(access, children) {
            Some(ordered) => ordered.decide(own, children),
            None => decide(access, own, children),
        }
    }

    /// What a request can expect by the children that it waits behind.
    pub(crate) fn outlook<'a>(&self, access: Access, own: &str, children: &'a Names) -> Outlook<'a> {
        match self.ordered(access, children) {
            Some(ordered) => ordered.outlook(own, children),
            None if access.is_exclusive() => outlook(own, children),
            None => Outlook::Unclear,
        }
    }

    fn ordered(&self, access: Access, children: &Names) -> Option<&Ordered> {
        let ordered = self.ordered.as_ref().filter(|_| access.is_exclusive())?;
        ordered.get_or_init(|| Ordered::of(children)).as_ref()
    }
}

/// A participant that asks for listings.
pub(crate) trait ListingReader: Send + Sync {
    /// Takes a listing that was sent after it was asked for.
    fn take(&self, listing: &Arc<Listing>);

    /// Decides by the listing. Must return at once.
    fn decide(self: Arc<Self>);
}

/// The listings of one session.
#[derive(Default)]
pub(crate) struct Listings {
    /// The directories that are listed, or in which readers wait for that.
    dirs: Mutex<LISTINGS, HashMap<ZNodePath, Dir>>,
}

#[derive(Default)]
struct Dir {
    is_under_way: bool,
    /// A reader has asked for the next listing, which follows the one under way.
    is_asked: bool,
    /// Those who get the next listing.
    readers: Readers,
}

type Readers = BTreeMap<ParticipantId, Weak<dyn ListingReader>>;

impl Listings {
    /// Lists a directory for the reader. If a listing is under way already, the reader gets the
    /// next one.
    ///
    /// `may_own`: the reader expects to own the lock, so that a proof is worth its write.
    pub(crate) fn ask(
        core: &Arc<Core>,
        dir: &ZNodePath,
        id: ParticipantId,
        reader: Weak<dyn ListingReader>,
        may_own: bool,
    ) {
        let readers = {
            let mut dirs = core.listings().dirs.lock();
            let entry = dirs.entry(dir.clone()).or_default();
            entry.readers.insert(id, reader);
            if std::mem::replace(&mut entry.is_under_way, true) {
                entry.is_asked = true;
                return;
            }
            std::mem::take(&mut entry.readers)
        };
        if may_own {
            core.prove_beside();
        }
        Listings::list(core, dir.clone(), readers);
    }

    /// Has the reader get the next listing that another one asks for.
    pub(crate) fn share_next(&self, dir: &ZNodePath, id: ParticipantId, reader: Weak<dyn ListingReader>) {
        self.dirs.lock().entry(dir.clone()).or_default().readers.insert(id, reader);
    }

    /// Forgets a reader that needs no listing any more.
    pub(crate) fn forget(&self, dir: &ZNodePath, id: ParticipantId) {
        let mut dirs = self.dirs.lock();
        let Some(entry) = dirs.get_mut(dir) else { return };
        entry.readers.remove(&id);
        if !entry.is_under_way && entry.readers.is_empty() {
            dirs.remove(dir);
        }
    }

    fn list(core: &Arc<Core>, dir: ZNodePath, readers: Readers) {
        let connection = core.connection();
        let (list, of_listing) = (Call::get_children(&dir, false), Arc::clone(core));
        core.send(Priority::Other, list, move |children| {
            // Before the readers get this one: they may ask for the next.
            Listings::list_next(&of_listing, dir);
            let ordered = (readers.len() > 1).then(OnceLock::new);
            let listing = Arc::new(Listing { connection, children, ordered });
            let readers: Vec<_> = readers.values().filter_map(Weak::upgrade).collect();
            // First all of them: one that is notified by another's decision has the listing then.
            readers.iter().for_each(|reader| reader.take(&listing));
            readers.into_iter().for_each(ListingReader::decide);
        });
    }

    /// Begins the listing for which readers wait that have asked since the last one was sent.
    fn list_next(core: &Arc<Core>, dir: ZNodePath) {
        let readers = {
            let mut dirs = core.listings().dirs.lock();
            let Some(entry) = dirs.get_mut(&dir) else { return };
            if !std::mem::take(&mut entry.is_asked) {
                entry.is_under_way = false;
                if entry.readers.is_empty() {
                    dirs.remove(&dir);
                }
                return;
            }
            std::mem::take(&mut entry.readers)
        };
        Listings::list(core, dir, readers);
    }

    /// How many wait for the next listing of a directory.
    #[cfg(test)]
    pub(crate) fn waiting(&self, dir: &ZNodePath) -> usize {
        self.dirs.lock().get(dir).map_or(0, |entry| entry.readers.len())
    }
}
