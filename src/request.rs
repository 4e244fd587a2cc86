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

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use parking_lot::{Condvar, Mutex};
use zookeeper::{Acl, ZkError, ZkResult};

use crate::error::{LockError, LossReason, Operation, Result};
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::{Decision, find_own};
use crate::retry::RetryPolicy;
use crate::session::{Core, Participant, ParticipantId, Session, Sight, Target, Term, Wake};

/// How long a lock must be held before its own znode is watched, which costs a round trip that a short hold is spared.
/// A deletion by another is noticed within this time and the server's word.
const OWN_WATCH_DELAY: Duration = Duration::from_millis(100);

/// How often a znode that may not be read is looked at, in place of a watch that a server may not report.
const UNREADABLE_LOOK: Duration = Duration::from_secs(1);

/// What a kind of lock asks for, fixed for one request.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) dir: ZNodePath,
    /// The name of the znode up to its sequence number, with a GUID: no other request has it.
    pub(crate) prefix: String,
    pub(crate) data: Arc<[u8]>,
    pub(crate) acl: Arc<[Acl]>,
    pub(crate) retry: RetryPolicy,
    pub(crate) decide: for<'a> fn(&str, &'a [String]) -> Decision<'a>,
}

/// What happens to a request, as its lock hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Acquired,
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

    /// Passes on what was posted, outside every lock.
    fn hand_on(&self);
}

pub(crate) struct Request {
    id: ParticipantId,
    core: Arc<Core>,
    terms: Terms,
    observer: Arc<dyn Observer>,
    state: Mutex<State>,
    /// Signalled when the request is placed or has ended.
    settled: Condvar,
    /// The term under which the lock is held; apart from the state, as it is asked for before every action of an owner.
    held_under: Mutex<Option<Arc<Term>>>,
}

struct State {
    phase: Phase,
    /// Whether a worker is moving the request, and whether it must look once more before it parks.
    moving: bool,
    again: bool,
    watched: Option<ZNodePath>,
    /// Why a request ended that could not be carried on; for whoever waits for it.
    error: Option<LockError>,
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
    },
    Ended {
        znode: Option<ZNodePath>,
        how: Ending,
    },
}

#[derive(Default)]
struct Joining {
    /// A create was sent and its reply lost: the znode may be there.
    unconfirmed: bool,
    failures: u32,
    first_error: Option<LockError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Withdrawn,
    Lost(LossReason),
    Failed,
}

/// What is left to do about a request that has just ended.
struct Rest {
    left_behind: Option<Target>,
    /// Whether a worker is at it.
    still_moving: bool,
}

/// What one asks to know of a request that has been started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Owner,
    Queued,
}

/// What to do next after a step.
#[derive(PartialEq, Eq)]
enum Next {
    Again,
    Park,
}

impl Request {
    /// Makes a request, which does nothing until it is [started](Request::start).
    pub(crate) fn new(session: &Session, terms: Terms, observer: Arc<dyn Observer>) -> Arc<Request> {
        let core = Arc::clone(session.core());
        Arc::new(Request {
            id: core.participants().new_id(),
            core,
            terms,
            observer,
            state: Mutex::new(State {
                phase: Phase::Joining(Joining::default()),
                moving: false,
                again: false,
                watched: None,
                error: None,
            }),
            settled: Condvar::new(),
            held_under: Mutex::new(None),
        })
    }

    /// Starts the request. It goes on by itself; [`Request::withdraw`] ends it.
    pub(crate) fn start(self: &Arc<Self>) {
        self.core.join(self.id, Arc::<Request>::clone(self));
        if !self.begin_to_move() {
            return;
        }
        if self.core.runtime().is_own_thread() {
            // A listener's call: it must not wait for another worker.
            return Arc::clone(self).run();
        }
        Arc::clone(self).run_soon();
    }

    // ---- what the lock asks

    pub(crate) fn is_owner(&self) -> bool {
        let held_under = self.held_under.lock();
        held_under.as_ref().is_some_and(|term| term.covers(self.core.now()))
    }

    /// The znode, once it is known.
    pub(crate) fn znode(&self) -> Option<ZNodePath> {
        match &self.state.lock().phase {
            Phase::Joining(_) => None,
            Phase::Queued { znode, .. } | Phase::Owner { znode } => Some(znode.clone()),
            Phase::Ended { znode, .. } => znode.clone(),
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Ended { .. })
    }

