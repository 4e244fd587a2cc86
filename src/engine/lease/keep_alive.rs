//! The requests that keep a lease from ending, and the times at which they are due.
//!
//! A lease is proven by a *pair* of answered requests (E1), a write that confirms the pair (E2) and, for owners,
//! another write (E3). The [parent module](super) states these conditions, `evidence.rs` records what the
//! answers prove, and `docs/design.md` explains why, under "The lease".
//!
//! A *keep-alive* is two writes, one after the other. The first confirms a pair, because enough time has
//! passed since the pair was answered (E2). The second proves that pair for owners, because it follows the
//! first (E3). A *touch* is two reads, sent together: they make a pair, and cost no transaction. Once a
//! write of the session has been answered, neither a keep-alive nor a touch is due while no lock is held, even
//! after a reconnect. The lease then lapses. When a lock is wanted again, the first write proves the lease,
//! because it confirms the most recent pings that are old enough.
//!
//! While a lock is held,
//! - a touch is due one period D after the last touch was sent;
//! - a keep-alive is due when a new pair is *known* (a report delay R has passed since it was answered),
//!   provided that the first request of this pair was sent at least D after the first request of the pair that
//!   is already proven.
//!
//! So the keep-alives prove the touches one by one. Apart from round
//! trips, a proof is R old when it is made, and R + D old when the next keep-alive replaces it. A proof holds
//! for the span S, which is the session timeout T less the margin. So it always has at least F left:
//!
//! > F = S − R − D, so D = S − R − F.
//!
//! With fewer than two writes in each D, less than F would remain at times. To see this, take three writes in a
//! row. The first confirms a pair that is at least R old, and the second proves that pair. The third is the
//! first that can replace this proof. Until then, the proof gets as old as R plus the time from the first write
//! to the third. This age must not exceed R + D, so the third write must follow within D of the first. A write
//! must therefore be made every D/2 on average, however the writes are spaced. If they come in twos, one right
//! behind the other, one touch is enough for both.
//!
//! F is the longest outage that an owner survives, including the time it takes to reach a server again. In
//! practice, up to three round trips (of the touch and of the two writes) and the delays of two timers must
//! be subtracted from F. If the answer to a touch takes longer than T/64, the keep-alive does not wait for
//! it, and proves an older pair instead. The larger F is, the shorter D is, and the more writes are needed. By
//! default, F is 9/16 of T if the report delay is short enough for that. Otherwise F is three quarters of
//! S − R, which leaves a quarter for D.
//! [`SessionBuilder::survived_outage`](crate::SessionBuilder::survived_outage) sets another F.
//!
//! | T in ticks (R is 1.1 ticks) | F | D |
//! |---|---|---|
//! | 2 | 0.31 T | T / 10 |
//! | 3 | 0.45 T | T / 7 |
//! | 5 | 0.56 T | T / 5 |
//! | 10 | 0.56 T | T / 3 |
//! | 20 | 0.56 T | T / 3 |
//!
//! The session's other reads and writes count as well. A write that has confirmed a newer pair postpones a
//! keep-alive or replaces its first write.
//!
//! Except in the cases named at the end of this paragraph, the session sends nothing on behalf of a lock until the lock
//! has been held for D/2. If the session owned nothing before, the lease may have less than F left until the first
//! touch is proven, because until then only the client's pings are sure to make pairs. A client pings every T/6. A pair
//! of pings counts from the first ping, and is complete with the second, T/6 later. The next pair is complete after
//! another T/6. When it becomes known, a proof by the older pair is therefore R + T/3 old. So if the lease is proven by
//! a write that was made just before the lock was taken, it has at least S − R − T/3 − D/2 left after the first D/2. If
//! a request takes the lock long after the last write, for example because it had to wait, the proof is older. If the
//! lease then has less than T/8 left, or ends before two writes can extend it, a write extends it before the lock is
//! taken, unless it would gain too little. If the lease does not last for D/2 + F/2 from the moment at which the lock
//! is taken, the session sends touches and keep-alives without waiting for D/2.

use std::time::Duration;

use super::evidence::RoundTrip;
use super::{Lease, span};
use crate::client::Granted;
use crate::time::Moment;

/// F by default, as a fraction of the session timeout T, if [`MAX_OUTAGE_OF_SPARE`] permits that much. Half of T
/// is for the outage, and T/16 is for finding a server afterwards.
const OUTAGE: (u32, u32) = (9, 16);

/// The largest F, as a fraction of S − R. The rest of S − R is for D.
const MAX_OUTAGE_OF_SPARE: (u32, u32) = (3, 4);

/// The smallest F is the session timeout divided by this number, if [`MAX_OUTAGE_OF_SPARE`] permits that much. A
/// smaller F would save hardly any writes, and every lost connection would cost the lock.
const MIN_OUTAGE_DIVISOR: u32 = 8;

/// The shortest time between two keep-alives is the session timeout divided by this number.
const MIN_PERIOD_DIVISOR: u32 = 64;

