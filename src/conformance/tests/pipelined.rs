//! A pipelined client, and such with a flaw each, which the checks must notice.

use std::mem;
use std::thread;

use crossbeam_channel::{Sender, unbounded};
use parking_lot::{Mutex, ReentrantMutex};

use super::*;
use crate::client::{
    Acl, ClientEvent, CreateMode, Created, Done, Enqueued, EventSink, Op, PipelinedClient, Stat, Transacted,
};
use crate::error::{ZkError, ZkResult};
use crate::recipe::names::Names;

/// A violation of the rules for pipelined calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    DropsOutcomes,
    IgnoresVersions,
    ListsBeforeTheCreate,
    OvertakesCreates,
    Blocks,
    HoldsAMutex,
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
    (DropsOutcomes, "pipelined_calls_return_what_the_others_do"),
    (IgnoresVersions, "pipelined_calls_fail_as_the_server_refuses"),
    (ListsBeforeTheCreate, "pipelined_create_and_list_includes_the_new_znode"),
    (OvertakesCreates, "pipelined_calls_of_one_thread_take_effect_in_order"),
    (HoldsAMutex, "pipelined_call_may_follow_from_an_outcome"),
    (HoldsAMutex, "pipelined_outcome_is_passed_on_without_a_lock"),
    (HoldsAReentrantMutex, "pipelined_outcome_is_passed_on_without_a_lock"),
    (Blocks, "pipelined_call_does_not_wait_for_the_server"),
    (ForgetsLostReplies, "pipelined_calls_end_with_contact"),
    (ReportsNoDisconnect, "pipelined_calls_end_with_contact"),
    (ForgetsExpiredCalls, "pipelined_calls_end_with_the_session"),
    (EndIsConnectionLoss, "pipelined_calls_end_with_the_session"),
    (ForgetsWhenClosed, "pipelined_calls_end_with_a_close"),
    (EndIsConnectionLoss, "pipelined_calls_end_with_a_close"),
    (ForgetsWhenDropped, "pipelined_calls_end_with_their_client"),
];

/// Makes the calls of a client that blocks, one after the other, on its own thread.
struct Pipelined {
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
        Arc::new(Pipelined { inner, state: Arc::new(state), jobs })
    }
}

impl State {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn finish<T>(&self, done: Done<T>, outcome: ZkResult<T>) {
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
            (_, outcome) => done.finish(outcome),
        }
    }
}

impl Pipelined {
    fn has(&self, flaw: Flaw) -> bool {
        self.state.has(flaw)
    }

    fn submit<T: 'static>(
        &self,
        done: Done<T>,
        call: impl FnOnce(&SimulatedClient) -> ZkResult<T> + Send + 'static,
    ) {
        drop(self.state.mutex.lock());
        drop(self.state.reentrant.lock());
        let (inner, state) = (Arc::clone(&self.inner), Arc::clone(&self.state));
        let job = move || {
            if state.has(ForgetsWhenClosed) {
                // So that calls are under way when the client is closed.
                thread::sleep(Duration::from_millis(1));
            }
            let outcome = call(&inner);
            state.finish(done, outcome);
        };
        match self.has(Blocks) {
            true => job(),
            false => drop(self.jobs.send(Box::new(job))),
        }
    }

    fn version(&self, version: Option<i32>) -> Option<i32> {
        version.filter(|_| !self.has(IgnoresVersions))
    }
}

