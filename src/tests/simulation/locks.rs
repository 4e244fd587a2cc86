//! The application of a simulation: its locks, its listeners, and its actions on them.
//!
//! The users of blocking locks are in [`guards`](super::guards).

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::application::{self, Code, Value};
use super::baton::{Wait, pause, role};
use super::seen::saw;
use super::world::{State, World};
use crate::client::{Acl, Permissions};
use crate::recipe::NamingScheme;
use crate::time::Moment;
use crate::{LockListener, LockOptions, LossReason, RetryPolicy, Session, WriteLock};

/// The naming scheme of all requests. Tests of the rules cover other schemes.
pub(super) const SCHEME: NamingScheme = NamingScheme::Recipe;

/// The scheme and the credentials with which some clients authenticate.
pub(super) const IDENTITY: (&str, &str) = ("digest", "user:password");

/// What the checks know of a lock.
pub(super) struct LockRecord {
    pub(super) client: usize,
    pub(super) dir: &'static str,
    pub(super) held_by_application: Option<Arc<WriteLock>>,
    pub(super) weak: Weak<WriteLock>,
    /// The number of user threads inside one of its methods.
    pub(super) users: usize,
    /// The last callback, except those for a revocation.
    pub(super) last: Option<Callback>,
    /// How long it may be held at most.
    pub(super) max_hold: Option<Duration>,
    /// The znode with which it was last seen to own, and the moment at which that ownership began.
    pub(super) owned: Option<(String, Moment)>,
    /// Whether the holder has been notified of a revocation request.
    pub(super) revocation_notified: bool,
    pub(super) in_callback: bool,
    /// Whether it was dropped, and no running callback can still deliver earlier events.
    pub(super) silent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Callback {
    Acquired,
    RevocationRequested,
    Released,
    Lost(LossReason),
    Dropped(LossReason),
}

impl Callback {
    /// The code that the callback runs.
    fn code(self) -> Code {
        match self {
            Callback::Acquired => application::ACQUIRED,
            Callback::RevocationRequested => application::REVOCATION_REQUESTED,
            Callback::Released => application::RELEASED,
            Callback::Lost(_) => application::LOST,
            Callback::Dropped(_) => application::DROPPED,
        }
    }
}

/// The actions of users and callbacks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Lock,
    Unlock,
    Close,
    Drop,
}

/// The listener of one lock.
struct RecordingListener {
    world: Weak<World>,
    lock: usize,
    _value: Value,
}

impl RecordingListener {
    fn new(world: &Arc<World>, lock: usize) -> RecordingListener {
        RecordingListener {
            world: Arc::downgrade(world),
            lock,
            _value: Value::new(world, application::LISTENER_DROP),
        }
    }
}

/// Creates a lock on a client's session.
pub(super) fn new_lock(world: &Arc<World>, client: usize, session: &Session, dir: &'static str) {
    let number = world.state().locks.len();
    let listener = RecordingListener::new(world, number);
    let options = options(world).naming(SCHEME);
    let max_hold = options.hold_limit();
    let lock =
        WriteLock::with_options(session, dir, options, listener).expect("the path and the options are valid");
    let lock = Arc::new(lock);
    world.note(format!("client {client} creates lock {number}, held for at most {max_hold:?}"));
    world.state().locks.push(LockRecord {
        client,
        dir,
        weak: Arc::downgrade(&lock),
        held_by_application: Some(lock),
        users: 0,
        last: None,
        max_hold,
        owned: None,
        revocation_notified: false,
        in_callback: false,
        silent: false,
    });
}

/// The options of a new lock.
pub(super) fn options(world: &World) -> LockOptions {
    // The default names the host and the process, so the number of bytes on the wire, and thus the run, would depend on
    // the lengths of these names.
    let options = LockOptions::new().data("host/12345").retry(world.state().random.of(&retry_policies()));
    let is_limited = world.profile.limits_holds && world.state().random.one_in(2);
    let options = match is_limited {
        true => options.max_hold(Duration::from_millis(world.state().random.of(&[1, 200, 1000, 5000]))),
        false => options,
    };
    match world.profile.unreadable {
        true => options.acl([
            Acl::new(all_except_read(), "world", "anyone"),
            Acl::new(Permissions::READ, IDENTITY.0, IDENTITY.1),
        ]),
        false => options,
    }
}

fn all_except_read() -> Permissions {
    Permissions::CREATE | Permissions::DELETE | Permissions::WRITE | Permissions::ADMIN
}

fn retry_policies() -> [RetryPolicy; 4] {
    let short = Duration::from_millis(20);
    [
        RetryPolicy::default(),
        RetryPolicy::linear(short),
        RetryPolicy::exponential(short, Duration::from_secs(1)).with_attempts(u32::MAX).with_jitter(),
        RetryPolicy::exponential(short, Duration::MAX).with_total_time(Duration::from_secs(2)),
    ]
}

/// Performs an action on a lock, on an application thread or in a callback.
pub(super) fn act(world: &Arc<World>, number: usize, action: Action) {
    world.note(format!("{action:?} lock {number}"));
    match action {
        Action::Lock => {
            if let Some(lock) = world.lock(number) {
                let owns = lock.lock();
                world.note(format!("lock {number} is placed: {owns:?}"));
            }
        }
        Action::Unlock => {
            if let Some(lock) = world.lock(number) {
                let released = lock.unlock();
                world.note(format!("lock {number} is released: {released:?}"));
            }
        }
        Action::Close => {
            if let Some(lock) = world.lock(number) {
                lock.close();
            }
        }
        Action::Drop => drop_lock(world, number),
    }
}

