//! The engine: one state machine for a session and all that lives on it, as plain data.
//!
//! Nothing here starts a thread, makes a call, reads a clock or takes a mutex. The driver
//! (`session/driver/`) holds the [`Engine`] under one mutex. It passes in what has happened, one
//! thing after the other, and does what the [`Effect`]s ask for. Each input is processed to completion before the
//! next, so a race between a late reply, an event and a withdrawal is an order of inputs, which a test can write
//! down.
//!
//! # Its parts
//! - [`border`]: the plain data that go in and out.
//! - [`commons`]: what all that lives on a session shares. It reaches no participant.
//! - The participants: a [`contender`] for a lock, the [`removal`] of a znode, and what is [`tracked`] for a user. Each
//!   has its own steps, touches no other, and returns what is next.
//! - [`participants`]: the door to them, and the inputs that concern many: an event, a reconnect, a routine look.
//!
//! The names of methods say what they are for:
//! - of the [`Engine`]: `handle_…` takes an input, `poll_…` gives an output, a plain verb is a command. `begin` and
//!   `settle` ([`clock`]) come before and after each input: what is due by then happens in `settle`, also the next
//!   proof of the lease;
//! - of a participant: `on_…` takes something up and returns what is next, an imperative (`join`, `look`) is a step that
//!   acts, `is_…`, `has_…` and `needs_…` ask.
//!
//! # From `lock()` to the owner
//! 1. `locks/blocking_lock.rs`: `lock()` has `request/lasting.rs` make a request (`request/mod.rs`, with the settings
//!    from `locks/locking.rs`), and another one if the session is lost and replaced. The driver
//!    (`session/driver/requests.rs`) starts it; the caller waits. (`locks/write_lock.rs` does not wait.)
//! 2. [`Engine::start`] inserts a [`contender`], whose `step` ([`steps`]) finds the way from here on. The first is
//!    to [`join`]: to submit the creation of the znode and the listing of the directory. Behind a request of the same
//!    session, no listing is needed.
//! 3. [`calls`]: the call is sent when the [`window`] has room, if the [`budget`] has room for another znode.
//!    `Core::feed` (`session/driver/mod.rs`) carries the effect out: the call leaves through an outbox
//!    (`session/driver/calls.rs`) to the client: `session/own_client.rs`, behind which is the crate
//!    `zookeeper-connection`. Its `src/connection.rs` goes on with the walk, to the socket and back.
//! 4. [`replies`]: the connection's thread passes the reply to the `Done` of the call (`session/driver/calls.rs`), and so
//!    to [`Engine::handle_reply`]. It goes to those for whom the call was [`Pending`](calls::Pending); for a request, to
//!    its `on_reply` ([`steps`]).
//! 5. [`queue`] decides by the listing, with the rules of `recipe/queue.rs`: pure functions over names. It is the
//!    request's [`turn`], so it owns the lock under a [`lease`] of the session that admits owners
//!    ([`RequestEvent::Acquired`]); or it waits for those [`ahead`], with a [`watch`].
//! 6. The driver sets the ownership (`session/ownership.rs`), and posts the event to the request's observer
//!    (`locks/guard_signals.rs`), which sets the latch that the caller waits for. `lock()` returns a `LockGuard`.
//!
//! # From a watch event to the next owner
//! 1. [`contact`]: the client reports `NodeChanged`; [`watchers`] knows who waits for this path, and [`participants`]
//!    notifies each of them.
//! 2. [`ahead`]: before its turn, a waiter also watches its own znode, and the request ahead of its
//!    predecessor. So the next in line owns with the event itself ([`turn`]). If the watch on its own znode or the
//!    proof of the lease is missing, it looks at its own znode first. If others may be ahead, it lists the queue
//!    again, together with others of its session ([`listings`]).
//! 3. Behind an exclusive request of the same session, a waiter sets no watch: a [`removal`] deletes the
//!    znode, and its end wakes the waiter. If that request owned the lock, and a listing has shown it as the
//!    nearest one ahead, the waiter looks only at its own znode.
//!
//! # From a disconnect to the renewed lease, or to the loss
//! 1. The client reports it to the driver (`session/driver/opening.rs`). [`contact`]: the epoch of the lease gets no
//!    longer, and another one is proven only after a reconnect. The owner keeps the one under which it acquired, or last
//!    renewed its lease: `is_owner()` compares its end with the clock (`session/ownership.rs`).
//! 2. After a reconnect everybody looks again ([`participants`]): at once; or, if the lease is kept proven (as while a
//!    lock is held), when the first write on the new connection was answered. `settle` begins that [`proof`], and
//!    [`replies`] counts the answer. An owner that has seen its znode renews its lease ([`turn`]).
//! 3. If no reconnect comes in time, the [`clock`] ends the lease, and the request [`ended`]. `is_owner()` has
//!    been false since that moment, whether or not a thread has noticed.
//!
//! # From the limit of a hold to the loss
//! 1. A request with a limit (`LockOptions::max_hold`) notes in the [`lease`] when it ends, as it acquires ([`turn`]). The
//!    driver passes that on with the ownership (`session/seat.rs`): `is_owner()` is false from that moment on.
//! 2. The limit is one of the deadlines of the [`clock`]. When the first one has come, the owners are checked, and that
//!    request has [`ended`]: its event names `HeldTooLong`, and a [`removal`] deletes its znode.
//!
//! # From a drop during an outage to the deletion
//! The guard's claim (`request/claim.rs`) withdraws the request ([`ended`]), and a [`removal`] begins. It reports
//! `ConnectionLoss` at once, as no outcome can come soon, and still submits the deletion: the connection keeps it for a
//! tenth of the session timeout. After that no alarm is set. The reconnect has it made again, at the moment at which everybody
//! looks again; while another lock of the session is held, that is the first answered write.
//!
//! # From the loss of a session to the next one
//! 1. The client reports `SessionLost`, or the [`clock`] gives up. [`life`] ends, and with it each request and what is
//!    tracked. A worker of the driver reports what is left, sets the latch `ended`, and keeps the znodes that were to be
//!    deleted (`session/driver/orphans.rs`).
//! 2. `session/replacement.rs`: its thread waits for that latch, opens the next session, and has those who follow move:
//!    `request/lasting.rs` makes its request again, `tracking/mod.rs` looks there.
//!
//! # From a lost create to its end
//! The request searches for its znode, together with the others of its directory, and
//! creates another one if there is none ([`sweep`]). A create that takes effect late leaves a znode whose name the
//! session recognizes in any listing, and deletes ([`strays`]).
//!
//! The watches of users (`NodeTracker`, `LeaderWatch`, `QueueWatch`, a cohort's waiters) go the same ways:
//! [`tracked`] says when to look, and the room `tracking` has the steps of a look.
//!
//! # Why this is safe
//! Only sequence numbers decide, and a listing that contains the own znode contains
//! every older request that still exists. `is_owner()` asks the lease, which ends before the server
//! can end the session. `docs/design.md` has the proofs, and `docs/guarantees.md` the limits: an owner
//! whose znode another client deletes learns it a moment later, and a proof assumes something about
//! the links between servers.

