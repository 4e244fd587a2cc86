//! [`CandidateGroup`]: several candidates, one stop, one wait.

use std::error::Error;
use std::time::Instant;

use crate::error::Result;
use crate::locks::blocking_write_lock::BlockingWriteLock;
use crate::locks::candidate::Candidate;
use crate::locks::leadership::Leadership;
use crate::wait::Wait;

/// Several [`Candidate`]s, mostly on one session: for a process that stands in many elections, one
/// for each shard, for example.
///
/// Each has a thread for its closure, and all share the session. `Send` and `Sync`. Dropping the
/// group stops all of them without blocking.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{BlockingWriteLock, CandidateGroup, Session};
///
/// # fn serve(_shard: u32) {}
/// let session = Session::builder("zk1:2181,zk2:2181,zk3:2181").replace_lost_sessions(true).connect()?;
/// let mut shards = CandidateGroup::new();
/// for shard in 0..32 {
///     let election = BlockingWriteLock::new(&session, &format!("/shards/{shard}"))?;
///     shards.start(election, move |leadership| {
///         while leadership.wait(Duration::from_secs(1)) {
///             serve(shard);
///         }
///         Ok(())
///     })?;
/// }
/// println!("leads {} shards", shards.leading().count());
///
/// // At the end of the process:
/// shards.stop();
/// shards.wait(Duration::from_secs(5));
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[must_use = "all candidates end at once when the group is not kept"]
#[derive(Debug, Default)]
pub struct CandidateGroup {
    candidates: Vec<Candidate>,
}

impl CandidateGroup {
    /// Creates a group without candidates.
    pub fn new() -> CandidateGroup {
        CandidateGroup::default()
    }

    /// Stands for one more election, as [`Candidate::start`] does.
    ///
    /// # Errors
    /// As [`Candidate::start`]. The others stay.
    pub fn start(
        &mut self,
        election: BlockingWriteLock,
        lead: impl FnMut(&Leadership) -> std::result::Result<(), Box<dyn Error + Send + Sync>> + Send + 'static,
    ) -> Result<()> {
        self.candidates.push(Candidate::start(election, lead)?);
        Ok(())
    }

    /// Stands for one more election, as [`Candidate::keep_leading`] does.
    ///
    /// # Errors
    /// As [`Candidate::keep_leading`]. The others stay.
    pub fn keep_leading(&mut self, election: BlockingWriteLock) -> Result<()> {
        self.candidates.push(Candidate::keep_leading(election)?);
        Ok(())
    }

    /// Returns all candidates, those that have ended as well, in the order in which they were
    /// started.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Returns those that lead, each proven up to the moment at which the iterator yields it.
    pub fn leading(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter().filter(|candidate| candidate.is_leader())
    }

    /// Removes those that have ended, and returns them, with their [errors](Candidate::error).
    pub fn take_ended(&mut self) -> Vec<Candidate> {
        let now = Instant::now();
        let all = std::mem::take(&mut self.candidates).into_iter();
        let (ended, others) = all.partition(|candidate| candidate.wait(now));
        self.candidates = others;
        ended
    }

    /// Stops all candidates without blocking. Idempotent.
    pub fn stop(&self) {
        self.candidates.iter().for_each(Candidate::stop);
    }

    /// Blocks until all have ended or the wait ends. Returns whether all have ended.
    pub fn wait(&self, wait: impl Into<Wait>) -> bool {
        let wait = wait.into();
        self.candidates.iter().all(|candidate| candidate.wait(wait.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fake::SimulatedZooKeeper;
    use crate::tests::{deadline, eventually};
    use crate::{ErrorReason, Session};

    const LONG: Duration = Duration::from_secs(30);

    fn election(session: &Session, shard: usize) -> BlockingWriteLock {
        BlockingWriteLock::new(session, &format!("/shards/{shard}")).unwrap()
    }

    #[test]
    fn group_leads_in_each_election_until_it_is_stopped() {
        let server = SimulatedZooKeeper::new();
        let session = Session::from_client(server.connect(LONG)).unwrap();
        let mut group = CandidateGroup::new();
        for shard in 0..3 {
            group.keep_leading(election(&session, shard)).unwrap();
        }
        eventually("it leads in all elections", || group.leading().count() == 3);
        assert_eq!(group.candidates()[1].dir(), "/shards/1");
        assert!(!group.wait(Duration::ZERO));
        group.stop();
        assert!(group.wait(deadline()));
        assert_eq!(group.leading().count(), 0);
        assert!((0..3).all(|shard| server.children(&format!("/shards/{shard}")).is_empty()));
    }

    #[test]
    fn candidate_that_ends_by_itself_is_taken_out_with_its_error() {
        let server = SimulatedZooKeeper::new();
        let session = Session::from_client(server.connect(LONG)).unwrap();
        let mut group = CandidateGroup::new();
        group.keep_leading(election(&session, 0)).unwrap();
        group.start(election(&session, 1), |_| panic!("on purpose")).unwrap();
        let mut ended = Vec::new();
        eventually("one has ended", || {
            ended.extend(group.take_ended());
            !ended.is_empty()
        });
        let [candidate] = ended.as_slice() else { panic!("{ended:?}") };
        assert!(
            matches!(candidate.error(), Some(ref error) if error.reason() == ErrorReason::LeaderPanicked),
            "{candidate:?}"
        );
        assert_eq!(group.candidates().len(), 1);
    }

    #[test]
    fn empty_group_has_ended() {
        let group = CandidateGroup::new();
        group.stop();
        assert!(group.wait(Wait::forever()));
    }
}
