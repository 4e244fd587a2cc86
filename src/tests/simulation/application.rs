//! Plays the application's code. Wherever the library runs that code, or drops a value of the application, the
//! code may block, panic, or call the library.
//!
//! None of this may delay a session or another lock. A [`Code`] names a place where the library runs such code,
//! and the threads on which it may do so.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use super::baton::{Wait as Pause, pause, role};
use super::futures::Signal;
use super::guards::User;
use super::locks::{Action, act};
use super::scheduler::DIRS;
use super::seen::saw;
use super::world::World;
use crate::client::{Call, Done, EventSink, Granted, Identity, ZooKeeperClient};
use crate::events::SessionEvent;

/// A place where the library runs code of the application or drops one of its values, with the name of the
/// counter for each [`Deed`].
#[derive(Clone, Copy)]
pub(super) struct Code {
    what: &'static str,
    blocks: &'static str,
    waits: &'static str,
    panics: &'static str,
    reenters: &'static str,
    threads: Threads,
}

/// The threads on which code of the application may run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Threads {
    /// Only the library's threads for callbacks, which run nothing but such code.
    Callbacks,
    /// The application's threads, and the library's threads for callbacks, leaders and replacements.
    MayBlock,
}

macro_rules! code {
    ($what:literal, $threads:ident) => {
        Code {
            what: $what,
            blocks: concat!($what, "-blocks"),
            waits: concat!($what, "-waits-for-others"),
            panics: concat!($what, "-panics"),
            reenters: concat!($what, "-reenters"),
            threads: Threads::$threads,
        }
    };
}

pub(super) const ACQUIRED: Code = code!("lock-acquired", MayBlock);
pub(super) const RELEASED: Code = code!("lock-released", MayBlock);
pub(super) const LOST: Code = code!("lock-lost", MayBlock);
pub(super) const REVOCATION_REQUESTED: Code = code!("revocation-requested", MayBlock);
pub(super) const DROPPED: Code = code!("request-dropped", MayBlock);
pub(super) const LISTENER_DROP: Code = code!("listener-drop", Callbacks);
pub(super) const HOOK: Code = code!("hook", Callbacks);
pub(super) const HOOK_DROP: Code = code!("hook-drop", Callbacks);
pub(super) const WAKER: Code = code!("waker", Callbacks);
pub(super) const WAKER_DROP: Code = code!("waker-drop", MayBlock);
pub(super) const CLOSURE: Code = code!("closure", MayBlock);
pub(super) const CLOSURE_DROP: Code = code!("closure-drop", MayBlock);
pub(super) const LEADER: Code = code!("leader", MayBlock);
pub(super) const LEADER_DROP: Code = code!("leader-drop", MayBlock);
pub(super) const FACTORY: Code = code!("factory", MayBlock);
pub(super) const FACTORY_DROP: Code = code!("factory-drop", Callbacks);
pub(super) const CLIENT_DROP: Code = code!("client-drop", Callbacks);

/// What the code does.
#[derive(Clone, Copy)]
enum Deed {
    Behaves,
    Blocks,
    WaitsForOthers,
    Panics,
    Reenters,
}

/// Guards that the application has left for any of its code to drop.
pub(super) type Left = Box<dyn FnOnce() + Send>;

/// The maximum number of guards that are left at the same time.
const MAX_LEFT: usize = 2;

/// Runs the application's code. It may panic.
pub(super) fn run(world: &Arc<World>, code: Code) {
    if !check_thread(world, code) {
        return;
    }
    match choose(world) {
        Deed::Behaves => {}
        Deed::Blocks => {
            saw(code.blocks);
            let length = world.state().application.of(&[1, 100, 2_000, 10_000]);
            world.note(format!("{} blocks for {length} ms", code.what));
            pause(Pause::Time(world.now().after(Duration::from_millis(length))));
        }
        Deed::WaitsForOthers => {
            saw(code.waits);
            world.note(format!("{} waits for another acquisition", code.what));
            let (of_wait, before) = (Arc::clone(world), world.state().acquisitions);
            let has_happened = move || !of_wait.in_trouble() || of_wait.state().acquisitions > before;
            pause(Pause::Until(Box::new(has_happened)));
        }
        Deed::Panics if thread::panicking() => {}
        Deed::Panics => {
            saw(code.panics);
            world.note(format!("{} panics", code.what));
            panic_on_purpose();
        }
        Deed::Reenters => {
            saw(code.reenters);
            world.note(format!("{} calls the library", code.what));
            // The scheduler gets a turn, so that its checks see the state before this call.
            pause(Pause::Turn);
            reenter(world);
        }
    }
}

/// Checks where the application's code runs. Returns whether it may run there.
pub(super) fn check_thread(world: &World, code: Code) -> bool {
    let thread = role().map(|role| role.name);
    let may = thread.as_deref().is_some_and(|name| match code.threads {
        Threads::Callbacks => name.contains(" callback "),
        Threads::MayBlock => !name.contains(" worker "),
    });
    if !may {
        world.fail(format!("{} runs on a thread that must not block: {thread:?}", code.what));
    }
    // The library catches panics of the application, and thus would hide this one.
    let holds_none = catch_unwind(crate::lock_order::assert_none_held).is_ok();
    if !holds_none {
        world.fail(format!("{} runs under a mutex", code.what));
    }
    may && holds_none
}

fn choose(world: &World) -> Deed {
    if !world.profile.misbehaves {
        return Deed::Behaves;
    }
    let random = &mut world.state().application;
    match random.below(20) {
        0 => Deed::Panics,
        _ if !world.in_trouble() => Deed::Behaves,
        1 => Deed::Panics,
        2..5 => Deed::Blocks,
        5 | 6 => Deed::WaitsForOthers,
        7..11 => Deed::Reenters,
        _ => Deed::Behaves,
    }
}

