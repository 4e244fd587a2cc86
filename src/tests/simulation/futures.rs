//! Tasks that wait for locks, each on the thread of a user, and give up at any moment.
//!
//! An executor may poll a future without having been woken, and with a different waker each time. It may also poll the
//! future in the waker itself.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

use super::application::{self, Value, WAKER, WAKER_DROP};
use super::baton::{Condition, Wait as Pause, pause, role};
use super::guards::User;
use super::seen::saw;
use super::world::World;
use crate::LockGuard;
use crate::time::Moment;

/// What is known of a waker. This record outlives the waker.
#[derive(Default)]
pub(super) struct Signal {
    /// The name of the thread on which the task runs.
    thread: String,
    is_woken: AtomicBool,
    /// How many threads are waking the task now; several of its latches may be set.
    wake_ups: AtomicUsize,
    /// Whether the future is gone, or has another waker.
    is_over: AtomicBool,
    /// Whether the task no longer waits.
    has_given_up: AtomicBool,
    waker: OnceLock<Weak<Task>>,
    /// Another task that the waker waits for.
    peer: OnceLock<Arc<Signal>>,
    /// Holds if the future must complete as soon as it is polled.
    is_ready: OnceLock<Mutex<Condition>>,
}

impl Signal {
    fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::Acquire)
    }

    fn is_waking(&self) -> bool {
        self.wake_ups.load(Ordering::Acquire) > 0
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Returns whether another waker need not wait for this one.
    fn releases_its_peer(&self) -> bool {
        self.is_woken() || self.is_over() || self.has_given_up.load(Ordering::Acquire)
    }

    fn is_kept(&self) -> bool {
        self.waker.get().is_some_and(|waker| waker.strong_count() > 0)
    }

    pub(super) fn is_in_use(&self) -> bool {
        !self.is_over() || self.is_kept()
    }

    fn waits_for_its_peer(&self) -> bool {
        self.is_waking() && self.peer.get().is_some_and(|peer| !peer.releases_its_peer())
    }

    /// Returns what is wrong if nothing is left to do at this moment.
    pub(super) fn check(&self) -> Option<String> {
        let is_asleep = !self.is_woken() && !self.is_waking() && !self.is_over();
        if is_asleep && self.is_ready.get().is_some_and(|is_ready| is_ready.lock()()) {
            return Some(format!("the task of {} sleeps although its wait is over", self.thread));
        }
        if self.waits_for_its_peer() {
            return Some("a task is not woken because the waker of another one blocks".to_owned());
        }
        if self.is_over() && self.is_kept() && !self.is_waking() {
            return Some("the waker of a future that is gone is kept".to_owned());
        }
        None
    }
}

/// The waker of a task that waits on a user's thread.
struct Task {
    world: Weak<World>,
    signal: Arc<Signal>,
    _value: Value,
}

impl Task {
    /// Makes a waker. The caller does not keep it, so the library drops it.
    fn waker(world: &Arc<World>) -> (Waker, Arc<Signal>) {
        let thread = role().map(|role| role.name).unwrap_or_default();
        let signal = Arc::new(Signal { thread, ..Signal::default() });
        let _value = Value::new(world, WAKER_DROP);
        let task = Arc::new(Task { world: Arc::downgrade(world), signal: Arc::clone(&signal), _value });
        let _ = signal.waker.set(Arc::downgrade(&task));
        world.state().tasks.push(Arc::downgrade(&signal));
        (Waker::from(task), signal)
    }
}

/// Ends a wake-up, even one that panics.
struct Waking<'a>(&'a Signal);

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        self.0.is_woken.store(true, Ordering::Release);
        self.0.wake_ups.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let Some(world) = self.world.upgrade() else { return };
        self.signal.wake_ups.fetch_add(1, Ordering::AcqRel);
        let _waking = Waking(&self.signal);
        let wakes_first = self.signal.peer.get().is_some() || world.state().application.one_in(2);
        if wakes_first {
            self.signal.is_woken.store(true, Ordering::Release);
        }
        if let Some(peer) = self.signal.peer.get().cloned() {
            saw("waker-waits-for-another-task");
            pause(Pause::Until(Box::new(move || peer.releases_its_peer())));
        }
        application::run(&world, WAKER);
    }
}

/// A future that its waker polls.
struct Inline<T> {
    world: Weak<World>,
    future: Mutex<Option<Pin<Box<dyn Future<Output = T> + Send>>>>,
    output: Mutex<Option<T>>,
    /// Whether it is to be polled again.
    again: AtomicBool,
    is_over: AtomicBool,
}

impl<T: Send + 'static> Inline<T> {
    /// Polls the future, unless another thread is polling it and will poll it again.
    fn poll(self: &Arc<Self>) {
        self.again.store(true, Ordering::Release);
        while self.again.swap(false, Ordering::AcqRel) {
            let taken = self.future.lock().take();
            let Some(mut future) = taken else {
                return self.again.store(true, Ordering::Release);
            };
            match future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(self)))) {
                Poll::Ready(output) => {
                    drop(future);
                    *self.output.lock() = Some(output);
                    return;
                }
                Poll::Pending if self.is_over.load(Ordering::Acquire) => return,
                Poll::Pending => *self.future.lock() = Some(future),
            }
        }
    }
}

