//! [`World`]: the state that the threads of a simulation share.
//!
//! Its lock is held only briefly and never while the library runs, because the library calls in here while it
//! holds its own locks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::application::Left;
use super::baton::role;
use super::cohorts::CohortRecord;
use super::futures::Signal;
use super::guards::Call;
use super::holds::Hold;
use super::jobs::{JobRecord, KEYS};
use super::link::Link;
use super::locks::LockRecord;
use super::profile::{APPLICATION, Profile};
use super::random::Random;
use super::runtime::{SimulatedRuntime, Timer};
use super::transactions::Commits;
use super::turns::Turn;
use super::wire::{Ensemble, Wired};
use crate::fake::SimulatedZooKeeper;
use crate::recipe::znode_name::generated_sequence;
use crate::session::Core;
use crate::time::{Job, Moment, Priority};
use crate::{Session, WriteLock};

/// The number of steps in a trace.
const TRACED: usize = 60;

pub(super) struct World {
    /// Kept outside the lock, because the library reads it while it holds its own locks.
    now: AtomicU64,
    pub(super) zookeeper: SimulatedZooKeeper,
    pub(super) profile: Profile,
    /// Whether every step is printed immediately.
    verbose: bool,
    /// Whether users and faults may still act.
    in_trouble: AtomicBool,
    /// Whether the last step has only moved bytes, and perhaps changed the tree.
    is_of_the_network: AtomicBool,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) random: Random,
    /// Chooses what the application's code does.
    pub(super) application: Random,
    /// Guards that the application has left for any of its code to drop.
    pub(super) left: Vec<Left>,
    /// The tasks, with a waker each.
    pub(super) tasks: Vec<Weak<Signal>>,
    pub(super) clients: Vec<ClientState>,
    pub(super) locks: Vec<LockRecord>,
    /// Znodes that another client deleted, and the sessions that they belonged to.
    pub(super) deleted_by_another: BTreeSet<String>,
    pub(super) node_deleted: BTreeSet<i64>,
    /// Sessions that their clients have given up because servers refused them.
    pub(super) given_up: BTreeSet<i64>,
    /// The znodes that another client deleted before their turn had come: no session may own with them.
    pub(super) deleted_in_the_queue: BTreeSet<String>,
    /// The requests in the queues whose turn has come.
    pub(super) turns: BTreeMap<String, Turn>,
    /// The last write and the number of tentative znodes when the turns were last noted.
    pub(super) turns_as_of: Option<(i64, usize)>,
    /// The versions of the registers at the last check.
    pub(super) register_versions: BTreeMap<&'static str, i32>,
    /// Znodes of downgrades that were not completed. They give no ownership.
    pub(super) tentative: BTreeSet<String>,
    /// Znodes created by requests that a client had sent on a connection that it has left.
    pub(super) late: BTreeSet<String>,
    /// The sessions of the requests that another client asked to release.
    pub(super) asked: BTreeSet<i64>,
    /// Requests that a revoker may take away.
    pub(super) revoked: BTreeSet<String>,
    /// The requests of other clients in the queues, and how many there have been in total.
    pub(super) other_requests: Vec<String>,
    pub(super) other_requests_so_far: usize,
    /// Directories whose counter has reached its end, with requests that exclude each other.
    pub(super) exhausted: BTreeSet<String>,
    /// The requests of each directory with numbers from the end of the counter.
    pub(super) in_doubt: BTreeMap<String, BTreeSet<String>>,
    /// What blocking locks and candidates hold now, and how many holds there have been in total.
    pub(super) holds: BTreeMap<usize, Hold>,
    pub(super) holds_so_far: usize,
    pub(super) acquisitions: u64,
    /// The cohort locks, whose threads share a place in the queue.
    pub(super) cohorts: Vec<CohortRecord>,
    /// The calls with a deadline or a token.
    pub(super) calls: BTreeMap<usize, Call>,
    pub(super) tags: usize,
    /// The jobs that run once, and what owners write in transactions.
    pub(super) jobs: [JobRecord; KEYS.len()],
    pub(super) commits: Commits,
    /// How many znodes were created with each request's data.
    pub(super) created: BTreeMap<Vec<u8>, usize>,
    /// The paths of all requests so far. None is used twice.
    pub(super) paths: BTreeSet<String>,
    /// The records that were created and permanently deleted, and how many there have been in total.
    pub(super) taken_records: BTreeSet<String>,
    pub(super) records_so_far: usize,
    /// How often the clock has jumped so far.
    pub(super) clock_jumps: u64,
    /// The servers.
    pub(super) ensemble: Ensemble,
    /// How many calls the servers have decoded.
    pub(super) calls_decoded: usize,
    pub(super) failure: Option<String>,
    /// The last steps, with their times.
    trace: VecDeque<(Moment, String)>,
}

