//! The steps of a request, and the first of them: to join the queue. [`looks`](super::looks) has
//! those that follow: find the position, wait, own, check again.
//!
//! A step ends with a call to the server, whose outcome is taken up by the next function. The steps
//! run on the thread that wakes the request and on the client's, and must not block: what must block
//! goes to a worker.
//!
//! Origin: the Java class `WriteLock.LockZooKeeperOperation`, whose `execute` is `join` and
//! `evaluate` here.

use std::sync::Arc;
use std::time::Duration;

use super::{Phase, Request, RequestSpec};
use crate::client::{Ask, Call, CreateMode, Enqueued, Stat};
use crate::engine::lease::ConnectionNumber;
use crate::error::{LockError, Operation, ZkError, ZkResult};
use crate::logging;
use crate::panics::contain;
use crate::recipe::names::Names;
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::find_own;
use crate::session::{Core, Listing, Runner, Target, Task};
use crate::time::Priority;

/// The least delay before a failed look is repeated, whatever the retry policy.
const MIN_RETRY: Duration = Duration::from_millis(10);

/// The number of replies in a row that cannot be read after which a request gives up.
const MAX_UNREADABLE: u8 = 3;

/// The action after a step.
#[derive(PartialEq, Eq)]
pub(super) enum Next {
    Again,
    Park,
    /// A call is under way, or a worker at work, which goes on with the request.
    Pending,
}

/// A request whose next step waits for a worker. Without a worker, its session has ended, and so has
/// the request.
struct Suspended(Option<Arc<Request>>);

impl Suspended {
    fn resume(mut self) -> Option<Arc<Request>> {
        self.0.take()
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        if let Some(request) = self.0.take() {
            request.go_on(Next::Park);
        }
    }
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
        let priority = state.phase.priority();
        state.runner.claim().then_some(priority)
    }

    fn never_blocks(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>) {
        self.go_on(Next::Again);
    }
}

impl Request {
    /// Whether the request has ended and no worker moves it. A worker that has begun since may have
    /// a deletion to add; it then leaves for the request.
    fn has_come_to_rest(&self) -> bool {
        self.with_runner(|runner| runner.was_stopped() && !runner.is_running())
    }

    /// Makes steps until the request rests, or waits for an outcome.
    fn go_on(self: &Arc<Self>, mut next: Next) {
        loop {
            next = match next {
                Next::Again => self.contained(|| self.step()),
                Next::Park if self.with_runner(Runner::finish) => Next::Again,
                Next::Park => break,
                Next::Pending => return,
            };
        }
        self.deliver_soon();
        if self.has_come_to_rest() {
            self.core.leave(self.id);
        }
    }

    /// Makes a step. After a panic the outcome of its calls is as unknown as after a lost reply.
    fn contained(self: &Arc<Self>, step: impl FnOnce() -> Next) -> Next {
        contain(step).unwrap_or_else(|message| {
            let dir = &self.spec.dir;
            logging::error!("a request in {dir} panicked, and looks again: {message}");
            let is_placed = matches!(self.state.lock().phase, Phase::Queued { .. } | Phase::Owner { .. });
            match is_placed {
                true => self.look_failed(Operation::LIST, dir, ZkError::ConnectionLoss),
                false => self.join_failed(Operation::CREATE, ZkError::ConnectionLoss),
            }
        })
    }

