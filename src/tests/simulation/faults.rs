//! The faults of processes and clocks, and the actions of other clients. Those of servers and of the network are in
//! [`wire::faults`].

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::baton::{Wait, pause as pause_thread};
use super::holds::Hold;
use super::profile::Faults;
use super::scheduler::{ALL_DIRS, DIRS, LEASES};
use super::seen::saw;
use super::world::{State, World, short};
use super::{transactions, wire};
use crate::client::{Acl, Permissions};
use crate::request::Request;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Pause,
    ClockJump,
    DeleteRequest,
    RequestRelease,
    OtherRequest,
    DeleteDir,
    DeleteDirWithRequests,
    DeleteTheFirstTwo,
    Deny,
    HideOtherRequest,
}

/// Injects a fault.
pub(super) fn inject(world: &Arc<World>) {
    let possible = possible(world.profile.faults, world.profile.unreadable);
    if possible.is_empty() || world.state().random.one_in(2) {
        return wire::faults::inject(world);
    }
    let (fault, client) = {
        let mut state = world.state();
        let clients = state.clients.len();
        (state.random.of(&possible), state.random.index(clients))
    };
    match fault {
        Fault::Pause => pause(world, client),
        Fault::ClockJump => jump_clock(world),
        Fault::DeleteRequest => delete_request(world),
        Fault::RequestRelease => request_release(world),
        Fault::OtherRequest => change_other_request(world),
        Fault::DeleteDir => delete_dir(world),
        Fault::DeleteDirWithRequests => transactions::delete_dir_with_requests(world),
        Fault::DeleteTheFirstTwo => transactions::delete_the_first_two(world),
        Fault::Deny => deny(world, client),
        Fault::HideOtherRequest => hide_other_request(world),
    }
}

fn possible(faults: Faults, unreadable: bool) -> Vec<Fault> {
    let mut possible = Vec::new();
    if faults.pauses {
        possible.extend([Fault::Pause, Fault::ClockJump]);
    }
    if faults.deletions {
        possible.extend([Fault::DeleteRequest, Fault::OtherRequest, Fault::OtherRequest]);
        if !unreadable {
            possible.extend([Fault::RequestRelease, Fault::DeleteDir]);
            possible.extend([Fault::DeleteDirWithRequests, Fault::DeleteTheFirstTwo]);
        }
    }
    if faults.denials {
        possible.push(Fault::Deny);
    }
    if faults.hidden_deletions {
        possible.extend([Fault::OtherRequest, Fault::HideOtherRequest].repeat(2));
    }
    possible
}

/// Draws the session timeout, of at least two ticks, that a server grants to a client that asks for `asked`.
/// The servers' bounds differ.
pub(super) fn draw_grant(state: &mut State, number: usize, asked: Duration, raises: bool) {
    let shortest = 2 * state.clients[number].link.heard.tick;
    // Mostly longer: only then does a change of the leader shorten anything.
    let granted = match raises && !state.random.one_in(4) {
        true => 2 * asked,
        false => state.random.of(&[asked, asked / 2, asked / 4, 2 * asked, 2 * asked, 2 * asked]),
    };
    // Servers grant whole milliseconds.
    let granted = Duration::from_millis(granted.max(shortest).as_millis() as u64);
    saw(match granted.cmp(&state.clients[number].session_timeout) {
        Ordering::Less => "timeout-lowered",
        Ordering::Equal => "timeout-kept",
        Ordering::Greater => "timeout-raised",
    });
    state.clients[number].session_timeout = granted;
}

/// Changes the leader at any time. Clients whose session timeout is longer than at the session's creation are
/// often cut off at that moment.
pub(super) fn change_leader_at_any_time(world: &World) {
    let cut_off = {
        let mut state = world.state();
        let cut_off = !state.random.one_in(4);
        // A change would give more time to clients that are to stay cut off.
        if state.clients.iter().any(|client| client.link.stays_cut_off(world.now())) {
            return;
        }
        (0..state.clients.len())
            .filter(|client| cut_off && state.clients[*client].has_a_raised_timeout())
            .collect()
    };
    change_leader(world, cut_off);
}

