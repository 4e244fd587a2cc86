//! [`Profile`]: the shape of a seed's run, which is the number of participants, the possible faults, and the likelihood
//! of each kind of step.

use std::time::Duration;

use super::random::Random;
use super::wire::Step;
use crate::client::DEFAULT_JUTE_MAX_BUFFER;
use crate::fake::SequenceEnd;

/// The longest transaction that can still name two requests.
const ROOM_FOR_TWO: usize = 200;

/// Distinguishes the random numbers of the application's code from the others.
pub(super) const APPLICATION: u64 = 0xa991;

#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) clients: usize,
    /// The number of further sessions that may be opened later.
    pub(super) later_clients: usize,
    pub(super) locks_per_client: usize,
    pub(super) dirs: usize,
    /// Whether there are readers and writers besides exclusive locks.
    pub(super) shares: bool,
    /// Whether the requests' ACL grants READ only to clients with credentials, which forces the others to poll.
    pub(super) unreadable: bool,
    /// Whether other work occupies the workers for a while. This is not a fault.
    pub(super) is_busy: bool,
    /// The number of steps before the faults stop.
    pub(super) steps: usize,
    /// The first sequence number of the queues.
    pub(super) first_sequence: i32,
    /// What the server does after the last sequence number.
    pub(super) sequence_end: SequenceEnd,
    pub(super) faults: Faults,
    pub(super) weights: Weights,
    /// Whether there are users of blocking locks, and candidates.
    pub(super) blocks: bool,
    /// Whether threads share cohort locks, and whether they use hardly anything else.
    pub(super) cohorts: bool,
    pub(super) mostly_cohorts: bool,
    /// The number of permits of the semaphore; 0 if it is not used.
    pub(super) permits: u32,
    /// Whether some sessions are replaced when they are lost.
    pub(super) replaces: bool,
    /// Whether callbacks act on locks.
    pub(super) callbacks_act: bool,
    /// Whether some of the clients authenticate by SASL.
    pub(super) sasl: bool,
    /// The number of servers.
    pub(super) servers: usize,
    /// Whether the servers send the transaction with an event, as releases from 3.9.0 on do.
    pub(super) events_have_zxids: bool,
    /// Whether the servers deny deletions without asking the leader (`enableEagerACLCheck`).
    pub(super) denies_at_once: bool,
    /// Whether jobs run once and owners commit.
    pub(super) transacts: bool,
    /// Whether, from the beginning of the run, servers mostly grant a longer timeout than when the session was created.
    pub(super) raises: bool,
    pub(super) mostly_jobs: bool,
    /// How many calls of a session may be in flight before others wait.
    pub(super) window: usize,
    /// Whether the clients' links transmit slowly and some users start more calls than these links can transmit.
    pub(super) is_narrow: bool,
    /// Whether those links transmit slowly to the clients, too.
    pub(super) is_narrow_down: bool,
    /// Whether each server's link to the leader transmits slowly.
    pub(super) is_narrow_to_leader: bool,
    /// Whether the clients know only one address, behind which a load balancer chooses a server.
    pub(super) balances: bool,
    /// Whether servers pause before they read what a client has sent, and resume much later.
    pub(super) holds_back: bool,
    /// Whether users make records.
    pub(super) makes_records: bool,
    /// The limit for the transaction that ends a session.
    pub(super) jute_max_buffer: usize,
    /// Whether holds of some locks have a limit.
    pub(super) limits_holds: bool,
    /// Whether the application's code blocks, panics and calls the library wherever the library runs it.
    pub(super) misbehaves: bool,
    /// Whether users mix all kinds of locks.
    pub(super) mixes: bool,
}

/// The faults that may occur.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    pub(super) disconnects: bool,
    pub(super) partitions: bool,
    pub(super) pauses: bool,
    pub(super) deletions: bool,
    /// Whether servers answer wrongly or not at all.
    pub(super) failing_calls: bool,
    pub(super) slow_replies: bool,
    /// Whether servers crash right after a reply.
    pub(super) deaths: bool,
    /// Whether servers grant another session timeout at a reconnect.
    pub(super) regrants: bool,
    /// Whether links between a server and the leader stall, and servers crash as the stall ends.
    pub(super) stalls: bool,
    /// Whether leaders are deposed without knowing it.
    pub(super) deposed: bool,
    /// Whether servers refuse deletions and reads for a while.
    pub(super) denials: bool,
    /// Whether some deletions fire no event.
    pub(super) hidden_deletions: bool,
}

