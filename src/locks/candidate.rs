//! [`Candidate`]: stands for election repeatedly, and runs a closure whenever it leads.
//!
//! Origin: Curator's `LeaderSelector`.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, never};
use parking_lot::Mutex;

use crate::error::{LockError, Result};
use crate::locks::blocking_write_lock::BlockingWriteLock;
use crate::locks::leadership::Leadership;
use crate::locks::lock_guard::LockGuard;
use crate::logging;
use crate::panics::contain;
use crate::request::Request;
use crate::session::{Process, Runtime, is_disconnected};
use crate::wait::{CancelToken, Wait, Waited};

/// Minimum interval between joins.
const MIN_REJOIN_INTERVAL: Duration = Duration::from_secs(1);

/// A leader without a closure is woken when it must stop. This limit makes no difference.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Stands for election on its own thread until it is dropped, and runs a closure there whenever
/// it leads.
///
/// The closure receives the [`Leadership`] and leads until it returns. It should return soon when
/// [`should_stop`](Leadership::should_stop) is `true`, as nothing can stop it from outside. Then
/// the candidate steps down and stands again, behind those who wait.
///
/// | the closure | the candidate |
/// |---|---|
/// | returns `Ok` | stands again |
/// | returns an error | logs it at `warn` and stands again |
/// | panics | ends with [`LeaderPanicked`](LockError::LeaderPanicked), as the closure's state may be inconsistent |
/// | returns after a [`stop`](Candidate::stop) | ends |
///
/// It joins the queue at most once a second, so a closure that fails at once does not keep the
/// servers busy.
///
/// # Which session
/// On a session that [replaces itself](crate::SessionBuilder::replace_lost_sessions) the candidate
/// stands again after a loss: for daemons that use the session for nothing else. On another session
/// a loss ends it with [`SessionLost`](LockError::SessionLost): for applications that must set up
/// more than this again.
///
/// `Send` and `Sync`. Dropping it stops it without blocking.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{BlockingWriteLock, Candidate, LockOptions, Session};
///
/// # fn balance_shards(_token: i64) {}
/// let session = Session::builder("zk1:2181,zk2:2181,zk3:2181").replace_lost_sessions(true).connect()?;
/// // The data show who leads.
/// let options = LockOptions::new().data("10.0.0.7:8080");
/// let election = BlockingWriteLock::with_options(&session, "/election", options)?;
/// let candidate = Candidate::start(election, |leadership| {
///     let token = leadership.fencing_token()?;
///     while leadership.wait(Duration::from_secs(1)) {
///         balance_shards(token);
///     }
///     Ok(())
/// })?;
///
/// // At the end of the process:
/// candidate.stop();
/// candidate.wait(Duration::from_secs(5));
/// session.close();
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
pub struct Candidate {
    shared: Arc<Shared>,
    process: Process,
    runtime: Arc<dyn Runtime>,
    ended: Receiver<Infallible>,
}

/// What the candidate shares with its thread.
struct Shared {
    dir: String,
    stop: CancelToken,
    /// The request that leads.
    leading: Mutex<Option<Arc<Request>>>,
    /// Its receivers are disconnected when the next leadership begins.
    next_leadership: Mutex<(Sender<Infallible>, Receiver<Infallible>)>,
    /// Why it ended by itself.
    error: OnceLock<LockError>,
}

type Lead = dyn FnMut(&Leadership) -> std::result::Result<(), Box<dyn Error + Send + Sync>> + Send;

