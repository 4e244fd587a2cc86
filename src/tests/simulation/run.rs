//! One run, from a seed to a verdict.

use std::sync::Arc;

use super::baton::Pool;
use super::jobs::KEYS;
use super::profile::Profile;
use super::random::Random;
use super::scheduler::{DIRS, LEASES, Scheduler, TURNS};
use super::world::World;
use super::{clients, quiesce};

/// The broken promise and the steps that led to it.
pub(super) struct Failure {
    pub(super) what: String,
    pub(super) trace: Vec<String>,
}

/// How many calls the simulated ZooKeeper has executed in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    /// Those that a server has decoded from the bytes of the crate's own connection.
    pub(super) decoded: usize,
    pub(super) others: usize,
}

/// Runs one seed.
pub(super) fn run(seed: u64, pool: &mut Pool, verbose: bool) -> Result<Calls, Failure> {
    let mut random = Random::new(seed);
    let profile = Profile::draw(&mut random);
    let world = World::new(profile, random, verbose);
    world.note(format!("{:?}", world.profile));
    let mut scheduler = Scheduler::new(Arc::clone(&world), pool);
    let verdict = play(&mut scheduler);
    let calls = Calls { decoded: world.state().calls_decoded, others: world.zookeeper.log().len() };
    let outcome = verdict.map(|()| calls).map_err(|what| Failure { what, trace: world.trace() });
    // The library and the simulation hold references to each other; this breaks the cycle.
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
    let of_semaphore: &[&str] = if world.profile.permits > 0 { &[TURNS, LEASES] } else { &[] };
    for dir in DIRS[..world.profile.dirs].iter().chain(of_semaphore) {
        if world.profile.first_sequence != 0 {
            world.zookeeper.set_sequence(dir, world.profile.first_sequence);
        }
    }
    world.create_registers();
    world.create_records();
    if world.profile.unreadable {
        // Created without the ACL of the requests, with which no client could list them.
        let all = DIRS[..world.profile.dirs].iter().chain(of_semaphore).chain(&KEYS);
        for dir in all.filter(|dir| !world.zookeeper.exists(dir)) {
            world.zookeeper.create(dir, b"");
        }
    }
    for _ in 0..world.profile.clients {
        clients::open_client(&world);
    }
    if world.profile.raises {
        quiesce::raise_the_session_timeouts(scheduler)?;
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
    if broken.is_none() && world.is_unchanged() {
        return Ok(());
    }
    match broken
        .or_else(|| world.check(&[DIRS[0], DIRS[1], KEYS[0], KEYS[1]]))
        .or_else(|| world.check_permits())
        .or_else(|| world.check_calls())
    {
        Some(what) => Err(what),
        None => Ok(()),
    }
}
