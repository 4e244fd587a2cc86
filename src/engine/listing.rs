//! [`Listing`]: the children of a directory, for those who decide by them.

use super::lease::ConnectionNumber;
use crate::error::ZkResult;
use crate::recipe::access::Access;
use crate::recipe::names::Names;
use crate::recipe::queue::{Decision, Ordered, Outlook, decide, outlook};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Listing {
    /// The connection on which the listing was sent.
    pub(super) connection: ConnectionNumber,
    pub(super) children: ZkResult<Names>,
    /// Made for many readers.
    ordered: Option<Ordered>,
}

impl Listing {
    pub(super) fn new(connection: ConnectionNumber, children: ZkResult<Names>) -> Listing {
        Listing { connection, children, ordered: None }
    }

    /// Prepares the listing for many readers.
    pub(super) fn in_order(self) -> Listing {
        let ordered = self.children.as_ref().ok().and_then(Ordered::of);
        Listing { ordered, ..self }
    }

    /// Decides for a request by the children.
    pub(super) fn decide<'a>(&self, access: Access, own: &str, children: &'a Names) -> Decision<'a> {
        match self.ordered_for(access) {
            Some(ordered) => ordered.decide(own, children),
            None => decide(access, own, children),
        }
    }

    /// What a request can expect by the children that it waits behind.
    pub(super) fn outlook<'a>(&self, access: Access, own: &str, children: &'a Names) -> Outlook<'a> {
        match self.ordered_for(access) {
            Some(ordered) => ordered.outlook(own, children),
            None if access.is_exclusive() => outlook(own, children),
            None => Outlook::Unclear,
        }
    }

    fn ordered_for(&self, access: Access) -> Option<&Ordered> {
        self.ordered.as_ref().filter(|_| access.is_exclusive())
    }
}
