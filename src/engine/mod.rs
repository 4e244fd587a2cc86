//! The engine: one state machine for a session and all that lives on it, as plain data.
//!
//! Nothing here starts a thread, makes a call, reads a clock or takes a mutex. The driver
//! (`session/driver/`) holds the [`Engine`] under one mutex. It passes in what has happened, one
//! thing after the other, and does what the [`Effect`]s ask for. So every input is handled to its end
//! before the next, and a crossing of a late reply, an event and a withdrawal is an order of inputs.
//!
//! # A walk through the files
//! Between the steps: `Core::feed` (`session/driver/mod.rs`) passes each input in, and `carry_out` does what
//! the effects ask for. Calls leave through an outbox (`session/driver/calls.rs`) to the client, whose
//! `submit` encodes and writes them (`connection/exchange.rs`, `connection/machine/`). Inside,
//! [`contender`] has a request make its next step whenever something wakes it: its `step` is where the
//! ways below branch.
//!
//! From `lock()` to the owner:
//! 1. `locks/blocking_lock.rs`: `lock()` makes a request (`request/mod.rs`, with a GUID from
//!    `locks/locking.rs`), starts it by way of the driver (`session/driver/requests.rs`), and waits for its
//!    events. (`locks/listening_lock.rs` does not wait.)
//! 2. [`join`]: [`Engine::start`] submits the creation of the znode and the listing of the directory.
//!    Behind a request of the same session, no listing is needed.
//! 3. [`calls`]: the create is sent when the [`window`] has room, if the [`budget`] has room for another znode.
//!    The reply comes back as [`Engine::replied`], and finds what was [pending](calls::Pending).
//! 4. `recipe/queue.rs`: the rules, pure functions over names: owner, or wait for which predecessor?
//! 5. [`look`]: a look at that predecessor leaves a watch there. Or `acquire` makes the request the
//!    owner, under a [`lease`] of the session that admits owners: [`Report::Acquired`].
//! 6. `locks/blocking_lock.rs`: the event wakes the caller, which gets a `LockGuard`.
//!
//! From a watch event to the next owner:
//! 1. [`contact`]: the client reports `NodeChanged`, and [`watchers`] knows who waits for this path.
//! 2. [`ahead`]: before its turn, a waiter also watches its own znode, and the request ahead of its
//!    predecessor. So the next in line owns with the event itself. If the watch on its own znode or the
//!    proof of the lease is missing, it looks at its own znode first (`Purpose::TakeOver`). If others may
//!    be ahead, it lists the queue again, together with others of its session ([`listings`]).
//! 3. Behind an exclusive request of the same session, a waiter sets no watch: [`removal`] deletes the
//!    znode, and the reply wakes the waiter. If that request owned the lock, and a listing has shown it as the
//!    nearest one ahead, the waiter looks only at its own znode.
//!
//! From a disconnect to the loss:
//! 1. [`contact`]: the epoch of the lease is over, and another one is proven only after a reconnect. The
//!    owner keeps the one under which it acquired, or last renewed its lease.
//! 2. After a reconnect everybody looks again: at once; or, if the lease is kept proven (as while a lock is
//!    held), when the first write on the new connection was answered (see [`proof`]). An owner renews its
//!    lease when it has seen its znode.
//! 3. If no reconnect comes in time, the clock ends the lease, and [`ending`] reports the loss. `is_owner()` has
//!    been false since that moment, whether or not a thread has noticed.
//!
//! From a lost create to its end: the request searches for its znode, together with the others of its directory, and
//! creates another one if there is none ([`sweep`]). A create that takes effect late leaves a znode whose name the
//! session recognizes in any listing, and deletes.
//!
//! The watches of users (`NodeTracker`, `LeaderWatch`, `QueueWatch`, a cohort's waiters) go the same ways:
//! [`tracked`] says when to look, and the room `tracking` has the steps of a look.
//!
//! This is safe: only sequence numbers decide, and a listing that contains the own znode contains
//! every older request that still exists. `is_owner()` asks the lease, which ends before the server
//! can end the session. `docs/design.md` has the proofs, and `docs/guarantees.md` the limits: an owner
//! whose znode another client deletes learns it a moment later, and a proof assumes something about
//! the links between servers.

mod ahead;
mod alarms;
mod budget;
pub(crate) mod calls;
mod contact;
mod contender;
mod ending;
mod join;
pub(crate) mod lease;
mod life;
mod listing;
mod listings;
mod look;
mod own;
mod parents;
mod proof;
mod removal;
mod report;
mod sight;
mod sweep;
#[cfg(test)]
mod tests;
mod tracked;
mod watchers;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use self::alarms::Alarms;
use self::budget::Budget;
pub(crate) use self::calls::CallId;
use self::calls::{Pending, UnderWay};
pub(crate) use self::contender::RequestSpec;
use self::contender::{Contender, Phase};
use self::lease::Lease;
use self::life::{Contact, Life};
use self::listings::Listings;
use self::own::OwnQueues;
pub(crate) use self::parents::MissingParents;
use self::proof::Proof;
use self::removal::Removal;
pub(crate) use self::removal::Target;
pub(crate) use self::report::{Effect, Ending, Line, Report};
pub(crate) use self::sight::Sight;
use self::sweep::Sweeps;
pub(crate) use self::tracked::Looked;
use self::tracked::Tracked;
use self::watchers::Watchers;
use self::window::Window;
use crate::error::{LossReason, ZkError};
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::recipe::session_tag::SessionTag;
use crate::time::Moment;

