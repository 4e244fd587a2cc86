//! [`HoldingClient`]: a client that answers immediately, except for calls and replies that a test holds back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::client::{Call, Done, EventSink, SessionRuntime, ZooKeeperClient};
use crate::fake::SimulatedClient;
use crate::time::Job;

/// A client that makes each call, and reports its outcome, on the thread that submits the call.
pub(crate) struct HoldingClient {
    client: Arc<SimulatedClient>,
    /// Whether the session ends with the client. Otherwise the session is borrowed and lives on.
    owns_session: bool,
    /// Which parts of the next calls of `get_data` to hold back.
    holds: Mutex<VecDeque<Hold>>,
    held: Mutex<VecDeque<Job>>,
}

/// The part of a call that is held back.
#[derive(Clone, Copy)]
pub(crate) enum Hold {
    Call,
    Reply,
}

impl HoldingClient {
    pub(crate) fn new(client: Arc<SimulatedClient>) -> Arc<HoldingClient> {
        HoldingClient::with(client, true)
    }

    /// Creates a client whose session belongs to the application.
    pub(crate) fn borrowing(client: Arc<SimulatedClient>) -> Arc<HoldingClient> {
        HoldingClient::with(client, false)
    }

    fn with(client: Arc<SimulatedClient>, owns_session: bool) -> Arc<HoldingClient> {
        Arc::new(HoldingClient { client, owns_session, holds: Mutex::default(), held: Mutex::default() })
    }

    /// Holds back this part of the next call of `get_data` for which nothing is held back yet.
    pub(crate) fn hold_next(&self, hold: Hold) {
        self.holds.lock().push_back(hold);
    }

    /// Releases what has been held back longest: makes the call, or reports the reply.
    pub(crate) fn release_first(&self) {
        let held = self.held.lock().pop_front();
        held.expect("something must be held back")();
    }
}

impl ZooKeeperClient for HoldingClient {
    fn run_on(&self, runtime: &SessionRuntime) {
        self.client.run_on(runtime);
    }

    fn submit(&self, call: Call, done: Done) {
        let is_held = matches!(call, Call::GetData { .. });
        let hold = is_held.then(|| self.holds.lock().pop_front()).flatten();
        let held: Job = match hold {
            None => return done.finish(self.client.call(&call)),
            Some(Hold::Call) => {
                let client = Arc::clone(&self.client);
                Box::new(move || done.finish(client.call(&call)))
            }
            Some(Hold::Reply) => {
                let result = self.client.call(&call);
                Box::new(move || done.finish(result))
            }
        };
        self.held.lock().push_back(held);
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn remove_watches(&self, path: &str) {
        self.client.remove_watches(path);
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        self.client.subscribe(sink)
    }

    fn session_id(&self) -> Option<i64> {
        Some(self.client.session_id())
    }

    fn session_timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    fn report_delay(&self) -> Duration {
        self.client.report_delay()
    }

    fn min_idle_for_ping(&self) -> Duration {
        self.client.min_idle_for_ping()
    }

    fn reports_pings(&self) -> bool {
        self.client.reports_pings()
    }

    fn owns_session(&self) -> bool {
        self.owns_session
    }

    fn close(&self) {
        if self.owns_session {
            self.client.close();
        }
    }
}
