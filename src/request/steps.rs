//! How a worker moves a request on: join, look where it stands, wait, own, look again.
//!
//! Origin: the Java class `WriteLock.LockZooKeeperOperation`, whose `execute` is `join` and `evaluate` here.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Event, Phase, Request, RequestSpec};
use crate::client::{ZkError, ZkResult};
use crate::error::{LockError, LossReason, Operation};
use crate::logging;
use crate::panics::contain;
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::{Decision, decide, find_duplicate, find_own};
use crate::recipe::revocation;
use crate::session::{Core, LeaseEpoch, Listing, Listings, Priority, Runner, Target, Task, WatchOutcome};

/// How long a lock must be held before its own znode is watched, which costs a round trip that a short hold is spared.
/// A deletion by another is noticed within this time and the server's word.
const OWN_WATCH_DELAY: Duration = Duration::from_millis(100);

/// How often a znode that may not be read is looked at, in place of a watch that a server may not report.
const UNREADABLE_LOOK: Duration = Duration::from_secs(1);

/// How soon a look that failed is tried again, at least, whatever the retry policy.
const MIN_RETRY: Duration = Duration::from_millis(10);

/// How soon a request whose turn has come looks again for the session's proof of life.
const LEASE_LOOK: Duration = Duration::from_millis(100);

/// What to do next after a step.
#[derive(PartialEq, Eq)]
enum Next {
    Again,
    Park,
}

impl Task for Request {
    fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn with_runner<T>(&self, access: impl FnOnce(&mut Runner) -> T) -> T {
        access(&mut self.state.lock().runner)
    }

    fn claim(&self) -> Option<Priority> {
        let mut state = self.state.lock();
        let is_owner = matches!(state.phase, Phase::Owner { .. });
        let priority = if is_owner { Priority::Owner } else { Priority::Other };
        state.runner.claim().then_some(priority)
    }

    fn run(self: Arc<Self>) {
        while self.step_contained() == Next::Again || self.with_runner(Runner::finish) {}
        self.deliver_soon();
        if self.has_come_to_rest() {
            self.core.leave(self.id);
        }
    }
}

impl Request {
    /// Whether the request has ended and nobody moves it. Another worker may have begun to since, which may have
    /// something to delete, and leaves then.
    fn has_come_to_rest(&self) -> bool {
        self.with_runner(|runner| runner.was_stopped() && !runner.is_running())
    }

    /// Makes a step. What a step that panics has sent is as unknown as after a lost reply.
    fn step_contained(self: &Arc<Self>) -> Next {
        contain(|| self.step()).unwrap_or_else(|message| {
            let dir = &self.spec.dir;
            logging::error!("a request in {dir} panicked, and looks again: {message}");
            let is_placed = matches!(self.state.lock().phase, Phase::Queued { .. } | Phase::Owner { .. });
            match is_placed {
                true => self.look_failed(Operation::LIST, dir, ZkError::ConnectionLoss),
                false => self.join_failed(Operation::CREATE, ZkError::ConnectionLoss),
            }
        })
    }

    fn step(self: &Arc<Self>) -> Next {
        enum Step {
            Join { unconfirmed: bool },
            Evaluate(ZNodePath),
            WaitFor(ZNodePath),
            Verify(ZNodePath),
        }
        let step = {
            let state = self.state.lock();
            match &state.phase {
                Phase::Joining(joining) => Step::Join { unconfirmed: joining.unconfirmed },
                Phase::Queued { znode, .. } => match &state.watched {
                    None => Step::Evaluate(znode.clone()),
                    Some(ahead) => Step::WaitFor(ahead.clone()),
                },
                Phase::Owner { znode, .. } => Step::Verify(znode.clone()),
                Phase::Ended { .. } => return Next::Park,
            }
        };
        match step {
            Step::Join { unconfirmed: true } => self.find_again(),
            Step::Join { unconfirmed: false } => self.join(),
            Step::Evaluate(znode) => self.evaluate(&znode),
            Step::WaitFor(ahead) => self.wait_for(&ahead),
            Step::Verify(znode) => self.verify(&znode),
        }
    }

    /// Creates the znode, and its parents where they are missing, and looks where it stands.
    fn join(self: &Arc<Self>) -> Next {
        let RequestSpec { dir, prefix, data, acl, .. } = &self.spec;
        let term = self.core.current_epoch();
        match self.core.write(|client| client.create_and_list(dir.as_str(), prefix, data, acl)) {
            Ok((path, listed)) => {
                let znode = ZNodePath::from_server(path);
                if !self.joined(&znode) {
                    return Next::Park;
                }
                self.decide(&znode, &Listing { term, children: listed })
            }
            Err(ZkError::NoNode) => match self.core.ensure_path(dir, acl) {
                Ok(()) => Next::Again,
                Err(ZkError::NoNode) => {
                    let (operation, path) = (Operation::CREATE.name, dir.to_string());
                    self.fail(LockError::NoChroot { operation, path });
                    Next::Park
                }
                Err(error) => self.join_failed(Operation::CREATE, error),
            },
            Err(error) => self.join_failed(Operation::CREATE, error),
        }
    }