impl Lease {
    /// Returns when a keep-alive is due.
    pub(crate) fn keep_alive_due(&self) -> Moment {
        if !self.is_kept_proven() {
            return Moment::from_nanos(u64::MAX);
        }
        if self.last_write.is_none() {
            // Nothing is proven on this connection.
            return Moment::from_nanos(0);
        }
        self.next_keep_alive()
    }

    /// Returns whether the first write of a keep-alive has left something for a second write to prove.
    pub(crate) fn is_second_write_due(&self, now: Moment) -> bool {
        self.due_for_proof() <= now.after(self.least_period())
    }

    /// Returns when a touch is due. No touch is due if a write needs no pair, while the lease need not be kept
    /// proven, or before a write on the connection is answered.
    pub(crate) fn touch_due(&self) -> Moment {
        let is_wanted = self.needs_pairs() && self.is_kept_proven();
        if !is_wanted || self.last_write.is_none() {
            return Moment::from_nanos(u64::MAX);
        }
        let next = self.touched.map_or(Moment::from_nanos(0), |touched| touched.after(self.period()));
        self.sparing_short_holds(next)
    }

    /// Begins a touch if one is due. Returns whether the caller must send it.
    pub(crate) fn begin_touch(&mut self, now: Moment) -> bool {
        let is_due = self.touch_due() <= now;
        if is_due {
            self.touched = Some(now);
        }
        is_due
    }

    fn next_keep_alive(&self) -> Moment {
        let due = self.due_for_proof().max(self.last_proof().after(self.least_period()));
        self.sparing_short_holds(due)
    }

    /// Returns when the lease must be extended.
    ///
    /// If a pair was sent at least a period D after the pair that is proven, this is when the newer pair is known,
    /// provided that the lease then has at least F − T/64 left. Otherwise, this is when only F is left, or later if no
    /// newer pair is known by then.
    fn due_for_proof(&self) -> Moment {
        let must = self.end().before(self.outage());
        if !self.needs_pairs() {
            return must;
        }
        let proven = self.end().before(self.span());
        let reported = self.last_write.and_then(|write| write.reported);
        let newer = || reported.iter().chain(&self.unconfirmed).filter(|pair| pair.sent > proven);
        let known_at = |pair: &RoundTrip| pair.answered.after(self.granted.report_delay);

        let next = proven.after(self.period());
        let in_time = |at: &Moment| *at <= must.after(self.least_period());
        if let Some(at) = newer().find(|pair| next <= pair.sent).map(known_at).filter(in_time) {
            return at;
        }
        // Until a newer pair is known, a write proves nothing. If there is no newer pair, a write makes one, together
        // with the write after it.
        let first_known = newer().map(known_at).min();
        must.max(first_known.unwrap_or_else(|| self.last_proof().after(self.period() / 2)))
    }

    /// Postpones `due` until a lock has been held for half a period, if the lease lasts long enough. Nothing is sent
    /// for a shorter hold.
    fn sparing_short_holds(&self, due: Moment) -> Moment {
        let spared = self.owned_since.after(self.period() / 2);
        let may_wait = spared.after(self.outage() / 2) <= self.end();
        if may_wait { due.max(spared) } else { due }
    }

    /// Returns when the last write that gave a proof was sent, or the beginning of the clock if there is
    /// none. While a lock is held, a write gives a proof only once another write has followed it.
    fn last_proof(&self) -> Moment {
        let sent = match self.has_owners() {
            true => self.followed_write,
            false => self.last_write.map(|write| write.sent),
        };
        sent.unwrap_or(Moment::from_nanos(0))
    }

    /// Returns D, the time between two touches, and between the keep-alives that prove them. It is short enough that an
    /// owner's lease always lasts for at least another [`outage`](Lease::outage).
    pub(super) fn period(&self) -> Duration {
        self.spare().saturating_sub(self.outage()).max(self.least_period())
    }

    pub(super) fn least_period(&self) -> Duration {
        self.granted.session_timeout / MIN_PERIOD_DIVISOR
    }

    /// Returns S − R, which is what a proof has left after the report delay.
    fn spare(&self) -> Duration {
        spare(self.granted)
    }

    /// Returns F, the longest outage that an owner survives. The round trips of its keep-alives and of the
    /// reconnect must be subtracted from it.
    pub(super) fn outage(&self) -> Duration {
        longest_outage(self.granted, self.survived_outage)
    }
}

/// Returns S − R on a connection with this grant.
fn spare(granted: Granted) -> Duration {
    span(granted.session_timeout).saturating_sub(granted.report_delay)
}

/// Returns F on a connection with this grant, if an owner is to survive an outage of `wanted`. `None` stands for the
/// default.
pub(crate) fn longest_outage(granted: Granted, wanted: Option<Duration>) -> Duration {
    let (part, whole) = OUTAGE;
    let (part_of_spare, whole_spare) = MAX_OUTAGE_OF_SPARE;
    let session_timeout = granted.session_timeout;
    let wanted = wanted.unwrap_or(session_timeout / whole * part);
    wanted.max(session_timeout / MIN_OUTAGE_DIVISOR).min(spare(granted) / whole_spare * part_of_spare)
}
