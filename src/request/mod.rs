//! The engine: one request for a lock, from the creation of its znode to its deletion.
//!
//! Every lock of this crate is a thin shell around requests. A request is a state machine that is moved by one thread at
//! a time, a worker of its session; between two moves it is parked and costs no thread. What wakes it (a watch, a
//! reconnect, a time) makes it read again and decide again. Nothing of another's runs under its lock.
//!
//! | phase | means | leaves it by |
//! |---|---|---|
//! | `Joining` | the znode is being created, or the reply to that was lost | created, refused, given up |
//! | `Queued` | the znode stands in the queue behind another | the turn has come, or the znode is gone |
//! | `Owner` | the lock is held, while the lease lasts | withdrawn, lease over, or the znode is gone |
//! | `Ended` | final | |
//!
//! Origin: the Java class `WriteLock.LockZooKeeperOperation`, whose steps are `join` and `evaluate` here.

mod downgrade;
mod steps;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crossbeam_channel::{Receiver, Sender, bounded};
use log::Level;

use crate::client::{Acl, ZkResult};
use crate::error::{LockError, LossReason, Operation, Result};
use crate::lock_order::{
    Mutex,
    rank::{OWNERSHIP, REQUEST},
};
use crate::logging;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::retry::{RetryCounter, RetryPolicy};
use crate::session::{
    Core, LeaseEpoch, Listing, ListingReader, Notification, Participant, ParticipantId, Runner, Session,
    Target, Task,
};

pub(crate) use downgrade::Downgrade;

/// What a kind of lock asks for, fixed for one request.
#[derive(Clone)]
pub(crate) struct RequestSpec {
    pub(crate) dir: ZNodePath,
    /// The name of the znode up to its sequence number, with a GUID: no other request has it.
    pub(crate) prefix: String,
    pub(crate) data: Arc<[u8]>,
    pub(crate) acl: Arc<[Acl]>,
    pub(crate) retry: RetryPolicy,
    pub(crate) access: Access,
}

/// What happens to a request, as its lock hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Acquired,
    /// Somebody asks the holder to let go.
    RevocationRequested,
    /// Ended by its own process while it held the lock.
    Released,
    /// Taken away while it held the lock.
    Lost(LossReason),
    /// Ended by somebody or something else while it did not hold the lock.
    Dropped(LossReason),
}

/// Who hears of a request's events.
pub(crate) trait Observer: Send + Sync {
    /// Takes up an event, in order. Called under the request's lock: it must not block nor call anybody.
    fn post(&self, event: Event);

    /// Whether something posted waits for a [`deliver`](Observer::deliver).
    fn has_callbacks(&self) -> bool {
        false
    }

    /// Makes the callbacks for what was posted, outside every lock.
    fn deliver(&self) {}
}

pub(crate) struct Request {
    id: ParticipantId,
    core: Arc<Core>,
    spec: RequestSpec,
    observer: Arc<dyn Observer>,
    state: Mutex<REQUEST, State>,
    /// The term under which the lock is held; apart from the state, as it is asked for before every action of an owner.
    held_under: Mutex<OWNERSHIP, Option<Arc<LeaseEpoch>>>,
    fencing_token: OnceLock<i64>,
}

struct State {
    phase: Phase,
    /// Stopped when the request ends.
    runner: Runner,
    /// The znode whose watch wakes the request. `None` for one that must list the queue, or look at
    /// its own znode, before it knows anything.
    watched: Option<ZNodePath>,
    /// A listing that others have brought.
    listing: Option<Arc<Listing>>,
    /// The reply to a create was lost once.
    reply_lost: bool,
    /// Why a request ended that could not be carried on; for whoever waits for it.
    error: Option<LockError>,
    /// Dropped when the request is placed or has ended; `None` until a thread waits for that.
    awaited: Option<(Sender<Infallible>, Receiver<Infallible>)>,
}