    /// Makes a call, whose outcome is taken up by `then`.
    pub(super) fn call<T: 'static>(
        self: &Arc<Self>,
        ask: Ask<T>,
        then: impl FnOnce(&Arc<Self>, ZkResult<T>) -> Next + Send + 'static,
    ) -> Next {
        let request = Arc::clone(self);
        self.core.send(self.priority(), ask, move |outcome| {
            let next = request.contained(|| then(&request, outcome));
            request.go_on(next);
        });
        Next::Pending
    }

    fn priority(&self) -> Priority {
        self.state.lock().phase.priority()
    }

    /// Makes a step that blocks, on a worker.
    pub(super) fn block(self: &Arc<Self>, step: impl FnOnce(&Arc<Self>) -> Next + Send + 'static) -> Next {
        let suspended = Suspended(Some(Arc::clone(self)));
        self.core.submit(move |_| {
            let Some(request) = suspended.resume() else { return };
            let next = request.contained(|| step(&request));
            request.go_on(next);
        });
        Next::Pending
    }

    fn step(self: &Arc<Self>) -> Next {
        enum Step {
            Join { unconfirmed: bool },
            Lose,
            Evaluate(ZNodePath),
            Count(ZNodePath),
            TakeOver(ZNodePath, Option<ConnectionNumber>),
            WaitFor(ZNodePath),
            Verify(ZNodePath),
        }
        let present = self.core.connection();
        let (step, may_own) = {
            let mut state = self.state.lock();
            let may_own = !std::mem::take(&mut state.has_reconnected);
            let step = match &state.phase {
                Phase::Joining(joining) => Step::Join { unconfirmed: joining.unconfirmed },
                Phase::Queued { .. } | Phase::Owner { .. } if state.is_deleted => Step::Lose,
                Phase::Queued { znode, .. } => match &state.watched {
                    _ if state.ahead.is_nobody() => {
                        Step::TakeOver(znode.clone(), state.ahead.owns_by_event_on(present))
                    }
                    _ if self.spec.access.permits().is_some() => Step::Count(znode.clone()),
                    Some(ahead) if state.listing.is_none() && !state.ahead.is_outdated => {
                        Step::WaitFor(ahead.clone())
                    }
                    _ => Step::Evaluate(znode.clone()),
                },
                Phase::Owner { znode, .. } => Step::Verify(znode.clone()),
                Phase::Ended { .. } => return Next::Park,
            };
            (step, may_own)
        };
        match step {
            Step::Join { unconfirmed: true } => self.block(Request::find_again),
            Step::Join { unconfirmed: false } => self.join(),
            Step::Evaluate(znode) => self.evaluate(&znode, may_own),
            Step::Count(znode) => self.count(znode),
            Step::Lose => {
                self.lose_znode();
                Next::Park
            }
            Step::TakeOver(znode, Some(watched_on)) if self.core.admits_owners() => {
                self.acquire(&znode, watched_on)
            }
            Step::TakeOver(znode, _) => {
                // The reply to this write comes before that to the look.
                self.core.prove_beside();
                self.watch(znode, Request::take_over)
            }
            Step::WaitFor(ahead) => self.wait_for(ahead),
            Step::Verify(znode) => self.watch(znode, Request::verified),
        }
    }

    /// Creates the znode, and lists the queue unless a request of this session is ahead.
    fn join(self: &Arc<Self>) -> Next {
        let RequestSpec { dir, prefix, data, acl, access, .. } = &self.spec;
        if access.is_exclusive() && self.core.engine().is_in_queue(dir) {
            let (data, acl) = (Arc::clone(data), Arc::clone(acl));
            let create = Call::create(&dir.child(prefix), data, acl, CreateMode::EphemeralSequential);
            return self.call(create, |request, outcome| match outcome {
                Ok((path, stat)) => request.created(path, stat),
                Err(error) => request.not_created(error),
            });
        }
        let connection = self.core.connection();
        let enqueue = Call::create_and_list(dir, prefix.as_str(), Arc::clone(data), Arc::clone(acl));
        self.call(enqueue, move |request, outcome| match outcome {
            Ok(enqueued) => request.enqueued(enqueued, connection),
            Err(error) => request.not_created(error),
        })
    }

    fn not_created(self: &Arc<Self>, error: ZkError) -> Next {
        match error {
            ZkError::NoNode => self.block(Request::make_parents),
            error => self.join_failed(Operation::CREATE, error),
        }
    }

    /// Waits for the nearest request of this session. What else is ahead is known from the next
    /// listing.
    fn created(self: &Arc<Self>, path: String, stat: Option<Stat>) -> Next {
        let Some(znode) = self.joined(path, stat) else { return Next::Park };
        let Some(before) = self.core.engine().watch_before(&znode, self.id) else { return Next::Again };
        self.core.engine().share_next(&self.spec.dir, self.id);
        match self.set_watched(&before) {
            true => self.placed(&before),
            // It has ended meanwhile.
            false => self.core.engine().forget_reader(&self.spec.dir, self.id),
        }
        Next::Park
    }

    fn enqueued(self: &Arc<Self>, enqueued: Enqueued, connection: ConnectionNumber) -> Next {
        let Enqueued { path, stat, children } = enqueued;
        match self.joined(path, stat) {
            Some(znode) => {
                if let Ok(children) = &children {
                    self.warn_of_peers(&znode, children);
                }
                self.decide(&znode, &Listing::new(connection, children))
            }
            None => Next::Park,
        }
    }

    /// Creates the directory and its missing parents. Blocks.
    fn make_parents(self: &Arc<Self>) -> Next {
        let RequestSpec { dir, acl, directory_mode, .. } = &self.spec;
        match self.core.ensure_path(dir, acl, *directory_mode) {
            Ok(()) => Next::Again,
            Err(ZkError::NoNode) => {
                let (operation, path) = (Operation::CREATE.name, dir.to_string());
                self.fail(LockError::NoChroot { operation, path });
                Next::Park
            }
            Err(error) => self.join_failed(Operation::CREATE, error),
        }
    }

    /// Searches for the znode of a create whose reply was lost, so that a request never has two.
    /// Blocks.
    fn find_again(self: &Arc<Self>) -> Next {
        let RequestSpec { dir, prefix, .. } = &self.spec;
        let connection = self.core.connection();
        let listed = match self.core.list_after_write(dir) {
            Ok(children) => children,
            Err(ZkError::NoNode) => Names::default(),
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
        let stat = self.core.ask(Call::exists(&znode, false)).unwrap_or_default();
        match self.joined(znode.to_string(), stat) {
            Some(znode) => self.decide(&znode, &Listing::new(connection, Ok(listed))),
            None => Next::Park,
        }
    }

    /// Notes the znode; `None` when the request was given up meanwhile, and the znode is deleted
    /// again.
    fn joined(self: &Arc<Self>, path: String, stat: Option<Stat>) -> Option<ZNodePath> {
        if let Some(stat) = stat {
            let _ = self.fencing_token.set(stat.czxid);
        }
        let znode = ZNodePath::from_server(path);
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Ended { .. }) {
            drop(state);
            self.core.remove(Target::ZNode(znode), None);
            return None;
        }
        state.phase = Phase::Queued { znode: znode.clone(), seen: false };
        if self.spec.access.is_exclusive() {
            self.core.engine().joined(&znode);
        }
        drop(state);
        logging::info!("joined {znode}");
        Some(znode)
    }

    fn join_failed(self: &Arc<Self>, operation: Operation, error: ZkError) -> Next {
        let is_over = error == ZkError::SessionExpired;
        // A reply that cannot be read counts as lost: the znode may exist.
        let is_refused = !is_over && !error.is_transient();
        let reply_lost = !is_refused || error == ZkError::MarshallingError;
        let is_refused = is_refused && !self.tolerates(error);
        let mut state = self.state.lock();
        state.reply_lost |= reply_lost;
        if is_refused && !(reply_lost && matches!(state.phase, Phase::Ended { .. })) {
            drop(state);
            self.fail(LockError::client(operation, &self.spec.dir, error));
            return Next::Park;
        }
        let Phase::Joining(joining) = &mut state.phase else {
            // Given up while the create was under way, and the znode was left to this worker.
            drop(state);
            self.core.remove(self.all_znodes(), None);
            return Next::Park;
        };
        joining.unconfirmed = true;
        if is_over {
            // The end of the session ends the request, and gives the reason. It may have ended for
            // this process alone, with the znode left on the server.
            return Next::Park;
        }
        let error = LockError::client(operation, &self.spec.dir, error);
        let message = error.to_string();
        let next =
            joining.failed.failed(error, &self.spec.retry, self.core.now(), || self.core.random_unit());
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

    /// A look at the queue failed. The request looks again later, by the reconnect if contact was
    /// lost, or ends if the error is final.
    pub(super) fn look_failed(
        self: &Arc<Self>,
        operation: Operation,
        path: &ZNodePath,
        error: ZkError,
    ) -> Next {
        match error {
            // The end of the session ends the request, and gives the reason.
            ZkError::SessionExpired => {}
            error if !error.is_transient() && !self.tolerates(error) => {
                self.fail(LockError::client(operation, path, error));
            }
            _ if self.core.in_contact() => {
                self.wake_after(self.spec.retry.delay().max(MIN_RETRY));
            }
            _ => {}
        }
        Next::Park
    }

    /// Whether to look again after an error that is no outage. An owner does: its lease, not the
    /// look, says that it owns. A waiter does where a reply cannot be read, which it counts: the next
    /// one may be readable.
    fn tolerates(&self, error: ZkError) -> bool {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Owner { .. }) {
            return true;
        }
        if error != ZkError::MarshallingError {
            return false;
        }
        state.unreadable = state.unreadable.saturating_add(1);
        state.unreadable < MAX_UNREADABLE
    }

    /// Delivers the posted events on a callback thread.
    pub(super) fn deliver_soon(&self) {
        if self.observer.has_callbacks() {
            let observer = Arc::clone(&self.observer);
            self.core.submit_callback(move || observer.deliver());
        }
    }
}
