//! One request for a lock, from the creation of its znode to its deletion.
//!
//! Every lock of this crate is a thin shell around requests. A request is a state machine and a
//! [`Task`]: one thread at a time moves it on. Between two moves, and while a call is under way, it
//! costs no thread. A watch, a reconnect or a timer wakes it; it then reads and decides again.
//!
//! # A walk through the files
//! From `lock()` to the owner:
//! 1. `locks/blocking_lock.rs`: `lock()` makes a request with a GUID, starts it, and waits for its
//!    events. (`locks/listening_lock.rs` does not wait.)
//! 2. `steps.rs`: `join` submits the creation of the znode and the listing of the directory, on the
//!    caller's thread (`connection/mod.rs` has the way to the wire). Behind a request of the same
//!    session, no listing is needed. The replies continue with `enqueued` and `decide`, on the
//!    connection's thread. With a client that blocks, a worker of the session does all of this.
//! 3. `recipe/queue.rs`: the rules, pure functions over names: owner, or wait for which
//!    predecessor?
//! 4. `looks.rs`: `watch` looks at that predecessor and leaves a watch there; the request parks. Or
//!    `acquire` makes it the owner, under a lease of the session that admits owners
//!    (`engine/lease.rs`): `Event::Acquired`.
//! 5. `locks/blocking_lock.rs`: the event wakes the caller, which gets a `LockGuard`.
//!
//! From a watch event to the next owner:
//! 1. `client`: the predecessor's znode is deleted, and the client reports `NodeChanged` to
//!    `session/state/mod.rs`.
//! 2. `engine/watchers.rs` knows the participants that watch this path: one waiter, or the readers
//!    behind a writer. `notify` wakes the task of each (`session/runner.rs`).
//! 3. `looks.rs`: `evaluate` lists the queue again, together with others of its session
//!    (`session/listings.rs`); then as above, from step 3 on.
//!
//! Behind an exclusive owner of the same session, a waiter sets no watch: `session/removal.rs`
//! deletes the znode, the reply wakes the waiter (`znode_changed`), and `take_over` looks only at the
//! own znode.
//!
//! Between sessions, the next in line owns with the event itself: `ahead.rs` has what a waiter finds
//! out before its turn. `znode_changed` notes that nobody is ahead, and the next step acquires.
//!
//! A request for a permit of a semaphore may be let in by any of those ahead: `count` lists the
//! directory and leaves a watch on its children.
//!
//! Whatever ends a request goes through `ending.rs`, which leaves its znode to a deletion in the
//! background (`session/removal.rs`).
//!
//! Why that is safe: only sequence numbers decide, and a listing that contains the own znode
//! contains every older request that still exists. `is_owner()` asks the lease, which ends before
//! the server can end the session. `docs/design.md` has the proofs.
//!
//! # States
//! | phase | means | leaves it by |
//! |---|---|---|
//! | `Joining` | the znode is being created, or the reply was lost | created, or out of retries |
//! | `Queued` | the znode exists; its turn has not come, or is unknown | its turn has come and the lease admits it; znode gone; numbers exhausted |
//! | `Owner` | the lock is held, while the lease lasts | lease over, or znode gone |
//! | `Ended` | final | |
//!
//! Each phase but the last also ends when the request is withdrawn, when the server refuses a call
//! that the request needs, and with the session. A [downgrade](Downgrade) begins as an `Owner`.
//!
//! Origin: the Java class `WriteLock.LockZooKeeperOperation`, whose steps are `join` and `evaluate`
//! here.

mod ahead;
mod claim;
mod downgrade;
mod ending;
mod looks;
mod observer;
mod peers;
mod steps;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::client::{Acl, Call, CreateMode};
use crate::engine::ParticipantId;
use crate::error::{LockError, LossReason, Operation, Result};
use crate::lock_order::{Mutex, rank::REQUEST};
use crate::logging;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::retry::{RetryCounter, RetryPolicy};
use crate::session::events::{self, HandedOver, LockOfEvent};
use crate::session::{
    Core, Listing, Notification, Ownership, Participant, Runner, Session, Task, ZNodeChange,
};
use crate::time::{Moment, Priority, is_disconnected};

use ahead::Ahead;
pub(crate) use claim::Claim;
pub(crate) use downgrade::Downgrade;
pub(crate) use observer::{Event, Observer};

