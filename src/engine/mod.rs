//! The engine: one state machine for a session and everything that lives on it, as plain data.
//!
//! Nothing here starts a thread, makes a call, reads a clock or takes a mutex. The driver (`session/driver/`) holds
//! the [`Engine`] under one mutex. It passes in what has happened, one input at a time, and carries out the resulting
//! [`Effect`]s. Each input is processed to completion before the next. A race between a late reply, an event and a
//! withdrawal is therefore just one order of inputs, which a test can write down.
//!
//! # Parts
//! - [`border`]: the plain data that goes in and out.
//! - [`commons`]: the state that everything on a session shares. Its code cannot reach a participant.
//! - The participants: a [`contender`] for a lock, the [`removal`] of a znode, and a subject that is [`tracked`]
//!   for a user. Each participant takes its own steps, never touches another participant, and returns what must happen
//!   next.
//! - [`participants`]: the only way to reach participants, and the inputs that concern many of them: an
//!   event, a reconnect, a routine look.
//!
//! Method names show what a method is for:
//! - On the [`Engine`], `handle_…` takes an input, `poll_…` gives an output, and a plain verb is a command. The driver
//!   calls `begin` before each input and `settle` after it ([`clock`]). `settle` does whatever is due by then, such as
//!   the next proof of the lease.
//! - On a participant, `on_…` takes an input and returns what must happen next. An imperative (`join`, `look`) is a
//!   step that acts. `is_…`, `has_…` and `needs_…` are questions. On the parts of the commons, `on_…` and
//!   `note_…` record what has happened.
//!
//! # From `lock()` to the owner
//! 1. `lock()` (`locks/blocking_lock.rs`) calls `request/lasting.rs`, which makes a request (`request/mod.rs`) with the
//!    settings from `locks/locking.rs`. If the session is lost and replaced, `lasting.rs` makes another
//!    request. The driver (`session/driver/requests.rs`) starts the request, and the caller waits.
//!    (`WriteLock`, in `locks/write_lock.rs`, notifies a listener instead of blocking.)
//! 2. [`Engine::start`] inserts a [`contender`]. From here on, the contender's method `step` ([`steps`])
//!    chooses each step. The first step is to [`join`]: the contender submits a call that creates its znode
//!    and lists the directory. An exclusive contender that queues behind another exclusive contender of the same
//!    session needs no listing.
//! 3. [`calls`]: if the [`budget`] has room for another znode, the call is sent as soon as the [`window`] has room
//!    for another call. `Core::feed` (`session/driver/mod.rs`) carries out the resulting effect: it passes the call
//!    through an outbox (`session/driver/calls.rs`) to the client. The client (`client/seam.rs`) is the crate
//!    `zookeeper-connection`. There, `src/connection.rs` continues this walk to the socket and back.
//! 4. [`replies`]: the connection's thread passes the reply to the call's `Done` (`session/driver/calls.rs`), which
//!    passes it to [`Engine::handle_reply`]. The call's [`Pending`](calls::Pending) says for whom the call was made. A
//!    reply for a request goes to the contender's `on_reply` ([`steps`]).
//! 5. [`queue`]: the contender evaluates the listing with the rules of `recipe/queue.rs`, which are pure functions
//!    over names. If it is the request's [`turn`] and the [`lease`] admits owners, the request owns the lock
//!    ([`RequestEvent::Acquired`]). Otherwise it waits for the requests [`ahead`] of it, and sets a
//!    [`watch`].
//! 6. The driver sets the ownership (`session/ownership.rs`), and posts the event to the request's observer
//!    (`locks/guard_signals.rs`). The observer sets the latch that the caller waits on, and `lock()` returns
//!    a `LockGuard`.
//!
//! # From a watch event to the next owner
//! 1. [`contact`]: the client reports `NodeChanged`. [`watchers`] knows which participants wait for an event
//!    on this path, and [`participants`] notifies each of them.
//! 2. [`ahead`]: an exclusive waiter behind a request of another session watches its predecessor and, usually, its
//!    own znode and the request ahead of its predecessor. Events arrive in the order of the changes. So when the
//!    predecessor's znode is deleted, the event alone makes the next waiter in line the owner ([`turn`]).
//!    If the watch on its own znode or the proof of the lease is missing, the waiter reads its own znode first. If
//!    other requests may be ahead, the waiter lists the queue again, and shares that listing with the other waiters
//!    of its session ([`listings`]).
//! 3. Behind an exclusive request of the same session, an exclusive waiter sets no watch. When the
//!    predecessor leaves, a [`removal`] deletes its znode, and wakes the waiter once the znode is gone. If
//!    the predecessor owned the lock, and a listing has shown it as the nearest request ahead, the waiter
//!    only has to read its own znode.
//!
//! # From a disconnect to the renewal or the end of the lease
//! 1. The client reports the disconnect to the driver (`session/driver/opening.rs`). From then on
//!    ([`contact`]), the present epoch of the lease can no longer be extended, and the next epoch needs a
//!    reconnect and a proof. The owner keeps the epoch under which it acquired the lock or last renewed its
//!    lease. `is_owner()` compares the end of that epoch with the clock (`session/ownership.rs`).
//! 2. After a reconnect, every participant looks again ([`participants`]). If the lease is kept proven, as it
//!    is while a lock is held, `settle` first begins a [`proof`], and the participants look once the first
//!    write on the new connection is answered ([`replies`]). Otherwise they look at once. An owner renews its
//!    lease when it has seen its znode ([`turn`]).
//! 3. If no reconnect comes in time, the lease runs out. The [`clock`] notices that, and the request ends
//!    ([`ended`]). `is_owner()` returns `false` from the end of the lease on, even before any thread has
//!    noticed.
//!
//! # From the limit of a hold to the loss of the lock
//! 1. When a request with a limit (`LockOptions::max_hold`) acquires the lock, it tells the [`lease`] when its hold
//!    ends ([`turn`]). The driver passes that moment on together with the ownership (`session/seat.rs`), so
//!    `is_owner()` returns `false` from then on.
//! 2. The limit is one of the deadlines of the [`clock`]. When the earliest limit is reached, the engine
//!    checks all owners, and ends each request that has reached its limit ([`ended`]). The request's last
//!    event names `HeldTooLong`, and a [`removal`] deletes its znode.
//!
//! # From a guard dropped during an outage to the deletion
//! The guard's claim (`request/claim.rs`) withdraws the request ([`ended`]), and a [`removal`] begins. The
//! removal reports `ConnectionLoss` at once, because no outcome can come soon. It still submits the deletion,
//! which waits in the connection for a reconnect, for up to a tenth of the session timeout. If no reconnect
//! comes in that time, the deletion fails. The removal then sets no alarm. It tries again when every
//! participant looks again: after the reconnect or, if the session holds another lock, once the first write on
//! the new connection is answered.
//!
//! # From the loss of a session to the next one
//! 1. The client reports `SessionLost`, a call fails with `SessionExpired`, or the [`clock`] gives the session up. The
//!    session's [`life`] ends, and with it every request and every tracker. A worker of the driver reports to each of
//!    them that it has ended, sets the latch `ended`, and keeps a list of the znodes that are still to be deleted
//!    (`session/driver/orphans.rs`).
//! 2. The thread of `session/replacement.rs` waits for that latch, opens the next session, and moves to it
//!    everything that outlives a session: `request/lasting.rs` makes its request again, and `tracking/mod.rs`
//!    looks again.
//!
//! # After a lost create
//! If the reply to a create is lost, the request searches for its znode, and creates another one if it finds
//! none. Requests of one directory that search at the same time share the search ([`sweep`]). If the lost
//! create takes effect later, it leaves a znode that belongs to no request. The session recognizes that znode
//! by its name in any listing, and deletes it ([`strays`]).
//!
//! # What users watch
//! The trackers behind `NodeTracker`, `LeaderWatch`, `QueueWatch` and a cohort's waiters are participants, too.
//! They get the same events and reconnects. [`tracked`] decides when a tracker looks, and the module
//! `src/tracking/` carries out the steps of the look.
//!
//! # Why this is safe
//! Only sequence numbers decide who owns a lock, and a listing that contains a request's own znode contains
//! every older request that still exists. `is_owner()` depends on the lease, which ends before the servers
//! can end the session. `docs/design.md` has the proofs, and `docs/guarantees.md` has the limits. Here are
//! two of the limits. If another client deletes an owner's znode, the owner learns of the deletion only a
//! moment later. And the proof that lets a request take a lock relies on an assumption about the links
//! between servers.

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
    CallId, Effect, Ending, Event, Failure, LookStep, ParticipantId, Place, RequestEvent, RequestSpec,
    Settings, Target,
};
use self::clock::Routine;
use self::commons::Commons;
use self::contender::{Contender, Next, Phase};
use self::lease::{Holding, Lease};
use self::life::Life;
pub(crate) use self::life::SessionEnd;
pub(crate) use self::parents::MissingParents;
use self::removal::Removal;
pub(crate) use self::sight::Sight;
use self::tracked::Tracked;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::time::Moment;