mod ahead;
mod alarms;
mod border;
mod budget;
mod calls;
mod clock;
mod commons;
mod contact;
mod contender;
mod ended;
mod join;
pub(crate) mod lease;
mod life;
mod listing;
mod listings;
mod own;
mod parents;
mod participants;
mod proof;
mod queue;
mod removal;
mod replies;
mod sight;
mod steps;
mod strays;
mod sweep;
#[cfg(test)]
mod tests;
mod tracked;
mod turn;
mod watch;
mod watchers;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::border::{
    CallId, Effect, Ending, Event, LookStep, ParticipantId, Place, RequestEvent, RequestSpec, Settings,
    Target,
};
use self::clock::Routine;
use self::commons::Commons;
use self::contender::{Contender, Next, Phase};
use self::lease::{Holding, Lease};
use self::life::Life;
pub(crate) use self::parents::MissingParents;
use self::removal::Removal;
pub(crate) use self::sight::Sight;
use self::tracked::Tracked;
use crate::error::LossReason;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::time::Moment;

/// A session, and all that lives on it. See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Engine {
    commons: Commons,
    contenders: BTreeMap<ParticipantId, Contender>,
    removals: BTreeMap<ParticipantId, Removal>,
    /// The znodes that are being deleted.
    removed_paths: BTreeSet<ZNodePath>,
    /// The [strays] of this connection whose deletion has begun, for as long as listings show them.
    strays: BTreeSet<ZNodePath>,
    /// The subjects that are looked at for users.
    tracked: BTreeMap<ParticipantId, Tracked>,
    /// The participants that keep the session from being finished.
    pins: BTreeSet<ParticipantId>,
    routine: Routine,
    /// The ends of leases of former epochs.
    lease_checks: BTreeSet<Moment>,
}