/// The relative likelihood of each kind of step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    pub(super) thread: u64,
    /// Delivering a request or a reply.
    pub(super) network: u64,
    pub(super) job: u64,
    pub(super) event: u64,
    pub(super) timer: u64,
    pub(super) expiry: u64,
    pub(super) time: u64,
    pub(super) user: u64,
    pub(super) fault: u64,
}

impl Weights {
    /// Weights for finishing what is in progress: nothing new begins, and no time passes.
    pub(super) const ALIKE: Weights =
        Weights { thread: 1, network: 1, job: 1, event: 1, timer: 1, expiry: 1, time: 0, user: 0, fault: 0 };
}

impl Profile {
    pub(super) fn draw(random: &mut Random) -> Profile {
        let calm = random.one_in(8);
        let faults = Faults {
            disconnects: !calm && !random.one_in(4),
            partitions: !calm && random.one_in(2),
            pauses: !calm && random.one_in(3),
            deletions: !calm && random.one_in(3),
            failing_calls: !calm && random.one_in(3),
            slow_replies: !calm && random.one_in(4),
            deaths: !calm && random.one_in(3),
            regrants: !calm && random.one_in(3),
            stalls: !calm && random.one_in(6),
            deposed: !calm && random.one_in(3),
            denials: !calm && random.one_in(4),
            hidden_deletions: !calm && random.one_in(6),
        };
        let is_busy = random.one_in(if calm { 2 } else { 4 });
        let weights = Weights {
            thread: random.of(&[10, 30, 100]),
            network: random.of(&[2, 10, 30, 100]),
            job: random.of(&[3, 10, 30, 100]),
            event: random.of(&[3, 10, 30, 100]),
            timer: random.of(&[10, 30, 100]),
            expiry: random.of(&[10, 100, 1000]),
            // A run without faults is not slow either.
            time: if faults.any() { random.of(&[1, 1, 3, 10, 30]) } else { 0 },
            user: random.of(&[3, 10, 20]),
            fault: if faults.any() { random.of(&[1, 2, 5, 10]) } else { 0 },
        };
        let mut profile = Profile {
            clients: random.of(&[2, 2, 2, 3, 4]),
            later_clients: random.index(3),
            locks_per_client: if is_busy { 6 } else { random.of(&[1, 1, 2, 3]) },
            is_busy,
            dirs: random.of(&[1, 1, 1, 2]),
            shares: random.one_in(2),
            steps: random.of(&[320, 600, 1200]),
            first_sequence: random.of(&[0, 0, 99_999, i32::MAX - 2]),
            sequence_end: SequenceEnd::Wraps,
            unreadable: false,
            blocks: false,
            cohorts: false,
            mostly_cohorts: false,
            permits: 0,
            replaces: false,
            faults,
            weights,
            callbacks_act: random.one_in(3),
            sasl: false,
            servers: 0,
            events_have_zxids: false,
            denies_at_once: false,
            transacts: false,
            mostly_jobs: false,
            window: 512,
            is_narrow: false,
            is_narrow_down: false,
            is_narrow_to_leader: false,
            balances: false,
            makes_records: false,
            holds_back: false,
            jute_max_buffer: DEFAULT_JUTE_MAX_BUFFER,
            limits_holds: false,
            misbehaves: false,
            mixes: false,
            raises: faults.regrants && random.one_in(2),
        };
        if profile.first_sequence == i32::MAX - 2 {
            let ends = [SequenceEnd::Wraps, SequenceEnd::Sticks, SequenceEnd::Mixes, SequenceEnd::Mixes];
            profile.sequence_end = random.of(&ends);
        }
        profile.unreadable = false;
        profile.blocks = profile.shares || profile.raises || faults.stalls || random.one_in(2);
        profile.replaces = profile.blocks && random.one_in(2);
        profile.cohorts = profile.blocks && !random.one_in(3);
        if profile.blocks && random.one_in(3) {
            // Multiple locks need both directories.
            profile.dirs = 2;
        }
        profile.mostly_cohorts = profile.cohorts && random.one_in(2);
        if profile.mostly_cohorts || profile.blocks && random.one_in(3) {
            // Leaves the locks to the threads that block.
            profile.locks_per_client = 0;
        }
        profile.servers = random.of(&[1, 2, 3, 3]);
        profile.events_have_zxids = random.one_in(2);
        profile.denies_at_once = random.one_in(2);
        if profile.blocks && !profile.mostly_cohorts {
            profile.permits = random.of(&[0, 0, 1, 2, 2, 3]);
        }
        profile.transacts = profile.blocks && random.one_in(2);
        profile.mostly_jobs = profile.transacts && !profile.mostly_cohorts && random.one_in(2);
        if profile.mostly_jobs {
            // Repetitions are dangerous only after lost replies.
            profile.faults.failing_calls = !calm;
            profile.locks_per_client = 0;
        }
        if random.one_in(3) {
            profile.window = random.of(&[1, 2, 3, 5]);
        }
        profile.is_narrow = profile.blocks && random.one_in(if profile.is_calm() { 2 } else { 8 });
        if profile.is_narrow {
            // The link must transmit a window in far less time than a lease.
            profile.window = random.of(&[1, 1, 2]);
            profile.steps *= 2;
        }
        if !profile.is_calm() && random.one_in(6) {
            profile.jute_max_buffer = ROOM_FOR_TWO;
        }
        if (profile.raises || faults.stalls) && random.one_in(2) {
            profile.favor_owners();
        } else {
            profile.limits_holds = random.one_in(3);
        }
        // Drawn from a copy of the generator, so the other runs do not change.
        let mut apart = Random::new(random.clone().next() ^ APPLICATION);
        profile.misbehaves = apart.one_in(2);
        if apart.one_in(8) {
            profile.mix();
        }
        let mut others = Random::new(!random.clone().next());
        profile.sasl = others.one_in(2);
        profile.is_narrow_down = profile.is_narrow && others.one_in(2);
        // All clients of a server share its link, which may therefore cost a lease.
        profile.is_narrow_to_leader = profile.is_narrow && others.one_in(2) && !profile.is_calm();
        let may_hold_back = profile.servers > 1 && !profile.is_calm();
        profile.holds_back = may_hold_back && (faults.slow_replies || others.one_in(2));
        profile.makes_records = profile.holds_back && profile.blocks && others.one_in(2);
        profile.balances = profile.servers > 1 && !profile.is_calm() && others.one_in(6);
        profile
    }

