//! The listings of a session's queues, each shared among those who wait for it.

use std::sync::{Arc, OnceLock};

use super::registry::Participant;
use super::state::Core;
use crate::client::Call;
use crate::engine::ParticipantId;
use crate::engine::lease::ConnectionNumber;
use crate::error::ZkResult;
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

impl Core {
    /// Lists a directory for a reader. If a listing is under way already, the reader gets the next
    /// one.
    ///
    /// `may_own`: the reader expects to own the lock, so that a proof is worth its write.
    pub(crate) fn list_for(self: &Arc<Self>, dir: &ZNodePath, reader: ParticipantId, may_own: bool) {
        let readers = self.engine().ask(dir, reader);
        if readers.is_empty() {
            return;
        }
        if may_own {
            self.prove_beside();
        }
        self.list(dir.clone(), readers);
    }

    fn list(self: &Arc<Self>, dir: ZNodePath, readers: Vec<ParticipantId>) {
        let connection = self.connection();
        let (list, core) = (Call::get_children(&dir, false), Arc::clone(self));
        self.send(Priority::Other, list, move |children| {
            // Before the readers get this one: they may ask for the next.
            core.list_next(dir);
            let ordered = (readers.len() > 1).then(OnceLock::new);
            let listing = Arc::new(Listing { connection, children, ordered });
            let readers = core.registry().get(&readers);
            // First all of them: one that is notified by another's decision has the listing then.
            readers.iter().for_each(|reader| reader.take_listing(&listing));
            readers.into_iter().for_each(Participant::decide);
        });
    }

    /// Begins the listing for which readers wait that have asked since the last one was sent.
    fn list_next(self: &Arc<Self>, dir: ZNodePath) {
        let readers = self.engine().listed(&dir);
        if !readers.is_empty() {
            self.list(dir, readers);
        }
    }
}