/// One process with its session.
pub(super) struct ClientState {
    /// The number of the process's first client. Further clients have taken the place of lost ones.
    pub(super) process: usize,
    /// Its session; 0 until a server opens it.
    pub(super) session_id: i64,
    /// Its connection; `None` before it begins to connect.
    pub(super) wire: Option<Wired>,
    /// What its current server grants.
    pub(super) session_timeout: Duration,
    /// What was granted when its session was created. A new leader applies this.
    pub(super) created_timeout: Duration,
    /// The shortest grant that it knows of: none of its leases may assume more.
    pub(super) known_timeout: Duration,
    pub(super) session: Option<Session>,
    pub(super) core: Weak<Core>,
    pub(super) runtime: Weak<SimulatedRuntime>,
    pub(super) opening: bool,

    /// Ordered by priority.
    pub(super) jobs: VecDeque<(Priority, Job)>,
    /// Callbacks, for which there is always a free thread.
    pub(super) callbacks: VecDeque<Job>,
    /// Threads of the library that have not begun, with their names.
    pub(super) to_spawn: VecDeque<(&'static str, Job)>,
    /// Ordered by time.
    pub(super) timers: Vec<Timer>,
    pub(super) shut_down: bool,
    /// The number of busy workers, and its maximum, which the session's own jobs may exceed.
    pub(super) at_work: usize,
    pub(super) most_workers: usize,

    pub(super) link: Link,
    /// When it began to own something, as far as the checks have noted that.
    pub(super) owns_since: Option<Moment>,
    /// The moment until which the process is suspended.
    pub(super) paused_until: Moment,
    /// How often the process was suspended.
    pub(super) suspensions: u64,
    /// How often a good part of its session timeout passed while it had something to do or an answer was on
    /// its way.
    pub(super) long_delays: u64,
    /// How many of its next writes cost it the connection, before or after their effect.
    pub(super) writes_to_fail: u32,
    /// The moment until which the server refuses the client's reads and deletions.
    pub(super) denied_until: Moment,
}

impl State {
    /// Returns whether the scheduler's thread is opening a session, which no fault may hinder.
    pub(super) fn is_opening(&self) -> bool {
        self.clients.iter().any(|client| client.opening)
    }

    /// Returns the sessions of a process, one after the other.
    pub(super) fn sessions_of(&self, process: usize) -> Vec<i64> {
        let is_its_own = |client: &&ClientState| client.process == process && client.session_id != 0;
        self.clients.iter().filter(is_its_own).map(|client| client.session_id).collect()
    }

