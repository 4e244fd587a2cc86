//! [`ManualRuntime`]: runs a session on one thread, with a clock that the test controls, so nothing depends
//! on the load of the machine.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::Session;
use crate::client::ZooKeeperClient;
use crate::fake::{SimulatedClient, SimulatedZooKeeper};
use crate::session::FirstContact;
use crate::tests::Wrapped;
use crate::time::{Job, Latch, Moment, Priority, Runtime};

/// Opens a session on a new client.
pub(crate) fn open_on_manual_runtime(
    zookeeper: &SimulatedZooKeeper,
    session_timeout: Duration,
) -> (Arc<SimulatedClient>, Arc<ManualRuntime>, Session) {
    let client = zookeeper.connect(session_timeout);
    let runtime = Arc::new(ManualRuntime::default());
    let session = client.open_session_on(|| Ok(Arc::clone(&runtime)));
    (client, runtime, session.unwrap())
}

/// Opens a session on a client that wraps a simulated one, whose pings follow the runtime's clock.
pub(crate) fn open_wrapped_on_manual_runtime(
    client: Arc<impl Wrapped + 'static>,
) -> (Arc<ManualRuntime>, Session) {
    let runtime = Arc::new(ManualRuntime::default());
    client.simulated().run_on(&(Arc::clone(&runtime) as Arc<dyn Runtime>));
    let session = open_on(&runtime, client);
    (runtime, session)
}

/// Opens a session on a client that needs no runtime.
pub(crate) fn open_client_on_manual_runtime(
    client: Arc<dyn ZooKeeperClient>,
) -> (Arc<ManualRuntime>, Session) {
    let runtime = Arc::new(ManualRuntime::default());
    let session = open_on(&runtime, client);
    (runtime, session)
}

fn open_on(runtime: &Arc<ManualRuntime>, client: Arc<dyn ZooKeeperClient>) -> Session {
    super::begin();
    let contact = FirstContact::by(runtime.now(), client.granted().session_timeout, "the simulation");
    Session::open(Ok(client), runtime.clone(), None, contact).unwrap()
}

/// Runs jobs on the thread that submits them. Time passes, and timers run, only when a test advances the time
/// or waits for something.
#[derive(Default)]
pub(crate) struct ManualRuntime {
    state: Mutex<ManualState>,
}

#[derive(Default)]
struct ManualState {
    elapsed: Duration,
    jobs: VecDeque<Job>,
    running: bool,
    timers: Vec<(Moment, Job)>,
    after_reading: Option<Job>,
    moves: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl ManualState {
    fn now(&self) -> Moment {
        Moment::from_nanos(1_000_000_000).after(self.elapsed)
    }

    /// Takes the earliest timer that is due.
    fn take_due(&mut self) -> Option<Job> {
        let now = self.now();
        let due = self.timers.iter().enumerate().filter(|(_, (due, _))| *due <= now);
        let (position, _) = due.min_by_key(|(_, (due, _))| *due)?;
        Some(self.timers.remove(position).1)
    }
}

impl ManualRuntime {
    pub(crate) fn elapsed(&self) -> Duration {
        self.state.lock().elapsed
    }

    /// Runs a job just after the clock is next read, on the thread that reads it.
    pub(crate) fn after_next_reading(&self, job: impl FnOnce() + Send + 'static) {
        self.state.lock().after_reading = Some(Box::new(job));
    }

    /// Calls `moves` during each wait, before time passes, until `moves` returns `false` because it found
    /// nothing to do.
    pub(crate) fn while_waiting(&self, moves: impl Fn() -> bool + Send + Sync + 'static) {
        self.state.lock().moves = Some(Arc::new(moves));
    }

    /// Advances the time as if the process had been suspended: the timers that fall due do not run yet.
    pub(crate) fn suspend(&self, time: Duration) {
        self.state.lock().elapsed += time;
    }

    /// Advances the time and runs the timers that fall due.
    pub(crate) fn advance(&self, time: Duration) {
        self.suspend(time);
        loop {
            let Some(job) = self.state.lock().take_due() else { return };
            job();
        }
    }
}

impl Runtime for ManualRuntime {
    fn now(&self) -> Moment {
        let mut state = self.state.lock();
        let now = state.now();
        if let Some(job) = state.after_reading.take() {
            MutexGuard::unlocked(&mut state, job);
        }
        now
    }

    fn submit(&self, _priority: Priority, job: Job) {
        let mut state = self.state.lock();
        state.jobs.push_back(job);
        if mem::replace(&mut state.running, true) {
            return; // the call that is running the other jobs runs this one, too
        }
        while let Some(job) = state.jobs.pop_front() {
            MutexGuard::unlocked(&mut state, job);
        }
        state.running = false;
    }

    fn at(&self, moment: Moment, job: Job) {
        self.state.lock().timers.push((moment, job));
    }

    fn spawn(&self, _name: &'static str, body: Job) -> io::Result<()> {
        thread::spawn(body);
        Ok(())
    }

    /// Advances the time from timer to timer, up to the deadline.
    ///
    /// # Panics
    /// If nothing can end the wait.
    fn wait(&self, latches: &[&Latch], deadline: Option<Moment>) -> bool {
        let moves = self.state.lock().moves.clone();
        while !latches.iter().any(|latch| latch.is_set()) {
            if moves.as_ref().is_some_and(|moves| moves()) {
                continue;
            }
            let now = self.now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return false;
            }
            let timer = self.state.lock().timers.iter().map(|(due, _)| *due).min();
            match timer.into_iter().chain(deadline).min() {
                Some(next) => self.advance(next.since(now)),
                None => panic!("nothing can end this wait"),
            }
        }
        true
    }

    fn shut_down(&self) {}
}

impl fmt::Debug for ManualRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualRuntime").finish_non_exhaustive()
    }
}