impl<T: Send + 'static> Wake for Inline<T> {
    fn wake(self: Arc<Self>) {
        let Some(world) = self.world.upgrade() else { return };
        saw("waker-polls");
        if application::check_thread(&world, WAKER) {
            self.poll();
        }
    }
}

impl User {
    /// Runs a task until its future completes. Sometimes drops the future before that, perhaps just when it
    /// would complete.
    pub(super) fn run_task<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
        is_ready: Option<Condition>,
    ) -> Option<T> {
        let gives_up = self.world.state().random.one_in(2);
        let until = gives_up.then(|| self.some_time_from_now());
        let polls_inline = self.world.profile.misbehaves && self.world.state().application.one_in(4);
        let output = match polls_inline {
            true => self.run_inline(Box::pin(future), until),
            false => self.run_task_until(future, until, is_ready),
        };
        if output.is_none() {
            saw("future-dropped");
            self.world.note("drops a future");
        }
        output
    }

    /// Like [`run_task`](User::run_task), with the time at which the future is dropped.
    ///
    /// Polls the future with a new waker each time, sometimes without having been woken.
    pub(super) fn run_task_until<T>(
        &self,
        future: impl Future<Output = T>,
        until: Option<Moment>,
        mut is_ready: Option<Condition>,
    ) -> Option<T> {
        let mut signals = Vec::new();
        // A waker may panic when it is dropped, so dropping the future may panic, too.
        let output = application::survive(|| {
            let mut future = pin!(future);
            loop {
                let (waker, signal) = Task::waker(&self.world);
                signals.push(Arc::clone(&signal));
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                drop(waker);
                if let Poll::Ready(output) = polled {
                    return Some(output);
                }
                if let Some(is_ready) = is_ready.take() {
                    let _ = signal.is_ready.set(Mutex::new(is_ready));
                }
                let is_kept = self.world.in_trouble() && self.world.state().application.one_in(8);
                if is_kept {
                    saw("future-kept-without-polls");
                    pause(Pause::Time(self.some_time_from_now()));
                }
                let moves = self.world.in_trouble() && self.world.state().application.one_in(4);
                if moves {
                    saw("task-moves");
                    pause(Pause::Turn);
                } else {
                    let of_pause = Arc::clone(&signal);
                    let is_woken = move || of_pause.is_woken();
                    pause(Pause::Signals(vec![Box::new(is_woken)], until));
                }
                is_ready = signal.is_ready.get().map(|known| replace_condition(known));
                signal.is_over.store(true, Ordering::Release);
                let is_due = until.is_some_and(|until| until <= self.world.now());
                if is_due && (!signal.is_woken() || self.world.state().random.one_in(2)) {
                    return None;
                }
            }
        });
        signals.iter().for_each(|signal| signal.is_over.store(true, Ordering::Release));
        output.flatten()
    }

    /// Runs a task whose waker polls the future.
    fn run_inline<T: Send + 'static>(
        &self,
        future: Pin<Box<dyn Future<Output = T> + Send>>,
        until: Option<Moment>,
    ) -> Option<T> {
        let task = Arc::new(Inline {
            world: Arc::downgrade(&self.world),
            future: Mutex::new(Some(future)),
            output: Mutex::new(None),
            again: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        task.poll();
        let of_pause = Arc::clone(&task);
        let is_done = move || of_pause.output.lock().is_some();
        pause(Pause::Signals(vec![Box::new(is_done)], until));
        task.is_over.store(true, Ordering::Release);
        let future = task.future.lock().take();
        drop(future);
        task.output.lock().take()
    }

    /// Waits in two tasks for the loss of a lock. The waker of each waits for the other task to be woken.
    pub(super) fn await_loss_twice(&self, guard: &LockGuard, until: Moment) {
        let (waker, signal) = Task::waker(&self.world);
        let (other_waker, other_signal) = Task::waker(&self.world);
        let signals = [Arc::clone(&signal), Arc::clone(&other_signal)];
        let of_pair = signals.clone();
        let _ = (signal.peer.set(Arc::clone(&other_signal)), other_signal.peer.set(Arc::clone(&signal)));
        let _ = application::survive(|| {
            let (mut one, mut other) = (pin!(guard.lost_async()), pin!(guard.lost_async()));
            let wakers = (waker, other_waker);
            let is_pending = one.as_mut().poll(&mut Context::from_waker(&wakers.0)).is_pending()
                & other.as_mut().poll(&mut Context::from_waker(&wakers.1)).is_pending();
            drop(wakers);
            if is_pending {
                let is_woken = move || signal.is_woken() && other_signal.is_woken();
                pause(Pause::Signals(vec![Box::new(is_woken)], Some(until)));
            }
            // The drop of the first waker may block while the second is still registered.
            of_pair.iter().for_each(|signal| signal.has_given_up.store(true, Ordering::Release));
        });
        signals.iter().for_each(|signal| signal.is_over.store(true, Ordering::Release));
    }
}

/// Takes a condition for the task's next waker.
fn replace_condition(known: &Mutex<Condition>) -> Condition {
    std::mem::replace(&mut *known.lock(), Box::new(|| false))
}