    /// Looks for the znode of a create whose reply was lost, so that there are never two for one request.
    fn find_again(self: &Arc<Self>) -> Next {
        let RequestSpec { dir, prefix, .. } = &self.spec;
        let term = self.core.current_epoch();
        let listed = match self.core.list_after_write(dir) {
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
        logging::debug!("found {znode} again, whose creation was not confirmed");
        if !self.joined(&znode) {
            return Next::Park;
        }
        self.decide(&znode, &Listing { term, children: Ok(listed) })
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
        drop(state);
        logging::info!("joined {znode}");
        true
    }

    fn join_failed(self: &Arc<Self>, operation: Operation, error: ZkError) -> Next {
        if error == ZkError::SessionExpired {
            // The end of the session ends the request, and says why.
            return Next::Park;
        }
        if !error.is_transient() {
            self.fail(LockError::client(operation, &self.spec.dir, error));
            return Next::Park;
        }
        let mut state = self.state.lock();
        state.reply_lost = true;
        let Phase::Joining(joining) = &mut state.phase else {
            // Given up while the create was under way: whoever did so left the znode to us.
            drop(state);
            self.core.remove(self.all_znodes(), None);
            return Next::Park;
        };
        joining.unconfirmed = true;
        let error = LockError::client(operation, &self.spec.dir, error);
        let message = error.to_string();
        let next = joining.failed.failed(error, &self.spec.retry, &self.core);
        let attempts = joining.failed.failures();
        drop(state);
        logging::debug!("attempt {attempts} to join {} failed: {message}", self.spec.dir);
        match next {
            Ok(delay) => self.wake_after(delay),
            Err(first_error) => {
                self.core.remove(self.all_znodes(), None);
                self.fail(first_error);
            }
        }
        Next::Park
    }

    /// Lists the queue and acts on what it says. If others have a listing under way, the next one
    /// brings the request here again.
    fn evaluate(self: &Arc<Self>, znode: &ZNodePath) -> Next {
        let brought = self.state.lock().listing.take();
        let listing = brought.or_else(|| {
            let reader: Weak<Request> = Arc::downgrade(self);
            Listings::list(&self.core, &self.spec.dir, self.id, reader)
        });
        match listing {
            Some(listing) => self.decide(znode, &listing),
            None => Next::Park,
        }
    }

    fn decide(self: &Arc<Self>, znode: &ZNodePath, listing: &Listing) -> Next {
        let children = match &listing.children {
            Ok(children) => children.as_slice(),
            Err(ZkError::NoNode) => &[],
            Err(error) => return self.look_failed(Operation::LIST, &self.spec.dir, *error),
        };
        if let Some(duplicate) = find_duplicate(&self.spec.prefix, znode.name(), children) {
            return self.delete_duplicate(duplicate);
        }
        match decide(self.spec.access, znode.name(), children) {
            Decision::Owner => self.acquire(znode, &listing.term),
            Decision::Exhausted => {
                self.fail(LockError::SequenceExhausted { path: znode.to_string() });
                Next::Park
            }
            Decision::WaitFor(ahead) => self.wait_for(&self.spec.dir.child(ahead)),
            Decision::Missing => {
                self.lose(LossReason::NodeDeleted);
                Next::Park
            }
        }
    }

    /// Takes the lock under the term that was current before the queue was listed.
    fn acquire(self: &Arc<Self>, znode: &ZNodePath, term: &Arc<LeaseEpoch>) -> Next {
        if !Arc::ptr_eq(term, &self.core.current_epoch()) {
            // Contact was lost since: the listing may be from before, and the znode gone.
            return Next::Again;
        }
        if !self.core.admits_owners(term) {
            return self.await_lease(znode, term);
        }
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Queued { .. }) {
            return Next::Park;
        }
        state.phase = Phase::Owner { znode: znode.clone(), told_of_revocation: false };
        *self.held_under.lock() = Some(Arc::clone(term));
        self.observer.post(Event::Acquired);
        state.awaited = None;
        drop(state);
        logging::info!("acquired {znode}");
        self.wake_after(OWN_WATCH_DELAY);
        Next::Park
    }

    /// It is this request's turn, but the session is not proven alive, or not for long enough: that takes a request and its
    /// confirmation.
    fn await_lease(self: &Arc<Self>, znode: &ZNodePath, term: &Arc<LeaseEpoch>) -> Next {
        match self.core.prove_life() {
            Ok(()) if self.core.admits_owners(term) => Next::Again,
            Ok(()) => {
                self.wake_after(LEASE_LOOK);
                Next::Park
            }
            Err(error) => self.look_failed(Operation::WATCH, znode, error),
        }
    }

