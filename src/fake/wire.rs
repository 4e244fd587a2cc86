//! [`Wire`]: the calls submitted to a client, which take effect one after the other, and the client's pings.
//!
//! Jobs of the session's runtime execute the calls, one at a time. So a virtual clock waits for them, and a runtime
//! with a single thread suffices. A client without a session starts its own threads on the first call that is submitted
//! to it.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::MutexGuard;

use super::link::{Link, Sent, check_length};
use super::state::{Contact, Shared, State};
use crate::client::{Call, ClientEvent, CreateMode, Done, call_in_parts, contain_call, path_of_child};
use crate::error::ZkError;
use crate::logging;
use crate::panics::contain;
use crate::session::Threads;
use crate::time::{Moment, Priority, Runtime};

/// The number of pings in a session timeout, the same as for the crate's own connection.
const PING_DIVISOR: u32 = 6;

#[derive(Default)]
pub(super) struct Wire {
    queue: VecDeque<Submitted>,
    /// Whether a job that executes the queue has been submitted but has not started.
    is_job_coming: bool,
    /// The thread that is executing the queue.
    driver: Option<ThreadId>,
    runtime: Option<Weak<dyn Runtime>>,
    /// The threads of a client that is used without a session.
    threads: Option<Arc<Threads>>,
    /// The number of the current series of pings. A new series ends the earlier ones.
    pings: u64,
}

enum Submitted {
    Call {
        call: Call,
        done: Done,
        number: usize,
        sent: Sent,
    },
    RemoveWatches(String),
    /// A ping sent at this moment, in the [series](Wire::pings) with this number.
    Ping(Moment, u64),
}

impl Wire {
    fn is_busy(&self) -> bool {
        self.driver.is_some() || !self.queue.is_empty()
    }

    /// Takes the client's own threads, to be shut down when the client is no longer used.
    pub(super) fn take_threads(&mut self) -> Option<Arc<Threads>> {
        self.threads.take()
    }

    /// Returns the runtime of the session or, without a session, the client's own.
    fn runtime(&mut self) -> Option<Arc<dyn Runtime>> {
        if let Some(runtime) = self.runtime.as_ref().and_then(Weak::upgrade) {
            return Some(runtime);
        }
        if self.threads.is_none() {
            self.threads = Threads::start().ok();
        }
        self.threads.clone().map(|threads| threads as Arc<dyn Runtime>)
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("queue", &self.queue.len()).finish_non_exhaustive()
    }
}

impl Link {
    /// Adopts the clock and the threads of a session, which drive the pings from now on.
    pub(super) fn run_on(&self, runtime: &Arc<dyn Runtime>) {
        self.client(&mut self.shared.lock()).wire.runtime = Some(Arc::downgrade(runtime));
        self.begin_pings();
    }

    pub(super) fn submit(&self, call: Call, done: Done) {
        if let Err(error) = check_length(&call) {
            return done.finish(Err(error));
        }
        let mut state = self.shared.lock();
        let number = self.begin_first_part(&mut state, &call);
        let client = self.client(&mut state);
        let connection = match client.contact {
            Contact::Lost | Contact::Closed => {
                state.log.record_outcome(number, Err(ZkError::SessionExpired));
                drop(state);
                return done.finish(Err(ZkError::SessionExpired));
            }
            Contact::Disconnected => None,
            Contact::Connected | Contact::Silent => Some(client.connection),
        };
        let sent = Sent::OnConnection(connection);
        client.wire.queue.push_back(Submitted::Call { call, done, number, sent });
        self.call_driver(state);
    }

    /// Returns the runtime for a submitted call. If the client has no session, the first such call also starts its
    /// pings.
    fn take_runtime(&self, mut state: MutexGuard<'_, State>) -> Option<Arc<dyn Runtime>> {
        let wire = &mut self.client(&mut state).wire;
        let is_first = wire.runtime.is_none() && wire.threads.is_none();
        let runtime = wire.runtime();
        drop(state);
        if is_first {
            self.begin_pings();
        }
        runtime
    }

    /// Logs a call, or the first of its two parts.
    fn begin_first_part(&self, state: &mut State, call: &Call) -> usize {
        match call {
            Call::CreateAndList { dir, prefix, data, acl } => {
                let path = path_of_child(dir, prefix).concat();
                let mode = CreateMode::EphemeralSequential;
                self.begin(state, &Call::create(path, Arc::clone(data), Arc::clone(acl), mode).call)
            }
            call => self.begin(state, call),
        }
    }

    pub(super) fn remove_watches(&self, path: &str) {
        let mut state = self.shared.lock();
        let wire = &mut self.client(&mut state).wire;
        if wire.is_busy() {
            // Executed after the calls that set the watches.
            wire.queue.push_back(Submitted::RemoveWatches(path.to_owned()));
            return self.call_driver(state);
        }
        self.remove_watches_now(&mut state, path);
    }

    fn remove_watches_now(&self, state: &mut State, path: &str) {
        if self.client(state).contact == Contact::Connected {
            state.watches.remove(path, self.session);
        }
    }

    /// Submits a job that executes the queue, unless a thread already executes it or such a job is already
    /// waiting.
    fn call_driver(&self, mut state: MutexGuard<'_, State>) {
        let wire = &mut self.client(&mut state).wire;
        if wire.driver.is_some() || mem::replace(&mut wire.is_job_coming, true) {
            return;
        }
        let turn = Turn { link: self.clone(), is_taken: false };
        match self.take_runtime(state) {
            Some(runtime) => runtime.submit(Priority::Session, Box::new(move || turn.take())),
            // Without threads, the calls fail, as they do when a runtime drops the job.
            None => drop(turn),
        }
    }