/// The payload of the application's panics.
const ON_PURPOSE: &str = "the application panics on purpose";

/// Panics. Bypasses the panic hook, which would print the panic.
pub(super) fn panic_on_purpose() -> ! {
    resume_unwind(Box::new(ON_PURPOSE))
}

/// Runs code, and catches a panic that the application causes on purpose. Returns `None` after such a panic. Any other
/// panic propagates.
pub(super) fn survive<T>(code: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(value) => Some(value),
        Err(payload) if payload.downcast_ref::<&str>() == Some(&ON_PURPOSE) => None,
        Err(payload) => resume_unwind(payload),
    }
}

/// Calls the library, as any code of the application may.
fn reenter(world: &Arc<World>) {
    let choice = world.state().application.below(12);
    match choice {
        0..5 => drop_what_is_left(world),
        5..8 => act_on_some_lock(world),
        8..11 => acquire_something(world),
        _ => close_some_session(world),
    }
}

fn drop_what_is_left(world: &World) {
    let left = world.state().left.pop();
    if let Some(left) = left {
        world.note("drops a guard that was left");
        saw("guard-dropped-elsewhere");
        left();
    }
}

fn act_on_some_lock(world: &Arc<World>) {
    let (lock, action) = {
        let mut state = world.state();
        let locks = state.locks.len();
        let lock = state.application.index(locks);
        let actions =
            [Action::Lock, Action::Lock, Action::Unlock, Action::Unlock, Action::Close, Action::Drop];
        (lock, state.application.of(&actions))
    };
    if lock < world.state().locks.len() {
        act(world, lock, action);
    }
}

/// Acquires a lock with a deadline or a token, on the session of the client to which this thread belongs.
fn acquire_something(world: &Arc<World>) {
    let Some(client) = client_here() else { return };
    let session = world.state().clients[client].session.clone();
    let Some(session) = session else { return };
    let dir = {
        let mut state = world.state();
        DIRS[state.application.index(world.profile.dirs)]
    };
    User { world: Arc::clone(world), client, session, dir }.acquire_briefly();
}

fn close_some_session(world: &World) {
    let session = {
        let mut state = world.state();
        let clients = state.clients.len();
        let closes = state.application.one_in(4);
        let client = state.application.index(clients);
        state.clients[client].session.take_if(|_| closes)
    };
    if let Some(session) = session {
        world.note("closes a session");
        saw("session-closed-in-a-callback");
        session.close();
    }
}

/// The client to which the current thread belongs.
fn client_here() -> Option<usize> {
    role()?.name.split(' ').nth(1)?.parse().ok()
}

impl World {
    /// Sometimes leaves guards for other code of the application to drop, on any thread. Otherwise returns them.
    pub(super) fn leave<T: Send + 'static>(&self, guards: T) -> Option<T> {
        let mut state = self.state();
        let leaves = self.profile.misbehaves && self.in_trouble() && state.left.len() < MAX_LEFT;
        if !leaves || !state.application.one_in(4) {
            return Some(guards);
        }
        state.left.push(Box::new(move || drop(guards)));
        None
    }
}

/// A value that the application has passed to the library.
pub(super) struct Value {
    world: Weak<World>,
    /// The code that runs when this is dropped.
    code: Code,
}

impl Value {
    pub(super) fn new(world: &Arc<World>, code: Code) -> Value {
        Value { world: Arc::downgrade(world), code }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        if let Some(world) = self.world.upgrade() {
            run(&world, self.code);
        }
    }
}

/// Makes an event hook. The events must come one at a time.
pub(super) fn hook(world: &Arc<World>) -> impl Fn(&SessionEvent) + Send + Sync + use<> {
    let value = Value::new(world, HOOK_DROP);
    let is_running = AtomicBool::new(false);
    move |event| {
        let Some(world) = value.world.upgrade() else { return };
        if is_running.swap(true, Ordering::Relaxed) {
            world.fail(format!("{event:?} reaches a hook during another event"));
        }
        let survived = survive(|| run(&world, HOOK));
        is_running.store(false, Ordering::Relaxed);
        if survived.is_none() {
            panic_on_purpose();
        }
    }
}

/// A client that the application's factory has made. Dropping it runs code of the application.
pub(super) struct ClientWithDrop {
    pub(super) client: Arc<dyn ZooKeeperClient>,
    pub(super) _value: Value,
}

impl ZooKeeperClient for ClientWithDrop {
    fn submit(&self, call: Call, done: Done) {
        self.client.submit(call, done);
    }

    fn remove_watches(&self, path: &str) {
        self.client.remove_watches(path);
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.client.subscribe(sink)
    }

    fn identity(&self) -> Identity {
        self.client.identity()
    }

    fn granted(&self) -> Granted {
        self.client.granted()
    }

    fn close(&self) {
        self.client.close();
    }
}

impl World {
    /// Returns what is wrong with a task. To be called only when no other step is possible. Each task whose wait is
    /// over must have been woken, even if the waker of another task blocks. No waker may be kept for a future that
    /// is gone. Checks nothing while a process is suspended.
    pub(super) fn check_tasks(&self) -> Option<String> {
        let now = self.now();
        let tasks: Vec<Arc<Signal>> = {
            let mut state = self.state();
            if state.clients.iter().any(|client| client.paused_until > now) {
                return None;
            }
            state.tasks.retain(|task| task.upgrade().is_some_and(|task| task.is_in_use()));
            state.tasks.iter().filter_map(Weak::upgrade).collect()
        };
        tasks.iter().find_map(|task| task.check())
    }
}
