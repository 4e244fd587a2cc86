//! The steps of a request: join, find the position, wait, own, check again.
//!
//! A step ends with a call to the server, whose outcome is taken up by the next function. With a
//! client that blocks, a worker makes the steps one after the other. With a pipelined client the
//! steps run on the thread that wakes the request and on the client's, and must not block: what must
//! block goes to a worker.
//!
//! Origin: the Java class `WriteLock.LockZooKeeperOperation`, whose `execute` is `join` and
//! `evaluate` here.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Event, Phase, Request, RequestSpec};
use crate::client::{Done, Enqueued, PipelinedClient, ZkError, ZkResult};
use crate::error::{LockError, LossReason, Operation};
use crate::logging;
use crate::panics::contain;
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::{Decision, decide, find_duplicate, find_own};
use crate::recipe::revocation;
use crate::session::{
    Admission, CallKind, ConnectionNumber, Core, Listing, ListingReader, Listings, Priority, Runner, Target,
    Task, WatchOutcome,
};

/// How long a lock must be held before its own znode is watched. This saves a short hold a round
/// trip. A deletion by another client is noticed after this delay plus one server notification.
const OWN_WATCH_DELAY: Duration = Duration::from_millis(100);

/// The interval between looks at an unreadable znode, whose watch the server may not report.
const UNREADABLE_LOOK: Duration = Duration::from_secs(1);

/// The least delay before a failed look is repeated, whatever the retry policy.
const MIN_RETRY: Duration = Duration::from_millis(10);

/// The interval between checks for a proof of the session's life, for a request whose turn has
/// come.
const LEASE_LOOK: Duration = Duration::from_millis(100);

/// The action after a step.
#[derive(PartialEq, Eq)]
enum Next {
    Again,
    Park,
    /// A call is under way, or a worker at work, which goes on with the request.
    Pending,
}