impl PipelinedClient for Pipelined {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode, done: Done<Created>) {
        let (path, data, acl) = (path.to_owned(), data.to_owned(), acl.to_owned());
        let delay = Duration::from_millis(if self.has(OvertakesCreates) { 50 } else { 0 });
        let create =
            move |inner: &SimulatedClient| inner.create(&path, &data, &acl, mode).map(|path| (path, None));
        if delay.is_zero() {
            return self.submit(done, create);
        }
        let (inner, state) = (Arc::clone(&self.inner), Arc::clone(&self.state));
        thread::spawn(move || {
            thread::sleep(delay);
            state.finish(done, create(&inner));
        });
    }

    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl], done: Done<Enqueued>) {
        let (dir, prefix, data, acl) = (dir.to_owned(), prefix.to_owned(), data.to_owned(), acl.to_owned());
        let lists_before = self.has(ListsBeforeTheCreate);
        self.submit(done, move |inner| {
            let before = inner.get_children(&dir, false);
            let enqueued = inner.create_and_list(&dir, &prefix, &data, &acl)?;
            Ok(if lists_before { Enqueued { children: before, ..enqueued } } else { enqueued })
        });
    }

    fn delete(&self, path: &str, version: Option<i32>, done: Done<()>) {
        let (path, version) = (path.to_owned(), self.version(version));
        self.submit(done, move |inner| inner.delete(&path, version));
    }

    fn exists(&self, path: &str, watch: bool, done: Done<Option<Stat>>) {
        let path = path.to_owned();
        self.submit(done, move |inner| inner.exists(&path, watch));
    }

    fn get_children(&self, path: &str, watch: bool, done: Done<Names>) {
        let path = path.to_owned();
        self.submit(done, move |inner| inner.get_children(&path, watch));
    }

    fn get_data(&self, path: &str, watch: bool, done: Done<(Vec<u8>, Stat)>) {
        let path = path.to_owned();
        self.submit(done, move |inner| inner.get_data(&path, watch));
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>, done: Done<Stat>) {
        let (path, data, version) = (path.to_owned(), data.to_owned(), self.version(version));
        self.submit(done, move |inner| inner.set_data(&path, &data, version));
    }
}

impl ZooKeeperClient for Pipelined {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        self.inner.create(path, data, acl, mode)
    }

    fn delete(&self, path: &str, version: Option<i32>) -> ZkResult<()> {
        self.inner.delete(path, version)
    }

    fn exists(&self, path: &str, watch: bool) -> ZkResult<Option<Stat>> {
        self.inner.exists(path, watch)
    }

    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Names> {
        self.inner.get_children(path, watch)
    }

    fn get_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)> {
        self.inner.get_data(path, watch)
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Stat> {
        self.inner.set_data(path, data, version)
    }

    fn transact(&self, operations: &[Op]) -> ZkResult<Transacted> {
        self.inner.transact(operations)
    }

    fn remove_watches(&self, path: &str, is_unwanted: &dyn Fn() -> bool) {
        self.inner.remove_watches(path, is_unwanted);
    }

    fn pipelined(&self) -> Option<&dyn PipelinedClient> {
        Some(self)
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let is_silent = self.has(ReportsNoDisconnect);
        self.inner.subscribe(Arc::new(move |event| {
            if !is_silent || event != ClientEvent::Disconnected {
                sink(event);
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

impl Drop for Pipelined {
    fn drop(&mut self) {
        *self.state.is_dropped.lock() = true;
        // Its calls under way end.
        self.inner.give_up();
    }
}

#[test]
fn pipelined_client_conforms() {
    let fixture = fake(crate::testing::deadline(), wrap(None));
    let report = check(&fixture);
    assert!(report.is_passed(), "{report}");
    assert_eq!(report.skipped().count(), 2, "{report}");
}

#[test]
fn each_flaw_of_a_pipelined_client_is_noticed() {
    crate::testing::begin();
    for (flaw, name) in NOTICED {
        let fixture = fake(Duration::from_millis(300), wrap(Some(*flaw)));
        let check = checks().into_iter().find(|check| check.name() == *name).unwrap();
        let outcome = check.run(&fixture);
        assert!(outcome.is_err(), "{flaw:?} is not noticed by {name}: {outcome:?}");
    }
}

#[test]
fn each_check_of_pipelined_calls_has_a_flaw_that_it_notices() {
    let of_pipelined_calls = |check: &Check| check.name().starts_with("pipelined_");
    for check in checks().iter().filter(|check| of_pipelined_calls(check)) {
        assert!(NOTICED.iter().any(|(_, name)| *name == check.name()), "{}", check.name());
    }
}
