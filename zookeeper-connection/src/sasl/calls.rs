//! [`Calls`]: prepares exchanges on a limited number of other threads, because a call may wait for a ticket.
//!
//! The system's library waits a long time for a silent KDC, and its calls cannot be interrupted. The connections of a
//! process with the same configuration therefore share one thread for each host, and one thread that fetches tickets in
//! advance. Each thread has a queue of calls, and ends when its queue is empty, perhaps long after the connections have
//! ended.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::thread;

use crossbeam_channel::Sender;
use mio::Waker;

use super::{Answer, Prepare, Prepared};
use crate::support::lock_order::{Mutex, rank::TICKETS};
use crate::support::panics;

/// See the [module](self).
pub(crate) struct Calls {
    prepare: Box<Prepare>,
    /// The calls that wait for each thread.
    queues: Mutex<TICKETS, HashMap<Worker, VecDeque<Call>>>,
}

/// A thread that makes calls.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Worker {
    OfHost(String),
    /// Fetches tickets in advance, for one host after another. Several such threads would disturb each other: with a
    /// client keytab, a call may renew the credential cache, and remove tickets that other calls have just put there.
    Ahead,
}

struct Call {
    host: String,
    /// The position of the server in the caller's list.
    server: usize,
    caller: Caller,
}

/// A connection that waits for an answer. The connection may end before the answer comes: a `Caller` does not keep it
/// alive.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) answers: Sender<Answer>,
    pub(super) waker: Weak<Waker>,
}

impl Caller {
    fn is_gone(&self) -> bool {
        self.waker.strong_count() == 0
    }

    pub(super) fn reply(&self, answer: Answer) {
        let Some(waker) = self.waker.upgrade() else { return };
        if self.answers.send(answer).is_ok() {
            let _ = waker.wake();
        }
    }
}

impl Calls {
    #[cfg(any(test, feature = "kerberos"))]
    pub(super) fn new(prepare: impl Fn(&str) -> Result<Prepared, String> + Send + Sync + 'static) -> Calls {
        Calls { prepare: Box::new(prepare), queues: Mutex::default() }
    }

    /// Prepares an exchange with the server on a host.
    pub(super) fn prepare(self: &Arc<Calls>, host: String, server: usize, caller: Caller) {
        self.submit(Worker::OfHost(host.clone()), Call { host, server, caller });
    }

    /// Fetches a ticket for the server on a host, unless the cache has one.
    pub(super) fn fetch_ahead(self: &Arc<Calls>, host: String, server: usize, caller: Caller) {
        self.submit(Worker::Ahead, Call { host, server, caller });
    }

    fn submit(self: &Arc<Calls>, worker: Worker, call: Call) {
        {
            let mut queues = self.queues.lock();
            if let Some(queue) = queues.get_mut(&worker) {
                queue.retain(|waiting| !waiting.caller.is_gone());
                queue.push_back(call);
                return;
            }
            queues.insert(worker.clone(), VecDeque::from([call]));
        }
        let (calls, works_as) = (Arc::clone(self), worker.clone());
        let thread = thread::Builder::new().name("zk-sasl".to_owned());
        if let Err(error) = thread.spawn(move || calls.work(&works_as)) {
            let queue = self.queues.lock().remove(&worker);
            for call in queue.into_iter().flatten() {
                answer(&worker, &call, Err(error.to_string()));
            }
        }
    }

    /// Makes the calls in a queue until the queue is empty.
    fn work(&self, worker: &Worker) {
        while let Some(call) = self.next_call(worker) {
            let prepared = panics::contain(|| (self.prepare)(&call.host));
            answer(worker, &call, prepared.unwrap_or_else(Err));
        }
    }

    fn next_call(&self, worker: &Worker) -> Option<Call> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(worker)?;
        queue.retain(|waiting| !waiting.caller.is_gone());
        if let Some(call) = queue.pop_front() {
            // One ticket serves all callers. The other calls leave the queue only now, because the first caller might
            // have ended while its call was waiting.
            queue.retain(|waiting| *worker != Worker::Ahead || waiting.host != call.host);
            return Some(call);
        }
        queues.remove(worker);
        None
    }
}

fn answer(worker: &Worker, call: &Call, prepared: Result<Prepared, String>) {
    match (worker, prepared) {
        (Worker::OfHost(_), prepared) => call.caller.reply(Answer::Prepared(call.server, prepared)),
        (Worker::Ahead, Err(why)) => call.caller.reply(Answer::NoTicket(call.server, why)),
        // The ticket is in the cache now. The token is not needed.
        (Worker::Ahead, Ok(_)) => {}
    }
}