    /// Lets users of all kinds of locks meet.
    fn mix(&mut self) {
        self.mixes = true;
        self.misbehaves = true;
        (self.blocks, self.shares, self.cohorts, self.replaces) = (true, true, true, true);
        (self.mostly_cohorts, self.mostly_jobs, self.is_narrow, self.unreadable) =
            (false, false, false, false);
        (self.callbacks_act, self.limits_holds) = (true, true);
        self.permits = 2;
        self.dirs = 2;
        self.locks_per_client = self.locks_per_client.max(1);
        self.transacts = true;
        // Other clients ask owners to release their locks.
        self.faults.deletions |= self.faults.any();
    }

    /// Favors long ownership: time passes while little else happens.
    fn favor_owners(&mut self) {
        self.steps = 2400;
        let often = 100;
        self.weights = Weights {
            thread: often,
            network: often,
            job: often,
            event: often,
            timer: often,
            time: 1,
            user: 3,
            fault: 1,
            ..self.weights
        };
        // These faults would end most leases early.
        (self.faults.deaths, self.faults.slow_replies) = (false, false);
        (self.faults.deposed, self.faults.pauses) = (false, false);
    }

    pub(super) fn is_calm(&self) -> bool {
        !self.faults.any()
    }

    /// Returns whether nothing delays what a client does: no fault, no other work, no narrow link.
    pub(super) fn is_prompt(&self) -> bool {
        self.is_calm() && !self.is_busy && !self.is_narrow
    }
}

impl Weights {
    pub(super) fn of_wire(&self, step: Step) -> u64 {
        match step {
            Step::Act | Step::Notify | Step::Resolve(_) | Step::MakeToken(_) => self.event,
            Step::Timer => self.timer,
            Step::Open(_)
            | Step::Send
            | Step::Receive
            | Step::SendLate(_)
            | Step::SendProbe
            | Step::ReceiveProbe
            | Step::Commit => self.network,
        }
    }
}

impl Faults {
    pub(super) fn any(self) -> bool {
        self.disconnects
            || self.partitions
            || self.pauses
            || self.deletions
            || self.failing_calls
            || self.slow_replies
            || self.deaths
            || self.regrants
            || self.stalls
            || self.deposed
            || self.denials
            || self.hidden_deletions
    }
}

/// Draws a session timeout. Short ones make more happen.
pub(super) fn session_timeout(random: &mut Random) -> Duration {
    Duration::from_millis(random.of(&[1000, 4000, 10_000]))
}