/// The parameters of one request.
#[derive(Clone)]
pub(crate) struct RequestSpec {
    pub(crate) dir: ZNodePath,
    /// The name of the znode up to its sequence number, with a GUID: no other request has it.
    pub(crate) prefix: String,
    pub(crate) data: Arc<[u8]>,
    pub(crate) acl: Arc<[Acl]>,
    pub(crate) retry: RetryPolicy,
    pub(crate) access: Access,
    /// How a missing directory is created.
    pub(crate) directory_mode: CreateMode,
}

pub(crate) struct Request {
    id: ParticipantId,
    core: Arc<Core>,
    spec: RequestSpec,
    observer: Arc<dyn Observer>,
    state: Mutex<REQUEST, State>,
    ownership: Ownership,
    fencing_token: OnceLock<i64>,
}

struct State {
    phase: Phase,
    /// Stopped when the request ends.
    runner: Runner,
    /// The znode whose watch wakes the request. `None` for a request that must first list the queue
    /// or look at its own znode.
    watched: Option<ZNodePath>,
    ahead: Ahead,
    /// An event has reported the deletion of its znode.
    is_deleted: bool,
    /// A listing that another request has made.
    listing: Option<Arc<Listing>>,
    /// The next look is due to a reconnect, which is no reason to expect the lock.
    has_reconnected: bool,
    /// The reply to a create was lost once.
    reply_lost: bool,
    /// When the request was made, and later when it acquired the lock.
    since: Moment,
    /// How many requests were ahead in the first listing; counted only for an event hook.
    number_ahead: Option<usize>,
    /// The replies in a row that could not be read.
    unreadable: u8,
    /// Dropped when the request is placed or has ended; `None` until a thread waits for that.
    awaited: Option<(Sender<Infallible>, Receiver<Infallible>)>,
}

enum Phase {
    Joining(Joining),
    Queued {
        znode: ZNodePath,
        /// Whether a listing has shown a request ahead of it.
        seen: bool,
    },
    Owner {
        znode: ZNodePath,
        /// Whether a revocation was reported to the holder.
        revocation_reported: bool,
    },
    Ended {
        znode: Option<ZNodePath>,
        how: Ending,
    },
}

impl Phase {
    /// How urgent the next step is.
    fn priority(&self) -> Priority {
        if matches!(self, Phase::Owner { .. }) { Priority::Owner } else { Priority::Other }
    }

    /// Whether the request owns the lock, is known to be behind another, or has ended.
    fn is_placed(&self) -> bool {
        !matches!(self, Phase::Joining(_) | Phase::Queued { seen: false, .. })
    }
}

#[derive(Default)]
struct Joining {
    /// The reply to a create was lost: the znode may exist, so it is searched for before another is
    /// created.
    unconfirmed: bool,
    failed: RetryCounter,
}

#[derive(Debug)]
enum Ending {
    Withdrawn,
    /// Taken away while it held the lock.
    Lost(LossReason),
    /// Taken out of the queue, with the error for all who wait for it.
    Dropped(LossReason, LockError),
}

/// The position of a request that has been started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum QueuePosition {
    Owner,
    Queued,
}

impl Request {
    /// Makes a request, which does nothing until it is [started](Request::start).
    pub(crate) fn new(session: &Session, spec: RequestSpec, observer: Arc<dyn Observer>) -> Arc<Request> {
        Request::in_phase(Phase::Joining(Joining::default()), session.core(), spec, observer)
    }

    fn in_phase(
        phase: Phase,
        core: Arc<Core>,
        spec: RequestSpec,
        observer: Arc<dyn Observer>,
    ) -> Arc<Request> {
        let (id, since) = (core.engine().new_id(), core.now());
        Arc::new(Request {
            id,
            core,
            spec,
            observer,
            state: Mutex::new(State {
                phase,
                runner: Runner::default(),
                watched: None,
                ahead: Ahead::default(),
                is_deleted: false,
                listing: None,
                has_reconnected: false,
                reply_lost: false,
                since,
                number_ahead: None,
                unreadable: 0,
                awaited: None,
            }),
            ownership: Ownership::default(),
            fencing_token: OnceLock::new(),
        })
    }

    /// Starts the request. It needs no further calls; [`Request::withdraw`] ends it.
    pub(crate) fn start(self: &Arc<Self>) {
        self.core.join(self.id, Arc::<Request>::clone(self));
        Arc::clone(self).wake();
        if self.has_ended() {
            // Withdrawn before it joined.
            self.core.leave(self.id);
        }
    }

