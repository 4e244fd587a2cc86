//! A client that does not block, and variants of it with one flaw each, which the checks must notice.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crossbeam_channel::{Sender, unbounded};
use parking_lot::{Mutex, ReentrantMutex};

use super::*;
use zookeeper_recipes_lock::client::port::{
    Call, ClientEvent, Done, Enqueued, EventSink, Reply, Verbs, ZooKeeperClient,
};
use zookeeper_recipes_lock::client::{ZkError, ZkResult};

/// A violation of the rules for submitted calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    DropsOutcomes,
    ListsBeforeTheCreate,
    FailedCreateIsListed,
    OvertakesCreates,
    AnswersCreatesLate,
    Blocks,
    CallsBack,
    HoldsAMutex,
    HoldsAMutexForEvents,
    HoldsAReentrantMutex,
    ForgetsLostReplies,
    ReportsNoDisconnect,
    ForgetsExpiredCalls,
    EndIsConnectionLoss,
    ForgetsWhenClosed,
    ForgetsWhenDropped,
}

use Flaw::*;

/// Each flaw, and a check that must fail for it.
const NOTICED: &[(Flaw, &str)] = &[
    (DropsOutcomes, "create_makes_a_znode_and_returns_its_path"),
    (ListsBeforeTheCreate, "create_and_list_includes_the_new_znode"),
    (FailedCreateIsListed, "create_and_list_fails_as_create_does"),
    (OvertakesCreates, "submitted_calls_of_one_thread_take_effect_in_order"),
    (AnswersCreatesLate, "submitted_calls_of_one_thread_take_effect_in_order"),
    (HoldsAMutex, "submitted_call_may_follow_from_an_outcome"),
    (HoldsAMutex, "submitted_outcome_is_passed_on_without_a_lock"),
    (HoldsAMutexForEvents, "submitted_call_may_follow_from_an_event"),
    (CallsBack, "submitted_call_is_not_answered_on_the_spot"),
    (HoldsAReentrantMutex, "submitted_outcome_is_passed_on_without_a_lock"),
    (Blocks, "submitted_call_does_not_wait_for_the_server"),
    (ForgetsLostReplies, "submitted_calls_end_with_contact"),
    (ReportsNoDisconnect, "submitted_calls_end_with_contact"),
    (ForgetsExpiredCalls, "submitted_calls_end_with_the_session"),
    (EndIsConnectionLoss, "submitted_calls_end_with_the_session"),
    (ForgetsWhenClosed, "submitted_calls_end_with_a_close"),
    (EndIsConnectionLoss, "submitted_calls_end_with_a_close"),
    (ForgetsWhenDropped, "submitted_calls_end_with_their_client"),
];

/// A client that makes the calls of a blocking client one after another, on its own thread.
struct Submits {
    inner: Arc<SimulatedClient>,
    state: Arc<State>,
    jobs: Sender<Box<dyn FnOnce() + Send>>,
}

struct State {
    flaw: Option<Flaw>,
    is_closed: Mutex<bool>,
    is_dropped: Mutex<bool>,
    mutex: Mutex<()>,
    reentrant: ReentrantMutex<()>,
}

fn wrap(flaw: Option<Flaw>) -> impl Fn(Arc<SimulatedClient>) -> Arc<dyn ZooKeeperClient> {
    move |inner| {
        let (jobs, received) = unbounded::<Box<dyn FnOnce() + Send>>();
        thread::spawn(move || received.into_iter().for_each(|job| job()));
        let (is_closed, is_dropped) = (Mutex::default(), Mutex::default());
        let state = State {
            flaw,
            is_closed,
            is_dropped,
            mutex: Mutex::default(),
            reentrant: ReentrantMutex::default(),
        };
        Arc::new(Submits { inner, state: Arc::new(state), jobs })
    }
}

impl State {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn finish(&self, done: Done, outcome: ZkResult<Reply>) {
        let is_closed = self.has(ForgetsWhenClosed) && *self.is_closed.lock();
        let is_dropped = self.has(ForgetsWhenDropped) && *self.is_dropped.lock();
        match (self.flaw, outcome) {
            _ if is_closed || is_dropped => mem::forget(done),
            (Some(DropsOutcomes), _) => drop(done),
            (Some(ForgetsLostReplies), Err(ZkError::ConnectionLoss))
            | (Some(ForgetsExpiredCalls), Err(ZkError::SessionExpired)) => mem::forget(done),
            (Some(EndIsConnectionLoss), Err(ZkError::SessionExpired)) => {
                done.finish(Err(ZkError::ConnectionLoss));
            }
            (Some(HoldsAMutex), outcome) => {
                let _held = self.mutex.lock();
                done.finish(outcome);
            }
            (Some(HoldsAReentrantMutex), outcome) => {
                let _held = self.reentrant.lock();
                done.finish(outcome);
            }
            (Some(AnswersCreatesLate), Ok(reply @ Reply::Created { .. })) => drop(thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                done.finish(Ok(reply));
            })),
            (_, outcome) => done.finish(outcome),
        }
    }
}

