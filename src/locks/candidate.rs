//! [`Candidate`]: stands for election again and again, and runs a closure whenever it leads.
//!
//! Origin: Curator's `LeaderSelector`.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, never};
use parking_lot::Mutex;

use crate::error::{LockError, Result};
use crate::locks::blocking_write_lock::BlockingWriteLock;
use crate::locks::leadership::Leadership;
use crate::locks::lock_guard::LockGuard;
use crate::logging;
use crate::panics::contain;
use crate::request::Request;
use crate::wait::{CancelToken, Wait, Waited};

/// How soon after it last joined the queue a candidate joins again at the earliest.
const MIN_REJOIN_INTERVAL: Duration = Duration::from_secs(1);

/// Stands for election for as long as it is kept, on a thread of its own, and runs a closure on that thread whenever it
/// leads.
///
/// The closure is called with the [`Leadership`] and leads until it returns; it must return soon when the leadership
/// [says so](Leadership::should_stop), as nothing can stop it from outside. Then the candidate steps down, and stands again
/// behind those who wait.
///
/// | the closure | the candidate |
/// |---|---|
/// | returns `Ok` | stands again |
/// | returns an error | logs it at `warn` and stands again |
/// | panics | ends with [`LeaderPanicked`](LockError::LeaderPanicked): what the closure holds may be half changed |
/// | returns after a [`stop`](Candidate::stop) | ends |
///
/// It joins the queue once a second at most, so that a closure that fails at once does not keep the servers busy where
/// nobody else stands.
///
/// # Which session
/// With [`Session::connect_self_healing`](crate::Session::connect_self_healing) it stands again after the loss of a session,
/// on the next one: for daemons that do nothing else with the session. With a session of another kind such a loss ends the
/// candidate with [`SessionLost`](LockError::SessionLost): for applications that must build up more than this anew.
///
/// `Send` and `Sync`. Dropping it asks it to stop, and waits for nothing.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{BlockingWriteLock, Candidate, Wait, Session};
///
/// # fn look_after_the_cluster(_token: i64) {}
/// let session = Session::connect_self_healing("zk1:2181,zk2:2181,zk3:2181", Duration::from_secs(10))?;
/// let election = BlockingWriteLock::new(&session, "/election", None)?;
/// election.set_data(b"10.0.0.7:8080")?; // for those who ask who leads
/// let candidate = Candidate::start(election, |leadership| {
///     let token = leadership.fencing_token()?;
///     while leadership.wait(Duration::from_secs(1)) {
///         look_after_the_cluster(token);
///     }
///     Ok(())
/// })?;
///
/// // At the end of the process:
/// candidate.stop();
/// candidate.wait(&Wait::timeout(Duration::from_secs(5)));
/// session.close();
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
pub struct Candidate {
    shared: Arc<Shared>,
    ended: Receiver<Infallible>,
}

/// What the candidate shares with its thread.
struct Shared {
    dir: String,
    stop: CancelToken,
    /// The request that leads.
    leading: Mutex<Option<Arc<Request>>>,
    /// Why it ended by itself.
    error: OnceLock<LockError>,
}

type Lead = dyn FnMut(&Leadership) -> std::result::Result<(), Box<dyn Error + Send + Sync>> + Send;

impl Candidate {
    /// Stands for election on the directory of this lock, with its data, ACL and retries.
    ///
    /// # Errors
    /// The only way to fail is [`Thread`](LockError::Thread). What goes wrong later is [asked for](Candidate::error).
    pub fn start(
        election: BlockingWriteLock,
        lead: impl FnMut(&Leadership) -> std::result::Result<(), Box<dyn Error + Send + Sync>> + Send + 'static,
    ) -> Result<Candidate> {
        let shared = Arc::new(Shared {
            dir: election.dir().to_owned(),
            stop: CancelToken::new(),
            leading: Mutex::new(None),
            error: OnceLock::new(),
        });
        let (running, ended) = bounded(0);
        let mut campaign = Campaign { shared: Arc::clone(&shared), election, lead: Box::new(lead) };
        let told = Arc::clone(&shared);
        let started = thread::Builder::new().name("zk-lock-leader".to_owned()).spawn(move || {
            let outcome = campaign.run();
            // Before the end is told, as it holds what is the application's.
            if let Err(message) = contain(|| drop(campaign)) {
                logging::error!("the closure of a candidate panicked when it was dropped: {message}");
            }
            told.end(outcome);
            drop(running);
        });
        started.map_err(LockError::thread)?;
        Ok(Candidate { shared, ended })
    }

