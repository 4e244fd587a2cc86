//! [`Listing`]: the children of a directory, from which requests decide who owns the lock.

use std::collections::BTreeSet;

use super::lease::ConnectionNumber;
use crate::client::Names;
use crate::error::ZkResult;
use crate::recipe::access::Access;
use crate::recipe::queue::{Decision, Ordered, Outlook, decide, outlook};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Listing {
    /// The connection on which the call was sent.
    pub(super) connection: ConnectionNumber,
    pub(super) children: ZkResult<Names>,
    /// The children in queue order, once for each kind of request; empty unless many requests share the listing.
    ordered: Vec<Ordered>,
}

impl Listing {
    pub(super) fn new(connection: ConnectionNumber, children: ZkResult<Names>) -> Listing {
        Listing { connection, children, ordered: Vec::new() }
    }

    /// Prepares the listing for many requests of these kinds.
    pub(super) fn in_order_for(mut self, kinds: impl Iterator<Item = Access>) -> Listing {
        if let Ok(children) = &self.children {
            let mut distinct: Vec<Access> = Vec::new();
            for access in kinds.filter(|access| !access.watches_children()) {
                if !distinct.contains(&access) {
                    distinct.push(access);
                }
            }
            self.ordered = distinct.into_iter().filter_map(|access| Ordered::of(children, access)).collect();
        }
        self
    }

    /// Returns the listing without these names, or `None` if it contains none of them.
    pub(super) fn without(&self, names: &BTreeSet<String>) -> Option<Listing> {
        let children = self.children.as_ref().ok().filter(|_| !names.is_empty())?;
        let left: Names = children.iter().filter(|name| !names.contains(*name)).collect();
        (left.len() < children.len()).then(|| Listing::new(self.connection, Ok(left)))
    }

    /// Decides from the children whether a request owns the lock, or which request it waits for.
    pub(super) fn decide<'a>(&self, access: Access, own: &str, children: &'a Names) -> Decision<'a> {
        match self.ordered_for(access) {
            Some(ordered) => ordered.decide(own, children),
            None => decide(access, own, children),
        }
    }

    /// Returns how close a waiter is to its turn, according to the children.
    pub(super) fn outlook<'a>(&self, access: Access, own: &str, children: &'a Names) -> Outlook<'a> {
        match self.ordered_for(access) {
            _ if !access.is_exclusive() => Outlook::Unclear,
            Some(ordered) => ordered.outlook(own, children),
            None => outlook(own, children),
        }
    }

    fn ordered_for(&self, access: Access) -> Option<&Ordered> {
        self.ordered.iter().find(|ordered| ordered.serves(access))
    }
}