/// Sometimes changes the leader and cuts off an owner whose session timeout is longer than at the session's
/// creation. The owner continues for as long as it may.
pub(super) fn perhaps_change_leader_of_owner(world: &Arc<World>, client: usize, owner: &Arc<Request>) {
    let strikes = {
        let mut state = world.state();
        // A change would give more time to clients that are already cut off.
        let is_cut_off = state.clients[client].link.partitioned
            || state.clients.iter().any(|client| client.link.stays_cut_off(world.now()));
        let is_possible = world.in_trouble() && world.profile.faults.regrants && !is_cut_off;
        is_possible && state.clients[client].has_a_raised_timeout() && !state.random.one_in(4)
    };
    if strikes {
        change_leader(world, vec![client]);
        saw("owner-cut-off-while-leader-changes");
        stay_cut_off(world, client);
        hold_while_owning(world, owner);
    }
}

/// Keeps the client cut off until its lease and its session have ended.
pub(super) fn stay_cut_off(world: &World, client: usize) {
    let mut state = world.state();
    let client = &mut state.clients[client];
    client.link.cut_off_until = world.now().after(client.session_timeout.max(client.created_timeout));
}

fn hold_while_owning(world: &Arc<World>, owner: &Arc<Request>) {
    let (world, owner) = (Arc::clone(world), Arc::clone(owner));
    pause_thread(Wait::Until(Box::new(move || !owner.is_owner() || !world.in_trouble())));
}

/// If links may stall, often makes an owner hold its lock for as long as it may, so that a stall can come meanwhile.
pub(super) fn perhaps_hold_through_stalls(world: &Arc<World>, owner: &Arc<Request>) {
    let is_possible = world.in_trouble() && world.profile.faults.stalls;
    if is_possible && !world.state().random.one_in(4) {
        hold_while_owning(world, owner);
    }
}

/// Returns whether a client owns a lock.
pub(super) fn owns(world: &World, client: usize) -> bool {
    let (holds, locks) = {
        let state = world.state();
        let core = state.clients[client].core.as_ptr();
        let is_its_own = |hold: &&Hold| Arc::as_ptr(hold.request.core()) == core;
        let holds: Vec<Hold> = state.holds.values().filter(is_its_own).cloned().collect();
        let locks = state.locks.iter().filter(|record| record.client == client);
        let locks: Vec<_> = locks.filter_map(|record| record.weak.upgrade()).collect();
        (holds, locks)
    };
    holds.iter().any(Hold::is_owner) || locks.iter().any(|lock| lock.is_owner())
}

/// Changes the leader while these clients are cut off. Every server ends its connections.
fn change_leader(world: &World, cut_off: Vec<usize>) {
    let now = world.now();
    cut_off.into_iter().for_each(|client| wire::faults::partition(world, client));
    world.note("the leader changes");
    saw("leader-changes");
    wire::faults::end_all_connections(world);
    world.state().change_leader(now);
}

/// Suspends a process for a while, as a debugger or a full disk does.
fn pause(world: &World, number: usize) {
    let now = world.now();
    let mut state = world.state();
    let length = some_time(&mut state, number);
    let client = &mut state.clients[number];
    client.paused_until = client.paused_until.max(now.after(length));
    client.suspensions += 1;
    let until = client.paused_until;
    wire::faults::suspend(&mut state, number, until);
    drop(state);
    saw("process-suspended");
    world.note(format!("client {number} is suspended for {length:?}"));
}

/// Advances the clock for all processes at once.
fn jump_clock(world: &World) {
    let mut state = world.state();
    let length = some_time(&mut state, 0);
    state.clock_jumps += 1;
    drop(state);
    let now = world.now().after(length);
    world.set_now(now);
    let clients = world.state().clients.len();
    (0..clients).for_each(|client| wire::faults::suspend(&mut world.state(), client, now));
    // Nobody could notice anything during the jump.
    world.state().turns.values_mut().for_each(|turn| turn.since = now);
    saw("clock-jumps");
    world.note(format!("the clock jumps by {length:?}"));
}

/// Draws a time of up to two session timeouts.
fn some_time(state: &mut State, client: usize) -> Duration {
    let longest = 2 * state.clients[client].session_timeout.as_nanos() as u64;
    Duration::from_nanos(state.random.below(longest))
}

/// Deletes the znode of one of our requests, as another client.
fn delete_request(world: &World) {
    let Some(path) = some_request(world) else { return };
    saw("request-deleted-by-another");
    delete_znode(world, &path);
}

/// Sometimes another client deletes the znode of an owner that is about to act. If possible, another request
/// then acquires the lock before the owner notices.
pub(super) fn delete_owners_znode(world: &Arc<World>, dir: &'static str, owner: &Arc<Request>) {
    let strikes = world.in_trouble() && world.profile.faults.deletions && world.state().random.one_in(2);
    let Some(znode) = owner.znode().filter(|znode| strikes && world.zookeeper.exists(znode.as_str())) else {
        return;
    };
    delete_znode(world, znode.as_str());
    saw("owner-deleted-before-it-acts");
    let (world, owner) = (Arc::clone(world), Arc::clone(owner));
    pause_thread(Wait::Until(Box::new(move || {
        !owner.is_owner() || world.owning_requests(dir).len() > 1 || world.zookeeper.children(dir).is_empty()
    })));
}

