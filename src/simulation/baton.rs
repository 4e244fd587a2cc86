//! The threads of a simulation. Exactly one runs at any time: the one that holds the baton.
//!
//! A simulated thread is a real thread, so the library's code runs unchanged. It runs until it
//! [`pause`]s, which returns the baton to the scheduler, and continues when the scheduler hands it
//! the baton again.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::lock_order;
use crate::time::Moment;

pub(super) type Body = Box<dyn FnOnce() + Send>;

/// What a paused thread waits for besides its turn.
pub(super) enum Wait {
    /// Nothing.
    Turn,
    /// The network accepts its request, or contact is lost.
    Send,
    /// The reply with this number arrives or is lost.
    Reply(u64),
    /// The connection with this number is lost; its server cannot commit the request.
    Loss(u64),
    /// The client has reported the loss of contact that fails the call.
    LossReported,
    /// This time is reached.
    Time(Moment),
    /// A condition. Evaluated while no thread holds any lock.
    Until(Condition),
    /// One of the library's signals is ready, or the deadline is reached.
    Signals(Vec<Condition>, Option<Moment>),
}

pub(super) type Condition = Box<dyn Fn() -> bool + Send>;

/// A thread's report when it returns the baton.
pub(super) enum Report {
    Paused(Wait),
    Done,
    Panicked(String),
    /// The thread does not return the baton: it blocks where the scheduler cannot see it.
    Stuck,
}

/// In real time. Far longer than any step takes.
const STUCK_AFTER: Duration = Duration::from_secs(20);

/// Real threads for the simulated ones. Many consecutive runs reuse them.
pub(super) struct Pool {
    idle: Vec<Baton>,
    report: Sender<Report>,
    reports: Receiver<Report>,
}

/// The scheduler's end of a thread.
pub(super) struct Baton(Sender<Order>);

enum Order {
    Begin(Role, Body),
    Resume,
}

/// A thread's role in the simulation.
#[derive(Clone, Debug)]
pub(super) struct Role {
    /// The name in the trace.
    pub(super) name: String,
}

struct ThreadContext {
    role: Role,
    go: Receiver<Order>,
    report: Sender<Report>,
}

thread_local! {
    static CONTEXT: RefCell<Option<ThreadContext>> = const { RefCell::new(None) };
}

impl Pool {
    pub(super) fn new() -> Pool {
        let (report, reports) = bounded(1);
        Pool { idle: Vec::new(), report, reports }
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
        if baton.0.send(order).is_err() {
            return Report::Stuck;
        }
        self.reports.recv_timeout(STUCK_AFTER).unwrap_or(Report::Stuck)
    }

    fn spawn(&self) -> Baton {
        let (give, go) = bounded(1);
        let report = self.report.clone();
        thread::Builder::new()
            .name("simulated".to_owned())
            .spawn(move || work(&go, &report))
            .expect("the simulation needs a few threads");
        Baton(give)
    }
}

fn work(go: &Receiver<Order>, report: &Sender<Report>) {
    while let Ok(Order::Begin(role, body)) = go.recv() {
        let place = ThreadContext { role, go: go.clone(), report: report.clone() };
        CONTEXT.with(|current| *current.borrow_mut() = Some(place));
        let outcome = catch_unwind(AssertUnwindSafe(body));
        CONTEXT.with(|current| *current.borrow_mut() = None);
        let said = match outcome {
            Ok(()) => Report::Done,
            Err(payload) => Report::Panicked(message(&*payload)),
        };
        if report.send(said).is_err() {
            return;
        }
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without a message".to_owned(),
    }
}

/// Returns the baton until the awaited condition holds. Returns immediately on a thread that is not
/// simulated.
pub(super) fn pause(wait: Wait) {
    let ends = CONTEXT
        .with(|current| current.borrow().as_ref().map(|place| (place.go.clone(), place.report.clone())));
    let Some((go, report)) = ends else { return };
    // A paused thread must not hold what another one needs.
    lock_order::assert_none_held();
    let sent = report.send(Report::Paused(wait)).is_ok();
    if !sent || go.recv().is_err() {
        // The run has failed and is over. Unwinding from here would run more of the library's code.
        loop {
            thread::park();
        }
    }
}

/// The role of the calling thread. `None` on the scheduler's own thread, which stands for timer and
/// client threads.
pub(super) fn role() -> Option<Role> {
    CONTEXT.with(|current| current.borrow().as_ref().map(|place| place.role.clone()))
}
