//! Tests of cohorts on a fake server.

mod failures;
mod handovers;
mod keeping;
mod limits;

use std::sync::Arc;
use std::time::Duration;

use super::turns::{Entry, Grant, Turn};
use crate::fake::{SimulatedClient, SimulatedZooKeeper};
use crate::locks::{CohortGuard, CohortLock, CohortOptions};
use crate::tests::{ManualRuntime, open_on_manual_runtime};
use crate::{LockError, LockOptions, Session};

const DIR: &str = "/lock";
const TIMEOUT: Duration = Duration::from_secs(30);
const KEEP: Duration = Duration::from_secs(1);

/// A lock on a manual runtime.
struct Fixture {
    server: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    runtime: Arc<ManualRuntime>,
    session: Session,
    lock: CohortLock,
}

fn keeping() -> CohortOptions {
    CohortOptions::new().keep_for(KEEP)
}

impl Fixture {
    fn new(options: CohortOptions) -> Fixture {
        Fixture::with(LockOptions::new(), options)
    }

    fn with(lock_options: LockOptions, options: CohortOptions) -> Fixture {
        let server = SimulatedZooKeeper::new();
        let (client, runtime, session) = open_on_manual_runtime(&server, TIMEOUT);
        let lock = CohortLock::with_options(&session, DIR, lock_options, options).unwrap();
        Fixture { server, client, runtime, session, lock }
    }

    /// A fixture with a kept lock.
    fn kept() -> Fixture {
        let fixture = Fixture::new(keeping());
        drop(fixture.lock.lock().unwrap());
        assert!(fixture.is_kept());
        fixture
    }

    fn is_kept(&self) -> bool {
        self.lock.cohort().shared.view().is_some_and(|view| view.is_kept && view.is_owner)
    }

    /// Creates a request of another client.
    fn ask(&self) -> String {
        self.server.create_sequential(DIR, "x-other-lock-", Some(7))
    }

    fn requests(&self) -> Vec<String> {
        self.server.children(DIR)
    }

    /// Makes another thread wait.
    fn wait(&self) -> Waiting<'_> {
        let cohort = self.lock.cohort();
        let Entry::Waits { number, turn } = cohort.shared.enter(false) else { panic!("the lock is free") };
        cohort.advance();
        Waiting { fixture: self, number, turn }
    }

    fn assert_nothing_is_left(self) {
        let Fixture { server, session, lock, .. } = self;
        drop(lock);
        assert!(server.children(DIR).is_empty(), "{:?}", server.children(DIR));
        let left = session.core().census();
        assert_eq!(left, (0, 0));
    }
}

/// The place of a waiting thread. There is no actual thread.
struct Waiting<'a> {
    fixture: &'a Fixture,
    number: u64,
    turn: Turn,
}

impl Waiting<'_> {
    fn turn(&self) -> Option<Result<Grant, LockError>> {
        self.turn.outcome.take()
    }

    fn guard(&self) -> Option<CohortGuard> {
        self.turn().map(|turn| CohortGuard::new(self.fixture.lock.cohort(), turn.unwrap()))
    }
}