/// The number of a participant on its session; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ParticipantId(u64);

/// The place of a request in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Its znode does not exist yet, or no listing has shown it.
    Unknown,
    /// Known to be behind another.
    Queued,
    Owner,
}

/// The facts that a session learns once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Settings {
    /// See [`ZooKeeperClient::is_ordered`](crate::client::ZooKeeperClient::is_ordered).
    pub(crate) is_ordered: bool,
    /// See [`ZooKeeperClient::owns_session`](crate::client::ZooKeeperClient::owns_session).
    pub(crate) owns_session: bool,
    /// See [`ZooKeeperClient::min_idle_for_ping`](crate::client::ZooKeeperClient::min_idle_for_ping).
    pub(crate) min_idle_for_ping: Duration,
    /// See [`ZooKeeperClient::chroot`](crate::client::ZooKeeperClient::chroot).
    pub(crate) chroot: Option<String>,
    /// The longest time for which a session relies on its watches, without a routine look.
    pub(crate) routine_pause: Duration,
    /// The number of calls under way beyond which others wait: see [`window`].
    pub(crate) window: usize,
    /// See [`ZooKeeperClient::jute_max_buffer`](crate::client::ZooKeeperClient::jute_max_buffer).
    pub(crate) jute_max_buffer: usize,
    /// The session was opened after this moment, if that is known.
    pub(crate) opened_after: Option<Moment>,
    /// Distinguishes the requests of the session from those of all others.
    pub(crate) tag: SessionTag,
    /// The seed of what is drawn at random: the delays of retries and of routine looks.
    pub(crate) seed: u64,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Engine {
    settings: Settings,
    /// The moment of the present input.
    now: Moment,
    /// Somebody asks for the number of requests ahead of one.
    counts_ahead: bool,
    /// The last number that was given to a participant or to a call.
    last: u64,
    random: u64,

    life: Life,
    contact: Contact,
    lease: Lease,
    proof: Proof,
    routine: Routine,
    /// The ends of leases of former epochs.
    lease_checks: BTreeSet<Moment>,

    calls: BTreeMap<CallId, UnderWay>,
    /// Has the calls that are to be sent when others are answered.
    window: Window,
    budget: Budget,
    /// Calls that are not made, as the session has ended.
    refused: VecDeque<(CallId, Pending, ZkError)>,
    contenders: BTreeMap<ParticipantId, Contender>,
    removals: BTreeMap<ParticipantId, Removal>,
    /// The znodes that are being deleted.
    removed_paths: BTreeSet<ZNodePath>,
    sweeps: Sweeps,
    /// The subjects that are looked at for users.
    tracked: BTreeMap<ParticipantId, Tracked>,
    /// The participants that keep the session from being finished.
    pins: BTreeSet<ParticipantId>,
    alarms: Alarms,
    watchers: Watchers,
    own_queues: OwnQueues,
    listings: Listings,
    /// Znodes that the log has mentioned, for lines that are written once.
    mentioned: BTreeSet<ZNodePath>,

    effects: VecDeque<Effect>,
}

/// The routine looks: every participant looks again now and then, without an event.
///
/// A client may want its connection to be left alone for a while, to check its own health. Its
/// looks come together with the next keep-alive, at most a session timeout later.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Routine {
    next: Moment,
    /// One waits for the next keep-alive, but not beyond this moment.
    due_by: Option<Moment>,
}

impl Engine {
    pub(crate) fn new(now: Moment, settings: Settings, lease: Lease) -> Engine {
        let mut engine = Engine {
            now,
            counts_ahead: false,
            last: 0,
            random: settings.seed,
            life: Life::Open,
            contact: Contact::NotYet { opened_after: settings.opened_after },
            lease,
            proof: Proof::default(),
            routine: Routine { next: now, due_by: None },
            lease_checks: BTreeSet::new(),
            calls: BTreeMap::new(),
            window: Window::new(settings.window),
            budget: Budget::new(settings.jute_max_buffer, settings.chroot.as_ref().map_or(0, String::len)),
            refused: VecDeque::new(),
            contenders: BTreeMap::new(),
            removals: BTreeMap::new(),
            removed_paths: BTreeSet::new(),
            sweeps: Sweeps::default(),
            tracked: BTreeMap::new(),
            pins: BTreeSet::new(),
            alarms: Alarms::default(),
            watchers: Watchers::default(),
            own_queues: OwnQueues::default(),
            listings: Listings::default(),
            mentioned: BTreeSet::new(),
            effects: VecDeque::new(),
            settings,
        };
        engine.routine.next = engine.next_routine();
        engine
    }

