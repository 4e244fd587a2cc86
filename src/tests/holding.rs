//! [`HoldingClient`]: a client that answers immediately, except for calls and replies that a test holds back.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::client::{Call, Done};
use crate::fake::SimulatedClient;
use crate::tests::Wrapped;
use crate::time::Job;

/// A client that makes each call, and reports its outcome, on the thread that submits the call.
pub(crate) struct HoldingClient {
    client: Arc<SimulatedClient>,
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
        Arc::new(HoldingClient { client, holds: Mutex::default(), held: Mutex::default() })
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

impl Wrapped for HoldingClient {
    fn simulated(&self) -> &Arc<SimulatedClient> {
        &self.client
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
}