    /// Waits until the request owns the lock or is known to stand behind another; `None` when it was withdrawn meanwhile.
    pub(crate) fn wait_until_placed(&self) -> Result<Option<Standing>> {
        let mut state = self.state.lock();
        loop {
            match &state.phase {
                Phase::Owner { .. } => return Ok(Some(Standing::Owner)),
                Phase::Queued { seen: true, .. } => return Ok(Some(Standing::Queued)),
                Phase::Ended { how: Ending::Withdrawn, .. } => return Ok(None),
                Phase::Ended { .. } => return Err(self.take_error(&mut state)),
                Phase::Joining(_) | Phase::Queued { .. } => self.settled.wait(&mut state),
            }
        }
    }

    /// Why the request ended.
    pub(crate) fn end_error(&self) -> LockError {
        self.take_error(&mut self.state.lock())
    }

    fn take_error(&self, state: &mut State) -> LockError {
        if let Some(error) = state.error.take() {
            return error;
        }
        let (operation, path) = (Operation::LOCK.name, self.name_of(state));
        match &state.phase {
            Phase::Ended { how: Ending::Lost(LossReason::NodeDeleted), .. } => {
                LockError::RequestDeleted { path }
            }
            Phase::Ended { how: Ending::Lost(LossReason::SessionClosed), .. } => {
                LockError::Closed { operation, path }
            }
            Phase::Ended { how: Ending::Lost(reason), .. } => {
                LockError::SessionLost { operation, path, reason: *reason }
            }
            _ => LockError::NotOwner { operation, path },
        }
    }

    /// The znode's path for a message, or what is known of it.
    fn name_of(&self, state: &State) -> String {
        match &state.phase {
            Phase::Queued { znode, .. }
            | Phase::Owner { znode }
            | Phase::Ended { znode: Some(znode), .. } => znode.to_string(),
            _ => self.terms.dir.to_string(),
        }
    }

    // ---- ending

    /// Ends the request and deletes its znode, in the background if need be. The first outcome of the deletion is told to
    /// `first`. Does nothing when the request has ended.
    ///
    /// Nothing is handed on here: the caller does so, when it holds no lock of its own.
    pub(crate) fn withdraw(&self, first: Option<Sender<ZkResult<()>>>) {
        let mut state = self.state.lock();
        let was_owner = matches!(state.phase, Phase::Owner { .. });
        let Some(rest) = self.end(&mut state, Ending::Withdrawn) else { return };
        if was_owner {
            self.observer.post(Event::Released);
            log::info!("released {}", self.name_of(&state));
        }
        drop(state);
        self.clean_up(rest, first);
    }

    /// Ends the request because the lock or the place in the queue was taken away.
    fn lose(self: &Arc<Self>, reason: LossReason) {
        let mut state = self.state.lock();
        let was_owner = matches!(state.phase, Phase::Owner { .. });
        let Some(rest) = self.end(&mut state, Ending::Lost(reason)) else { return };
        self.observer.post(if was_owner { Event::Lost(reason) } else { Event::Dropped(reason) });
        let name = self.name_of(&state);
        drop(state);
        log::warn!("{} {name}: {reason}", if was_owner { "lost" } else { "dropped from the queue:" });
        self.clean_up(rest, None);
    }

    fn fail(&self, error: LockError) {
        let mut state = self.state.lock();
        let was_owner = matches!(state.phase, Phase::Owner { .. });
        let Some(rest) = self.end(&mut state, Ending::Failed) else { return };
        let reason = LossReason::Refused;
        self.observer.post(if was_owner { Event::Lost(reason) } else { Event::Dropped(reason) });
        log::warn!("request in {} failed: {error}", self.terms.dir);
        state.error = Some(error);
        drop(state);
        self.clean_up(rest, None);
    }

    /// Makes the request an ended one and returns what is left to do about it; `None` when it had ended before.
    fn end(&self, state: &mut State, how: Ending) -> Option<Rest> {
        let (left_behind, znode) = match &state.phase {
            Phase::Ended { .. } => return None,
            // A worker that is at work on the create sees the ending when it comes back, and cleans up itself.
            Phase::Joining(joining) if joining.unconfirmed && !state.moving => {
                (Some(self.unconfirmed()), None)
            }
            Phase::Joining(_) => (None, None),
            Phase::Queued { znode, .. } | Phase::Owner { znode } => {
                (Some(Target::ZNode(znode.clone())), Some(znode.clone()))
            }
        };
        *self.held_under.lock() = None;
        state.phase = Phase::Ended { znode, how };
        if let Some(watched) = state.watched.take() {
            self.core.participants().unwatch(&watched, self.id);
        }
        self.settled.notify_all();
        Some(Rest { left_behind, still_moving: state.moving })
    }