    /// Returns whether this candidate leads, and provably so until now. Does no I/O and waits for nothing.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.shared.leading.lock().as_ref().is_some_and(|request| request.is_owner())
    }

    /// Asks the candidate to stop, and waits for nothing: it leaves the queue, or steps down when its closure has
    /// returned. Idempotent.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Blocks until the candidate has ended, or until the wait ends, and returns whether it has. It ends after a
    /// [`stop`](Candidate::stop), once its closure has returned and the znode is deleted, or by itself because of an
    /// [error](Candidate::error). Without contact the deletion is waited for until that is noticed, or until the end of the
    /// session.
    pub fn wait(&self, wait: &Wait) -> bool {
        wait.wait_for(&self.ended) == Waited::Disconnected
    }

    /// Returns a channel that is disconnected when the candidate has ended; usable in
    /// [`select!`](crossbeam_channel::select). Nothing ever arrives.
    #[must_use]
    pub fn ended(&self) -> &Receiver<Infallible> {
        &self.ended
    }

    /// Returns why the candidate has ended by itself; `None` while it stands, and after a [`stop`](Candidate::stop).
    ///
    /// - [`SessionLost`](LockError::SessionLost) on a session that does not heal; [`Closed`](LockError::Closed) when the
    ///   session was closed.
    /// - [`LeaderPanicked`](LockError::LeaderPanicked).
    /// - [`AccessDenied`](LockError::AccessDenied), [`SequenceExhausted`](LockError::SequenceExhausted), or another refusal
    ///   of the server that it makes no sense to try again.
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
            let earliest = Instant::now() + MIN_REJOIN_INTERVAL;
            match self.election.try_lock_with(&Wait::forever().cancelled_by(&stop)) {
                Ok(Some(guard)) => self.lead(guard)?,
                // Stopped: the wait has no other end.
                Ok(None) | Err(LockError::Cancelled { .. }) => return Ok(()),
                Err(error) if error.is_recoverable() || is_deletion(&error) => logging::warn!("{error}"),
                Err(error) => return Err(error),
            }
            Wait::until(earliest).cancelled_by(&stop).wait_for::<Infallible>(&never());
        }
    }

    /// Leads until the closure returns, and steps down.
    fn lead(&mut self, guard: LockGuard) -> Result<()> {
        let leadership = Leadership::new(guard, &self.shared.stop);
        *self.shared.leading.lock() = Some(leadership.request());
        // The error is the closure's too, and so is what it says.
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
            // The znode that may not be deleted is in everybody's way, this candidate's included.
            Err(
                error @ (LockError::AccessDenied { .. }
                | LockError::Client { .. }
                | LockError::Refused { .. }),
            ) => Err(error),
            // What was taken away before, or with the session, is found out by standing again.
            _ => Ok(()),
        }
    }
}

fn is_deletion(error: &LockError) -> bool {
    matches!(error, LockError::RequestDeleted { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::client::{Acl, Permissions, ZkError};
    use crossbeam_channel::{RecvTimeoutError, unbounded};

    use crate::Session;
    use crate::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
    use crate::testing::{deadline, eventually, next};

    const LONG: Duration = Duration::from_secs(30);

    /// A session, and an election on it.
    fn election(server: &SimulatedZooKeeper) -> (Arc<SimulatedClient>, BlockingWriteLock) {
        let client = server.connect(LONG);
        let session = Session::from_client(client.clone()).unwrap();
        (client, BlockingWriteLock::new(&session, "/election", None).unwrap())
    }

    /// A candidate whose closure leads until it must stop, and a channel that says when it leads.
    fn stand(election: BlockingWriteLock) -> (Candidate, Receiver<()>) {
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
        assert!(candidate.wait(&Wait::timeout(deadline())), "it has not ended");
        candidate.error().unwrap()
    }

    #[test]
    fn a_candidate_that_is_stopped_steps_down_and_ends_without_an_error() {
        let server = SimulatedZooKeeper::new();
        let (_client, election) = election(&server);
        let (candidate, leads) = stand(election);
        next(&leads);
        assert!(candidate.is_leader());
        assert!(!candidate.wait(&Wait::timeout(Duration::ZERO)));
        candidate.stop();
        assert!(candidate.wait(&Wait::timeout(deadline())));
        assert!(!candidate.is_leader());
        assert!(candidate.error().is_none());
        assert!(server.children("/election").is_empty());
    }

    #[test]
    fn a_candidate_that_is_dropped_while_it_waits_leaves_the_queue() {
        let server = SimulatedZooKeeper::new();
        let (_client, election) = election(&server);
        let leader = election.lock().unwrap();
        let other = BlockingWriteLock::new(election.session(), "/election", None).unwrap();
        let (candidate, leads) = stand(other);
        eventually("it stands", || server.children("/election").len() == 2);
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
        let (candidate, leads) = stand(lock);
        next(&leads);
        client.expire();
        assert!(matches!(end(&candidate), LockError::SessionLost { .. }), "{candidate:?}");

        let (_client, lock) = election(&server);
        let session = lock.session().clone();
        let (candidate, leads) = stand(lock);
        next(&leads);
        session.close();
        assert!(matches!(end(&candidate), LockError::Closed { .. }), "{candidate:?}");
    }

    #[test]
    fn a_closure_that_panics_ends_the_candidate_and_its_leadership() {
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
    fn a_closure_that_fails_leads_again_but_not_at_once() {
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
    fn a_leader_whose_znode_was_deleted_stands_again() {
        let server = SimulatedZooKeeper::new();
        let (_client, election) = election(&server);
        let (_candidate, leads) = stand(election);
        next(&leads);
        let first = server.children("/election").remove(0);
        server.delete(&format!("/election/{first}"));
        next(&leads);
        assert_ne!(server.children("/election"), [first]);
    }

    #[test]
    fn a_leader_that_may_not_delete_its_znode_ends() {
        let server = SimulatedZooKeeper::new();
        let (_client, election) = election(&server);
        let (candidate, leads) = stand(election);
        next(&leads);
        server.set_acl("/election", &[Acl::new(Permissions::READ, "world", "anyone")]);
        candidate.stop();
        assert!(end(&candidate).is_access_denied(), "{candidate:?}");
    }

    #[test]
    fn a_candidate_stands_again_after_a_refusal_that_may_pass() {
        let server = SimulatedZooKeeper::new();
        let (client, election) = election(&server);
        client.fail_next(SimOperation::Create, Effect::Before, ZkError::Unimplemented);
        let (candidate, leads) = stand(election);
        assert!(leads.recv_timeout(deadline()).is_ok(), "{:?}", candidate.error());
    }
}
