//! [`SimulatedLeadership`]: a leadership that a test creates and ends.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{SimulatedClient, SimulatedZooKeeper, VirtualClock};
use crate::error::Result;
use crate::locks::blocking_write_lock::BlockingWriteLock;
use crate::locks::leadership::Leadership;
use crate::recipe::revocation;
use crate::session::Session;

const DIR: &str = "/election";

/// The session timeout of every [`SimulatedLeadership`].
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a method waits for its effect: in real time, and on a virtual clock.
const MAX_WAIT: Duration = Duration::from_secs(10);
const MAX_ADVANCE: Duration = Duration::from_secs(1);

/// How long a new owner waits before it watches its znode.
const STEP: Duration = Duration::from_millis(100);

/// A [`Leadership`] without an election, for testing functions that take one.
///
/// It dereferences to the `Leadership`, and has its own [`SimulatedZooKeeper`]. Each of its methods returns once the
/// leadership shows the method's effect. Without contact, that may never happen, and the method gives up after ten
/// seconds, or after it has advanced the clock by a second.
///
/// ```
/// use zookeeper_recipes_lock::Leadership;
/// use zookeeper_recipes_lock::fake::SimulatedLeadership;
///
/// // The code under test.
/// fn balance_shards(leadership: &Leadership, shards: &mut Vec<u32>) {
///     if leadership.is_owner() {
///         shards.push(1);
///     }
/// }
///
/// let (leadership, mut shards) = (SimulatedLeadership::new()?, Vec::new());
/// balance_shards(&leadership, &mut shards);
/// leadership.take_away();
/// balance_shards(&leadership, &mut shards);
/// assert_eq!(shards, [1]);
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
pub struct SimulatedLeadership {
    // The first field, so it is released before the session is closed.
    leadership: Leadership,
    session: Session,
    client: Arc<SimulatedClient>,
    zookeeper: SimulatedZooKeeper,
    clock: Option<VirtualClock>,
}

impl SimulatedLeadership {
    /// Creates a leadership in real time, with a session timeout of 30 seconds.
    ///
    /// # Errors
    /// [`Thread`](crate::ErrorReason::Thread) if the session's threads cannot be started.
    pub fn new() -> Result<SimulatedLeadership> {
        SimulatedLeadership::on(|client| client.open_session(), None)
    }

    /// Creates a leadership on this clock, with a session timeout of 30 seconds.
    ///
    /// A method may advance the clock by a tenth of a second, because a new owner waits that long before it watches its
    /// znode; without contact, by a second.
    ///
    /// # Errors
    /// The same as [`new`](SimulatedLeadership::new).
    pub fn with_clock(clock: &VirtualClock) -> Result<SimulatedLeadership> {
        SimulatedLeadership::on(|client| clock.open(client), Some(clock.clone()))
    }

    fn on(
        open: impl FnOnce(Arc<SimulatedClient>) -> Result<Session>,
        clock: Option<VirtualClock>,
    ) -> Result<SimulatedLeadership> {
        let zookeeper = SimulatedZooKeeper::new();
        let client = zookeeper.connect(SESSION_TIMEOUT);
        let session = open(client.clone())?;
        let guard = BlockingWriteLock::new(&session, DIR)?.lock()?;
        let leadership = Leadership::new(guard);
        Ok(SimulatedLeadership { leadership, session, client, zookeeper, clock })
    }

    /// Stops the candidate, as [`Candidate::stop`](crate::Candidate::stop) does.
    ///
    /// The function under test should then return; until it does, it still leads.
    pub fn stop(&self) {
        self.step_down();
    }

    /// Asks the leader to step down, as a [`Revoker`](crate::queue::Revoker) does. Has no effect once the
    /// leadership is lost.
    pub fn request_revocation(&self) {
        if self.zookeeper.exists(self.id()) {
            self.zookeeper.set_data(self.id(), revocation::MESSAGE);
            self.settle(|| self.should_stop());
        }
    }

    /// Takes the leadership away, as if another client deleted its znode.
    pub fn take_away(&self) {
        if self.zookeeper.exists(self.id()) {
            self.zookeeper.delete(self.id());
            self.settle(|| self.loss().is_some());
        }
    }

    /// Expires the session, which ends the leadership.
    pub fn expire(&self) {
        self.client.expire();
        // The loss reason is set after the lease ends, on another thread.
        self.settle(|| self.loss().is_some());
    }

    /// Waits until the session has noticed what happened. Without contact it never does, and the wait times
    /// out.
    fn settle(&self, is_known: impl Fn() -> bool) {
        if let Some(clock) = &self.clock {
            let limit = clock.elapsed() + MAX_ADVANCE;
            clock.advance(Duration::ZERO);
            while !is_known() && clock.elapsed() < limit {
                clock.advance(STEP);
            }
            return;
        }
        let limit = Instant::now() + MAX_WAIT;
        while !is_known() && Instant::now() < limit {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the session, for code under test that also needs one.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the session's client, for injecting other faults.
    #[must_use]
    pub fn client(&self) -> &Arc<SimulatedClient> {
        &self.client
    }

    /// Returns the server.
    #[must_use]
    pub fn zookeeper(&self) -> &SimulatedZooKeeper {
        &self.zookeeper
    }
}

impl Deref for SimulatedLeadership {
    type Target = Leadership;

    fn deref(&self) -> &Leadership {
        &self.leadership
    }
}

impl fmt::Debug for SimulatedLeadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedLeadership").field("leadership", &self.leadership).finish_non_exhaustive()
    }
}