    // ---- queries of the lock

    pub(crate) fn is_owner(&self) -> bool {
        // Before any mutex, whose holder may not exist in a forked child.
        self.core.process().is_current() && self.holds_lease()
    }

    /// As [`is_owner`](Request::is_owner), for callers that have checked the process.
    pub(crate) fn holds_lease(&self) -> bool {
        self.ownership.covers(self.core.now())
    }

    /// For how long this request owns the lock if nothing more is proven.
    pub(crate) fn lease_remaining(&self) -> Duration {
        match self.core.process().is_current() {
            true => self.ownership.remaining(self.core.now()),
            false => Duration::ZERO,
        }
    }

    /// The id of the transaction that created the znode; read from the server once.
    pub(crate) fn fencing_token(&self) -> Result<i64> {
        if let Some(token) = self.fencing_token.get() {
            return Ok(*token);
        }
        let not_owner =
            |path: &str| LockError::NotOwner { operation: Operation::FENCE.name, path: path.to_owned() };
        let Some(znode) = self.znode() else { return Err(not_owner(self.spec.dir.as_str())) };
        let path = znode.clone();
        let stat = self
            .core
            .call(Operation::FENCE, &znode, move |core| core.ask(Call::exists(&path, false)))?
            .map_err(|error| LockError::client(Operation::FENCE, &znode, error))?;
        match stat {
            Some(stat) => Ok(*self.fencing_token.get_or_init(|| stat.czxid)),
            None => Err(not_owner(znode.as_str())),
        }
    }

    /// The core that the request was made on, even if the session has been replaced since.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The znode, once it is known.
    pub(crate) fn znode(&self) -> Option<ZNodePath> {
        match &self.state.lock().phase {
            Phase::Joining(_) => None,
            Phase::Queued { znode, .. } | Phase::Owner { znode, .. } => Some(znode.clone()),
            Phase::Ended { znode, .. } => znode.clone(),
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Ended { .. })
    }

    /// Waits until the request owns the lock or is known to be behind another; `None` if it was
    /// withdrawn or a channel was disconnected meanwhile.
    pub(crate) fn wait_until_placed(
        &self,
        [end, other_end]: [&Receiver<Infallible>; 2],
    ) -> Result<Option<QueuePosition>> {
        loop {
            let placed = {
                let mut state = self.state.lock();
                match &state.phase {
                    Phase::Owner { .. } => return Ok(Some(QueuePosition::Owner)),
                    Phase::Queued { seen: true, .. } => return Ok(Some(QueuePosition::Queued)),
                    Phase::Ended { how: Ending::Withdrawn, .. } => return Ok(None),
                    Phase::Ended { .. } => return Err(self.error_of(Operation::LOCK, &state)),
                    Phase::Joining(_) | Phase::Queued { .. } => {
                        state.awaited.get_or_insert_with(|| bounded(0)).1.clone()
                    }
                }
            };
            if is_disconnected(end) || is_disconnected(other_end) {
                return Ok(None);
            }
            self.core.wait(&[&placed, end, other_end], None);
        }
    }

    /// Why the request ended.
    pub(crate) fn end_error(&self, operation: Operation) -> LockError {
        self.error_of(operation, &self.state.lock())
    }

    fn error_of(&self, operation: Operation, state: &State) -> LockError {
        let path = self.name_of(state).to_string();
        match &state.phase {
            Phase::Ended { how: Ending::Lost(reason), .. } => LockError::ended(operation, path, *reason),
            Phase::Ended { how: Ending::Dropped(_, error), .. } => error.clone(),
            _ => LockError::NotOwner { operation: operation.name, path },
        }
    }

