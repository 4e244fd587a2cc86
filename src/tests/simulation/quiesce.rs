//! The end of a run: the faults stop, every waiter owns in turn, and nothing may be left.

use std::sync::Arc;
use std::time::Duration;

use super::checks::keeps_waiting;
use super::locks::{Action, Callback, LockRecord};
use super::run::{Verdict, check};
use super::scheduler::{ALL_DIRS, DIRS, Scheduler};
use super::world::{ClientState, World};
use super::{cohorts, wire};
use crate::WriteLock;
use crate::session::Core;
use zookeeper_connection::machine::LinkId;

/// The maximum wait without faults: enough for all attempts to join and for the end of a session.
const BOUND: Duration = Duration::from_secs(60);

/// After this many session timeouts, nothing is left of a client that no server serves. First its lease ends; then
/// it tries to close the session, which renews the session; finally the session ends, perhaps late.
const LOCKED_OUT: u32 = 4;

/// How soon an owner with contact must notice what another client did to its znode.
const NOTIFIED_WITHIN: Duration = Duration::from_millis(1100);

/// More steps than any run needs while no time passes.
const MAX_STEPS: usize = 20_000;

/// Takes all steps that are possible now.
fn settle(scheduler: &mut Scheduler<'_>) -> Verdict {
    for _ in 0..MAX_STEPS {
        if !scheduler.step_on() {
            return scheduler.world.check_tasks().map_or(Ok(()), Err);
        }
        check(&scheduler.world)?;
    }
    Err("the steps never end".to_owned())
}

/// Lets this much time pass without faults.
fn pass(scheduler: &mut Scheduler<'_>, length: Duration) -> Verdict {
    pass_until(scheduler, length, |_| false)
}

/// Lets time pass without faults until `holds` returns `true`, but for no longer than `most`.
fn pass_until(scheduler: &mut Scheduler<'_>, most: Duration, holds: impl Fn(&World) -> bool) -> Verdict {
    let until = scheduler.world.now().after(most);
    settle(scheduler)?;
    while !holds(&scheduler.world) {
        if !scheduler.wait_for_the_clock(until) {
            scheduler.world.set_now(until);
            return check(&scheduler.world);
        }
        check(&scheduler.world)?;
        settle(scheduler)?;
    }
    Ok(())
}

pub(super) fn stop_the_faults(scheduler: &mut Scheduler<'_>) -> Verdict {
    let world = &Arc::clone(&scheduler.world);
    world.note("the faults stop");
    world.calm_down();
    scheduler.end_timed_waits();
    let left = std::mem::take(&mut world.state().left);
    left.into_iter().for_each(|left| scheduler.spawn_user(0, None, left));
    let other_requests = std::mem::take(&mut world.state().other_requests);
    for path in other_requests {
        world.zookeeper.delete(&path);
    }
    let clients = world.state().clients.len();
    for number in 0..clients {
        {
            let mut state = world.state();
            state.clients[number].paused_until = world.now();
            state.clients[number].link.slow_until = world.now();
            state.clients[number].writes_to_fail = 0;
            state.clients[number].denied_until = world.now();
        }
        wire::faults::end_link_stall(world, number);
    }
    let_every_client_connect(scheduler)
}

/// Makes all clients move to servers that grant other session timeouts, mostly longer ones.
pub(super) fn raise_the_session_timeouts(scheduler: &mut Scheduler<'_>) -> Verdict {
    let world = &Arc::clone(&scheduler.world);
    let clients = world.state().clients.len();
    (0..clients).for_each(|client| wire::faults::cut(world, client));
    let limit = world.now().after(longest_timeout(world));
    settle(scheduler)?;
    while !wire::faults::unserved(world).is_empty() && scheduler.wait_for_the_clock(limit) {
        settle(scheduler)?;
    }
    Ok(())
}

/// Checks that every client finds a server within a session timeout, unless its session is lost.
fn let_every_client_connect(scheduler: &mut Scheduler<'_>) -> Verdict {
    let world = Arc::clone(&scheduler.world);
    wire::faults::stop(&world);
    lock_clients_out(scheduler)?;
    settle(scheduler)?;
    let limit = world.now().after(longest_timeout(&world));
    while !wire::faults::unserved(&world).is_empty() {
        if !scheduler.wait_for_the_clock(limit) {
            return Err(format!("the clients {:?} find no server", wire::faults::unserved(&world)));
        }
        settle(scheduler)?;
    }
    Ok(())
}