    /// Executes the queue, unless another thread is already doing so.
    fn drive(&self) {
        {
            let mut state = self.shared.lock();
            let wire = &mut self.client(&mut state).wire;
            wire.is_job_coming = false;
            if wire.driver.is_some() {
                return;
            }
            wire.driver = Some(thread::current().id());
        }
        loop {
            let mut state = self.shared.lock();
            let wire = &mut self.client(&mut state).wire;
            match wire.queue.pop_front() {
                Some(Submitted::Call { call, done, number, sent }) => {
                    drop(state);
                    self.execute_submitted(&call, done, number, sent);
                }
                Some(Submitted::RemoveWatches(path)) => self.remove_watches_now(&mut state, &path),
                Some(Submitted::Ping(sent, number)) => self.answer_ping(state, sent, number),
                None => {
                    wire.driver = None;
                    return self.shared.notify(&mut state);
                }
            }
        }
    }

    fn execute_submitted(&self, call: &Call, done: Done, number: usize, sent: Sent) {
        let (mut last, mut parts) = (number, 0);
        let outcome = contain_call("a stop point in a simulated call", || {
            call_in_parts(call, |part| {
                parts += 1;
                if parts > 1 {
                    let mut state = self.shared.lock();
                    self.client(&mut state).outbox.take_part(last);
                    last = self.begin(&mut state, part);
                }
                let outcome = self.pass(part, last, sent);
                let of_part = outcome.as_ref().map(drop).map_err(|error| *error);
                self.shared.lock().log.record_outcome(last, of_part);
                outcome
            })
        });
        let mut state = self.shared.lock();
        let ticket = state.next_ticket();
        self.client(&mut state).outbox.push_outcome(ticket, last, done, outcome);
        drop(state);
        self.pass_on();
    }

    /// Delivers replies and events on a thread that does not belong to the test, so a panic is only logged.
    fn pass_on(&self) {
        while let Err(message) = contain(|| drop(self.shared.flush(self.shared.lock()))) {
            logging::error!("the receiver of a simulated client's replies and events panicked: {message}");
        }
    }

    /// Returns once the queued calls have been executed, on this thread or another. Without contact, or while the
    /// network swallows packets, returns at once.
    pub(super) fn drain(&self) {
        let mut state = self.shared.lock();
        loop {
            let client = self.client(&mut state);
            let may_proceed = client.contact == Contact::Connected && !client.swallowed;
            if !may_proceed || !client.wire.is_busy() {
                return;
            }
            match client.wire.driver {
                // This thread is already executing a call, and that call led here.
                Some(driver) if driver == thread::current().id() => return,
                Some(_) => self.shared.wait(&mut state),
                None => {
                    drop(state);
                    return self.drive();
                }
            }
        }
    }

    /// Fails the queued calls.
    pub(super) fn fail_queued(&self, error: ZkError) {
        let queue = mem::take(&mut self.client(&mut self.shared.lock()).wire.queue);
        for submitted in queue {
            if let Submitted::Call { done, number, .. } = submitted {
                self.shared.lock().log.record_outcome(number, Err(error));
                done.finish(Err(error));
            }
        }
    }

    // ---- pings

    /// Starts a new series of pings.
    pub(super) fn begin_pings(&self) {
        let (number, runtime) = {
            let mut state = self.shared.lock();
            let client = self.client(&mut state);
            client.wire.pings += 1;
            let pings = client.contact == Contact::Connected;
            // A client without a session sends no pings before the first call that is submitted to it.
            let has_runtime = client.wire.runtime.is_some() || client.wire.threads.is_some();
            (client.wire.pings, (pings && has_runtime).then(|| client.wire.runtime()).flatten())
        };
        if let Some(runtime) = runtime {
            self.set_ping(number, &*runtime);
        }
    }

    fn set_ping(&self, number: u64, runtime: &dyn Runtime) {
        let interval = self.client(&mut self.shared.lock()).session_timeout / PING_DIVISOR;
        let (shared, session): (Weak<Shared>, _) = (Arc::downgrade(&self.shared), self.session);
        // A session timeout of zero must not keep the timer busy.
        let at = runtime.now().after(interval.max(Duration::from_millis(1)));
        let ping = move || {
            if let Some(shared) = shared.upgrade() {
                Link { shared, session }.ping(number);
            }
        };
        runtime.at(at, Box::new(ping));
    }

    /// Sends a ping and schedules the next one.
    fn ping(&self, number: u64) {
        let mut state = self.shared.lock();
        let Some(client) = state.clients.get_mut(&self.session) else { return };
        if client.wire.pings != number || client.contact != Contact::Connected {
            return;
        }
        let Some(runtime) = client.wire.runtime() else { return };
        client.wire.queue.push_back(Submitted::Ping(runtime.now(), number));
        self.call_driver(state);
        self.set_ping(number, &*runtime);
    }

    /// Answers a ping, unless the network swallows it.
    fn answer_ping(&self, mut state: MutexGuard<'_, State>, sent: Moment, number: u64) {
        let client = self.client(&mut state);
        if client.wire.pings == number && client.contact == Contact::Connected && !client.swallowed {
            state.queue_event(self.session, ClientEvent::PingAnswered { sent });
            drop(state);
            self.pass_on();
        }
    }
}

/// A job that executes the queue. If the runtime drops the job because the session has ended, the queued
/// calls fail.
struct Turn {
    link: Link,
    is_taken: bool,
}

impl Turn {
    fn take(mut self) {
        self.is_taken = true;
        self.link.drive();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_taken {
            return;
        }
        let is_driven = {
            let mut state = self.link.shared.lock();
            let wire = &mut self.link.client(&mut state).wire;
            wire.is_job_coming = false;
            wire.driver.is_some()
        };
        if !is_driven {
            self.link.fail_queued(ZkError::ConnectionLoss);
        }
    }
}