impl Candidate {
    /// Stands for election on the directory of this lock, with its options.
    ///
    /// # Errors
    /// [`Thread`](LockError::Thread). [`error`](Candidate::error) returns later errors.
    pub fn start(
        election: BlockingWriteLock,
        lead: impl FnMut(&Leadership) -> std::result::Result<(), Box<dyn Error + Send + Sync>> + Send + 'static,
    ) -> Result<Candidate> {
        let shared = Arc::new(Shared {
            dir: election.dir().to_owned(),
            stop: CancelToken::new(),
            leading: Mutex::new(None),
            next_leadership: Mutex::new(bounded(0)),
            error: OnceLock::new(),
        });
        let (running, ended) = bounded(0);
        let mut campaign = Campaign { shared: Arc::clone(&shared), election, lead: Box::new(lead) };
        let of_thread = Arc::clone(&shared);
        let core = campaign.election.core();
        let (process, runtime) = (core.process(), Arc::clone(core.runtime()));
        let body = Box::new(move || {
            let outcome = campaign.run();
            // Before the end is visible, as it holds the application's values.
            if let Err(message) = contain(|| drop(campaign)) {
                logging::error!("the closure of a candidate panicked when it was dropped: {message}");
            }
            of_thread.end(outcome);
            drop(running);
        });
        runtime.spawn("zk-lock-leader", body).map_err(LockError::thread)?;
        Ok(Candidate { shared, process, runtime, ended })
    }

    /// Stands for election without a closure: the candidate leads from its election until it is
    /// stopped, until the leadership is lost, or until somebody asks for it. Then it stands again,
    /// unless it was stopped.
    ///
    /// For applications that ask [`is_leader`](Candidate::is_leader) before each action. Origin:
    /// Curator's `LeaderLatch`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::{BlockingWriteLock, Candidate, Session};
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
    /// # fn balance_shards() {}
    /// let candidate = Candidate::keep_leading(BlockingWriteLock::new(&session, "/election")?)?;
    /// if candidate.wait_until_leader(Duration::from_secs(60)) && candidate.is_leader() {
    ///     balance_shards();
    /// }
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// As [`start`](Candidate::start).
    pub fn keep_leading(election: BlockingWriteLock) -> Result<Candidate> {
        Candidate::start(election, |leadership| {
            while leadership.wait(LOOK_AGAIN) {}
            Ok(())
        })
    }

    /// Blocks until this candidate leads, has ended, or the wait ends. Returns whether it leads.
    /// Returns `false` at once in a forked child.
    pub fn wait_until_leader(&self, wait: impl Into<Wait>) -> bool {
        let wait = wait.into();
        // The process before the mutex, whose holder may not exist in a forked child.
        while self.process.is_current() {
            let next = self.shared.next_leadership.lock().1.clone();
            if self.is_leader() {
                return true;
            }
            let waited = wait.wait_for_or(&*self.runtime, &next, [&self.ended, &never()]);
            if waited != Waited::Disconnected || is_disconnected(&self.ended) {
                return self.is_leader();
            }
        }
        false
    }

    /// Returns whether this candidate leads, proven up to now. Does no I/O and does not block.
    /// Always `false` in a forked child.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        // The process before the mutex, whose holder may not exist in a forked child.
        self.process.is_current()
            && self.shared.leading.lock().as_ref().is_some_and(|request| request.holds_lease())
    }

    /// Stops the candidate without blocking: it leaves the queue, or steps down when its closure
    /// has returned. Idempotent.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Blocks until the candidate has ended or the wait times out. Returns whether it has ended.
    ///
    /// After a [`stop`](Candidate::stop) it ends once its closure has returned and the znode is
    /// deleted. It ends by itself after an [error](Candidate::error).
    pub fn wait(&self, wait: impl Into<Wait>) -> bool {
        wait.into().wait_for(&*self.runtime, &self.ended) == Waited::Disconnected
    }

    /// Returns a channel that is disconnected when the candidate has ended; for use in
    /// [`select!`](crossbeam_channel::select). No message arrives.
    #[must_use]
    pub fn ended(&self) -> &Receiver<Infallible> {
        &self.ended
    }

    /// Returns why the candidate ended by itself; `None` while it runs, and after a
    /// [`stop`](Candidate::stop).
    ///
    /// - [`SessionLost`](LockError::SessionLost) on a session that is not replaced;
    ///   [`Closed`](LockError::Closed) if the session or the lock was closed.
    /// - [`LeaderPanicked`](LockError::LeaderPanicked).
    /// - [`AccessDenied`](LockError::AccessDenied),
    ///   [`SequenceExhausted`](LockError::SequenceExhausted), or another permanent refusal of the
    ///   server.
    #[must_use]
    pub fn error(&self) -> Option<&LockError> {
        self.shared.error.get()
    }

    /// Returns the directory of the election.
    #[must_use]
    pub fn dir(&self) -> &str {
        &self.shared.dir
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("dir", &self.dir())
            .field("is_leader", &self.is_leader())
            .field("error", &self.error())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn end(&self, outcome: Result<()>) {
        let Err(error) = outcome else { return };
        logging::warn!("the candidate for '{}' ends: {error}", self.dir);
        // Nobody else sets it.
        let _ = self.error.set(error);
    }
}

