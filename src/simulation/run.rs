//! One run, from a seed to a verdict.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::baton::Pool;
use super::link::{Heard, Link};
use super::locks::new_lock;
use super::network::Wire;
use super::profile::{Profile, session_timeout};
use super::quiesce;
use super::random::Random;
use super::runtime::SimulatedRuntime;
use super::scheduler::{DIRS, Scheduler};
use super::world::{ClientState, World};
use crate::session::{FirstContact, Moment};
use crate::{Session, ZooKeeperClient};

/// The broken promise and the steps that led to it.
pub(super) struct Failure {
    pub(super) what: String,
    pub(super) trace: Vec<String>,
}

/// Runs one seed.
pub(super) fn run(seed: u64, pool: &mut Pool, verbose: bool) -> Result<(), Failure> {
    let mut random = Random::new(seed);
    let profile = Profile::draw(&mut random);
    let world = World::new(profile, random, verbose);
    world.note(format!("{:?}", world.profile));
    let mut scheduler = Scheduler::new(Arc::clone(&world), pool);
    let verdict = play(&mut scheduler);
    let outcome = verdict.map_err(|what| Failure { what, trace: world.trace() });
    // The library and the simulation hold each other; this breaks the cycle.
    if outcome.is_ok() {
        let clients = std::mem::take(&mut world.state().clients);
        drop(clients);
    } else {
        std::mem::forget(world);
    }
    outcome
}

pub(super) type Verdict = Result<(), String>;

fn play(scheduler: &mut Scheduler<'_>) -> Verdict {
    let world = Arc::clone(&scheduler.world);
    world.zookeeper.set_sequence_end(world.profile.sequence_end);
    for dir in &DIRS[..world.profile.dirs] {
        if world.profile.first_sequence != 0 {
            world.zookeeper.set_sequence(dir, world.profile.first_sequence);
        }
    }
    if world.profile.unreadable {
        // With the ACL of the requests, no client could list them.
        for dir in DIRS[..world.profile.dirs].iter().filter(|dir| !world.zookeeper.exists(dir)) {
            world.zookeeper.create(dir, b"");
        }
    }
    for _ in 0..world.profile.clients {
        open_client(&world);
    }
    for _ in 0..world.profile.steps {
        scheduler.step();
        check(&world)?;
    }
    quiesce::stop_the_faults(scheduler)?;
    quiesce::let_every_waiter_own(scheduler)?;
    quiesce::drop_the_locks(scheduler)?;
    quiesce::end_the_sessions(scheduler)
}

pub(super) fn check(world: &World) -> Verdict {
    let broken = world.state().failure.clone();
    match broken.or_else(|| world.check(&DIRS)) {
        Some(what) => Err(what),
        None => Ok(()),
    }
}

pub(super) fn open_client_later(world: &Arc<World>) {
    let may = world.state().clients.len() < world.profile.clients + world.profile.later_clients;
    if may {
        open_client(world);
    }
}

/// Opens a session, with some locks on it.
fn open_client(world: &Arc<World>) {
    let (number, timeout, min_idle_for_ping) = {
        let mut state = world.state();
        let timeout = session_timeout(&mut state.random);
        let min_idle_for_ping =
            state.random.of(&[Duration::ZERO, timeout * 2 / 3 + Duration::from_millis(200)]);
        let link = Link {
            connected: true,
            connection: 0,
            partitioned: false,
            deposed: false,
            slow_until: Moment::from_nanos(0),
            searches_until: Moment::from_nanos(0),
            over: false,
            pings: state.random.one_in(2),
            heard: Heard::new(
                world.now(),
                state.random.of(&[timeout / 2, timeout / 2, timeout / 4, timeout / 10]),
                state.random.one_in(2),
            ),
        };
        let client = ClientState {
            simulated: world.zookeeper.connect(timeout),
            session_timeout: timeout,
            session: None,
            core: Weak::new(),
            opening: true,
            jobs: VecDeque::new(),
            callbacks: VecDeque::new(),
            to_spawn: VecDeque::new(),
            timers: Vec::new(),
            shut_down: false,
            generation: 0,
            at_work: 0,
            most_workers: state.random.of(&[2, 3, 16]),
            sink: None,
            events: VecDeque::new(),
            replies: std::collections::BTreeMap::new(),
            link,
            paused_until: Moment::from_nanos(0),
            suspensions: 0,
            calls_to_fail: 0,
            calls_to_panic: 0,
            denied_until: Moment::from_nanos(0),
        };
        client.simulated.grant(client.granted());
        state.clients.push(client);
        (state.clients.len() - 1, timeout, min_idle_for_ping)
    };
    let wire: Arc<dyn ZooKeeperClient> = Wire::new(world, number, min_idle_for_ping);
    let runtime = Arc::new(SimulatedRuntime { world: Arc::clone(world), client: number });
    let contact = FirstContact::by(world.now(), timeout, "the simulation");
    let session = Session::open(Ok(wire), runtime, Some(world.now()), &contact).expect("there is contact");
    world.note(format!("client {number} opens a session of {timeout:?}"));
    {
        let mut state = world.state();
        let client = &mut state.clients[number];
        client.opening = false;
        client.core = Arc::downgrade(&session.core());
        client.session = Some(session.clone());
    }
    for _ in 0..world.profile.locks_per_client {
        let dir = {
            let mut state = world.state();
            DIRS[state.random.index(world.profile.dirs)]
        };
        new_lock(world, number, &session, dir);
    }
}