/// A session, and everything that lives on it. See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Engine {
    commons: Commons,
    contenders: BTreeMap<ParticipantId, Contender>,
    removals: BTreeMap<ParticipantId, Removal>,
    /// The paths of the `removals`.
    removed_paths: BTreeSet<ZNodePath>,
    /// The [strays] that this session has begun to delete on this connection, and for each, whether the leader says that
    /// it does not exist. A stray leaves the map when its deletion succeeds, or when a listing no longer shows it.
    strays: BTreeMap<ZNodePath, bool>,
    /// The subjects that users track.
    tracked: BTreeMap<ParticipantId, Tracked>,
    /// The ids under which code outside the engine creates znodes: see [`Engine::pin`].
    pins: BTreeSet<ParticipantId>,
    routine: Routine,
    /// The moments at which earlier epochs of the lease end. The owners must be checked at each of them.
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
            strays: BTreeMap::new(),
            tracked: BTreeMap::new(),
            pins: BTreeSet::new(),
            lease_checks: BTreeSet::new(),
        }
    }

    // ---- outputs

    /// Returns the next thing that the driver must do.
    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.commons.effects.pop_front()
    }

    /// Returns the next owner whose hold has changed. See [`Lease::next_change`].
    pub(crate) fn poll_ownership(&mut self) -> Option<(ParticipantId, Option<Holding>)> {
        self.commons.lease.next_change()
    }

    // ---- commands

    /// Starts a request, under an id that has not been used before. The request then runs by itself.
    /// [`Engine::withdraw`] ends it.
    pub(crate) fn start(&mut self, id: ParticipantId, spec: Arc<RequestSpec>, since: Moment) {
        let phase = Phase::Joining { unconfirmed: false, failed: None };
        self.contenders.insert(id, Contender::new(id, spec, phase, since));
        self.wake_or_lose(id);
    }

    /// Starts a request that holds the lock together with `owner`, under the same lease. The request's znode
    /// already exists. Returns `false` if `owner` no longer holds the lock.
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
            Some(end) => self.lose(id, end.into()),
        }
    }

    /// Begins to track a subject. If the session has ended, only returns the reason for its end.
    pub(crate) fn track(&mut self, id: ParticipantId) -> Option<SessionEnd> {
        let reason = self.end_reason();
        if reason.is_none() {
            self.tracked.insert(id, Tracked::new(id));
            self.look_at_tracked(id);
        }
        reason
    }

    /// Ends the tracking of a subject, and removes its watches.
    pub(crate) fn untrack(&mut self, id: ParticipantId) {
        if let Some(tracked) = self.tracked.remove(&id) {
            tracked.end(&mut self.commons);
        }
    }

    /// Handles the next step of a tracker's look.
    pub(crate) fn handle_look(&mut self, id: ParticipantId, step: LookStep) {
        if let Some(tracked) = self.tracked.get_mut(&id) {
            tracked.handle_look(&mut self.commons, step);
        }
    }

    pub(crate) fn new_id(&mut self) -> ParticipantId {
        self.commons.new_id()
    }

    /// Returns the name of the znode that the first attempt of a request creates, without the sequence number.
    pub(crate) fn znode_prefix(&self, access: Access, id: ParticipantId) -> String {
        self.commons.znode_prefix(access, id, 0)
    }

    pub(crate) fn count_ahead(&mut self) {
        self.commons.counts_ahead = true;
    }

    /// Keeps the znodes that are created under this id from being taken for [strays], until [`Engine::unpin`].
    pub(crate) fn pin(&mut self, id: ParticipantId) {
        self.pins.insert(id);
    }

    pub(crate) fn unpin(&mut self, id: ParticipantId) {
        self.pins.remove(&id);
    }

    /// Sets the longest outage that an owner survives.
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

    /// Returns the last refusal of a request by a server, unless the request has got an answer since.
    pub(crate) fn refusal(&self, id: ParticipantId) -> Option<&Failure> {
        self.contenders.get(&id)?.refusal.as_ref()
    }

    pub(crate) fn end_reason(&self) -> Option<SessionEnd> {
        self.commons.end_reason()
    }

    pub(crate) fn in_contact(&self) -> bool {
        self.commons.in_contact()
    }

    /// Returns whether the session is open and in contact, and has heard from the server recently enough.
    pub(crate) fn is_connected(&self) -> bool {
        let holds_until = self.lease().contact_holds_until();
        self.end_reason().is_none() && self.in_contact() && self.now() < holds_until
    }

    /// Returns the place of a request in the queue, or `None` if it has ended.
    pub(crate) fn place(&self, id: ParticipantId) -> Option<Place> {
        self.contenders.get(&id).map(Contender::place)
    }

    /// Returns when a request was made or, if it is the owner, when it acquired the lock. Returns `None` if
    /// the request has ended.
    pub(crate) fn since(&self, id: ParticipantId) -> Option<Moment> {
        self.contenders.get(&id).map(|contender| contender.since)
    }

    /// Returns the znode of a waiter's predecessor, if it is known.
    pub(crate) fn predecessor(&self, id: ParticipantId) -> Option<&ZNodePath> {
        self.contenders.get(&id).and_then(Contender::predecessor)
    }

    pub(crate) fn is_revocation_requested(&self, id: ParticipantId) -> bool {
        self.contenders.get(&id).is_some_and(Contender::is_revocation_requested)
    }

    /// Returns whether all participants have been notified of the end of the session.
    pub(crate) fn has_completed_end(&self) -> bool {
        matches!(self.commons.life, Life::Finished(..))
    }

    /// Returns the number of participants, and the number of paths on which they wait for events. The first number
    /// includes the pins, and the sweeps that are owed to a request that has ended.
    pub(crate) fn census(&self) -> (usize, usize) {
        let deletions = self.removals.len() + self.commons.sweeps.owed();
        let participants = self.contenders.len() + deletions + self.tracked.len() + self.pins.len();
        (participants, self.commons.watchers.paths())
    }

    #[cfg(test)]
    pub(crate) fn admits_owners(&self) -> bool {
        self.lease().admits_owners(self.now())
    }

    /// Returns the bytes that the budget counts for the session's znodes.
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
