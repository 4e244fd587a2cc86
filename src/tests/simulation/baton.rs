//! The threads of a simulation. Exactly one runs at any time: the one that holds the baton.
//!
//! A simulated thread is a real thread, so the library's code runs unchanged. It runs until it
//! [`pause`]s, which returns the baton to the scheduler, and continues when the scheduler hands it
//! the baton again.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::lock_order;
use crate::time::Moment;

pub(super) type Body = Box<dyn FnOnce() + Send>;

/// What a paused thread waits for besides its turn.
pub(super) enum Wait {
    /// Nothing.
    Turn,
    /// Until this time is reached.
    Time(Moment),
    /// Until a condition holds. It is evaluated while no thread holds any lock.
    Until(Condition),
    /// Until one of the library's signals is ready or the deadline is reached.
    Signals(Vec<Condition>, Option<Moment>),
}

pub(super) type Condition = Box<dyn Fn() -> bool + Send>;

/// A thread's report when it returns the baton.
pub(super) enum Report {
    Paused(Wait),
    Done,
    Panicked(String),
    /// The thread did not return the baton: it blocks where the scheduler cannot see it.
    Stuck,
}

/// Real time, far longer than any step takes.
const STUCK_AFTER: Duration = Duration::from_secs(20);

/// A place where one thread leaves something for another. The receiver sleeps at once; a channel would first
/// spin, on the processor that the other thread needs.
struct Slot<T> {
    value: Mutex<Option<T>>,
    filled: Condvar,
}

impl<T> Slot<T> {
    fn new() -> Arc<Slot<T>> {
        Arc::new(Slot { value: Mutex::new(None), filled: Condvar::new() })
    }

    fn put(&self, value: T) {
        *self.value.lock() = Some(value);
        self.filled.notify_one();
    }

    fn take(&self) -> T {
        let mut value = self.value.lock();
        loop {
            match value.take() {
                Some(value) => return value,
                None => self.filled.wait(&mut value),
            }
        }
    }

    fn take_within(&self, limit: Duration) -> Option<T> {
        let mut value = self.value.lock();
        self.filled.wait_while_for(&mut value, |value| value.is_none(), limit);
        value.take()
    }
}

/// The real threads behind the simulated ones. Consecutive runs reuse them.
pub(super) struct Pool {
    idle: Vec<Baton>,
    report: Arc<Slot<Report>>,
}

/// The scheduler's end of a thread.
pub(super) struct Baton(Arc<Slot<Order>>);

enum Order {
    Begin(Role, Body),
    Resume,
    End,
}

/// A thread's role in the simulation.
#[derive(Clone, Debug)]
pub(super) struct Role {
    /// The name in the trace.
    pub(super) name: String,
}

struct ThreadContext {
    role: Role,
    go: Arc<Slot<Order>>,
    report: Arc<Slot<Report>>,
}

thread_local! {
    static CONTEXT: RefCell<Option<ThreadContext>> = const { RefCell::new(None) };
}

impl Pool {
    pub(super) fn new() -> Pool {
        Pool { idle: Vec::new(), report: Slot::new() }
    }

    /// Runs a new thread until its first pause.
    pub(super) fn begin(&mut self, role: Role, body: Body) -> (Baton, Report) {
        let baton = self.idle.pop().unwrap_or_else(|| self.spawn());
        let report = self.hand_baton(&baton, Order::Begin(role, body));
        (baton, report)
    }

    /// Runs a thread until its next pause.
    pub(super) fn resume(&self, baton: &Baton) -> Report {
        self.hand_baton(baton, Order::Resume)
    }

    /// Takes back a finished thread.
    pub(super) fn recycle(&mut self, baton: Baton) {
        self.idle.push(baton);
    }

    fn hand_baton(&self, baton: &Baton, order: Order) -> Report {
        baton.0.put(order);
        self.report.take_within(STUCK_AFTER).unwrap_or(Report::Stuck)
    }

    fn spawn(&self) -> Baton {
        let go = Slot::new();
        let baton = Baton(Arc::clone(&go));
        let report = Arc::clone(&self.report);
        thread::Builder::new()
            .name("simulated".to_owned())
            .spawn(move || work(&go, &report))
            .expect("the simulation needs a few threads");
        baton
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for baton in &self.idle {
            baton.0.put(Order::End);
        }
    }
}

fn work(go: &Arc<Slot<Order>>, report: &Arc<Slot<Report>>) {
    while let Order::Begin(role, body) = go.take() {
        let place = ThreadContext { role, go: Arc::clone(go), report: Arc::clone(report) };
        CONTEXT.with(|current| *current.borrow_mut() = Some(place));
        let outcome = catch_unwind(AssertUnwindSafe(body));
        CONTEXT.with(|current| *current.borrow_mut() = None);
        report.put(match outcome {
            Ok(()) => Report::Done,
            Err(payload) => Report::Panicked(message(&*payload)),
        });
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without a message".to_owned(),
    }
}

/// Returns the baton until the awaited condition holds. On a thread that is not simulated, returns
/// immediately.
pub(super) fn pause(wait: Wait) {
    let ends = CONTEXT.with(|current| {
        let place = current.borrow();
        place.as_ref().map(|place| (Arc::clone(&place.go), Arc::clone(&place.report)))
    });
    let Some((go, report)) = ends else { return };
    // A paused thread must not hold a mutex that another thread needs.
    lock_order::assert_none_held();
    report.put(Report::Paused(wait));
    // After a failure nobody resumes the thread. It does not unwind, which would run more of the library's
    // code.
    go.take();
}

/// Returns the role of the calling thread, or `None` on the scheduler's own thread, which plays the timer and
/// client threads.
pub(super) fn role() -> Option<Role> {
    CONTEXT.with(|current| current.borrow().as_ref().map(|place| place.role.clone()))
}
