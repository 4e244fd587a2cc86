//! [`Signals`]: what a signal means at each stage, and how long a silent server is waited for.
//!
//! Before the command begins, a signal ends the program. While the command runs, signals are forwarded to it. Once it
//! has ended, or if it does not run, a signal ends the program again.
//!
//! Closing the session ends every wait for a server. So whatever ends the program early closes the session, on a thread
//! of its own: a signal, or the end of `--timeout`. The rest of the program waits for servers as long as it takes, and
//! looks at no signal. Only the end of the session itself is waited for with a limit.

use std::cell::Cell;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, after, at, bounded, never, select, unbounded};
use zookeeper_recipes_lock::Session;

use super::unix;

/// How long the server has to confirm the end of the session after a signal has ended the wait for the lock.
pub(super) const MAX_WITHDRAWAL: Duration = Duration::from_secs(1);

/// How long the release of the lock and everything that follows may take after a signal. A server that answers needs
/// less.
const MAX_SETTLING: Duration = Duration::from_secs(1);

/// After this time, the lookup of the holder that follows the end of `--timeout` is given up.
const MAX_LATE_LOOKUP: Duration = Duration::from_millis(200);

/// How long the server then has to confirm the end of the session. Together, the two times are less than the half second
/// by which the program may miss `--timeout`.
const MAX_LATE_CLOSE: Duration = Duration::from_millis(100);

/// Where the program is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The command has not begun.
    Waiting,
    /// This signal has ended the program before the command began.
    Interrupted(i32),
    /// `--timeout` has ended before the command began.
    Expired,
    Running,
    /// The command has ended, or does not run.
    Settling,
}

struct State {
    stage: Stage,
    /// Whether a signal came that should end the command, or the program after it.
    is_to_end: bool,
}

/// The handling of signals from the connection to the end.
pub(super) struct Signals {
    forwarded: Receiver<i32>,
    state: Arc<Mutex<State>>,
    /// Tells the thread that the command has ended.
    settled: Sender<()>,
    /// Receives how long to wait for the end of the session when the program is to end early.
    cut: Receiver<Duration>,
    is_request_left: Cell<bool>,
}

impl Signals {
    /// Takes over the signals. `limit` is the end of `--timeout`.
    pub(super) fn attend(
        session: &Session,
        signals: Receiver<i32>,
        limit: Option<Instant>,
    ) -> io::Result<Signals> {
        let state = Arc::new(Mutex::new(State { stage: Stage::Waiting, is_to_end: false }));
        let (forward, forwarded) = unbounded();
        let (settled, is_settled) = bounded(1);
        let (cutting, cut) = bounded(1);
        let attendant = Attendant { session: session.clone(), state: Arc::clone(&state), forward, cutting };
        let limit = limit.and_then(|limit| limit.checked_add(MAX_LATE_LOOKUP));
        let attend = move || attendant.attend(&signals, &is_settled, limit);
        thread::Builder::new().name("attend".to_owned()).spawn(attend)?;
        Ok(Signals { forwarded, state, settled, cut, is_request_left: Cell::new(false) })
    }

    /// The signals for the command.
    pub(super) fn forwarded(&self) -> &Receiver<i32> {
        &self.forwarded
    }

    /// Forwards signals to the command from now on. Returns `false` if the command must not begin, because the program
    /// is ending.
    pub(super) fn begin(&self) -> bool {
        let mut state = locked(&self.state);
        let may_begin = state.stage == Stage::Waiting;
        if may_begin {
            state.stage = Stage::Running;
        }
        may_begin
    }

    /// From now on, a signal ends the program. If a signal was to end the command, what follows must not take long.
    pub(super) fn settle(&self) {
        let mut state = locked(&self.state);
        if let Stage::Waiting | Stage::Running = state.stage {
            state.stage = Stage::Settling;
            // The receiver has gone only if the program is ending.
            let _ = self.settled.try_send(());
        }
    }

    /// The signal that has ended the program before the command began.
    pub(super) fn interruption(&self) -> Option<i32> {
        match locked(&self.state).stage {
            Stage::Interrupted(signal) => Some(signal),
            _ => None,
        }
    }