    /// Returns how often a client was suspended or the clock has jumped, and whether it is suspended now. If
    /// this changes during a call, time may have passed while the thread could have run.
    pub(super) fn disturbances(&self, client: usize, now: Moment) -> (u64, bool) {
        let client = &self.clients[client];
        (self.clock_jumps + client.suspensions, client.paused_until > now)
    }
}

impl World {
    pub(super) fn new(profile: Profile, random: Random, verbose: bool) -> Arc<World> {
        let origin = Moment::from_nanos(Duration::from_secs(1000).as_nanos() as u64);
        let state = State {
            ensemble: Ensemble::new(profile.servers, origin),
            application: Random::new(random.clone().next() ^ APPLICATION),
            random,
            left: Vec::new(),
            tasks: Vec::new(),
            clients: Vec::new(),
            locks: Vec::new(),
            deleted_by_another: BTreeSet::new(),
            node_deleted: BTreeSet::new(),
            given_up: BTreeSet::new(),
            deleted_in_the_queue: BTreeSet::new(),
            turns: BTreeMap::new(),
            turns_as_of: None,
            register_versions: BTreeMap::new(),
            tentative: BTreeSet::new(),
            late: BTreeSet::new(),
            asked: BTreeSet::new(),
            revoked: BTreeSet::new(),
            other_requests: Vec::new(),
            other_requests_so_far: 0,
            exhausted: BTreeSet::new(),
            in_doubt: BTreeMap::new(),
            holds: BTreeMap::new(),
            holds_so_far: 0,
            acquisitions: 0,
            cohorts: Vec::new(),
            calls: BTreeMap::new(),
            tags: 0,
            jobs: Default::default(),
            commits: Commits::default(),
            created: BTreeMap::new(),
            paths: BTreeSet::new(),
            taken_records: BTreeSet::new(),
            records_so_far: 0,
            clock_jumps: 0,
            calls_decoded: 0,
            failure: None,
            trace: VecDeque::new(),
        };
        Arc::new(World {
            now: AtomicU64::new(origin.as_nanos()),
            zookeeper: SimulatedZooKeeper::new(),
            profile,
            verbose,
            in_trouble: AtomicBool::new(true),
            is_of_the_network: AtomicBool::new(false),
            state: Mutex::new(state),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn now(&self) -> Moment {
        Moment::from_nanos(self.now.load(Ordering::Relaxed))
    }

    pub(super) fn set_now(&self, now: Moment) {
        self.now.store(now.as_nanos(), Ordering::Relaxed);
        self.begin_step(false);
        self.state().note_wire_time(now);
    }

    pub(super) fn begin_step(&self, is_of_the_network: bool) {
        self.is_of_the_network.store(is_of_the_network, Ordering::Relaxed);
    }

    /// Returns whether nothing that the checks look at can have changed since they were last made.
    pub(super) fn is_unchanged(&self) -> bool {
        let version = self.version_of_the_tree();
        self.is_of_the_network.load(Ordering::Relaxed) && self.state().turns_as_of == Some(version)
    }

    pub(super) fn in_trouble(&self) -> bool {
        self.in_trouble.load(Ordering::Relaxed)
    }

    pub(super) fn calm_down(&self) {
        self.in_trouble.store(false, Ordering::Relaxed);
    }

    /// Writes a line to the trace.
    pub(super) fn note(&self, text: impl AsRef<str>) {
        let line = match role() {
            Some(role) => format!("{}: {}", role.name, text.as_ref()),
            None => text.as_ref().to_owned(),
        };
        let line = (self.now(), line);
        if self.verbose {
            eprintln!("{}", line_of_trace(&line));
        }
        let mut state = self.state();
        if state.trace.len() == TRACED {
            state.trace.pop_front();
        }
        state.trace.push_back(line);
    }

    /// Writes a routine line to the trace. Routine lines are omitted once the faults have stopped, because
    /// they would drown the others.
    pub(super) fn note_routine(&self, text: impl AsRef<str>) {
        if self.in_trouble() {
            self.note(text);
        }
    }

    /// Records a broken promise. Only the first one counts.
    pub(super) fn fail(&self, what: impl Into<String>) {
        let what = what.into();
        self.note(format!("BROKEN: {what}"));
        self.state().failure.get_or_insert(what);
    }

    pub(super) fn trace(&self) -> Vec<String> {
        self.state().trace.iter().map(line_of_trace).collect()
    }

    /// Returns a lock if the application still holds it.
    pub(super) fn lock(&self, lock: usize) -> Option<Arc<WriteLock>> {
        self.state().locks[lock].held_by_application.clone()
    }
}

fn line_of_trace((at, text): &(Moment, String)) -> String {
    format!("{:>10.3} s  {text}", at.as_nanos() as f64 / 1e9 - 1000.0)
}

/// Shortens a path or a name for the trace.
pub(super) fn short(path: &str) -> String {
    let parts: Vec<&str> = path.rsplitn(2, "/").collect();
    let name = parts[0];
    let dir = parts.get(1).map_or("", |dir| dir.rsplit('/').next().unwrap_or_default());
    let name = match (name.split_once('-'), generated_sequence(name)) {
        (Some((kind, guid)), Some(sequence)) => {
            format!("{kind}-{}#{sequence}", guid.get(..6).unwrap_or(guid))
        }
        _ => name.to_owned(),
    };
    format!("{dir}/{name}")
}