    /// Watches the one ahead, and nobody else: one release wakes one waiter.
    fn wait_for(self: &Arc<Self>, ahead: &ZNodePath) -> Next {
        let sight = match self.watch(ahead) {
            Ok(sight) => sight,
            Err(error) => return self.look_failed(Operation::WATCH, ahead, error),
        };
        if sight == WatchOutcome::Gone {
            // It went between the listing and the watch. The Java recipe waits for ever here.
            self.forget_watch(&mut self.state.lock());
            return Next::Again;
        }
        if let Some(znode) = self.placed() {
            logging::debug!("{znode} waits for {ahead}");
        }
        let is_persistent = matches!(sight, WatchOutcome::Watched { is_persistent: true, .. });
        if is_persistent && self.core.mentions_first(ahead) {
            logging::warn!("requests wait for {ahead}, which is persistent: no session's end deletes it");
        }
        Next::Park
    }

    /// Takes note that the request stands behind another; returns its znode when that is news.
    fn placed(&self) -> Option<ZNodePath> {
        let mut state = self.state.lock();
        let Phase::Queued { seen, znode } = &mut state.phase else { return None };
        let is_news = !std::mem::replace(seen, true);
        let znode = is_news.then(|| znode.clone());
        state.awaited = None;
        znode
    }

    /// A create that had seemed lost came through after all, next to its repetition. It would block others, or us.
    fn delete_duplicate(self: &Arc<Self>, name: &str) -> Next {
        let duplicate = self.spec.dir.child(name);
        logging::warn!("deleting {duplicate}, a second znode of one request");
        match self.core.write(|client| client.delete(duplicate.as_str(), None)) {
            Ok(()) | Err(ZkError::NoNode) => Next::Again,
            Err(error) => self.look_failed(Operation::DELETE, &duplicate, error),
        }
    }

    /// Looks whether an owner's znode is still there, watches it, and takes over the session's current term if so.
    fn verify(self: &Arc<Self>, znode: &ZNodePath) -> Next {
        let term = self.core.current_epoch();
        let sight = match self.watch(znode) {
            Ok(sight) => sight,
            Err(error) => return self.look_failed(Operation::WATCH, znode, error),
        };
        match sight {
            WatchOutcome::Gone => self.lose(LossReason::NodeDeleted),
            _ if !self.renew(&term) => self.lose_lease(),
            WatchOutcome::Watched { data, version, .. } if revocation::is_requested(&data, version) => {
                self.tell_of_revocation();
            }
            WatchOutcome::Watched { .. } | WatchOutcome::Unreadable => {}
        }
        Next::Park
    }

    /// Tells the owner, once, that somebody asks it to let go.
    fn tell_of_revocation(&self) {
        let mut state = self.state.lock();
        let Phase::Owner { znode, told_of_revocation } = &mut state.phase else { return };
        if std::mem::replace(told_of_revocation, true) {
            return;
        }
        self.observer.post(Event::RevocationRequested);
        let znode = znode.clone();
        drop(state);
        logging::info!("somebody asks to release {znode}");
    }

    /// An owner whose lease has lasted until now goes on under the term of the contact in which its znode was seen;
    /// `false` when it has not lasted.
    fn renew(&self, term: &Arc<LeaseEpoch>) -> bool {
        let now = self.core.now();
        let mut held_under = self.held_under.lock();
        match &mut *held_under {
            Some(held) if !held.covers(now) => false,
            Some(held) => {
                if term.covers(now) {
                    *held = Arc::clone(term);
                }
                true
            }
            // Ended meanwhile.
            None => true,
        }
    }

    fn watch(self: &Arc<Self>, path: &ZNodePath) -> ZkResult<WatchOutcome> {
        let before = {
            let mut state = self.state.lock();
            if matches!(state.phase, Phase::Ended { .. }) {
                return Ok(WatchOutcome::Gone);
            }
            state.watched.replace(path.clone())
        };
        if let Some(before) = before.filter(|before| before != path) {
            self.core.registry().unwatch(&before, self.id);
        }
        let sight = self.core.watch(path, self.id);
        // It may have ended, or been woken, while the call was under way, which had registered it
        // again.
        let is_watched = self.state.lock().watched.as_ref() == Some(path);
        if !is_watched {
            self.core.registry().unwatch(path, self.id);
        }
        let sight = sight?;
        if sight == WatchOutcome::Unreadable {
            self.wake_after(UNREADABLE_LOOK);
        }
        Ok(sight)
    }

    /// A look at the queue failed. With contact lost, the reconnect wakes the request; without a better answer it ends.
    fn look_failed(self: &Arc<Self>, operation: Operation, path: &ZNodePath, error: ZkError) -> Next {
        match error {
            // The end of the session ends the request, and says why.
            ZkError::SessionExpired => {}
            error if !error.is_transient() => self.fail(LockError::client(operation, path, error)),
            _ if self.core.in_contact() => {
                self.wake_after(self.spec.retry.delay().max(MIN_RETRY));
            }
            _ => {}
        }
        Next::Park
    }

    /// Has a callback thread deliver what was posted.
    pub(super) fn deliver_soon(&self) {
        if self.observer.has_callbacks() {
            let observer = Arc::clone(&self.observer);
            self.core.submit_callback(move || observer.deliver());
        }
    }
}