    fn clean_up(&self, rest: Rest, first: Option<Sender<ZkResult<()>>>) {
        if let Some(target) = rest.left_behind {
            self.core.remove(target, first);
        }
        // Only then: a session that outlives us is let go when the last participant has left. A worker that moves the
        // request may have a deletion to add, so it leaves itself.
        if !rest.still_moving {
            self.core.leave(self.id);
        }
    }

    /// The znode of a create whose reply was lost.
    fn unconfirmed(&self) -> Target {
        Target::Child { dir: self.terms.dir.clone(), prefix: self.terms.prefix.clone() }
    }

    // ---- moving on, on a worker

    fn run(self: Arc<Self>) {
        while self.step() == Next::Again || self.must_look_again() {}
        self.observer.hand_on();
        if self.has_ended() {
            self.core.leave(self.id);
        }
    }

    /// Called when there is nothing to do: parks the request, unless it was woken meanwhile.
    fn must_look_again(&self) -> bool {
        let mut state = self.state.lock();
        let again = std::mem::take(&mut state.again) && !matches!(state.phase, Phase::Ended { .. });
        state.moving = again;
        again
    }

    fn step(self: &Arc<Self>) -> Next {
        enum Step {
            Join { unconfirmed: bool },
            Evaluate(ZNodePath),
            Verify(ZNodePath),
        }
        let step = {
            let state = self.state.lock();
            match &state.phase {
                Phase::Joining(joining) => Step::Join { unconfirmed: joining.unconfirmed },
                Phase::Queued { znode, .. } => Step::Evaluate(znode.clone()),
                Phase::Owner { znode } => Step::Verify(znode.clone()),
                Phase::Ended { .. } => return Next::Park,
            }
        };
        match step {
            Step::Join { unconfirmed: true } => self.find_again(),
            Step::Join { unconfirmed: false } => self.join(),
            Step::Evaluate(znode) => self.evaluate(&znode),
            Step::Verify(znode) => self.verify(&znode),
        }
    }

    /// Creates the znode, and its parents where they are missing, and looks where it stands.
    fn join(self: &Arc<Self>) -> Next {
        let Terms { dir, prefix, data, acl, .. } = &self.terms;
        let term = self.core.current_term();
        match self.core.write(|client| client.create_and_list(dir.as_str(), prefix, data, acl)) {
            Ok((path, listed)) => {
                let znode = ZNodePath::from_server(path);
                if self.joined(&znode) { self.decide(&znode, &term, listed) } else { Next::Park }
            }
            Err(ZkError::NoNode) => match self.core.ensure_path(dir, acl) {
                Ok(()) => Next::Again,
                Err(error) => self.join_failed(Operation::CREATE, error),
            },
            Err(error) => self.join_failed(Operation::CREATE, error),
        }
    }

    /// Looks for the znode of a create whose reply was lost, so that there are never two for one request.
    fn find_again(self: &Arc<Self>) -> Next {
        let Terms { dir, prefix, .. } = &self.terms;
        let term = self.core.current_term();
        let listed = match self.core.read(|client| client.get_children(dir.as_str(), false)) {
            Ok(children) => children,
            Err(ZkError::NoNode) => Vec::new(),
            Err(error) => return self.join_failed(Operation::LIST, error),
        };
        let Some(name) = find_own(prefix, &listed) else {
            if let Phase::Joining(joining) = &mut self.state.lock().phase {
                joining.unconfirmed = false;
            }
            return Next::Again;
        };
        let znode = dir.child(name);
        log::debug!("found {znode} again, whose creation was not confirmed");
        if self.joined(&znode) { self.decide(&znode, &term, Ok(listed)) } else { Next::Park }
    }