fn longest_timeout(world: &World) -> Duration {
    let timeouts = |client: &ClientState| client.session_timeout.max(client.created_timeout);
    world.state().clients.iter().map(timeouts).max().unwrap_or_default()
}

/// Checks that clients that no server serves lose their locks to others, although each connect request renews their
/// session.
fn lock_clients_out(scheduler: &mut Scheduler<'_>) -> Verdict {
    let world = Arc::clone(&scheduler.world);
    let Some(znodes) = wire::faults::lock_out(&world) else { return Ok(()) };
    let kept = |world: &World| znodes.iter().find(|path| world.zookeeper.exists(path)).cloned();
    pass_until(scheduler, longest_timeout(&world) * LOCKED_OUT, |world| kept(world).is_none())?;
    if let Some(path) = kept(&world) {
        return Err(format!("{path} is kept by a client that no server serves"));
    }
    wire::faults::stop(&world);
    Ok(())
}

/// Releases every owned lock, in turn, until no request waits.
pub(super) fn let_every_waiter_own(scheduler: &mut Scheduler<'_>) -> Verdict {
    let world = Arc::clone(&scheduler.world);
    let asked = owners_asked_to_release(&world);
    pass(scheduler, NOTIFIED_WITHIN)?;
    check_that_deletions_are_noticed(&world)?;
    check_that_revocations_are_noticed(&world, &asked)?;
    let mut limit = world.now().after(BOUND);
    let mut acquisitions = 0;
    let transports = wire::faults::transports(&world);
    loop {
        settle(scheduler)?;
        world.check_that_kept_locks_are_given_up()?;
        let progress = world.state().acquisitions;
        if std::mem::replace(&mut acquisitions, progress) != progress {
            limit = world.now().after(BOUND);
        }
        let owners: Vec<usize> =
            DIRS.iter().flat_map(|dir| world.owners(dir)).map(|(number, _)| number).collect();
        let kept_waiting = overdue_waiters(&world);
        if !owners.is_empty() && kept_waiting.is_empty() {
            check_that_owners_are_notified(&world, &owners)?;
            limit = world.now().after(BOUND);
            for number in owners {
                scheduler.leave(number);
            }
            continue;
        }
        let waiting = waiters(&world);
        if waiting.is_empty() && scheduler.busy_threads().is_empty() {
            return check_transports(&world, &transports);
        }
        if !scheduler.wait_for_the_clock(limit) {
            let threads = scheduler.busy_threads();
            return Err(format!(
                "the locks {waiting:?} wait forever, {kept_waiting:?} are next in line, and the threads {threads:?} remain"
            ));
        }
        check(&world)?;
    }
}

/// Checks that no client has left a connection without a fault.
fn check_transports(world: &World, former: &[Option<LinkId>]) -> Verdict {
    let present = wire::faults::transports(world);
    let left = former
        .iter()
        .zip(present)
        .position(|(former, present)| former.is_some() && present.is_some() && *former != present);
    left.map_or(Ok(()), |client| Err(format!("client {client} left a connection without a fault")))
}

/// Checks that nobody owns a lock whose znode another client has deleted.
fn check_that_deletions_are_noticed(world: &World) -> Verdict {
    for (number, lock) in DIRS.iter().flat_map(|dir| world.owners(dir)) {
        let deleted = lock.id().is_some_and(|id| world.state().deleted_by_another.contains(&id));
        if deleted {
            return Err(format!("lock {number} did not notice the deletion of its znode"));
        }
    }
    Ok(())
}

/// Returns the owners that another client asked to release, each with its znode.
fn owners_asked_to_release(world: &World) -> Vec<(usize, Option<String>)> {
    let owners = DIRS.iter().flat_map(|dir| world.owners(dir)).map(|(number, lock)| (number, lock.id()));
    let is_asked = |id: &str| world.zookeeper.data(id).is_some_and(|data| data == b"unlock");
    owners.filter(|(_, id)| id.as_deref().is_some_and(is_asked)).collect()
}