fn delete_znode(world: &World, path: &str) {
    let owner = world.zookeeper.stat(path).map_or(0, |stat| stat.ephemeral_owner);
    world.note(format!("another client deletes {}", short(path)));
    world.record_deletion_by_another(path, owner);
    world.zookeeper.delete(path);
}

/// Asks one of our requests to release, as another client.
fn request_release(world: &World) {
    let Some(path) = some_request(world) else { return };
    let owner = world.zookeeper.stat(&path).map_or(0, |stat| stat.ephemeral_owner);
    world.note(format!("another client requests the release of {}", short(&path)));
    world.state().asked.insert(owner);
    world.zookeeper.set_data(&path, b"unlock");
    saw("release-requested-by-another");
}

/// Returns all requests in the queues.
fn requests(world: &World) -> Vec<String> {
    let in_dir = |dir: &&str| -> Vec<String> {
        world.requests_in(dir).into_iter().map(|name| format!("{dir}/{name}")).collect()
    };
    ALL_DIRS.iter().flat_map(in_dir).collect()
}

/// Returns a random request of ours in the queues.
pub(super) fn some_request(world: &World) -> Option<String> {
    let all = requests(world);
    if all.is_empty() {
        return None;
    }
    let mut state = world.state();
    let chosen = state.random.index(all.len());
    (!state.other_requests.contains(&all[chosen])).then(|| all[chosen].clone())
}

/// Makes a request of another client join or leave a queue.
fn change_other_request(world: &World) {
    let leaving = {
        let mut state = world.state();
        if state.other_requests.len() < 2 && state.random.one_in(2) {
            None
        } else if state.other_requests.is_empty() {
            return;
        } else {
            let other_requests = state.other_requests.len();
            let chosen = state.random.index(other_requests);
            Some(state.other_requests.remove(chosen))
        }
    };
    match leaving {
        Some(path) => {
            world.note(format!("another client's request leaves: {}", short(&path)));
            world.zookeeper.delete(&path);
            saw("foreign-request-leaves");
        }
        None => {
            let (dir, prefix) = {
                let mut state = world.state();
                let reads = world.profile.shares && state.random.one_in(2);
                state.other_requests_so_far += 1;
                // At the end of the counter, two znodes may have the same number but not the same name.
                let name = format!("stranger{}", state.other_requests_so_far);
                if world.profile.permits > 0 && state.random.one_in(2) {
                    (LEASES, format!("_c_{name}-lease-"))
                } else {
                    let prefix = if reads { format!("read-{name}-") } else { format!("x-{name}-lock-") };
                    (DIRS[state.random.index(world.profile.dirs)], prefix)
                }
            };
            let path = world.zookeeper.create_sequential(dir, &prefix, None);
            world.note(format!("another client's request joins: {}", short(&path)));
            world.state().other_requests.push(path);
            saw("foreign-request-joins");
        }
    }
}

/// Denies a client the permissions READ and DELETE for a while.
fn deny(world: &World, number: usize) {
    let now = world.now();
    let mut state = world.state();
    let length = some_time(&mut state, number);
    state.clients[number].denied_until = now.after(length);
    drop(state);
    world.note(format!("client {number} is denied READ and DELETE for {length:?}"));
}

/// Denies everybody READ on another client's request, so the deletion of that request fires no event.
fn hide_other_request(world: &World) {
    let hidden = {
        let mut state = world.state();
        let other_requests = state.other_requests.len();
        let chosen = state.random.index(other_requests);
        state.other_requests.get(chosen).cloned()
    };
    if let Some(path) = hidden {
        world.note(format!("{} becomes unreadable", short(&path)));
        world.zookeeper.set_acl(&path, &[Acl::new(Permissions::DELETE, "world", "anyone")]);
        saw("foreign-request-hidden");
    }
}

/// Deletes an unused directory, as another client.
fn delete_dir(world: &World) {
    let dir = {
        let mut state = world.state();
        DIRS[state.random.index(world.profile.dirs)]
    };
    if world.zookeeper.exists(dir) && world.zookeeper.children(dir).is_empty() {
        world.note(format!("another client deletes {dir}"));
        world.zookeeper.delete(dir);
        saw("directory-deleted");
    }
}