    /// The next thing to do.
    pub(crate) fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Begins an input, at this moment. Any number of methods may follow, and then [`Engine::settle`].
    pub(crate) fn begin(&mut self, now: Moment) {
        self.now = now;
    }

    pub(crate) fn now(&self) -> Moment {
        self.now
    }

    /// Ends the handling of an input: does what follows at once, and what the clock asks for.
    pub(crate) fn settle(&mut self) {
        loop {
            self.tick();
            if let Some((call, pending, error)) = self.refused.pop_front() {
                self.take_up(call, pending, Err(error));
            } else if let Some(id) = self.alarms.take_due(self.now) {
                self.wake(id);
                self.wake_removal(id);
                self.wake_sweep(id);
                self.look_at_tracked(id);
            } else {
                self.finish_if_idle();
                if self.refused.is_empty() {
                    return;
                }
            }
        }
    }

    pub(crate) fn new_id(&mut self) -> ParticipantId {
        ParticipantId(self.next_number())
    }

    /// Gives a request its number, and names its znode up to the sequence number.
    pub(crate) fn name_request(&mut self, access: Access) -> (ParticipantId, String) {
        let id = self.new_id();
        (id, access.prefix(self.settings.tag.guid(id.0)))
    }

    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A number between 0 and 1.
    fn chance(&mut self) -> f64 {
        let mut random = fastrand::Rng::with_seed(self.random);
        let chance = random.f64();
        self.random = random.get_seed();
        chance
    }

    pub(crate) fn count_ahead(&mut self) {
        self.counts_ahead = true;
    }

    /// Keeps the session from being finished while there may be something to undo.
    pub(crate) fn pin(&mut self, id: ParticipantId) {
        self.pins.insert(id);
    }

    pub(crate) fn unpin(&mut self, id: ParticipantId) {
        self.pins.remove(&id);
    }

    // ---- queries

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The next owner whose time has changed: see [`Lease::next_change`].
    pub(crate) fn next_change(&mut self) -> Option<(ParticipantId, Option<Moment>)> {
        self.lease.next_change()
    }

    pub(crate) fn end_reason(&self) -> Option<LossReason> {
        self.life.end_reason()
    }

    pub(crate) fn in_contact(&self) -> bool {
        matches!(self.contact, Contact::Present | Contact::Regained)
    }

    /// Sets the outage that an owner of a lock is to survive.
    pub(crate) fn set_survived_outage(&mut self, outage: Duration) {
        self.lease.set_survived_outage(outage);
    }

    /// Returns whether the session is open, in contact, and the last sign of the server is young enough.
    pub(crate) fn is_connected(&self) -> bool {
        !self.life.has_ended() && self.in_contact() && self.now < self.lease.contact_holds_until()
    }

    /// Returns where a request is in the queue; `None` if it has ended.
    pub(crate) fn place(&self, id: ParticipantId) -> Option<Place> {
        self.contenders.get(&id).map(|contender| match contender.phase {
            Phase::Owner { .. } => Place::Owner,
            Phase::Queued { is_behind: true, .. } => Place::Queued,
            Phase::Queued { is_behind: false, .. } | Phase::Joining { .. } => Place::Unknown,
        })
    }

    /// Returns whether all participants were notified of the end.
    pub(crate) fn has_completed_end(&self) -> bool {
        matches!(self.life, Life::Lingering(..) | Life::Finished(..))
    }

    /// Returns whether the session has ended for us and lives on at the server, with deletions to be made.
    pub(crate) fn lingers(&self) -> bool {
        matches!(self.life, Life::Lingering(..))
    }

    /// Returns whether nobody is left whom a change concerns, and nothing that may have to be deleted.
    pub(crate) fn is_idle(&self) -> bool {
        // They may leave a znode.
        let is_create = |call: &UnderWay| call.pending.creates_for().is_some();
        self.contenders.is_empty()
            && self.removals.is_empty()
            && self.sweeps.is_empty()
            && self.tracked.is_empty()
            && self.pins.is_empty()
            && !self.calls.values().any(is_create)
    }

    /// The number of participants, and of the paths for which somebody has registered.
    pub(crate) fn census(&self) -> (usize, usize) {
        let deletions = self.removals.len() + self.sweeps.owed();
        let participants = self.contenders.len() + deletions + self.tracked.len() + self.pins.len();
        (participants, self.watchers.paths())
    }

    #[cfg(test)]
    pub(crate) fn admits_owners(&self) -> bool {
        self.lease.admits_owners(self.now)
    }

    /// The bytes of the znodes that the session counts.
    #[cfg(test)]
    pub(crate) fn bytes_of_znodes(&self) -> usize {
        self.budget.used()
    }

    #[cfg(test)]
    pub(crate) fn watched_by(&self, id: ParticipantId) -> Option<ZNodePath> {
        self.contenders.get(&id)?.watched.clone()
    }

    #[cfg(test)]
    pub(crate) fn readers(&self, dir: &ZNodePath) -> usize {
        self.listings.readers(dir)
    }
}