/// Checks that every lock that was asked and is still owned has been notified.
fn check_that_revocations_are_noticed(world: &World, asked: &[(usize, Option<String>)]) -> Verdict {
    for owner in owners_asked_to_release(world) {
        if asked.contains(&owner) && !world.state().locks[owner.0].revocation_notified {
            return Err(format!("lock {} was not notified of a revocation request", owner.0));
        }
    }
    Ok(())
}

/// Checks that every owner has been notified that it owns.
fn check_that_owners_are_notified(world: &World, owners: &[usize]) -> Verdict {
    let state = world.state();
    for number in owners {
        let LockRecord { last, in_callback, .. } = state.locks[*number];
        // The next callback waits for a callback that is still running.
        if last != Some(Callback::Acquired) && !in_callback {
            return Err(format!("lock {number} is owned, but its last callback was {last:?}"));
        }
    }
    Ok(())
}

fn all_locks(world: &World) -> Vec<(usize, Arc<WriteLock>)> {
    let state = world.state();
    let locks = state.locks.iter().enumerate();
    locks.filter_map(|(number, record)| Some((number, record.held_by_application.clone()?))).collect()
}

fn waiters(world: &World) -> Vec<usize> {
    let waits =
        |lock: &WriteLock| lock.request().is_some_and(|it| !it.has_ended()) || waits_for_a_session(lock);
    all_locks(world).into_iter().filter(|(_, lock)| waits(lock)).map(|(number, _)| number).collect()
}

/// Returns whether a lock's request will be made again on the session that replaces a lost one.
fn waits_for_a_session(lock: &WriteLock) -> bool {
    let is_replaced = lock.session().replacement().is_some_and(|replacement| !replacement.is_closed());
    let has_joined = is_replaced && lock.has_joined();
    has_joined && lock.request().is_some_and(|request| request.was_dropped_with_its_session())
}

/// Returns the locks that do not own although no request before them excludes them.
fn overdue_waiters(world: &World) -> Vec<usize> {
    let is_kept_waiting = |lock: &WriteLock| {
        let Some(id) = lock.id().filter(|_| !lock.is_owner()) else { return false };
        let children = world.zookeeper.children(lock.dir());
        let name = &id[lock.dir().len() + 1..];
        children.iter().any(|child| child == name) && !children.iter().any(|child| keeps_waiting(child, name))
    };
    let locks = all_locks(world).into_iter();
    locks.filter(|(_, lock)| is_kept_waiting(lock)).map(|(number, _)| number).collect()
}

/// Drops all locks and checks that nothing is left of them.
pub(super) fn drop_the_locks(scheduler: &mut Scheduler<'_>) -> Verdict {
    let world = Arc::clone(&scheduler.world);
    for (number, lock) in all_locks(&world) {
        // A request that was not withdrawn has ended by itself and must have reported that. A withdrawn
        // request may still be known, because its znode is not deleted yet.
        let ended_by_itself = lock.request().is_some_and(|request| !request.was_withdrawn());
        // If the lock was released before its lost session was replaced, there was nothing to report. If it was closed
        // during a release, a later request may have reported after the one that is kept.
        let is_over = lock.session().replacement().is_some() || lock.is_closed();
        let was_released = is_over && !lock.has_joined();
        let ended_by_itself = ended_by_itself && !was_released && !waits_for_a_session(&lock);
        let last = world.state().locks[number].last;
        // If a listener held up the release of the request that is kept, a later request may have been released since.
        let was_released_later = !lock.has_joined() && matches!(last, Some(Callback::Released));
        let has_reported =
            matches!(last, Some(Callback::Lost(_) | Callback::Dropped(_))) || was_released_later;
        if ended_by_itself && !has_reported {
            return Err(format!("lock {number} is dropped, but its last callback was {last:?}"));
        }
        drop(lock);
        scheduler.act(number, Action::Drop);
    }
    scheduler.drop_the_cohort_locks();
    // Most runs continue as soon as nothing is left, because a minute of keep-alives costs as much as the
    // rest.
    let waits_on = world.state().random.one_in(4);
    // A deletion that has failed often is retried after half a minute.
    pass_until(scheduler, BOUND, |world| !waits_on && what_is_left(world).is_none())?;
    // The znode of a session that ended without contact may still exist, watched by a request that is gone.
    // An unreadable znode is checked by a call that leaves a watch if the znode does not exist.
    cohorts::fire_watches_on_children(&world);
    what_is_left(&world).map_or(Ok(()), Err)
}

