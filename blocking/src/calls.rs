//! [`Calls`]: the calls of a session, which one thread makes one after the other.
//!
//! So they take effect, and are answered, in the order in which they were submitted. While a call is under way, the
//! [connection state](super::connection_state) holds events back.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use log::Level;
use parking_lot::{Condvar, Mutex};
use zookeeper_recipes_lock::client::seam::{Call, Done, Reply};
use zookeeper_recipes_lock::client::{ZkError, ZkResult};

use crate::logging;

/// What makes the calls.
pub(crate) trait Handle: Send + Sync + 'static {
    /// Makes a call, and waits for its outcome.
    fn call(&self, call: &Call) -> ZkResult<Reply>;

    /// Called before each call.
    fn begin(&self);

    /// Called after each call, when its outcome has been passed on.
    fn end(&self);

    /// Shows the servers that the session is alive, because no call was made for a while.
    fn ping(&self);
}

/// A handle to the calls. The thread that makes them ends with [`end`](Calls::end).
#[derive(Clone)]
pub(crate) struct Calls {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Call, Done)>,
    under_way: Option<Done>,
    has_ended: bool,
}

/// What the thread does next.
enum Next {
    Call(Call),
    Ping,
    End,
}

impl Calls {
    /// Starts the thread. A ping is due when no call was made for `ping_after`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(handle: Arc<impl Handle>, ping_after: Duration) -> io::Result<Calls> {
        let calls = Calls { shared: Arc::default() };
        let shared = Arc::clone(&calls.shared);
        thread::Builder::new()
            .name("zk-lock-calls".to_owned())
            .spawn(move || shared.run(&*handle, ping_after))?;
        Ok(calls)
    }

    pub(crate) fn submit(&self, call: Call, done: Done) {
        let mut state = self.shared.state.lock();
        if state.has_ended {
            drop(state);
            return done.finish(Err(ZkError::SessionExpired));
        }
        state.waiting.push_back((call, done));
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Fails the calls in flight, one of which may be stuck, and all later ones.
    pub(crate) fn end(&self) {
        let (under_way, waiting) = {
            let mut state = self.shared.state.lock();
            state.has_ended = true;
            (state.under_way.take(), mem::take(&mut state.waiting))
        };
        self.shared.changed.notify_all();
        for done in under_way.into_iter().chain(waiting.into_iter().map(|(_, done)| done)) {
            done.finish(Err(ZkError::SessionExpired));
        }
    }
}

impl Shared {
    fn run(&self, handle: &impl Handle, ping_after: Duration) {
        loop {
            match self.next(Instant::now() + ping_after) {
                Next::Call(call) => {
                    handle.begin();
                    let outcome = make(handle, &call);
                    let done = self.state.lock().under_way.take();
                    if let Some(done) = done {
                        done.finish(outcome);
                    }
                    handle.end();
                }
                Next::Ping => handle.ping(),
                Next::End => return,
            }
        }
    }

    fn next(&self, ping_at: Instant) -> Next {
        let mut state = self.state.lock();
        loop {
            if state.has_ended {
                return Next::End;
            }
            if let Some((call, done)) = state.waiting.pop_front() {
                state.under_way = Some(done);
                return Next::Call(call);
            }
            if self.changed.wait_until(&mut state, ping_at).timed_out() {
                return Next::Ping;
            }
        }
    }
}

/// Makes a call. A panic is caught and counts as a lost reply, because the call may have taken effect.
fn make(handle: &impl Handle, call: &Call) -> ZkResult<Reply> {
    catch_unwind(AssertUnwindSafe(|| handle.call(call))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
        let line = format_args!("the ZooKeeper client panicked, so the outcome of a call is unknown: {text}");
        logging::write(Level::Error, line);
        // Dropping the payload could panic again and end the thread.
        mem::forget(panic);
        Err(ZkError::ConnectionLoss)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

    const LONG: Duration = Duration::from_secs(30);

    /// Each call waits for a permit. Reads panic.
    struct Slow {
        permits: Receiver<()>,
        log: Sender<String>,
    }

    impl Handle for Slow {
        fn call(&self, call: &Call) -> ZkResult<Reply> {
            let path = call.path().unwrap_or_default().to_owned();
            self.log.send(format!("call {path}")).unwrap();
            let _ = self.permits.recv();
            match call {
                Call::GetData { .. } => panic!("on purpose"),
                _ => Ok(Reply::Done),
            }
        }

        fn begin(&self) {
            self.log.send("begin".to_owned()).unwrap();
        }

        fn end(&self) {
            self.log.send("end".to_owned()).unwrap();
        }

        fn ping(&self) {
            self.log.send("ping".to_owned()).unwrap();
        }
    }

    fn start(ping_after: Duration) -> (Calls, Sender<()>, Receiver<String>, Sender<String>) {
        let ((permit, permits), (log, logged)) = (unbounded(), unbounded());
        let calls = Calls::start(Arc::new(Slow { permits, log: log.clone() }), ping_after).unwrap();
        (calls, permit, logged, log)
    }

    fn delete(path: &str) -> Call {
        Call::Delete { path: path.into(), version: None }
    }

    #[test]
    fn calls_are_made_one_after_the_other_and_answered_in_between() {
        let (calls, permit, logged, log) = start(LONG);
        for path in ["/a", "/b"] {
            let log = log.clone();
            calls.submit(delete(path), Done::new(move |_| log.send(format!("done {path}")).unwrap()));
        }
        let next = || logged.recv_timeout(LONG).unwrap();
        assert_eq!([next(), next()], ["begin", "call /a"]);
        assert!(logged.is_empty(), "the second call waits for the first");
        permit.send(()).unwrap();
        assert_eq!([next(), next(), next(), next()], ["done /a", "end", "begin", "call /b"]);
        permit.send(()).unwrap();
        assert_eq!([next(), next()], ["done /b", "end"]);
        calls.end();
    }

    #[test]
    fn outcome_of_a_call_that_panics_is_unknown_and_later_calls_are_made() {
        let (calls, permit, _logged, _log) = start(LONG);
        for call in [Call::GetData { path: "/a".into(), watch: false }, delete("/a")] {
            let expected = if call.is_write() { Ok(Reply::Done) } else { Err(ZkError::ConnectionLoss) };
            let (send, outcome) = bounded(1);
            calls.submit(call, Done::new(move |result| send.send(result).unwrap()));
            permit.send(()).unwrap();
            assert_eq!(outcome.recv_timeout(LONG).unwrap(), expected);
        }
        calls.end();
    }

    #[test]
    fn calls_in_flight_end_with_the_session_even_if_one_is_stuck() {
        let (calls, _permit, logged, _log) = start(LONG);
        let (send, outcomes) = unbounded();
        let submit = || {
            let send = send.clone();
            calls.submit(delete("/a"), Done::new(move |result| send.send(result).unwrap()));
        };
        (0..3).for_each(|_| submit());
        while logged.recv_timeout(LONG).unwrap() != "call /a" {}
        calls.end();
        submit();
        for _ in 0..4 {
            assert_eq!(outcomes.recv_timeout(LONG).unwrap(), Err(ZkError::SessionExpired));
        }
    }

    #[test]
    fn session_is_pinged_when_no_call_was_made_for_a_while() {
        let (calls, _permit, logged, _log) = start(Duration::from_millis(1));
        assert_eq!([(); 2].map(|()| logged.recv_timeout(LONG).unwrap()), ["ping"; 2]);
        calls.end();
    }
}