impl Engine {
    pub(crate) fn new(now: Moment, settings: Settings, lease: Lease) -> Engine {
        let mut commons = Commons::new(now, settings, lease);
        Engine {
            routine: Routine::new(&mut commons),
            commons,
            contenders: BTreeMap::new(),
            removals: BTreeMap::new(),
            removed_paths: BTreeSet::new(),
            strays: BTreeSet::new(),
            tracked: BTreeMap::new(),
            pins: BTreeSet::new(),
            lease_checks: BTreeSet::new(),
        }
    }

    // ---- outputs

    /// The next thing to do.
    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.commons.effects.pop_front()
    }

    /// The next owner whose time has changed: see [`Lease::next_change`].
    pub(crate) fn poll_ownership(&mut self) -> Option<(ParticipantId, Option<Holding>)> {
        self.commons.lease.next_change()
    }

    // ---- commands

    /// Starts a request, with a number that was not used before. It needs no further inputs;
    /// [`Engine::withdraw`] ends it.
    pub(crate) fn start(&mut self, id: ParticipantId, spec: Arc<RequestSpec>, since: Moment) {
        let phase = Phase::Joining { unconfirmed: false, failed: None };
        self.contenders.insert(id, Contender::new(id, spec, phase, since));
        self.wake_or_lose(id);
    }

    /// Makes a request that holds the lock as its owner does, under the lease of that, with a znode
    /// that exists. Returns `false` if the owner holds it no longer.
    pub(crate) fn start_as_owner(
        &mut self,
        id: ParticipantId,
        spec: Arc<RequestSpec>,
        znode: ZNodePath,
        owner: ParticipantId,
    ) -> bool {
        let now = self.commons.now;
        if !self.commons.lease.share(owner, id, now) {
            return false;
        }
        let phase = Phase::Owner { znode: znode.clone(), revocation_reported: false };
        let contender = Contender::new(id, spec, phase, now);
        contender.report(&mut self.commons, RequestEvent::Joined { znode, token: None });
        contender.report(&mut self.commons, RequestEvent::Acquired { waited: Duration::ZERO });
        self.contenders.insert(id, contender);
        self.wake_or_lose(id);
        true
    }

    fn wake_or_lose(&mut self, id: ParticipantId) {
        match self.end_reason() {
            None => self.with_request(id, |_, _| Next::Wake),
            Some(reason) => self.lose(id, reason),
        }
    }

    /// Begins to track. Returns why the session has ended, if it has.
    pub(crate) fn track(&mut self, id: ParticipantId) -> Option<LossReason> {
        let reason = self.end_reason();
        if reason.is_none() {
            self.tracked.insert(id, Tracked::new(id));
            self.look_at_tracked(id);
        }
        reason
    }

    /// Ends the tracking, with its watches.
    pub(crate) fn untrack(&mut self, id: ParticipantId) {
        if let Some(tracked) = self.tracked.remove(&id) {
            tracked.end(&mut self.commons);
        }
    }

    /// Takes the next step of a look.
    pub(crate) fn handle_look(&mut self, id: ParticipantId, step: LookStep) {
        if let Some(tracked) = self.tracked.get_mut(&id) {
            tracked.handle_look(&mut self.commons, step);
        }
    }

    pub(crate) fn new_id(&mut self) -> ParticipantId {
        self.commons.new_id()
    }

    /// Gives a request its number, and names its znode up to the sequence number.
    pub(crate) fn name_request(&mut self, access: Access) -> (ParticipantId, String) {
        let id = self.new_id();
        (id, access.prefix(self.commons.settings.tag.guid(id.0)))
    }

    pub(crate) fn count_ahead(&mut self) {
        self.commons.counts_ahead = true;
    }

    /// Keeps the session from being finished while there may be something to undo.
    pub(crate) fn pin(&mut self, id: ParticipantId) {
        self.pins.insert(id);
    }

    pub(crate) fn unpin(&mut self, id: ParticipantId) {
        self.pins.remove(&id);
    }

    /// Sets the outage that an owner of a lock is to survive.
    pub(crate) fn set_survived_outage(&mut self, outage: Duration) {
        self.commons.lease.set_survived_outage(outage);
    }

    // ---- getters

    pub(crate) fn now(&self) -> Moment {
        self.commons.now
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.commons.lease
    }

    pub(crate) fn end_reason(&self) -> Option<LossReason> {
        self.commons.end_reason()
    }

    pub(crate) fn in_contact(&self) -> bool {
        self.commons.in_contact()
    }

    /// Returns whether the session is open, in contact, and the last sign of the server is young enough.
    pub(crate) fn is_connected(&self) -> bool {
        let holds_until = self.lease().contact_holds_until();
        self.end_reason().is_none() && self.in_contact() && self.now() < holds_until
    }

    /// Returns where a request is in the queue; `None` if it has ended.
    pub(crate) fn place(&self, id: ParticipantId) -> Option<Place> {
        self.contenders.get(&id).map(Contender::place)
    }

    /// Returns when a request was made or, for an owner, when it acquired the lock; `None` if it has ended.
    pub(crate) fn since(&self, id: ParticipantId) -> Option<Moment> {
        self.contenders.get(&id).map(|contender| contender.since)
    }

    /// Returns the request whose end a waiter waits for, as far as it is known.
    pub(crate) fn predecessor(&self, id: ParticipantId) -> Option<&ZNodePath> {
        self.contenders.get(&id).and_then(Contender::predecessor)
    }

    pub(crate) fn is_revocation_requested(&self, id: ParticipantId) -> bool {
        self.contenders.get(&id).is_some_and(Contender::is_revocation_requested)
    }

    /// Returns whether all participants were notified of the end.
    pub(crate) fn has_completed_end(&self) -> bool {
        matches!(self.commons.life, Life::Lingering(..) | Life::Finished(..))
    }

    /// Returns whether the session has ended for us and lives on at the server, with deletions to be made.
    pub(crate) fn lingers(&self) -> bool {
        matches!(self.commons.life, Life::Lingering(..))
    }

    /// Returns whether nobody is left whom a change concerns, and nothing that may have to be deleted.
    pub(crate) fn is_idle(&self) -> bool {
        self.contenders.is_empty()
            && self.removals.is_empty()
            && self.commons.sweeps.is_empty()
            && self.tracked.is_empty()
            && self.pins.is_empty()
            && !self.commons.calls.has_creates()
    }

    /// The number of participants, and of the paths for which somebody has registered.
    pub(crate) fn census(&self) -> (usize, usize) {
        let deletions = self.removals.len() + self.commons.sweeps.owed();
        let participants = self.contenders.len() + deletions + self.tracked.len() + self.pins.len();
        (participants, self.commons.watchers.paths())
    }

    #[cfg(test)]
    pub(crate) fn admits_owners(&self) -> bool {
        self.lease().admits_owners(self.now())
    }

    /// The bytes of the znodes that the session counts.
    #[cfg(test)]
    pub(crate) fn bytes_of_znodes(&self) -> usize {
        self.commons.calls.budget.used()
    }

    #[cfg(test)]
    pub(crate) fn mentions_first(&mut self, path: &ZNodePath) -> bool {
        self.commons.mentions_first(path)
    }

    #[cfg(test)]
    pub(crate) fn watched_by(&self, id: ParticipantId) -> Option<ZNodePath> {
        self.contenders.get(&id)?.watched.clone()
    }

    #[cfg(test)]
    pub(crate) fn readers(&self, dir: &ZNodePath) -> usize {
        self.commons.listings.readers(dir)
    }
}