impl Submits {
    fn has(&self, flaw: Flaw) -> bool {
        self.state.has(flaw)
    }

    fn make(inner: &SimulatedClient, state: &State, call: &Call) -> ZkResult<Reply> {
        let Call::CreateAndList { dir, .. } = call else { return inner.call(call) };
        let before = inner.get_children(dir, false);
        match (inner.call(call), before) {
            (Ok(Reply::Enqueued(enqueued)), children) if state.has(ListsBeforeTheCreate) => {
                Ok(Reply::Enqueued(Enqueued { children, ..enqueued }))
            }
            (Err(error), _) if state.has(FailedCreateIsListed) => {
                Ok(Reply::Enqueued(Enqueued::new(String::new(), Err(error))))
            }
            (reply, _) => reply,
        }
    }
}

impl ZooKeeperClient for Submits {
    fn submit(&self, call: Call, done: Done) {
        drop(self.state.mutex.lock());
        drop(self.state.reentrant.lock());
        let (inner, state) = (Arc::clone(&self.inner), Arc::clone(&self.state));
        let is_create = matches!(call, Call::Create { .. });
        let job = move || {
            if state.has(ForgetsWhenClosed) {
                // Delay the call, so that calls are in flight when the client is closed.
                thread::sleep(Duration::from_millis(1));
            }
            let outcome = Submits::make(&inner, &state, &call);
            state.finish(done, outcome);
        };
        match self.state.flaw {
            Some(Blocks) => {
                let (sender, made) = unbounded::<()>();
                let _ = self.jobs.send(Box::new(move || {
                    job();
                    drop(sender);
                }));
                let _ = made.recv();
            }
            Some(CallsBack) => job(),
            Some(OvertakesCreates) if is_create => drop(thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                job();
            })),
            _ => drop(self.jobs.send(Box::new(job))),
        }
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn remove_watches(&self, path: &str) {
        self.inner.remove_watches(path);
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let (is_silent, is_locked) = (self.has(ReportsNoDisconnect), self.has(HoldsAMutexForEvents));
        let state = Arc::clone(&self.state);
        self.inner.subscribe(Arc::new(move |event| {
            let _held = is_locked.then(|| state.mutex.lock());
            if !is_silent || event != ClientEvent::Disconnected {
                // This runs on the thread of whichever client caused the event.
                let _ = catch_unwind(AssertUnwindSafe(|| sink(event)));
            }
        }))
    }

    fn session_timeout(&self) -> Duration {
        self.inner.session_timeout()
    }

    fn report_delay(&self) -> Duration {
        self.inner.report_delay()
    }

    fn close(&self) {
        *self.state.is_closed.lock() = true;
        self.inner.close();
    }
}

impl Drop for Submits {
    fn drop(&mut self) {
        *self.state.is_dropped.lock() = true;
        // This ends the calls in flight.
        self.inner.give_up();
    }
}

#[test]
fn client_that_submits_conforms() {
    let fixture = fake(DEADLINE, wrap(None));
    let report = check(&fixture);
    assert!(report.is_passed(), "{report}");
    assert_eq!(report.skipped().count(), 2, "{report}");
}

#[test]
fn each_flaw_of_a_client_that_submits_is_noticed() {
    for (flaw, name) in NOTICED {
        let fixture = fake(Duration::from_millis(300), wrap(Some(*flaw)));
        let check = checks().into_iter().find(|check| check.name() == *name).unwrap();
        let outcome = check.run(&fixture);
        assert!(outcome.is_err(), "{name} did not notice {flaw:?}: {outcome:?}");
    }
}

#[test]
fn each_check_of_submitted_calls_has_a_flaw_that_it_notices() {
    let of_submitted_calls = |check: &Check| check.name().starts_with("submitted_");
    for check in checks().iter().filter(|check| of_submitted_calls(check)) {
        assert!(NOTICED.iter().any(|(_, name)| *name == check.name()), "{}", check.name());
    }
}