    /// Takes up the znode; `false` when the request was given up meanwhile, and the znode is deleted again.
    fn joined(self: &Arc<Self>, znode: &ZNodePath) -> bool {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Ended { .. }) {
            drop(state);
            self.core.remove(Target::ZNode(znode.clone()), None);
            return false;
        }
        state.phase = Phase::Queued { znode: znode.clone(), seen: false };
        log::debug!("joined {znode}");
        true
    }

    fn join_failed(self: &Arc<Self>, operation: Operation, error: ZkError) -> Next {
        if !is_passing(error) {
            // An expiry has ended the request by now, in its own words.
            self.fail(LockError::client(operation, &self.terms.dir, error));
            return Next::Park;
        }
        let mut state = self.state.lock();
        let Phase::Joining(joining) = &mut state.phase else {
            // Given up while the create was under way: whoever did so left the znode to us.
            drop(state);
            self.core.remove(self.unconfirmed(), None);
            return Next::Park;
        };
        joining.unconfirmed = true;
        joining.failures += 1;
        let failures = joining.failures;
        let error = LockError::client(operation, &self.terms.dir, error);
        log::debug!("attempt {failures} to join {} failed: {error}", self.terms.dir);
        let first_error = joining.first_error.take().unwrap_or(error);
        match self.terms.retry.delay_after(failures) {
            Some(delay) => {
                joining.first_error = Some(first_error);
                drop(state);
                self.look_again_after(delay);
            }
            None => {
                drop(state);
                self.core.remove(self.unconfirmed(), None);
                self.fail(first_error);
            }
        }
        Next::Park
    }

    /// Lists the queue and acts on what it says.
    fn evaluate(self: &Arc<Self>, znode: &ZNodePath) -> Next {
        let term = self.core.current_term();
        let listed = self.core.read(|client| client.get_children(self.terms.dir.as_str(), false));
        self.decide(znode, &term, listed)
    }

    fn decide(self: &Arc<Self>, znode: &ZNodePath, term: &Arc<Term>, listed: ZkResult<Vec<String>>) -> Next {
        let children = match listed {
            Ok(children) => children,
            Err(ZkError::NoNode) => Vec::new(),
            Err(error) => return self.look_failed(Operation::LIST, &self.terms.dir, error),
        };
        match (self.terms.decide)(znode.name(), &children) {
            Decision::Owner => self.acquire(znode, term),
            Decision::WaitFor(ahead) if ahead.starts_with(&self.terms.prefix) => self.delete_duplicate(ahead),
            Decision::WaitFor(ahead) => self.wait_for(&self.terms.dir.child(ahead)),
            Decision::Missing => {
                self.lose(LossReason::NodeDeleted);
                Next::Park
            }
        }
    }

    /// Takes the lock under the term that was current before the queue was listed.
    fn acquire(self: &Arc<Self>, znode: &ZNodePath, term: &Arc<Term>) -> Next {
        if !Arc::ptr_eq(term, &self.core.current_term()) {
            // Contact was lost since: the listing may be from before, and the znode gone.
            return Next::Again;
        }
        if !term.covers(self.core.now()) {
            return match self.core.prove_life() {
                Ok(()) => Next::Again,
                Err(error) => self.look_failed(Operation::WATCH, znode, error),
            };
        }
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Queued { .. }) {
            return Next::Park;
        }
        state.phase = Phase::Owner { znode: znode.clone() };
        *self.held_under.lock() = Some(Arc::clone(term));
        self.observer.post(Event::Acquired);
        self.settled.notify_all();
        drop(state);
        log::info!("acquired {znode}");
        self.look_again_after(OWN_WATCH_DELAY);
        Next::Park
    }

    /// Watches the one ahead, and nobody else: one release wakes one waiter.
    fn wait_for(self: &Arc<Self>, ahead: &ZNodePath) -> Next {
        match self.watch(ahead) {
            Ok(Sight::Watched | Sight::Unreadable) => {
                let mut state = self.state.lock();
                if let Phase::Queued { seen, znode } = &mut state.phase {
                    if !std::mem::replace(seen, true) {
                        log::debug!("{znode} waits for {ahead}");
                    }
                    self.settled.notify_all();
                }
                Next::Park
            }
            // It went between the listing and the watch. The Java recipe waits for ever here.
            Ok(Sight::Gone) => Next::Again,
            Err(error) => self.look_failed(Operation::WATCH, ahead, error),
        }
    }

    /// A create that had seemed lost came through after all, next to its repetition: the earlier znode blocks our own.
    fn delete_duplicate(self: &Arc<Self>, name: &str) -> Next {
        let duplicate = self.terms.dir.child(name);
        log::warn!("deleting {duplicate}, a second znode of one request");
        match self.core.write(|client| client.delete(duplicate.as_str(), None)) {
            Ok(()) | Err(ZkError::NoNode) => Next::Again,
            Err(error) => self.look_failed(Operation::DELETE, &duplicate, error),
        }
    }

    /// Looks whether an owner's znode is still there, watches it, and takes over the session's current term if so.
    fn verify(self: &Arc<Self>, znode: &ZNodePath) -> Next {
        let term = self.core.current_term();
        match self.watch(znode) {
            Ok(Sight::Watched | Sight::Unreadable) => {
                self.renew(&term);
                Next::Park
            }
            Ok(Sight::Gone) => {
                self.lose(LossReason::NodeDeleted);
                Next::Park
            }
            Err(error) => self.look_failed(Operation::WATCH, znode, error),
        }
    }

    /// An owner whose lease has lasted until now goes on under the term of the contact in which its znode was seen.
    fn renew(&self, term: &Arc<Term>) {
        let now = self.core.now();
        if let Some(held_under) = &mut *self.held_under.lock() {
            if held_under.covers(now) && term.covers(now) {
                *held_under = Arc::clone(term);
            }
        }
    }

    fn watch(self: &Arc<Self>, path: &ZNodePath) -> ZkResult<Sight> {
        let before = {
            let mut state = self.state.lock();
            if matches!(state.phase, Phase::Ended { .. }) {
                return Ok(Sight::Gone);
            }
            state.watched.replace(path.clone())
        };
        if let Some(before) = before.filter(|before| before != path) {
            self.core.participants().unwatch(&before, self.id);
        }
        let sight = self.core.watch(path, self.id)?;
        if sight == Sight::Unreadable {
            self.look_again_after(UNREADABLE_LOOK);
        }
        Ok(sight)
    }

    /// A look at the queue failed. With contact lost, the reconnect wakes the request; without a better answer it ends.
    fn look_failed(self: &Arc<Self>, operation: Operation, path: &ZNodePath, error: ZkError) -> Next {
        if is_passing(error) {
            if self.core.in_contact() {
                self.look_again_after(self.terms.retry.delay());
            }
        } else {
            self.fail(LockError::client(operation, path, error));
        }
        Next::Park
    }

    fn look_again_after(self: &Arc<Self>, delay: Duration) {
        let weak = Arc::downgrade(self);
        self.core.at(self.core.now().after(delay), move |_| {
            if let Some(request) = weak.upgrade() {
                request.wake(Wake::LookAgain);
            }
        });
    }

    fn look(self: Arc<Self>) {
        if self.begin_to_move() {
            self.run_soon();
        }
    }

    /// Claims the moving of the request; `false` when it has ended, or when somebody is at it and will look once more.
    fn begin_to_move(&self) -> bool {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Ended { .. }) {
            return false;
        }
        state.again = state.moving;
        !std::mem::replace(&mut state.moving, true)
    }

    fn run_soon(self: Arc<Self>) {
        let core = Arc::clone(&self.core);
        core.submit(move |_| self.run());
    }

    fn hand_on_soon(self: Arc<Self>) {
        let core = Arc::clone(&self.core);
        core.submit(move |_| self.observer.hand_on());
    }
}

impl Participant for Request {
    fn wake(self: Arc<Self>, why: Wake) {
        match why {
            Wake::LookAgain | Wake::Reconnected => self.look(),
            Wake::CheckLease => {
                let over = {
                    let held_under = self.held_under.lock();
                    held_under.as_ref().is_some_and(|term| !term.covers(self.core.now()))
                };
                if over {
                    self.lose(LossReason::LeaseExpired);
                    self.hand_on_soon();
                }
            }
            Wake::SessionEnded(reason) => {
                self.lose(reason);
                self.hand_on_soon();
            }
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("dir", &self.terms.dir)
            .field("znode", &self.znode())
            .finish_non_exhaustive()
    }
}

/// Whether the call may succeed when it is made again on this session.
fn is_passing(error: ZkError) -> bool {
    matches!(error, ZkError::ConnectionLoss | ZkError::OperationTimeout | ZkError::SessionMoved)
}