/// The thread's side of a candidate.
struct Campaign {
    shared: Arc<Shared>,
    election: BlockingWriteLock,
    lead: Box<Lead>,
}

impl Campaign {
    /// Stands and leads in turn until it is stopped.
    fn run(&mut self) -> Result<()> {
        let stop = self.shared.stop.clone();
        loop {
            let earliest = self.election.core().now().after(MIN_REJOIN_INTERVAL);
            match self.election.try_lock_for(Wait::forever().cancelled_by(&stop)) {
                Ok(Some(guard)) => self.lead(guard)?,
                // Stopped: this wait ends in no other way.
                Ok(None) | Err(LockError::Cancelled { .. }) => return Ok(()),
                Err(_) if stop.is_cancelled() => return Ok(()),
                Err(error @ LockError::RequestDeleted { .. }) => logging::warn!("{error}"),
                Err(error) if error.is_recoverable() => logging::warn!("{error}"),
                Err(error) => return Err(error),
            }
            self.election.core().wait(&[stop.cancelled()], Some(earliest));
        }
    }

    /// Leads until the closure returns, and steps down.
    fn lead(&mut self, guard: LockGuard) -> Result<()> {
        let leadership = Leadership::new(guard, &self.shared.stop);
        *self.shared.leading.lock() = Some(leadership.request());
        *self.shared.next_leadership.lock() = bounded(0);
        // The error is formatted within, as that is the application's code too.
        let outcome = contain(|| (self.lead)(&leadership).map_err(|error| error.to_string()));
        *self.shared.leading.lock() = None;
        let stepped_down = leadership.step_down();
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => logging::warn!("the leader of '{}' steps down: {error}", self.shared.dir),
            Err(message) => {
                return Err(LockError::LeaderPanicked { path: self.shared.dir.clone(), message });
            }
        }
        match stepped_down {
            // A znode that cannot be deleted blocks everybody, this candidate included.
            Err(
                error @ (LockError::AccessDenied { .. }
                | LockError::Server { .. }
                | LockError::Refused { .. }),
            ) => Err(error),
            // The next attempt reports a loss of the session.
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use crossbeam_channel::{RecvTimeoutError, unbounded};

    use crate::client::{Acl, Permissions, ZkError};
    use crate::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
    use crate::testing::{deadline, eventually, next, open_on_manual_runtime};
    use crate::{LossReason, Session};

    const LONG: Duration = Duration::from_secs(30);

    /// A session, and an election on it.
    fn election(server: &SimulatedZooKeeper) -> (Arc<SimulatedClient>, BlockingWriteLock) {
        let client = server.connect(LONG);
        let session = Session::from_client(client.clone()).unwrap();
        (client, BlockingWriteLock::new(&session, "/election").unwrap())
    }

    /// A candidate whose closure leads until it must stop, and a channel that receives a message
    /// when it starts to lead.
    fn start_candidate(election: BlockingWriteLock) -> (Candidate, Receiver<()>) {
        let (leading, leads) = unbounded();
        let candidate = Candidate::start(election, move |leadership| {
            let _ = leading.send(());
            while leadership.wait(LONG) {}
            Ok(())
        });
        (candidate.unwrap(), leads)
    }

    /// Waits until the candidate ends by itself, and returns why.
    fn end(candidate: &Candidate) -> &LockError {
        assert!(candidate.wait(deadline()), "the candidate has not ended");
        candidate.error().unwrap()
    }

    #[test]
    fn stopped_candidate_steps_down_and_ends_without_an_error() {
        let server = SimulatedZooKeeper::new();
        let (_client, election) = election(&server);
        let (candidate, leads) = start_candidate(election);
        next(&leads);
        assert!(candidate.is_leader());
        assert!(!candidate.wait(Duration::ZERO));
        candidate.stop();
        assert!(candidate.wait(deadline()));
        assert!(!candidate.is_leader());
        assert!(candidate.error().is_none());
        assert!(server.children("/election").is_empty());
    }

    #[test]
    fn candidate_without_a_closure_leads_until_it_is_stopped() {
        let server = SimulatedZooKeeper::new();
        let (_client, election) = election(&server);
        let session = Session::from_client(server.connect(LONG)).unwrap();
        let second = BlockingWriteLock::new(&session, "/election").unwrap();
        let first = Candidate::keep_leading(election).unwrap();
        assert!(first.wait_until_leader(deadline()));
        let second = Candidate::keep_leading(second).unwrap();
        eventually("it joins the queue", || server.children("/election").len() == 2);
        assert!(!second.wait_until_leader(Duration::from_millis(10)));
        assert!(first.is_leader() && !second.is_leader());
        first.stop();
        assert!(second.wait_until_leader(deadline()));
        assert!(first.wait(deadline()) && !first.wait_until_leader(Wait::forever()));
        assert!(first.error().is_none());
    }

    #[test]
    fn candidate_without_a_closure_leads_again_after_a_loss() {
        let server = SimulatedZooKeeper::new();
        let (_client, election) = election(&server);
        let candidate = Candidate::keep_leading(election).unwrap();
        assert!(candidate.wait_until_leader(deadline()));
        let znode = server.children("/election").remove(0);
        server.delete(&format!("/election/{znode}"));
        eventually("the loss is noticed", || !candidate.is_leader());
        assert!(candidate.wait_until_leader(deadline()));
        assert_ne!(server.children("/election"), [znode]);
    }

    #[test]
    fn wait_for_the_leadership_ends_with_the_candidate() {
        let server = SimulatedZooKeeper::new();
        let (client, election) = election(&server);
        let _leader = election.lock().unwrap();
        let session = Session::from_client(server.connect(LONG)).unwrap();
        let candidate =
            Candidate::keep_leading(BlockingWriteLock::new(&session, "/election").unwrap()).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| candidate.wait_until_leader(Wait::forever()));
            session.close();
            assert!(!waiting.join().unwrap());
        });
        drop(client);
    }

    #[test]
    fn candidate_whose_session_is_closed_after_a_stop_ends_without_an_error() {
        let server = SimulatedZooKeeper::new();
        let (client, _runtime, session) = open_on_manual_runtime(&server, LONG);
        let election = BlockingWriteLock::new(&session, "/election").unwrap();
        let (joining, joins) = unbounded();
        let (go, may_go) = unbounded::<()>();
        // On the candidate's thread, which finds both when it waits.
        client.before_next(SimOperation::Create, move || {
            joining.send(()).unwrap();
            let _ = may_go.recv_timeout(deadline());
            session.core().end(LossReason::SessionClosed);
        });
        let candidate = Candidate::start(election, |_| Ok(())).unwrap();
        next(&joins);
        candidate.stop();
        go.send(()).unwrap();
        // A longer wait would advance the time of this runtime at once.
        eventually("the candidate ends", || candidate.wait(Duration::ZERO));
        assert!(candidate.error().is_none(), "{candidate:?}");
    }

    #[test]
    fn dropped_waiting_candidate_leaves_the_queue() {
        let server = SimulatedZooKeeper::new();
        let (_client, election) = election(&server);
        let leader = election.lock().unwrap();
        let session = Session::from_client(server.connect(LONG)).unwrap();
        let other = BlockingWriteLock::new(&session, "/election").unwrap();
        let (candidate, leads) = start_candidate(other);
        eventually("it joins the queue", || server.children("/election").len() == 2);
        let ended = candidate.ended().clone();
        drop(candidate);
        assert_eq!(ended.recv_timeout(deadline()), Err(RecvTimeoutError::Disconnected));
        eventually("it leaves the queue", || server.children("/election").len() == 1);
        assert!(leads.is_empty());
        assert!(leader.is_owner());
    }

    #[test]
    fn the_end_of_the_session_ends_a_candidate() {
        let server = SimulatedZooKeeper::new();
        let (client, lock) = election(&server);
        let (candidate, leads) = start_candidate(lock);
        next(&leads);
        client.expire();
        assert!(matches!(end(&candidate), LockError::SessionLost { .. }), "{candidate:?}");

        let session = Session::from_client(server.connect(LONG)).unwrap();
        let lock = BlockingWriteLock::new(&session, "/election").unwrap();
        let (candidate, leads) = start_candidate(lock);
        next(&leads);
        session.close();
        assert!(matches!(end(&candidate), LockError::Closed { .. }), "{candidate:?}");
    }

    #[test]
    fn panic_in_the_closure_ends_the_candidate_and_its_leadership() {
        let server = SimulatedZooKeeper::new();
        let (_client, election) = election(&server);
        let candidate = Candidate::start(election, |_| panic!("on purpose")).unwrap();
        match end(&candidate) {
            LockError::LeaderPanicked { path, message } => {
                assert_eq!((path.as_str(), message.as_str()), ("/election", "on purpose"));
            }
            error => panic!("{error}"),
        }
        assert!(server.children("/election").is_empty());
    }

    #[test]
    fn candidate_rejoins_after_a_pause_when_the_closure_fails() {
        let server = SimulatedZooKeeper::new();
        let (_client, election) = election(&server);
        let (leading, leads) = unbounded();
        let _candidate = Candidate::start(election, move |_| {
            let _ = leading.send(Instant::now());
            Err("no luck".into())
        });
        let first = next(&leads);
        let pause = next(&leads) - first;
        assert!(pause >= MIN_REJOIN_INTERVAL / 2, "{pause:?}");
    }

    #[test]
    fn candidate_rejoins_after_its_znode_was_deleted() {
        let server = SimulatedZooKeeper::new();
        let (_client, election) = election(&server);
        let (_candidate, leads) = start_candidate(election);
        next(&leads);
        let first = server.children("/election").remove(0);
        server.delete(&format!("/election/{first}"));
        next(&leads);
        assert_ne!(server.children("/election"), [first]);
    }

    #[test]
    fn candidate_without_delete_permission_ends() {
        let server = SimulatedZooKeeper::new();
        let (_client, election) = election(&server);
        let (candidate, leads) = start_candidate(election);
        next(&leads);
        server.set_acl("/election", &[Acl::new(Permissions::READ, "world", "anyone")]);
        candidate.stop();
        assert!(end(&candidate).is_access_denied(), "{candidate:?}");
    }

    #[test]
    fn candidate_rejoins_after_a_recoverable_refusal() {
        let server = SimulatedZooKeeper::new();
        let (client, election) = election(&server);
        client.fail_next(SimOperation::Create, Effect::Before, ZkError::Throttled);
        let (candidate, leads) = start_candidate(election);
        assert!(leads.recv_timeout(deadline()).is_ok(), "{:?}", candidate.error());
    }
}
