//! [`Authenticator`]: makes the first tokens of exchanges, on short-lived threads where that may block.
//!
//! A server has at most one thread. A thread that waits for a ticket for ever stops nothing else, and ends with its
//! answer, even after the connection.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};
use mio::Waker;

use super::{Mechanism, Prepared};
use crate::support::panics;

/// The first token for the server at this position, or why there is none.
pub(crate) type Answer = (usize, Result<Prepared, String>);

pub(crate) struct Authenticator {
    mechanism: Arc<Mechanism>,
    /// The servers whose answer has not been taken.
    pending: HashSet<usize>,
    answer: Sender<Answer>,
    answers: Receiver<Answer>,
    waker: Arc<Waker>,
}

impl Authenticator {
    /// `waker` is woken at each answer.
    pub(crate) fn new(mechanism: Mechanism, waker: Arc<Waker>) -> Authenticator {
        let (answer, answers) = unbounded();
        Authenticator { mechanism: Arc::new(mechanism), pending: HashSet::new(), answer, answers, waker }
    }

    /// Returns whether tokens need tickets, which are to be fetched before they are needed.
    pub(crate) fn uses_tickets(&self) -> bool {
        self.mechanism.may_block()
    }

    /// Makes a token for a server, unless one is being made.
    pub(crate) fn prepare(&mut self, server: usize, host: String) {
        if !self.pending.insert(server) {
            return;
        }
        if !self.mechanism.may_block() {
            return reply(&self.answer, &self.waker, (server, self.mechanism.prepare(&host)));
        }
        let (mechanism, answer, waker) =
            (Arc::clone(&self.mechanism), self.answer.clone(), Arc::clone(&self.waker));
        let thread = thread::Builder::new().name("zk-sasl".to_owned());
        let spawned = thread.spawn(move || {
            let prepared = panics::contain(|| mechanism.prepare(&host));
            reply(&answer, &waker, (server, prepared.unwrap_or_else(Err)));
        });
        if let Err(error) = spawned {
            reply(&self.answer, &self.waker, (server, Err(error.to_string())));
        }
    }

    pub(crate) fn next_answer(&mut self) -> Option<Answer> {
        let (server, answer) = self.answers.try_recv().ok()?;
        self.pending.remove(&server);
        Some((server, answer))
    }
}

fn reply(answers: &Sender<Answer>, waker: &Waker, answer: Answer) {
    // Fails once the connection has ended.
    if answers.send(answer).is_ok() {
        let _ = waker.wake();
    }
}
