//! The client's reports, and the end of the session.

use std::time::Duration;

use super::ahead::ZNodeChange;
use super::contender::Contender;
use super::life::{Contact, Life};
use super::proof::Proof;
use super::report::Line;
use super::{Effect, Engine, ParticipantId};
use crate::client::{ClientEvent, Granted};
use crate::error::LossReason;
use crate::recipe::path::ZNodePath;
use crate::time::Moment;

impl Engine {
    /// Takes up an event of the client. It counts when it happened, at `at`: a server may take the
    /// session up again right after a disconnect.
    pub(crate) fn client_reports(&mut self, at: Moment, event: ClientEvent) {
        match event {
            ClientEvent::Connected(granted) => self.connected(at, granted),
            ClientEvent::ReportDelay(report_delay) => self.lease.set_report_delay(report_delay),
            ClientEvent::TakenUp { session_timeout } => self.taken_up(at, session_timeout),
            ClientEvent::PingAnswered { sent } => self.lease.ping_answered(sent, self.now),
            ClientEvent::Disconnected => self.disconnected(at),
            ClientEvent::SessionLost => self.end(LossReason::SessionExpired),
            ClientEvent::NodeChanged { path, is_deleted } => {
                if is_deleted {
                    self.budget.remove(&path);
                }
                let path = ZNodePath::from_server(path);
                let change = if is_deleted { ZNodeChange::Deleted } else { ZNodeChange::Unknown };
                for id in self.watchers.take(&path) {
                    self.notice(id, &path, change);
                }
            }
        }
    }

    /// Contact has begun.
    ///
    /// Owners need a proof before they look. Nobody else does: so a session that owns nothing writes
    /// nothing because of a reconnect, if its client reports pings.
    fn connected(&mut self, at: Moment, granted: Granted) {
        let (next, taken_up_after) = match self.contact {
            Contact::NotYet { opened_after } => (Contact::Present, opened_after),
            Contact::Present => (Contact::Present, None),
            Contact::Lost { since } if self.lease.is_kept_proven() => (Contact::Regained, Some(since)),
            Contact::Lost { since } => (Contact::Present, Some(since)),
            Contact::Regained => (Contact::Regained, None),
        };
        let must_look = self.life.has_ended()
            || (matches!(self.contact, Contact::Lost { .. }) && next == Contact::Present);
        self.contact = next;
        self.lease_checks.extend(self.lease.connected(granted, taken_up_after, at));
        // A new connection is a reason to try again.
        if matches!(self.proof, Proof::Failed { .. }) {
            self.proof = Proof::Idle;
        }
        if !self.life.has_ended() {
            self.effects.push_back(Effect::Connected);
        }
        if must_look {
            self.everybody_looks_again();
        }
    }

    /// A server has taken up the session again, and does not serve it yet.
    fn taken_up(&mut self, at: Moment, session_timeout: Duration) {
        let after = if let Contact::Lost { since } = self.contact { since } else { at };
        self.lease_checks.extend(self.lease.taken_up(session_timeout, after, at));
    }

    fn disconnected(&mut self, at: Moment) {
        if !self.in_contact() {
            return;
        }
        self.contact = Contact::Lost { since: at };
        self.lease_checks.insert(self.lease.end());
        self.lease.disconnected(at);
        if !self.life.has_ended() {
            self.effects.push_back(Effect::Suspended);
            self.effects.extend(self.contenders.iter().filter_map(|(id, contender)| {
                // The log is about to name the loss of one that has lost its lease.
                let znode = contender.znode().filter(|_| !self.lease.has_ended_for(*id, self.now))?.clone();
                Some(Effect::Log(Line::Suspended { znode, is_owner: contender.is_owner() }))
            }));
        }
        let removals: Vec<ParticipantId> = self.removals.keys().copied().collect();
        for id in removals {
            self.report_removal(id, Err(crate::error::ZkError::ConnectionLoss));
        }
    }