enum Phase {
    Joining(Joining),
    Queued {
        znode: ZNodePath,
        /// Whether a place behind another has been seen.
        seen: bool,
    },
    Owner {
        znode: ZNodePath,
        /// Whether it has been told that somebody asks it to let go.
        told_of_revocation: bool,
    },
    Ended {
        znode: Option<ZNodePath>,
        how: Ending,
    },
}

impl Phase {
    /// Whether the request owns the lock, is known to stand behind another, or has ended.
    fn is_placed(&self) -> bool {
        !matches!(self, Phase::Joining(_) | Phase::Queued { seen: false, .. })
    }
}

#[derive(Default)]
struct Joining {
    /// The reply to a create was lost: the znode may be there, and is looked for before another is made.
    unconfirmed: bool,
    failed: RetryCounter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Withdrawn,
    /// Taken away while it held the lock.
    Lost(LossReason),
    /// Taken out of the queue.
    Dropped(LossReason),
}

/// What is left to do about a request that has just ended.
struct Cleanup {
    left_behind: Option<Target>,
    /// Whether a worker is at it.
    still_moving: bool,
}

/// What one asks to know of a request that has been started.
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
        Arc::new(Request {
            id: core.registry().new_id(),
            core,
            spec,
            observer,
            state: Mutex::new(State {
                phase,
                runner: Runner::default(),
                watched: None,
                listing: None,
                reply_lost: false,
                error: None,
                awaited: None,
            }),
            held_under: Mutex::new(None),
            fencing_token: OnceLock::new(),
        })
    }

    /// Starts the request. It goes on by itself; [`Request::withdraw`] ends it.
    pub(crate) fn start(self: &Arc<Self>) {
        self.core.join(self.id, Arc::<Request>::clone(self));
        Arc::clone(self).wake();
        if self.has_ended() {
            // Withdrawn before it joined.
            self.core.leave(self.id);
        }
    }

    // ---- what the lock asks

    pub(crate) fn is_owner(&self) -> bool {
        // Before any lock, which a thread that the child does not have may hold for ever.
        if !self.core.is_in_its_process() {
            return false;
        }
        let held_under = self.held_under.lock();
        held_under.as_ref().is_some_and(|term| term.covers(self.core.now()))
    }

    /// The transaction id that created the znode; asked of the server once.
    pub(crate) fn fencing_token(&self) -> Result<i64> {
        if let Some(token) = self.fencing_token.get() {
            return Ok(*token);
        }
        let not_owner =
            |path: &str| LockError::NotOwner { operation: Operation::FENCE.name, path: path.to_owned() };
        let Some(znode) = self.znode() else { return Err(not_owner(self.spec.dir.as_str())) };
        self.core.check_open(Operation::FENCE, &znode)?;
        let path = znode.clone();
        let stat = self
            .core
            .call(Operation::FENCE, &znode, move |core| {
                core.read(|client| client.exists(path.as_str(), false))
            })?
            .map_err(|error| LockError::client(Operation::FENCE, &znode, error))?;
        match stat {
            Some(stat) => Ok(*self.fencing_token.get_or_init(|| stat.czxid)),
            None => Err(not_owner(znode.as_str())),
        }
    }

    /// What the request runs on: for a session that is_replaced, the one it was made on.
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

    /// Waits until the request owns the lock or is known to stand behind another; `None` when it was withdrawn meanwhile.
    pub(crate) fn wait_until_placed(&self) -> Result<Option<QueuePosition>> {
        loop {
            let placed = {
                let mut state = self.state.lock();
                match &state.phase {
                    Phase::Owner { .. } => return Ok(Some(QueuePosition::Owner)),
                    Phase::Queued { seen: true, .. } => return Ok(Some(QueuePosition::Queued)),
                    Phase::Ended { how: Ending::Withdrawn, .. } => return Ok(None),
                    Phase::Ended { .. } => return Err(self.take_error(Operation::LOCK, &mut state)),
                    Phase::Joining(_) | Phase::Queued { .. } => {
                        state.awaited.get_or_insert_with(|| bounded(0)).1.clone()
                    }
                }
            };
            self.core.wait(&[&placed], None);
        }
    }

    /// Why the request ended.
    pub(crate) fn end_error(&self, operation: Operation) -> LockError {
        self.take_error(operation, &mut self.state.lock())
    }

    fn take_error(&self, operation: Operation, state: &mut State) -> LockError {
        if let Some(error) = state.error.take() {
            return error;
        }
        let path = self.name_of(state);
        match state.phase {
            Phase::Ended { how: Ending::Lost(reason) | Ending::Dropped(reason), .. } => {
                LockError::ended(operation, path, reason)
            }
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

    /// Whether somebody has asked for the lock that this request holds.
    pub(crate) fn is_revocation_requested(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Owner { told_of_revocation: true, .. })
    }

    /// Whether the lock was taken away while this request held it.
    pub(crate) fn was_taken_away(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Ended { how: Ending::Lost(_), .. })
    }

    /// Whether the request waited when its session was lost, so that it may be made again on another.
    pub(crate) fn waited_for_a_lost_session(&self) -> bool {
        let state = self.state.lock();
        let Phase::Ended { how: Ending::Dropped(reason), .. } = state.phase else { return false };
        reason.is_session_loss()
    }

    /// The znode's path for a message, or what is known of it.
    fn name_of(&self, state: &State) -> String {
        match &state.phase {
            Phase::Queued { znode, .. }
            | Phase::Owner { znode, .. }
            | Phase::Ended { znode: Some(znode), .. } => znode.to_string(),
            _ => self.spec.dir.to_string(),
        }
    }

    /// Lets the observer pass on what was posted to it.
    pub(crate) fn deliver(&self) {
        self.observer.deliver();
    }

    // ---- ending

    /// Ends the request and deletes its znode, in the background if need be. The first outcome of the deletion is told to
    /// `first`. Does nothing when the request has ended.
    ///
    /// The caller [hands on](Request::deliver) what this brings, when it holds no lock of its own.
    pub(crate) fn withdraw(self: &Arc<Self>, first: Option<Sender<ZkResult<()>>>) {
        let mut state = self.state.lock();
        let was_owner = matches!(state.phase, Phase::Owner { .. });
        if was_owner && !self.is_owner() {
            // The lease has ended before the owner let go, and nobody has noticed yet.
            drop(state);
            return self.lose_lease();
        }
        let Some(cleanup) = self.end(&mut state, Ending::Withdrawn) else { return };
        if was_owner {
            self.observer.post(Event::Released);
        }
        let name = self.name_of(&state);
        drop(state);
        self.clean_up(cleanup, first);
        if was_owner {
            logging::info!("released {name}");
        }
    }

    /// Ends the request because the lock, or the place in the queue, was taken away.
    fn lose(self: &Arc<Self>, reason: LossReason) {
        self.end_unasked(reason, None);
    }

    /// Ends the request because its lease has ended, which the end of the session brings too, before its own word comes.
    fn lose_lease(self: &Arc<Self>) {
        self.lose(self.core.end_reason().unwrap_or(LossReason::LeaseExpired));
    }

    /// Ends the request because the server refuses what it needs.
    fn fail(self: &Arc<Self>, error: LockError) {
        self.end_unasked(LossReason::Refused, Some(error));
    }

    fn end_unasked(self: &Arc<Self>, reason: LossReason, error: Option<LockError>) {
        let mut state = self.state.lock();
        let was_owner = matches!(state.phase, Phase::Owner { .. });
        // Before that its caller waits for it, and gets the error.
        let was_placed = state.phase.is_placed();
        let how = if was_owner { Ending::Lost(reason) } else { Ending::Dropped(reason) };
        let Some(cleanup) = self.end(&mut state, how) else { return };
        self.observer.post(if was_owner { Event::Lost(reason) } else { Event::Dropped(reason) });
        let name = self.name_of(&state);
        let cause = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        state.error = error;
        drop(state);
        self.deliver_soon();
        self.clean_up(cleanup, None);
        let what = if was_owner { "lost" } else { "dropped from the queue:" };
        let level = match reason {
            _ if !was_placed => Level::Debug,
            LossReason::SessionClosed => Level::Info,
            _ => Level::Warn,
        };
        logging::log!(level, "{what} {name}: {reason}{cause}");
    }

    /// Makes the request an ended one and returns what is left to do about it; `None` when it had ended before.
    fn end(&self, state: &mut State, how: Ending) -> Option<Cleanup> {
        let (left_behind, znode) = match &state.phase {
            Phase::Ended { .. } => return None,
            // A worker that is at work on a create sees the ending when it comes back, and cleans up after that one.
            Phase::Joining(_) => (state.reply_lost.then(|| self.all_znodes()), None),
            Phase::Queued { znode, .. } | Phase::Owner { znode, .. } => {
                // A create that seemed lost may have come through beside its repetition.
                let target = if state.reply_lost { self.all_znodes() } else { Target::ZNode(znode.clone()) };
                (Some(target), Some(znode.clone()))
            }
        };
        *self.held_under.lock() = None;
        state.phase = Phase::Ended { znode, how };
        state.listing = None;
        self.forget_watch(state);
        state.awaited = None;
        Some(Cleanup { left_behind, still_moving: state.runner.stop() })
    }

    fn forget_watch(&self, state: &mut State) {
        if let Some(watched) = state.watched.take() {
            self.core.registry().unwatch(&watched, self.id);
        }
    }

    fn log_suspension(&self) {
        let (is_owner, znode) = match &self.state.lock().phase {
            Phase::Owner { znode, .. } => (true, znode.clone()),
            Phase::Queued { znode, .. } => (false, znode.clone()),
            Phase::Joining(_) | Phase::Ended { .. } => return,
        };
        match is_owner {
            true => logging::warn!("suspended {znode}: no contact, owned until the lease ends"),
            false => logging::info!("suspended {znode}: no contact, waiting for it"),
        }
    }

    fn clean_up(&self, cleanup: Cleanup, first: Option<Sender<ZkResult<()>>>) {
        if let Some(target) = cleanup.left_behind {
            self.core.remove(target, first);
        }
        // Only then: a session that outlives us is let go when the last participant has left. A worker that moves the
        // request may have a deletion to add, so it leaves itself.
        if !cleanup.still_moving {
            self.core.leave(self.id);
        }
    }

    /// Whatever this request has created, named by a reply or not.
    fn all_znodes(&self) -> Target {
        Target::Children { dir: self.spec.dir.clone(), prefix: self.spec.prefix.clone() }
    }
}

