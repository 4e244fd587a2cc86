//! The client's events, and the end of the session.

use std::time::Duration;

use super::Engine;
use super::ahead::ZNodeChange;
use super::border::{Effect, Event, ParticipantId, RequestEvent};
use super::life::{Contact, Life, SessionEnd};
use super::proof::Proof;
use crate::client::{ClientEvent, Granted};
use crate::error::ZkError;
use crate::recipe::path::ZNodePath;
use crate::time::Moment;

impl Engine {
    /// Handles an event of the client that happened at `at`. For the beginning and the end of contact, this moment
    /// counts, not the present one, because a server may resume the session right after a disconnect.
    pub(crate) fn handle_event(&mut self, at: Moment, event: ClientEvent) {
        let commons = &mut self.commons;
        match event {
            ClientEvent::Connected(granted) => self.handle_connected(at, granted),
            ClientEvent::ReportDelay(report_delay) => commons.lease.set_report_delay(report_delay),
            ClientEvent::TakenUp { session_timeout } => self.handle_taken_up(at, session_timeout),
            ClientEvent::PingAnswered { sent } => commons.lease.on_ping_answered(sent, commons.now),
            ClientEvent::Disconnected => self.handle_disconnected(at),
            ClientEvent::SessionLost => commons.end(SessionEnd::Expired),
            ClientEvent::NodeChanged { path, is_deleted } => {
                if is_deleted {
                    commons.calls.budget.remove(&path);
                }
                let change = if is_deleted { ZNodeChange::Deleted } else { ZNodeChange::Unknown };
                self.notify(&ZNodePath::from_server(path), change);
            }
        }
    }

    /// Handles the beginning of contact.
    ///
    /// Owners need a proof before they look; nobody else does. So if a session owns nothing and was proven before, a
    /// reconnect by itself causes no write.
    fn handle_connected(&mut self, at: Moment, granted: Granted) {
        let commons = &mut self.commons;
        let former = commons.contact;
        let (next, taken_up_after) = match former {
            Contact::NotYet { opened_after } => (Contact::Present, opened_after),
            Contact::Present => (Contact::Present, None),
            Contact::Lost { since } if commons.lease.is_kept_proven() => (Contact::Regained, Some(since)),
            Contact::Lost { since } => (Contact::Present, Some(since)),
            Contact::Regained => (Contact::Regained, None),
        };
        let must_look = matches!(former, Contact::Lost { .. }) && next == Contact::Present;
        commons.contact = next;
        // Phantoms of the last server may be missing on the new one, so believe what the new one lists.
        self.strays.clear();
        self.lease_checks.extend(commons.lease.on_connected(granted, taken_up_after, at));
        // A new connection is a reason to repeat a failed proof at once.
        if matches!(commons.proof, Proof::Failed { .. }) {
            commons.proof = Proof::Idle;
        }
        if !commons.life.has_ended() {
            commons.report(Event::Connected);
        }
        if must_look {
            self.everybody_looks_again();
        }
    }

    /// Notes that a server has resumed the session, which it does not serve yet.
    fn handle_taken_up(&mut self, at: Moment, session_timeout: Duration) {
        let after = if let Contact::Lost { since } = self.commons.contact { since } else { at };
        self.lease_checks.extend(self.commons.lease.on_taken_up(session_timeout, after));
    }

    fn handle_disconnected(&mut self, at: Moment) {
        let Engine { commons, contenders, removals, .. } = self;
        if !commons.in_contact() {
            return;
        }
        commons.contact = Contact::Lost { since: at };
        self.lease_checks.insert(commons.lease.end());
        commons.lease.on_disconnected();
        if !commons.life.has_ended() {
            commons.report(Event::Suspended);
            for contender in contenders.values() {
                // If a request's lease has ended, the loss is about to be reported.
                let has_lost = commons.lease.ended_at(contender.id, commons.now).is_some();
                if contender.znode().is_some() && !has_lost {
                    let is_owner = contender.is_owner();
                    contender.report(commons, RequestEvent::Suspended { is_owner });
                }
            }
        }
        removals.values_mut().for_each(|removal| removal.report(commons, Err(ZkError::ConnectionLoss)));
    }

    // ---- the end

    /// Ends the session, and every lease with it. [`Engine::complete_end`] follows.
    pub(crate) fn end(&mut self, reason: SessionEnd) {
        self.commons.end(reason);
    }

    /// Ends all requests, which notifies owners and waiters, and leaves the deletions to the next session.
    pub(crate) fn complete_end(&mut self) {
        let Life::Ending(reason) = self.commons.life else { return };
        self.commons.report(Event::SessionEnded(reason));
        // These ids are collected first, so they do not include the deletions that begin when the requests
        // end.
        let removals: Vec<ParticipantId> = self.removals.keys().copied().collect();
        let requests: Vec<ParticipantId> = self.contenders.keys().copied().collect();
        for id in requests {
            // If an owner's hold had reached its limit before the session ended, the limit is the reason for
            // the loss.
            let ended = self.commons.lease.ended_at(id, self.commons.now).unwrap_or(self.commons.now);
            self.lose_hold(id, ended);
        }
        for id in removals {
            self.with_removal(id, |removal, commons| removal.leave_behind(commons));
        }
        self.commons.leave_sweeps_behind();
        for (_, tracked) in std::mem::take(&mut self.tracked) {
            tracked.lose(&mut self.commons, reason);
        }
        self.commons.life = Life::Finished(reason);
        self.commons.effects.push_back(Effect::Finished);
    }
}
