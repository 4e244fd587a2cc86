//! The outcomes of calls: what each outcome shows about the session, and which participant handles it.

use std::sync::Arc;

use super::Engine;
use super::border::{CallId, Effect, ParticipantId};
use super::calls::{Pending, is_keep_alive, was_answered, was_answered_by_leader};
use super::lease::{ConnectionNumber, Sending};
use super::life::{Contact, SessionEnd};
use super::listing::Listing;
use super::proof::ProofCall;
use crate::client::{Ask, Call, Reply};
use crate::error::{ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::time::Priority;

impl Engine {
    /// Handles the outcome of a call that an effect has asked for. Ignores a second outcome of the same call.
    pub(crate) fn handle_reply(&mut self, id: CallId, outcome: ZkResult<Reply>) {
        let Some(answered) = self.commons.take_answered(id) else { return };
        let mut outcome = outcome.and_then(|reply| match answered.call.is_answered_by(&reply) {
            true => Ok(reply),
            false => Err(ZkError::MarshallingError),
        });
        self.commons.calls.budget.on_reply(&answered.call, &outcome);
        self.count_answer(&answered.call, answered.sending, &outcome);
        if is_keep_alive(&answered.call) {
            if let Some((pending, outcome)) = self.commons.on_keep_alive_reply(answered, outcome) {
                self.pass_on(id, pending, outcome);
            }
            return;
        }
        let dir = answered.call.listed_dir().map(|dir| ZNodePath::from_server(Arc::clone(dir)));
        if let Some(dir) = &dir {
            self.pass_over_phantoms(dir, &mut outcome);
        }
        let children = outcome.as_ref().ok().and_then(Reply::listed).cloned();
        self.pass_on(id, answered.pending, outcome);
        if let Some((dir, children)) = dir.zip(children) {
            self.remove_strays(&dir, &children);
        }
    }

    /// Makes a call for code outside the engine. [`Effect::Answered`] follows.
    pub(crate) fn ask(&mut self, id: ParticipantId, call: Call) {
        if !self.refuses(id) {
            self.commons.submit(Ask { call, read: Ok }, Priority::Other, Pending::Other(id));
        }
    }

    /// Makes a write that changes nothing, for code outside the engine. [`Effect::Answered`] follows.
    ///
    /// A read that follows on the same connection shows every write, of any client, that was answered before
    /// this call. Without this call, a server that lags behind might answer the read. A write whose reply was
    /// lost may still [take effect](super::sweep) after the read.
    pub(crate) fn ask_to_write_nothing(&mut self, id: ParticipantId) {
        if !self.refuses(id) {
            self.commons.write_nothing(Priority::Other, Pending::Other(id));
        }
    }

    fn refuses(&mut self, id: ParticipantId) -> bool {
        let has_ended = self.commons.life.has_ended();
        if has_ended {
            self.commons.effects.push_back(Effect::Answered(id, Err(ZkError::SessionExpired)));
        }
        has_ended
    }

    /// Notes what the outcome of a call shows about the session. An answer to a read helps to extend the
    /// lease; an answer to a write may extend it.
    fn count_answer(&mut self, call: &Call, sending: Sending, outcome: &ZkResult<Reply>) {
        let now = self.commons.now;
        // A denied write counts as a read, because any server may have denied it.
        if call.is_write() && was_answered_by_leader(outcome) {
            let is_of_this_contact = self.commons.lease.counts(sending);
            if self.commons.lease.on_write_answered(sending, now) {
                self.check_owners();
            }
            if is_of_this_contact && self.commons.contact == Contact::Regained {
                self.commons.contact = Contact::Present;
                self.everybody_looks_again();
            }
        } else if was_answered(outcome) {
            self.commons.lease.on_read_answered(sending, now);
        }
        if matches!(outcome, Err(ZkError::SessionExpired)) {
            self.commons.end(SessionEnd::Expired);
        }
    }

    /// Passes an outcome to the participants for whom the call was made.
    pub(super) fn pass_on(&mut self, call: CallId, pending: Pending, outcome: ZkResult<Reply>) {
        match pending {
            Pending::Nobody => {}
            Pending::Proof(asked) => self.handle_proof_reply(asked, outcome),
            Pending::Request(id, asked) if self.contenders.contains_key(&id) => {
                self.with_request(id, |request, commons| request.on_reply(commons, call, asked, outcome));
            }
            Pending::Request(id, asked) => {
                if let Some(znode) = asked.nobody_waits(id, &mut self.commons, outcome) {
                    self.remove(znode);
                }
            }
            Pending::Removal(id) => self.handle_removal_reply(id, outcome.and_then(Reply::done)),
            Pending::LookAfterRemoval(id, connection) => {
                let found = outcome.and_then(Reply::found);
                self.with_removal(id, |removal, commons| removal.on_look(commons, connection, found));
            }
            Pending::Sweep(id, asked) => self.sweep_goes_on(id, asked, outcome),
            Pending::Listing { dir, connection, readers } => {
                self.handle_listing(&dir, connection, &readers, outcome);
            }
            Pending::Tracked(id, _) if self.tracked.contains_key(&id) => {
                self.commons.effects.push_back(Effect::ReadFor(id, outcome));
            }
            Pending::Tracked(id, watched) => {
                watched.into_iter().for_each(|path| self.commons.remove_stray_watch(&path, id));
            }
            Pending::Other(id) => self.commons.effects.push_back(Effect::Answered(id, outcome)),
        }
    }

    fn handle_proof_reply(&mut self, asked: ProofCall, outcome: ZkResult<Reply>) {
        let Some((waiting, result)) = self.commons.on_proof_reply(asked, &outcome) else { return };
        for id in waiting {
            self.with_request(id, |request, commons| request.on_proof_ended(commons, result));
        }
    }

    /// Hands a listing to the requests that share it.
    fn handle_listing(
        &mut self,
        dir: &ZNodePath,
        connection: ConnectionNumber,
        readers: &[ParticipantId],
        outcome: ZkResult<Reply>,
    ) {
        // Do this before the readers get this listing, because they may ask for another one.
        let next = self.commons.listings.on_ended(dir);
        if !next.is_empty() {
            self.commons.list(dir.clone(), next);
        }
        let listing = Listing::new(connection, outcome.and_then(Reply::children));
        let kinds = readers.iter().filter_map(|id| Some(self.contenders.get(id)?.spec.access));
        let listing = Arc::new(if readers.len() > 1 { listing.in_order_for(kinds) } else { listing });
        for id in readers {
            self.with_request(*id, |request, _| request.on_listed(&listing));
        }
    }
}