/// Returns what the dropped locks have left.
fn what_is_left(world: &World) -> Option<String> {
    unreported_end(world)
        .or_else(|| request_left(world))
        .or_else(|| watches_left(world))
        .or_else(|| registration_left(world))
        .or_else(|| count_left(world))
}

fn unreported_end(world: &World) -> Option<String> {
    let state = world.state();
    let number = state.locks.iter().position(|record| record.last == Some(Callback::Acquired))?;
    Some(format!("lock {number} was never notified of its end"))
}

/// Returns a request that is left behind by a session that has not ended.
fn request_left(world: &World) -> Option<String> {
    let ended =
        |client: &ClientState| client.core.upgrade().is_none_or(|core| core.snapshot().end_reason.is_some());
    let is_of_living = |path: &String| {
        let owner = world.zookeeper.stat(path).map(|stat| stat.ephemeral_owner);
        let state = world.state();
        let mut clients = state.clients.iter();
        clients.any(|client| Some(client.session_id) == owner && !ended(client))
    };
    let requests_in = |dir| world.requests_in(dir).into_iter().map(move |name| format!("{dir}/{name}"));
    let left = ALL_DIRS.into_iter().flat_map(requests_in).find(is_of_living)?;
    Some(format!("{left} is left behind"))
}

fn watches_left(world: &World) -> Option<String> {
    let watches = world.zookeeper.watch_count();
    let faults = world.profile.faults;
    let all_is_readable = !world.profile.unreadable && !faults.hidden_deletions && !faults.denials;
    let is_left =
        all_is_readable && watches > 0 && ALL_DIRS.iter().all(|dir| world.requests_in(dir).is_empty());
    is_left.then(|| format!("{watches} watches are left on the server"))
}

/// Returns a dropped request that is still registered with a session.
fn registration_left(world: &World) -> Option<String> {
    let cores: Vec<_> = world.state().clients.iter().map(|client| client.core.upgrade()).collect();
    let left = |(number, core): (usize, Option<Arc<Core>>)| {
        let left = core?.census();
        let is_left = left != (0, 0);
        is_left.then(|| format!("client {number} is left with {left:?}"))
    };
    cores.into_iter().enumerate().find_map(left)
}

/// Returns a session that counts a znode which does not exist. Such a session would eventually refuse every
/// request.
fn count_left(world: &World) -> Option<String> {
    let cores: Vec<_> = world.state().clients.iter().map(|client| client.core.upgrade()).collect();
    let left = |(number, core): (usize, Option<Arc<Core>>)| {
        let core = core.filter(|core| core.snapshot().end_reason.is_none())?;
        let bytes = core.bytes_of_znodes();
        (bytes > 0).then(|| format!("client {number} counts {bytes} bytes of znodes that are gone"))
    };
    cores.into_iter().enumerate().find_map(left)
}

/// Closes every session and checks that nothing is left of it.
pub(super) fn end_the_sessions(scheduler: &mut Scheduler<'_>) -> Verdict {
    let world = Arc::clone(&scheduler.world);
    let clients = world.state().clients.len();
    for number in 0..clients {
        scheduler.close(number);
    }
    pass(scheduler, BOUND)?;
    let threads = scheduler.threads();
    if !threads.is_empty() {
        return Err(format!("the threads {threads:?} are left"));
    }
    for dir in ALL_DIRS {
        let left = world.requests_in(dir);
        if !left.is_empty() {
            return Err(format!("{dir} is left with {left:?}"));
        }
    }
    let state = world.state();
    for (number, client) in state.clients.iter().enumerate() {
        if client.core.strong_count() > 0 {
            return Err(format!("something of client {number}'s session is left"));
        }
        let is_idle = client.jobs.is_empty()
            && client.callbacks.is_empty()
            && client.to_spawn.is_empty()
            && client.timers.is_empty();
        if !client.shut_down || !is_idle {
            return Err(format!("the threads of client {number} have not ended"));
        }
    }
    Ok(())
}
