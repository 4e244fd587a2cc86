//! The threads of a simulation, of which exactly one runs at any time: whoever has the baton.
//!
//! A simulated thread is a real one, so that the library's code runs as it is, calls, stacks and all. It runs until it
//! [`pause`]s, which gives the baton back to the scheduler, and goes on when the scheduler gives it the baton again.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::lock_order;
use crate::session::Moment;

pub(super) type Body = Box<dyn FnOnce() + Send>;

/// What a paused thread waits for, besides its turn.
pub(super) enum Wait {
    /// Nothing.
    Turn,
    /// That the network takes its request, or contact is lost.
    Send,
    /// That the reply of this number arrives, or is lost.
    Reply(u64),
    /// That the connection of this number is lost, whose server cannot commit the request.
    Loss(u64),
    /// That the client has told of the lost contact because of which the call fails.
    Told,
    /// That this time has come.
    Time(Moment),
    /// Something of the library's. Evaluated while nobody holds any lock.
    Until(Box<dyn Fn() -> bool + Send>),
}

/// What a thread says when it gives the baton back.
pub(super) enum Report {
    Paused(Wait),
    Done,
    Panicked(String),
    /// It does not come back: it blocks where the scheduler cannot see it.
    Stuck,
}

/// In real time, and far longer than any step takes.
const STUCK_AFTER: Duration = Duration::from_secs(20);

/// Real threads for the simulated ones of many runs, one run after the other.
pub(super) struct Pool {
    idle: Vec<Baton>,
    report: Sender<Report>,
    reports: Receiver<Report>,
}

/// The scheduler's end of a thread.
pub(super) struct Baton(Sender<Order>);

enum Order {
    Begin(Role, Body),
    GoOn,
}

/// What a thread is in the simulation.
#[derive(Clone, Debug)]
pub(super) struct Role {
    /// As it appears in the trace.
    pub(super) name: String,
}

struct Place {
    role: Role,
    go: Receiver<Order>,
    report: Sender<Report>,
}

thread_local! {
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

impl Pool {
    pub(super) fn new() -> Pool {
        let (report, reports) = bounded(1);
        Pool { idle: Vec::new(), report, reports }
    }

    /// Runs a new thread up to its first pause.
    pub(super) fn begin(&mut self, role: Role, body: Body) -> (Baton, Report) {
        let baton = self.idle.pop().unwrap_or_else(|| self.spawn());
        let report = self.hand(&baton, Order::Begin(role, body));
        (baton, report)
    }

    /// Runs a thread up to its next pause.
    pub(super) fn go_on(&self, baton: &Baton) -> Report {
        self.hand(baton, Order::GoOn)
    }

    /// Takes back a thread that is done.
    pub(super) fn recycle(&mut self, baton: Baton) {
        self.idle.push(baton);
    }

    fn hand(&self, baton: &Baton, order: Order) -> Report {
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
        let place = Place { role, go: go.clone(), report: report.clone() };
        PLACE.with(|current| *current.borrow_mut() = Some(place));
        let outcome = catch_unwind(AssertUnwindSafe(body));
        PLACE.with(|current| *current.borrow_mut() = None);
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

/// Gives the baton back until what is waited for has come. Returns at once on a thread that is no simulated one.
pub(super) fn pause(wait: Wait) {
    let ends =
        PLACE.with(|current| current.borrow().as_ref().map(|place| (place.go.clone(), place.report.clone())));
    let Some((go, report)) = ends else { return };
    // What another thread needs, the paused one must not hold.
    lock_order::assert_none_held();
    let told = report.send(Report::Paused(wait)).is_ok();
    if !told || go.recv().is_err() {
        // The run has failed and is over. To unwind from here would run more of the library's code.
        loop {
            thread::park();
        }
    }
}

/// The role of the calling thread; `None` on the scheduler's own, which stands for timer and client threads.
pub(super) fn role() -> Option<Role> {
    PLACE.with(|current| current.borrow().as_ref().map(|place| place.role.clone()))
}