    /// Why the lock was lost while this request held it.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        match self.state.lock().phase {
            Phase::Ended { how: Ending::Lost(reason), .. } => return Some(reason),
            Phase::Owner { .. } => {}
            Phase::Joining(_) | Phase::Queued { .. } | Phase::Ended { .. } => return None,
        }
        // The lease has ended, and no thread has noticed yet.
        let reason = || self.core.end_reason().unwrap_or(LossReason::LeaseExpired);
        (!self.is_owner()).then(reason)
    }

    /// Whether another client has asked for the lock that this request holds.
    pub(crate) fn is_revocation_requested(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Owner { revocation_reported: true, .. })
    }

    /// Whether the lock was taken away while this request held it.
    pub(crate) fn was_taken_away(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Ended { how: Ending::Lost(_), .. })
    }

    /// Whether the request waited when its session was lost, so that it may be made again on
    /// another.
    pub(crate) fn waited_for_a_lost_session(&self) -> bool {
        let state = self.state.lock();
        let Phase::Ended { how: Ending::Dropped(reason, _), .. } = state.phase else { return false };
        reason.is_session_loss()
    }

    /// The znode's path for a message; the directory's until the znode is known.
    fn name_of(&self, state: &State) -> ZNodePath {
        match &state.phase {
            Phase::Queued { znode, .. }
            | Phase::Owner { znode, .. }
            | Phase::Ended { znode: Some(znode), .. } => znode.clone(),
            _ => self.spec.dir.clone(),
        }
    }

    /// Makes the callbacks for what was posted, on the calling thread.
    pub(crate) fn deliver(&self) {
        self.observer.deliver();
    }

    /// Reports that another thread has got the lock under this request.
    pub(crate) fn report_hand_over(&self) {
        self.core.report_event(|| {
            let lock = self.lock_of_event(self.znode().as_ref());
            events::Event::HandedOver(HandedOver { lock })
        });
    }

    /// The lock, for an event.
    fn lock_of_event(&self, znode: Option<&ZNodePath>) -> LockOfEvent {
        let (dir, id) = (self.spec.dir.to_string(), znode.map(ZNodePath::to_string));
        LockOfEvent { dir, id, kind: self.spec.access.kind() }
    }

    fn forget_watch(&self, state: &mut State) {
        if let Some(watched) = state.watched.take() {
            self.core.engine().unwatch(&watched, self.id);
        }
        state.ahead.watched_on = None;
    }

    /// Whether the event was of a znode ahead that this session is deleting. The reply to that says
    /// more, so the request registers for it again.
    fn awaits_own_deletion(&self) -> bool {
        let state = self.state.lock();
        let is_waiting = matches!(state.phase, Phase::Queued { .. });
        let ahead = state.watched.as_ref().filter(|_| is_waiting);
        ahead.is_some_and(|ahead| self.core.engine().watch_leaving(ahead, self.id))
    }

    /// Whether this request owned the lock until its lease ended, and no thread has noticed yet.
    fn has_outlived_its_lease(&self) -> bool {
        self.ownership.has_outlasted(self.core.now())
    }

    fn log_suspension(&self) {
        if self.core.end_reason().is_some() || self.has_outlived_its_lease() {
            // The log is about to name, or has named, the loss.
            return;
        }
        let (is_owner, znode) = match &self.state.lock().phase {
            Phase::Owner { znode, .. } => (true, znode.clone()),
            Phase::Queued { znode, .. } => (false, znode.clone()),
            Phase::Joining(_) | Phase::Ended { .. } => return,
        };
        match is_owner {
            true => logging::warn!("suspended {znode}: no contact, owned until the lease ends"),
            false => logging::debug!("suspended {znode}: no contact, waiting for it"),
        }
    }
}

impl Participant for Request {
    fn notify(self: Arc<Self>, why: Notification) {
        match why {
            Notification::LookAgain if self.awaits_own_deletion() => {}
            Notification::LookAgain => {
                self.forget_watch(&mut self.state.lock());
                self.wake();
            }
            Notification::Reconnected => {
                {
                    let mut state = self.state.lock();
                    state.has_reconnected = true;
                    self.forget_watches(&mut state);
                }
                self.wake();
            }
            // A request that is still joining is repeated by its retry policy.
            Notification::Routine if self.znode().is_none() => {}
            Notification::Routine => {
                self.look_for_peers();
                self.wake();
            }
            Notification::Suspended => self.log_suspension(),
            Notification::CheckLease if self.has_outlived_its_lease() => self.lose_lease(),
            Notification::CheckLease => {}
            Notification::SessionEnded(reason) => self.lose(reason),
        }
    }

    fn znode_changed(self: Arc<Self>, path: &ZNodePath, change: ZNodeChange) {
        match self.take_change(path, change) {
            true => self.wake(),
            false => self.notify(Notification::LookAgain),
        }
    }

    fn take_listing(&self, listing: &Arc<Listing>) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Queued { .. }) {
            state.listing = Some(Arc::clone(listing));
        }
    }

    fn decide(self: Arc<Self>) {
        let has_taken_it = self.state.lock().listing.is_some();
        if has_taken_it {
            self.wake();
        }
    }
}