    /// Returns whether `--timeout` has ended before the command began.
    pub(super) fn has_expired(&self) -> bool {
        locked(&self.state).stage == Stage::Expired
    }

    /// Returns whether a signal came that should end the command, or the program after it.
    pub(super) fn is_to_end(&self) -> bool {
        locked(&self.state).is_to_end
    }

    /// Notes that the request may outlive the program, because no server has answered.
    pub(super) fn leave_request(&self) {
        self.is_request_left.set(true);
    }

    /// Closes the session. Returns whether a request may outlive the program.
    pub(super) fn close(&self, session: &Session) -> bool {
        self.settle();
        let is_closed = close(session);
        let is_in_time = select! {
            recv(is_closed) -> _ => true,
            recv(self.cut) -> time => is_closed_within(&is_closed, time.unwrap_or_default()),
        };
        self.is_request_left.get() || !is_in_time
    }
}

/// Closes the session on another thread. The channel is disconnected when the session is closed.
fn close(session: &Session) -> Receiver<()> {
    let (closed, is_closed) = bounded(0);
    let closing = session.clone();
    let close = move || {
        closing.close();
        drop(closed);
    };
    if thread::Builder::new().name("close".to_owned()).spawn(close).is_err() {
        session.close();
    }
    is_closed
}

fn is_closed_within(is_closed: &Receiver<()>, time: Duration) -> bool {
    is_closed.recv_timeout(time) == Err(RecvTimeoutError::Disconnected)
}

/// Closes a session that nobody uses, unless that takes too long.
pub(super) fn close_unused(session: &Session) {
    is_closed_within(&close(session), MAX_WITHDRAWAL);
}

/// The part of [`Signals`] that runs on its own thread.
struct Attendant {
    session: Session,
    state: Arc<Mutex<State>>,
    forward: Sender<i32>,
    cutting: Sender<Duration>,
}

impl Attendant {
    /// Handles signals until the program is to end early.
    fn attend(self, signals: &Receiver<i32>, is_settled: &Receiver<()>, limit: Option<Instant>) {
        let expiry = limit.map_or_else(never, at);
        let mut patience = never();
        let mut is_hurrying = false;
        let max_close = loop {
            let mut must_hurry = false;
            select! {
                recv(signals) -> signal => match signal.map(|signal| self.handle(signal)) {
                    Ok(Some(Stage::Interrupted(_))) => break MAX_WITHDRAWAL,
                    Ok(stage) => must_hurry = stage == Some(Stage::Settling),
                    Err(_) => return,
                },
                recv(is_settled) -> settled => match settled {
                    Ok(()) => must_hurry = locked(&self.state).is_to_end,
                    Err(_) => return,
                },
                recv(expiry) -> _ => if self.expire() {
                    break MAX_LATE_CLOSE;
                },
                recv(patience) -> _ => break MAX_LATE_CLOSE,
            }
            if must_hurry && !is_hurrying {
                is_hurrying = true;
                patience = after(MAX_SETTLING);
            }
        };
        // Fails only if the program has already ended.
        let _ = self.cutting.try_send(max_close);
        self.session.close();
    }

    /// Handles a signal. Returns the stage if the program is to end.
    fn handle(&self, signal: i32) -> Option<Stage> {
        // On SIGTSTP, this stops the program.
        if locked(&self.state).stage != Stage::Running && !unix::ends_wait(signal) {
            return None;
        }
        let mut state = locked(&self.state);
        match state.stage {
            Stage::Waiting => state.stage = Stage::Interrupted(signal),
            Stage::Running => {
                state.is_to_end |= unix::ends(signal);
                let _ = self.forward.send(signal);
                return None;
            }
            Stage::Settling if unix::ends(signal) => state.is_to_end = true,
            Stage::Settling | Stage::Interrupted(_) | Stage::Expired => return None,
        }
        Some(state.stage)
    }

    /// Handles the end of `--timeout`. Returns whether the program is to end.
    fn expire(&self) -> bool {
        let mut state = locked(&self.state);
        let is_waiting = state.stage == Stage::Waiting;
        if is_waiting {
            state.stage = Stage::Expired;
        }
        is_waiting
    }
}

/// No thread panics while it holds the mutex.
fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
