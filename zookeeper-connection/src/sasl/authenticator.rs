//! [`Authenticator`]: prepares exchanges, on short-lived threads where that may block.
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

/// The exchange with the server at this position, or why there is none.
pub(crate) type Answer = (usize, Result<Prepared, String>);

pub(crate) struct Authenticator {
    mechanism: Mechanism,
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
        Authenticator { mechanism, pending: HashSet::new(), answer, answers, waker }
    }

    /// Returns whether an exchange needs a ticket, which is to be fetched ahead.
    pub(crate) fn needs_tickets(&self) -> bool {
        self.mechanism.needs_tickets
    }

    /// Prepares an exchange with a server, unless one is being prepared.
    pub(crate) fn prepare(&mut self, server: usize, host: String) {
        if !self.pending.insert(server) {
            return;
        }
        let prepare = Arc::clone(&self.mechanism.prepare);
        if !self.mechanism.needs_tickets {
            return reply(&self.answer, &self.waker, (server, prepare(&host)));
        }
        let (answer, waker) = (self.answer.clone(), Arc::clone(&self.waker));
        let thread = thread::Builder::new().name("zk-sasl".to_owned());
        let spawned = thread.spawn(move || {
            let prepared = panics::contain(|| prepare(&host));
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
