//! What a request concludes from a listing of its queue: that it owns the lock, or which request it waits
//! for.

use super::border::Failure;
use super::calls::Pending;
use super::commons::Commons;
use super::contender::{Asked, Contender, Next};
use super::listing::Listing;
use crate::client::Call;
use crate::client::Names;
use crate::error::{Operation, ZkError};
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::{Decision, count_ahead};
use crate::time::Priority;

impl Contender {
    /// Decides from the listing that has arrived. If none has arrived, asks for one, whose arrival wakes the
    /// request.
    pub(super) fn evaluate(&mut self, commons: &mut Commons) -> Next {
        let expects_lock = !std::mem::take(&mut self.has_reconnected);
        if let Some(listing) = self.listing.take() {
            return self.decide(commons, &listing);
        }
        let readers = commons.listings.ask(&self.spec.dir, self.id);
        if !readers.is_empty() {
            if expects_lock {
                // The request may need a proof before it can own the lock.
                commons.prove_beside();
            }
            commons.list(self.spec.dir.clone(), readers);
        }
        Next::Rest
    }

    pub(super) fn decide(&mut self, commons: &mut Commons, listing: &Listing) -> Next {
        let Some(znode) = self.znode().cloned() else { return Next::Rest };
        let (dir, access) = (self.spec.dir.clone(), self.spec.access);
        let of_requests = listing.without(&self.directories);
        let listing = of_requests.as_ref().unwrap_or(listing);
        let children = match &listing.children {
            Ok(children) => children,
            Err(ZkError::NoNode) => &Names::default(),
            Err(error) => return self.look_failed(commons, Operation::LIST, &dir, *error),
        };
        self.refusal = None;
        match listing.decide(access, znode.name(), children) {
            Decision::Owner => {
                self.warn_of_peers(commons, &dir, children);
                self.acquire(commons, listing.connection)
            }
            Decision::Exhausted => Next::fail(Failure::SequenceExhausted { path: znode }),
            Decision::WaitFor(nearest) => {
                self.note_number_ahead(commons, &znode, children);
                let outlook = listing.outlook(access, znode.name(), children);
                self.wait_behind(commons, dir.child(nearest), outlook)
            }
            Decision::Full => {
                self.note_number_ahead(commons, &znode, children);
                self.wait_for_any(commons)
            }
            Decision::Missing => self.lose_znode(commons),
        }
    }

    /// Counts the requests ahead in the first listing.
    fn note_number_ahead(&mut self, commons: &Commons, znode: &ZNodePath, children: &Names) {
        if commons.counts_ahead {
            self.number_ahead.get_or_insert_with(|| count_ahead(znode.name(), children));
        }
    }

    /// Waits for any of the requests ahead to leave. If the listing has left no watch, lists again and sets
    /// one.
    fn wait_for_any(&mut self, commons: &mut Commons) -> Next {
        let dir = self.spec.dir.clone();
        let is_watched = self.watched.as_ref() == Some(&dir);
        self.note_place(commons, &dir);
        if is_watched { Next::Rest } else { self.count(commons) }
    }

    /// Counts the requests ahead, using a listing that leaves a watch on the children of the directory. Only
    /// a request for a permit does so. A semaphore's own lock, in front of the directory, usually lets only one waiter
    /// through at a time, which prevents a thundering herd.
    pub(super) fn count(&mut self, commons: &mut Commons) -> Next {
        let dir = self.spec.dir.clone();
        self.watched = Some(dir.clone());
        commons.watchers.add(&dir, self.id);
        let list = Call::get_children(&dir, true);
        let asked = Asked::Count(dir, commons.lease.connection());
        commons.submit(list, Priority::Other, Pending::Request(self.id, asked));
        Next::Stay
    }

    pub(super) fn on_counted(&mut self, commons: &mut Commons, dir: &ZNodePath, listing: &Listing) -> Next {
        // The request may have been woken during the call, and may no longer need the watch.
        if self.watched.as_ref() != Some(dir) {
            commons.remove_stray_watch(dir, self.id);
        }
        let next = self.decide(commons, listing);
        // An owner does not need the watch.
        if self.is_owner() && self.watched.take_if(|watched| watched == dir).is_some() {
            commons.remove_stray_watch(dir, self.id);
        }
        next
    }
}