fn drop_lock(world: &Arc<World>, number: usize) {
    let taken = world.state().locks[number].held_by_application.take();
    let Some(lock) = taken else { return };
    let is_last = Arc::strong_count(&lock) == 1;
    let overlaps = world.state().locks[number].in_callback;
    drop(lock);
    let mut state = world.state();
    let record = &mut state.locks[number];
    // Otherwise a callback that is running, on any thread, delivers what the drop has posted.
    record.silent = is_last && !overlaps && !record.in_callback;
}

impl RecordingListener {
    fn on_callback(&self, callback: Callback) {
        let Some(world) = self.world.upgrade() else { return };
        world.note(format!("lock {}: callback {callback:?}", self.lock));
        if role().is_none() {
            world.fail(format!("lock {}: a listener is called on a thread that must not block", self.lock));
        }
        if let Some(broken) = self.record(&world, callback) {
            world.fail(format!("lock {}: {broken}", self.lock));
        }
        pause(Wait::Turn);
        let survived = application::survive(|| {
            self.act(&world);
            application::run(&world, callback.code());
        });
        pause(Wait::Turn);
        world.state().locks[self.lock].in_callback = false;
        if survived.is_none() {
            application::panic_on_purpose();
        }
    }

    /// Records the callback. Returns what is wrong with it, if anything.
    fn record(&self, world: &World, callback: Callback) -> Option<String> {
        let mut state = world.state();
        let record = &mut state.locks[self.lock];
        let overlaps = std::mem::replace(&mut record.in_callback, true);
        if overlaps {
            return Some(format!("{callback:?} during another callback"));
        }
        if record.silent {
            return Some(format!("{callback:?} after its drop"));
        }
        match callback {
            Callback::RevocationRequested => self.record_revocation(&mut state),
            _ => self.record_change(world, &mut state, callback),
        }
    }

    fn record_revocation(&self, state: &mut State) -> Option<String> {
        let record = &mut state.locks[self.lock];
        let notified_before = std::mem::replace(&mut record.revocation_notified, true);
        let (last, client) = (record.last, record.client);
        let asked = state.sessions_of(client).iter().any(|session| state.asked.contains(session));
        match last {
            Some(Callback::Acquired) if notified_before => Some("a revocation was reported twice".to_owned()),
            Some(Callback::Acquired) if !asked => Some("a revocation was reported without cause".to_owned()),
            Some(Callback::Acquired) => None,
            last => Some(format!("a revocation was reported after {last:?}")),
        }
    }

    fn record_change(&self, world: &World, state: &mut State, callback: Callback) -> Option<String> {
        let record = &mut state.locks[self.lock];
        record.revocation_notified = false;
        let before = record.last.replace(callback);
        let (client, dir, is_limited) = (record.client, record.dir, record.max_hold.is_some());
        let held = before == Some(Callback::Acquired);
        let ends = matches!(callback, Callback::Released | Callback::Lost(_));
        if ends != held {
            return Some(format!("{callback:?} after {before:?}"));
        }
        let (Callback::Lost(reason) | Callback::Dropped(reason)) = callback else { return None };
        let sessions = state.sessions_of(client);
        let alive = world.zookeeper.sessions();
        let true_reason = match reason {
            LossReason::SessionLost => {
                // A waiter's session may also have been silent for too long, while the server keeps it.
                let was_silent = !held && !world.profile.is_calm();
                let has_ended = |session| !alive.contains(session) || state.given_up.contains(session);
                was_silent || sessions.iter().any(has_ended)
            }
            LossReason::NodeDeleted => sessions.iter().any(|session| state.node_deleted.contains(session)),
            LossReason::LeaseExpired => !world.profile.is_calm(),
            LossReason::HeldTooLong => held && is_limited,
            // Refused after the last attempt to join, or at the end of the counter.
            LossReason::Failed => !held && (!world.profile.is_calm() || state.exhausted.contains(dir)),
            _ => true,
        };
        (!true_reason).then(|| format!("{callback:?} without cause"))
    }

    /// Sometimes makes the callback itself act on the lock.
    fn act(&self, world: &Arc<World>) {
        let replaces_itself =
            world.profile.misbehaves && world.in_trouble() && world.state().application.one_in(8);
        if let Some(lock) = world.lock(self.lock).filter(|_| replaces_itself) {
            saw("listener-replaced");
            lock.set_lock_listener(RecordingListener::new(world, self.lock));
        }
        if !world.in_trouble() || !world.profile.callbacks_act || world.state().random.one_in(2) {
            return;
        }
        let action = {
            let mut state = world.state();
            state.random.of(&[
                Some(Action::Lock),
                Some(Action::Unlock),
                Some(Action::Unlock),
                Some(Action::Close),
                Some(Action::Drop),
                None,
            ])
        };
        match action {
            Some(action) => {
                saw("callback-acts-on-its-lock");
                act(world, self.lock, action);
            }
            None => {
                saw("listener-panics");
                application::panic_on_purpose();
            }
        }
    }
}

impl LockListener for RecordingListener {
    fn lock_acquired(&self) {
        self.on_callback(Callback::Acquired);
    }

    fn lock_released(&self) {
        self.on_callback(Callback::Released);
    }

    fn lock_lost(&self, _lock: &WriteLock, reason: LossReason) {
        self.on_callback(Callback::Lost(reason));
    }

    fn revocation_requested(&self, _lock: &WriteLock) {
        self.on_callback(Callback::RevocationRequested);
    }

    fn request_dropped(&self, _lock: &WriteLock, reason: LossReason) {
        self.on_callback(Callback::Dropped(reason));
    }
}