/// A hold on a request, which is withdrawn when this is dropped.
pub(crate) struct Claim(Arc<Request>);

impl Claim {
    pub(crate) fn on(request: Arc<Request>) -> Claim {
        Claim(request)
    }
}

impl Deref for Claim {
    type Target = Arc<Request>;

    fn deref(&self) -> &Arc<Request> {
        &self.0
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.withdraw(None);
    }
}

impl Participant for Request {
    fn notify(self: Arc<Self>, why: Notification) {
        match why {
            Notification::LookAgain | Notification::Reconnected => {
                self.forget_watch(&mut self.state.lock());
                self.wake();
            }
            // One that is still joining has a time of its own.
            Notification::Routine if self.znode().is_none() => {}
            Notification::Routine => self.wake(),
            Notification::Suspended => self.log_suspension(),
            Notification::CheckLease => {
                let over = {
                    let held_under = self.held_under.lock();
                    held_under.as_ref().is_some_and(|term| !term.covers(self.core.now()))
                };
                if over {
                    self.lose_lease();
                }
            }
            Notification::SessionEnded(reason) => self.lose(reason),
        }
    }
}

impl ListingReader for Request {
    fn take(self: Arc<Self>, listing: &Arc<Listing>) {
        {
            let mut state = self.state.lock();
            if !matches!(state.phase, Phase::Queued { .. }) {
                return;
            }
            state.listing = Some(Arc::clone(listing));
        }
        self.wake();
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("dir", &self.spec.dir)
            .field("znode", &self.znode())
            .finish_non_exhaustive()
    }
}
