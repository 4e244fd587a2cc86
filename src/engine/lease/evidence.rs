//! The evidence in answers: pairs of them, and the writes that confirm these.
//!
//! The pairs and the writes belong to the present connection, and are forgotten with it.

use super::{ConnectionNumber, Lease};
use crate::time::Moment;

/// A request and its answer, or two: the first sending and the last answer. The ensemble had it in
/// between, so what is proven counts from the sending, and the report delay from the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RoundTrip {
    pub(super) sent: Moment,
    pub(super) answered: Moment,
}

/// An answered write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Written {
    pub(super) sent: Moment,
    /// The newest pair that was reported to the leader before the answer, unless the link from the
    /// leader was slow. The leader knows of it when it answers another write that is sent now.
    pub(super) reported: Option<RoundTrip>,
}

/// The sending of a request: its time, and its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sending {
    pub(super) at: Moment,
    connection: ConnectionNumber,
    /// The newest pair that the ensemble's leader should have known of by then, if there is one. The
    /// answer to a write confirms it.
    confirms: Option<RoundTrip>,
    /// The last write that was answered by then. The answer to another one proves what it reported.
    after: Option<Written>,
}

impl Lease {
    /// To be called before a request is sent.
    pub(crate) fn sending(&self, now: Moment) -> Sending {
        let confirms = self.confirmable(now);
        Sending { at: now, connection: self.connection, confirms, after: self.last_write }
    }

    /// The newest pair that the ensemble's leader should know of.
    pub(super) fn confirmable(&self, now: Moment) -> Option<RoundTrip> {
        self.unconfirmed.iter().rfind(|pair| self.is_known(pair, now)).copied()
    }

    /// Returns whether the ensemble's leader should know of a pair: the report delay has passed since it was
    /// answered.
    pub(super) fn is_known(&self, pair: &RoundTrip, now: Moment) -> bool {
        pair.answered.after(self.granted.report_delay) <= now
    }

    /// Takes up the answer to a request that any server may have given.
    pub(crate) fn read_answered(&mut self, sending: Sending, now: Moment) {
        self.note_sign_of_life(now);
        if self.counts(sending) {
            self.note(RoundTrip { sent: sending.at, answered: now });
        }
    }

    /// Takes up the answer to a ping that was sent at that moment. A ping is a request that any server may
    /// answer. It is one of the present connection, as the contract of
    /// [`ClientEvent::PingAnswered`](crate::client::port::ClientEvent::PingAnswered) says.
    pub(crate) fn ping_answered(&mut self, sent: Moment, now: Moment) {
        self.note_sign_of_life(now);
        if self.is_connected {
            self.note(RoundTrip { sent, answered: now });
        }
    }

    /// Returns whether the answer to a request proves something: it was sent on the present connection, and
    /// it is known what the server of that grants.
    pub(in crate::engine) fn counts(&self, sending: Sending) -> bool {
        self.is_connected && sending.connection == self.connection
    }

    /// Takes up the answer to a request that passed through the leader.
    ///
    /// Returns whether it came too late for the owners under the current epoch. The end of the
    /// epoch is final for them; later owners get a new one.
    pub(crate) fn write_answered(&mut self, sending: Sending, now: Moment) -> bool {
        self.note_sign_of_life(now);
        if !self.counts(sending) {
            return false;
        }
        self.was_proven = true;
        let proven = self.proven_by(sending);
        self.taken_up_after = None;
        self.note_write(sending);
        if let Some(confirmed) = sending.confirms {
            while self.unconfirmed.front().is_some_and(|pair| pair.sent <= confirmed.sent) {
                self.unconfirmed.pop_front();
            }
        }
        self.note(RoundTrip { sent: sending.at, answered: now });
        proven.is_some_and(|proven| self.extend(proven, now))
    }

    fn note_write(&mut self, sending: Sending) {
        self.followed_write = self.followed_write.max(sending.after.map(|before| before.sent));
        let before = self.last_write;
        let sent = before.map_or(sending.at, |before| before.sent.max(sending.at));
        let reported = newest(before.and_then(|before| before.reported), sending.confirms);
        self.last_write = Some(Written { sent, reported });
    }

    /// The moment since which the session is proven to be known to the leader by the answer to a
    /// write on the present connection. Owners rely on what follows without an assumption about the
    /// links between the servers.
    pub(super) fn proven_by(&self, sending: Sending) -> Option<Moment> {
        if !self.needs_pairs() {
            return self.taken_up_after.max(Some(sending.at));
        }
        // Once more: the report delay may have changed.
        let by_time = sending.confirms.filter(|pair| self.is_known(pair, sending.at));
        let by_cause =
            sending.after.and_then(|before| before.reported.filter(|pair| self.is_known(pair, before.sent)));
        let pair = if self.has_owners() { by_cause } else { newest(by_time, by_cause) };
        self.taken_up_after.max(pair.map(|pair| pair.sent))
    }

    /// Remembers a request, as a pair with another one. Few pairs suffice: each is to stand for those
    /// shortly after it.
    fn note(&mut self, round_trip: RoundTrip) {
        let Some(before) = self.last else {
            self.last = Some(round_trip);
            return;
        };
        // The order of the sendings is that in which the server has taken the requests up. An answer
        // may be taken up late here.
        if before.sent <= round_trip.sent {
            self.last = Some(round_trip);
        }
        let (sent, answered) = (before.sent.min(round_trip.sent), before.answered.max(round_trip.answered));
        let pair = RoundTrip { sent, answered };
        let spacing = self.granted.report_delay / 16;
        let is_touch = self.touched == Some(pair.sent);
        let stands_for =
            |last: &RoundTrip| last.sent == pair.sent || !is_touch && pair.sent < last.sent.after(spacing);
        if !self.unconfirmed.back().is_some_and(stands_for) {
            self.unconfirmed.push_back(pair);
        }
        // Every write sent from now on confirms all pairs that the leader knows of, and the newest
        // of them proves the most. A write that is under way has its pair with it.
        while self.unconfirmed.get(1).is_some_and(|next| self.is_known(next, round_trip.answered)) {
            self.unconfirmed.pop_front();
        }
        // No write could confirm a pair that is forgotten.
        let unconfirmed = &self.unconfirmed;
        self.awaiting.take_if(|awaiting| !unconfirmed.iter().any(|pair| pair.answered == *awaiting));
    }
}

/// The pair that proves more.
pub(super) fn newest(first: Option<RoundTrip>, second: Option<RoundTrip>) -> Option<RoundTrip> {
    first.into_iter().chain(second).max_by_key(|pair| pair.sent)
}