/// What follows from a look at a znode, at this path and on this connection.
type AfterLook = fn(&Arc<Request>, ZNodePath, ConnectionNumber, WatchOutcome) -> Next;

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
        let is_owner = matches!(state.phase, Phase::Owner { .. });
        let priority = if is_owner { Priority::Owner } else { Priority::Other };
        state.runner.claim().then_some(priority)
    }

    fn never_blocks(&self) -> bool {
        self.core.is_pipelined()
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

    /// Makes a call. Its outcome is taken up by `then`: here if the client blocks, otherwise later.
    fn call<T: Send + 'static>(
        self: &Arc<Self>,
        kind: CallKind,
        call: impl FnOnce(&dyn PipelinedClient, Done<T>),
        then: impl FnOnce(&Arc<Self>, ZkResult<T>) -> Next + Send + 'static,
    ) -> Next {
        if !self.core.is_pipelined() {
            return then(self, self.core.make_blocking(kind, call));
        }
        let request = Arc::clone(self);
        self.core.begin(kind, call, move |outcome| {
            let next = request.contained(|| then(&request, outcome));
            request.go_on(next);
        });
        Next::Pending
    }

    /// Makes a step that blocks, on a worker.
    fn block(self: &Arc<Self>, step: impl FnOnce(&Arc<Self>) -> Next + Send + 'static) -> Next {
        if !self.core.is_pipelined() {
            return step(self);
        }
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
            Step::Join { unconfirmed: true } => self.block(Request::find_again),
            Step::Join { unconfirmed: false } => self.join(),
            Step::Evaluate(znode) => self.evaluate(&znode),
            Step::WaitFor(ahead) => self.watch(ahead, Request::waits_for),
            Step::Verify(znode) => self.watch(znode, Request::verified),
        }
    }

    /// Creates the znode and lists the queue.
    fn join(self: &Arc<Self>) -> Next {
        let RequestSpec { dir, prefix, data, acl, .. } = &self.spec;
        let connection = self.core.connection();
        let call = |client: &dyn PipelinedClient, done| {
            client.create_and_list(dir.as_str(), prefix, data, acl, done)
        };
        self.call(CallKind::Write, call, move |request, outcome| match outcome {
            Ok(enqueued) => request.enqueued(enqueued, connection),
            Err(ZkError::NoNode) => request.block(Request::make_parents),
            Err(error) => request.join_failed(Operation::CREATE, error),
        })
    }

    fn enqueued(self: &Arc<Self>, enqueued: Enqueued, connection: ConnectionNumber) -> Next {
        let Enqueued { path, stat, children } = enqueued;
        if let Some(stat) = stat {
            let _ = self.fencing_token.set(stat.czxid);
        }
        let znode = ZNodePath::from_server(path);
        if !self.joined(&znode) {
            return Next::Park;
        }
        self.warn_of_peers(&znode, children.as_deref().unwrap_or_default());
        self.decide(&znode, &Listing { connection, children })
    }

    /// Creates the directory and its missing parents. Blocks.
    fn make_parents(self: &Arc<Self>) -> Next {
        let RequestSpec { dir, acl, .. } = &self.spec;
        match self.core.ensure_path(dir, acl) {
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
        if let Ok(Some(stat)) = self.core.read(|client| client.exists(znode.as_str(), false)) {
            let _ = self.fencing_token.set(stat.czxid);
        }
        if !self.joined(&znode) {
            return Next::Park;
        }
        self.decide(&znode, &Listing { connection, children: Ok(listed) })
    }

    /// Notes the znode; `false` when the request was given up meanwhile, and the znode is deleted
    /// again.
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
        let is_over = error == ZkError::SessionExpired;
        // A reply that cannot be read counts as lost: the znode may exist.
        let is_refused = !is_over && !error.is_transient();
        let reply_lost = !is_refused || error == ZkError::MarshallingError;
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

    /// Acts on the listing that was asked for, or asks for one, which wakes the request.
    fn evaluate(self: &Arc<Self>, znode: &ZNodePath) -> Next {
        let listing = self.state.lock().listing.take();
        if let Some(listing) = listing {
            return self.decide(znode, &listing);
        }
        let reader: Weak<Request> = Arc::downgrade(self);
        Listings::ask(&self.core, &self.spec.dir, self.id, reader);
        Next::Park
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
            Decision::Owner => {
                self.warn_of_peers(znode, children);
                self.acquire(znode, listing.connection)
            }
            Decision::Exhausted => {
                self.fail(LockError::SequenceExhausted { path: znode.to_string() });
                Next::Park
            }
            Decision::WaitFor(ahead) => self.watch(self.spec.dir.child(ahead), Request::waits_for),
            Decision::Missing => {
                self.lose(LossReason::NodeDeleted);
                Next::Park
            }
        }
    }

    /// Takes the lock, which a listing on that connection has shown to be free.
    fn acquire(self: &Arc<Self>, znode: &ZNodePath, connection: ConnectionNumber) -> Next {
        let ownership = match self.core.admit(connection) {
            Admission::Admitted(ownership) => ownership,
            Admission::Unproven => return self.block(Request::await_lease),
            // Contact was lost since: the listing may be older, and the znode gone.
            Admission::Outdated => return Next::Again,
        };
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Queued { .. }) {
            return Next::Park;
        }
        state.phase = Phase::Owner { znode: znode.clone(), revocation_reported: false };
        *self.held_under.lock() = Some(ownership);
        self.observer.post(Event::Acquired);
        state.awaited = None;
        drop(state);
        logging::info!("acquired {znode}");
        self.wake_after(OWN_WATCH_DELAY);
        Next::Park
    }

    /// It is this request's turn, but the session is not proven alive for long enough. A proof
    /// needs a request and its confirmation. Blocks.
    fn await_lease(self: &Arc<Self>) -> Next {
        if let Err(error) = self.core.prove_life() {
            return self.look_failed(Operation::WATCH, &self.spec.dir, error);
        }
        if !self.core.admits_owners() {
            self.wake_after(LEASE_LOOK);
            return Next::Park;
        }
        Next::Again
    }

    /// Takes up the watch on the request ahead, the only one that is watched: a release wakes one
    /// waiter, or the readers behind a writer.
    fn waits_for(self: &Arc<Self>, ahead: ZNodePath, _: ConnectionNumber, sight: WatchOutcome) -> Next {
        if sight == WatchOutcome::Gone {
            // Deleted between the listing and the watch. The Java recipe waits for ever here.
            self.forget_watch(&mut self.state.lock());
            return Next::Again;
        }
        if let Some(znode) = self.placed() {
            logging::debug!("{znode} waits for {ahead}");
        }
        let is_persistent = matches!(sight, WatchOutcome::Watched { is_persistent: true, .. });
        if is_persistent && self.core.mentions_first(&ahead) {
            logging::warn!("requests wait for {ahead}, which is persistent: no session's end deletes it");
        }
        Next::Park
    }

    /// Records that the request is behind another; returns its znode the first time.
    fn placed(&self) -> Option<ZNodePath> {
        let mut state = self.state.lock();
        let Phase::Queued { seen, znode } = &mut state.phase else { return None };
        let is_news = !std::mem::replace(seen, true);
        let znode = is_news.then(|| znode.clone());
        state.awaited = None;
        znode
    }

    /// A create whose reply was lost took effect after all, beside its repetition. Its znode would
    /// block others, or this request.
    fn delete_duplicate(self: &Arc<Self>, name: &str) -> Next {
        let duplicate = self.spec.dir.child(name);
        logging::warn!("deleting {duplicate}, a second znode of one request");
        let path = duplicate.clone();
        let call = |client: &dyn PipelinedClient, done| client.delete(path.as_str(), None, done);
        self.call(CallKind::Write, call, move |request, outcome| match outcome {
            Ok(()) | Err(ZkError::NoNode) => Next::Again,
            Err(error) => request.look_failed(Operation::DELETE, &duplicate, error),
        })
    }

    /// Takes up the watch on an owner's znode: takes over the session's current epoch if it still
    /// exists.
    fn verified(
        self: &Arc<Self>,
        _znode: ZNodePath,
        connection: ConnectionNumber,
        sight: WatchOutcome,
    ) -> Next {
        match sight {
            WatchOutcome::Gone => self.lose(LossReason::NodeDeleted),
            _ if !self.renew(connection) => self.lose_lease(),
            WatchOutcome::Watched { data, version, .. } if revocation::is_requested(&data, version) => {
                self.report_revocation();
            }
            WatchOutcome::Watched { .. } | WatchOutcome::Unreadable => {}
        }
        Next::Park
    }

    /// Notifies the owner, once, that another client asks for the lock.
    fn report_revocation(&self) {
        let mut state = self.state.lock();
        let Phase::Owner { znode, revocation_reported } = &mut state.phase else { return };
        if std::mem::replace(revocation_reported, true) {
            return;
        }
        self.observer.post(Event::RevocationRequested);
        let znode = znode.clone();
        drop(state);
        logging::info!("somebody asks to release {znode}");
    }

    /// Moves an owner whose lease has not ended to the epoch of the connection on which its znode
    /// was seen; `false` if the lease has ended.
    fn renew(&self, connection: ConnectionNumber) -> bool {
        let now = self.core.now();
        let mut held_under = self.held_under.lock();
        match &mut *held_under {
            Some(held) if !held.covers(now) => false,
            Some(held) => {
                if let Some(epoch) = self.core.epoch_on(connection).filter(|epoch| epoch.covers(now)) {
                    held.move_to(&epoch);
                }
                true
            }
            // Ended meanwhile.
            None => true,
        }
    }

    /// Looks at a znode and leaves a watch there.
    fn watch(self: &Arc<Self>, path: ZNodePath, then: AfterLook) -> Next {
        let connection = self.core.connection();
        let before = {
            let mut state = self.state.lock();
            if matches!(state.phase, Phase::Ended { .. }) {
                return Next::Park;
            }
            state.watched.replace(path.clone())
        };
        if let Some(before) = before.filter(|before| *before != path) {
            self.core.registry().unwatch(&before, self.id);
        }
        self.core.registry().watch(&path, self.id);
        let of_look = path.clone();
        let call = |client: &dyn PipelinedClient, done| client.get_data(path.as_str(), true, done);
        self.call(CallKind::Read, call, move |request, outcome| match outcome {
            Err(ZkError::NoAuth) => request.watch_unreadable(of_look, connection, then),
            outcome => request.watched(of_look, connection, WatchOutcome::of_data(outcome), then),
        })
    }

    fn watch_unreadable(
        self: &Arc<Self>,
        path: ZNodePath,
        connection: ConnectionNumber,
        then: AfterLook,
    ) -> Next {
        let of_look = path.clone();
        let call = |client: &dyn PipelinedClient, done| client.exists(path.as_str(), true, done);
        self.call(CallKind::Read, call, move |request, outcome| {
            request.watched(of_look, connection, WatchOutcome::of_exists(outcome), then)
        })
    }

    fn watched(
        self: &Arc<Self>,
        path: ZNodePath,
        connection: ConnectionNumber,
        sight: ZkResult<WatchOutcome>,
        then: AfterLook,
    ) -> Next {
        // The request may have ended, or been woken, during the call, which had registered it
        // again.
        let is_watched = self.state.lock().watched.as_ref() == Some(&path);
        if !is_watched {
            self.core.registry().unwatch(&path, self.id);
        }
        match sight {
            Ok(sight) => {
                if sight == WatchOutcome::Unreadable {
                    self.wake_after(UNREADABLE_LOOK);
                }
                then(self, path, connection, sight)
            }
            Err(error) => self.look_failed(Operation::WATCH, &path, error),
        }
    }

    /// A look at the queue failed. The request looks again later, by the reconnect if contact was
    /// lost, or ends if the error is final.
    fn look_failed(self: &Arc<Self>, operation: Operation, path: &ZNodePath, error: ZkError) -> Next {
        match error {
            // The end of the session ends the request, and gives the reason.
            ZkError::SessionExpired => {}
            // The connection ends with a reply that cannot be read. An owner looks on the next one.
            ZkError::MarshallingError if self.is_owner() => {}
            error if !error.is_transient() => self.fail(LockError::client(operation, path, error)),
            _ if self.core.in_contact() => {
                self.wake_after(self.spec.retry.delay().max(MIN_RETRY));
            }
            _ => {}
        }
        Next::Park
    }

    /// Delivers the posted events on a callback thread.
    pub(super) fn deliver_soon(&self) {
        if self.observer.has_callbacks() {
            let observer = Arc::clone(&self.observer);
            self.core.submit_callback(move || observer.deliver());
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
