//! The evidence that answers provide: pairs of answered requests, and the writes that confirm those pairs.
//!
//! Pairs and writes belong to the present connection, and are forgotten with it.

use std::time::Duration;

use super::{ConnectionNumber, Lease};
use crate::time::Moment;

/// An answered request, or a pair of them: when the first was sent, and when the last was answered. The
/// ensemble handled them in between, so a proof counts from `sent`, and the report delay counts from
/// `answered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RoundTrip {
    pub(super) sent: Moment,
    pub(super) answered: Moment,
}

/// An answered write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Written {
    pub(super) sent: Moment,
    /// The time from the sending of the write to its answer.
    pub(super) latency: Duration,
    /// The newest pair that the write confirmed. Unless the link from the leader was slow, the pair was reported to the
    /// leader before the write was answered. In any case, the leader will know of it before it answers any write that
    /// is sent from now on.
    pub(super) reported: Option<RoundTrip>,
}

/// How a request was sent: when, on which connection, and what its answer will prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sending {
    pub(super) at: Moment,
    connection: ConnectionNumber,
    /// The newest pair that the leader should know of when the request is sent, if there is one. If the
    /// request is a write, its answer confirms this pair (E2).
    confirms: Option<RoundTrip>,
    /// The last write that was answered before the request was sent. If the request is a write, its answer
    /// proves what that earlier write reported (E3).
    after: Option<Written>,
}

impl Lease {
    /// Describes a request that is sent now. Call this before you send the request.
    pub(crate) fn sending(&self, now: Moment) -> Sending {
        let confirms = self.confirmable(now);
        Sending { at: now, connection: self.connection, confirms, after: self.last_write }
    }

    /// Returns the newest pair that the leader should know of.
    pub(super) fn confirmable(&self, now: Moment) -> Option<RoundTrip> {
        self.unconfirmed.iter().rfind(|pair| self.is_known(pair, now)).copied()
    }

    /// Returns whether the leader should know of a pair, because the report delay has passed since it was answered.
    pub(super) fn is_known(&self, pair: &RoundTrip, now: Moment) -> bool {
        pair.answered.after(self.granted.report_delay) <= now
    }

    /// Handles an answer that any server may have given.
    pub(crate) fn on_read_answered(&mut self, sending: Sending, now: Moment) {
        self.note_sign_of_life(now);
        if self.counts(sending) {
            self.note(RoundTrip { sent: sending.at, answered: now });
        }
    }

    /// Handles the answer to a ping that was sent at `sent`. Any server may have given it. The ping was sent on the
    /// present connection, as required by [`ClientEvent::PingAnswered`](crate::client::ClientEvent::PingAnswered).
    pub(crate) fn on_ping_answered(&mut self, sent: Moment, now: Moment) {
        self.note_sign_of_life(now);
        if self.is_connected {
            self.note(RoundTrip { sent, answered: now });
        }
    }

    /// Returns whether the answer to a request may prove something: the request was sent on the present
    /// connection, and the client has reported what the server of that connection grants.
    pub(in crate::engine) fn counts(&self, sending: Sending) -> bool {
        self.is_connected && sending.connection == self.connection
    }

    /// Handles the leader's answer to a write.
    ///
    /// Returns whether the answer came too late for the owners under the present epoch. For them, the end of that epoch
    /// is final; later owners get a new epoch.
    pub(crate) fn on_write_answered(&mut self, sending: Sending, now: Moment) -> bool {
        self.note_sign_of_life(now);
        if !self.counts(sending) {
            return false;
        }
        self.was_proven = true;
        let proven = self.proven_by(sending);
        self.taken_up_after = None;
        self.note_write(sending, now);
        if let Some(confirmed) = sending.confirms {
            while self.unconfirmed.front().is_some_and(|pair| pair.sent <= confirmed.sent) {
                self.unconfirmed.pop_front();
            }
        }
        self.note(RoundTrip { sent: sending.at, answered: now });
        proven.is_some_and(|proven| self.extend(proven, now))
    }

    fn note_write(&mut self, sending: Sending, now: Moment) {
        self.followed_write = self.followed_write.max(sending.after.map(|before| before.sent));
        let before = self.last_write;
        let sent = before.map_or(sending.at, |before| before.sent.max(sending.at));
        let reported = newest(before.and_then(|before| before.reported), sending.confirms);
        self.last_write = Some(Written { sent, latency: now.since(sending.at), reported });
    }

    /// Returns what the answer to a write on the present connection proves: the moment from which the proof counts, or
    /// `None` if the answer proves nothing. While a lock is held, a pair counts only if it is proven by cause (E3),
    /// because such a proof assumes nothing about the speed of the links between the servers.
    pub(super) fn proven_by(&self, sending: Sending) -> Option<Moment> {
        if !self.needs_pairs() {
            return self.taken_up_after.max(Some(sending.at));
        }
        // Check again that the pairs are old enough, because the report delay may have changed.
        let by_time = sending.confirms.filter(|pair| self.is_known(pair, sending.at));
        let by_cause =
            sending.after.and_then(|before| before.reported.filter(|pair| self.is_known(pair, before.sent)));
        let pair = if self.has_owners() { by_cause } else { newest(by_time, by_cause) };
        self.taken_up_after.max(pair.map(|pair| pair.sent))
    }

    /// Remembers an answered request, as a pair with the previous one. A few pairs suffice, because each pair
    /// also stands for the pairs that follow shortly after it.
    fn note(&mut self, round_trip: RoundTrip) {
        let Some(before) = self.last else {
            self.last = Some(round_trip);
            return;
        };
        // The server handles requests in the order in which they were sent, but this client may handle an answer late.
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
        // Every write that is sent from now on confirms all pairs that the leader knows of, and the newest of them
        // proves the most. A write in flight carries the pair that it confirms, in its `Sending`.
        while self.unconfirmed.get(1).is_some_and(|next| self.is_known(next, round_trip.answered)) {
            self.unconfirmed.pop_front();
        }
    }
}

/// Returns the pair that proves more.
pub(super) fn newest(first: Option<RoundTrip>, second: Option<RoundTrip>) -> Option<RoundTrip> {
    first.into_iter().chain(second).max_by_key(|pair| pair.sent)
}