    /// Contact was lost and is back: every watch must be set again. Until then everybody stays registered:
    /// the client may have set some of them by itself, and they are to be removed in the end.
    pub(super) fn everybody_looks_again(&mut self) {
        // Owners first: a lease may end while long listings come in.
        let is_waiting = |contender: &Contender| !contender.is_owner();
        let mut requests: Vec<_> =
            self.contenders.iter().map(|(id, contender)| (is_waiting(contender), *id)).collect();
        requests.sort_unstable();
        for (_, id) in requests {
            if let Some(contender) = self.contenders.get_mut(&id) {
                let is_behind_own =
                    contender.watched.as_ref().is_some_and(|ahead| self.own_queues.stays(ahead));
                contender.ahead.reconnected(is_behind_own);
                contender.has_reconnected = true;
                self.wake(id);
            }
        }
        let removals: Vec<ParticipantId> = self.removals.keys().copied().collect();
        for id in removals {
            self.removal_reconnected(id);
        }
        self.sweep_again();
        self.look_at_all_tracked();
    }

    /// Something has happened to a znode for which somebody had registered.
    pub(super) fn notice(&mut self, id: ParticipantId, path: &ZNodePath, change: ZNodeChange) {
        match self.contenders.contains_key(&id) {
            true => self.znode_changed(id, path, change),
            false => self.look_at_tracked(id),
        }
    }

    // ---- the end

    /// Ends the session for good, and every lease with it. [`Engine::complete_end`] follows.
    pub(crate) fn end(&mut self, reason: LossReason) {
        match self.life {
            Life::Open => {
                self.life = Life::Ending(reason);
                self.lease.finish();
                if !self.server_may_keep_session() {
                    self.refuse_waiting();
                }
                self.effects.push_back(Effect::Ending);
            }
            // Nothing is left that could be deleted.
            Life::Lingering(..) if reason == LossReason::SessionExpired => self.finish(),
            Life::Ending(..) | Life::Lingering(..) | Life::Finished(..) => {}
        }
    }

    /// Ends all requests: owners and waiters are notified. Deletions go on if the session outlives us.
    pub(crate) fn complete_end(&mut self) {
        let Life::Ending(reason) = self.life else { return };
        self.log(Line::SessionEnded(reason));
        if self.server_may_keep_session() {
            self.life = Life::Lingering(reason);
        }
        // Without those that the ends of the requests begin.
        let removals: Vec<ParticipantId> = self.removals.keys().copied().collect();
        let requests: Vec<ParticipantId> = self.contenders.keys().copied().collect();
        for id in requests {
            self.lose(id, reason);
        }
        for id in removals {
            self.removal_at_end(id);
        }
        self.sweeps_at_end();
        self.end_tracking(reason);
        if matches!(self.life, Life::Ending(..)) {
            self.finish();
        }
    }

    /// Returns whether the session may live on at the server without us, with the znodes that we leave.
    pub(super) fn server_may_keep_session(&self) -> bool {
        self.life.end_reason() != Some(LossReason::SessionExpired) && !self.settings.owns_session
    }

    /// Returns when the server has ended a session that lingers without contact.
    pub(super) fn lingers_until(&self) -> Option<Moment> {
        match self.contact {
            Contact::NotYet { .. } => Some(self.lease.given_up_at()),
            Contact::Lost { since } => Some(since.after(self.lease.session_timeout())),
            Contact::Present | Contact::Regained => None,
        }
    }

    /// A session that lingers is finished when it has nothing left to delete.
    pub(super) fn finish_if_idle(&mut self) {
        if matches!(self.life, Life::Lingering(..)) && self.is_idle() {
            self.finish();
        }
    }

    pub(super) fn finish(&mut self) {
        if let Some(reason) = self.life.end_reason().filter(|_| !matches!(self.life, Life::Finished(..))) {
            self.life = Life::Finished(reason);
            self.refuse_waiting();
            self.effects.push_back(Effect::Finished);
        }
    }
}
