//! The faults. Each one is an event at one client, an event at all of them, or an action of another client.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::baton::{Wait, pause as pause_thread};
use super::holds::Hold;
use super::link::Fate;
use super::scheduler::{ALL_DIRS, DIRS, LEASES};
use super::seen::saw;
use super::world::{State, World, short};
use super::{transactions, wire};
use crate::client::{Acl, ClientEvent, Permissions};
use crate::request::Request;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Disconnect,
    Reconnect,
    Partition,
    EndPartition,
    Depose,
    ChangeLeader,
    Stall,
    Pause,
    ClockJump,
    DeleteRequest,
    RequestRelease,
    OtherRequest,
    DeleteDir,
    DeleteDirWithRequests,
    DeleteTheFirstTwo,
    FailCalls,
    PanicInCalls,
    Deny,
    HideOtherRequest,
}

/// Injects a fault.
pub(super) fn inject(world: &Arc<World>) {
    if world.profile.on_wire && world.state().random.one_in(2) {
        return wire::faults::inject(world);
    }
    let mut faults = world.profile.faults;
    if world.profile.on_wire {
        faults = faults.beside_the_wire();
    }
    let mut possible = Vec::new();
    if faults.disconnects {
        possible.extend([Fault::Disconnect, Fault::Reconnect, Fault::Reconnect]);
    }
    if faults.deposed {
        possible.push(Fault::Depose);
    }
    if faults.deposed || faults.regrants {
        possible.extend([Fault::Disconnect, Fault::Reconnect]);
    }
    if faults.regrants && !world.profile.raises {
        possible.extend([Fault::EndPartition, Fault::ChangeLeader, Fault::ChangeLeader]);
    }
    if world.profile.raises {
        // Connections return soon, so that somebody owns when the leader changes.
        possible.extend([Fault::EndPartition, Fault::Reconnect, Fault::Reconnect, Fault::Reconnect]);
    }
    if faults.stalls {
        possible.extend([Fault::Stall, Fault::EndPartition, Fault::Reconnect]);
    }
    if faults.partitions {
        possible.extend([Fault::Partition, Fault::EndPartition, Fault::Reconnect]);
    }
    if faults.slow_replies || faults.deaths {
        possible.extend([Fault::EndPartition, Fault::Reconnect]);
    }
    if faults.pauses {
        possible.extend([Fault::Pause, Fault::ClockJump]);
    }
    if faults.deletions {
        possible.extend([Fault::DeleteRequest, Fault::OtherRequest, Fault::OtherRequest]);
        if !world.profile.unreadable {
            possible.extend([Fault::RequestRelease, Fault::DeleteDir]);
            possible.extend([Fault::DeleteDirWithRequests, Fault::DeleteTheFirstTwo]);
        }
    }
    if faults.failing_calls {
        possible.push(Fault::FailCalls);
    }
    if faults.panicking_calls {
        possible.push(Fault::PanicInCalls);
    }
    if faults.denials {
        possible.push(Fault::Deny);
    }
    if faults.hidden_deletions {
        possible.extend([
            Fault::OtherRequest,
            Fault::OtherRequest,
            Fault::HideOtherRequest,
            Fault::HideOtherRequest,
        ]);
    }
    if possible.is_empty() {
        return;
    }
    let (fault, client) = {
        let mut state = world.state();
        let clients = state.clients.len();
        (state.random.of(&possible), state.random.index(clients))
    };
    match fault {
        Fault::Disconnect => disconnect(world, client),
        Fault::Reconnect => reconnect(world, client),
        Fault::Partition => partition(world, client),
        Fault::EndPartition => end_partition(world, client),
        Fault::Depose => depose(world, client),
        Fault::ChangeLeader => change_leader_at_any_time(world),
        Fault::Stall => stall(world, client),
        Fault::Pause => pause(world, client),
        Fault::ClockJump => jump_clock(world),
        Fault::DeleteRequest => delete_request(world),
        Fault::RequestRelease => request_release(world),
        Fault::OtherRequest => change_other_request(world),
        Fault::DeleteDir => delete_dir(world),
        Fault::DeleteDirWithRequests => transactions::delete_dir_with_requests(world),
        Fault::DeleteTheFirstTwo => transactions::delete_the_first_two(world),
        Fault::FailCalls => {
            let mut state = world.state();
            let calls = state.random.of(&[1, 2, 12]);
            state.clients[client].calls_to_fail += calls;
        }
        Fault::PanicInCalls => world.state().clients[client].calls_to_panic += 1,
        Fault::Deny => deny(world, client),
        Fault::HideOtherRequest => hide_other_request(world),
    }
}

/// Cuts a client's connection. The client notices.
pub(super) fn disconnect(world: &World, number: usize) {
    if world.profile.on_wire {
        return;
    }
    let simulated = {
        let mut state = world.state();
        let link = &state.clients[number].link;
        if !link.connected || link.over || world.in_trouble() && link.stays_cut_off(world.now()) {
            return;
        }
        state.end_stall(number);
        let link = &state.clients[number].link;
        // What a partition has already cut stays cut.
        if !link.partitioned {
            state.cut_stream(number);
        }
        let (now, server_dies) = (world.now(), state.random.one_in(2));
        state.silence(number, server_dies, now);
        let search = search_time(&mut state, number, world.profile.faults.deposed);
        let client = &mut state.clients[number];
        client.link.searches_until = now.after(search);
        client.lose_the_rest();
        client.link.connected = false;
        client.link.partitioned = false;
        client.link.server_died = false;
        client.link.deposed = false;
        client.begin_pings(now);
        Arc::clone(&client.simulated)
    };
    world.note(format!("client {number} is disconnected"));
    saw("connection-reset");
    simulated.disconnect();
}

/// Returns how long a disconnected client finds no server. A deposed leader does the most harm to a session
/// that the other servers have not heard from for a long time.
fn search_time(state: &mut State, number: usize, deposed: bool) -> Duration {
    if !deposed || state.random.one_in(2) {
        return Duration::ZERO;
    }
    let longest = state.clients[number].session_timeout.as_nanos() as u64;
    Duration::from_nanos(state.random.below(longest))
}

pub(super) fn reconnect(world: &World, number: usize) {
    if world.profile.on_wire {
        return;
    }
    let lives = lives(world, number);
    let now = world.now();
    let in_trouble = world.in_trouble();
    let (simulated, granted, deposed, shortly, serves) = {
        let mut state = world.state();
        let client = &mut state.clients[number];
        if in_trouble && now < client.link.searches_until {
            return;
        }
        // The client reports the loss before it looks for another server.
        let has_reported = client.may_continue(&Wait::LossReported, now) && !client.is_taken_up();
        if client.link.connected || client.link.over || !has_reported {
            return;
        }
        let link = &mut client.link;
        link.connected = lives;
        link.over = !lives;
        link.connection += 1;
        let deposed = in_trouble && world.profile.faults.deposed && lives && state.random.one_in(3);
        // A connection that ends `shortly` lasts just long enough for the client to learn the grant.
        let regrants = in_trouble && world.profile.faults.regrants;
        let shortly = regrants && state.random.one_in(3);
        if !deposed {
            let client = &state.clients[number];
            let (former, created) = (client.session_timeout, client.created_timeout);
            if regrants {
                draw_grant(&mut state, number, created, world.profile.raises);
            }
            state.report_connection(number, former, now);
        }
        // A server may take the session up and be lost before serving it.
        let serves = !(regrants && lives && !deposed && state.random.one_in(4));
        let client = &mut state.clients[number];
        client.link.deposed = deposed;
        client.link.connected = lives && serves;
        client.begin_pings(now);
        (Arc::clone(&client.simulated), client.granted(), deposed, shortly, serves)
    };
    if !serves {
        let mut state = world.state();
        let search = search_time(&mut state, number, true);
        state.clients[number].link.searches_until = now.after(search);
        drop(state);
        return report_taking_up(world, number);
    }
    let to = if deposed { " to a deposed leader" } else { "" };
    world.note(format!("client {number} reconnects{to}; {:?} granted", granted.session_timeout));
    simulated.grant(granted);
    simulated.reconnect();
    saw(if lives { "reconnect" } else { "reconnect-to-an-ended-session" });
    if deposed {
        saw("resumed-by-deposed-server");
        fire_watches(world, number);
    }
    if shortly {
        cut_off(world, number, false);
    }
}

fn report_taking_up(world: &World, number: usize) {
    let session_timeout = world.state().clients[number].session_timeout;
    world.note(format!("client {number} is taken up but not served; {session_timeout:?} granted"));
    let mut state = world.state();
    let arrival = state.send_off(Fate::Arrived);
    let event = ClientEvent::TakenUp { session_timeout };
    state.clients[number].events.push_back((arrival, event));
    saw("resumed-but-not-served");
}

/// In some runs, chooses a client whose session every server takes up without answering anything. Returns it with the
/// znodes of its session.
pub(super) fn choose_unserved(world: &World) -> Option<(usize, Vec<String>)> {
    if world.profile.on_wire || !world.profile.faults.regrants {
        return None;
    }
    let number = {
        let mut state = world.state();
        let (chosen, clients) = (state.random.one_in(3), state.clients.len());
        chosen.then(|| state.random.index(clients))?
    };
    disconnect(world, number);
    let state = world.state();
    let link = &state.clients[number].link;
    let session = state.clients[number].simulated.session_id();
    if link.connected || link.over {
        return None;
    }
    drop(state);
    let ephemerals = world.zookeeper.ephemerals().into_iter();
    Some((number, ephemerals.filter(|(owner, _)| *owner == session).map(|(_, path)| path).collect()))
}

/// Makes a server take up the client's session, which it does not serve.
pub(super) fn take_up_unserved(world: &World, number: usize) {
    let (now, lives) = (world.now(), lives(world, number));
    {
        let mut state = world.state();
        let client = &state.clients[number];
        let has_reported = client.may_continue(&Wait::LossReported, now) && !client.is_taken_up();
        if client.link.connected || client.link.over || !lives || !has_reported {
            return;
        }
        let timeout = client.session_timeout;
        state.clients[number].link.connection += 1;
        state.report_connection(number, timeout, now);
    }
    report_taking_up(world, number);
}

/// Fires watches for changes that the client already knows of. A client that sets its watches again may receive such
/// events.
fn fire_watches(world: &World, number: usize) {
    let session = world.state().clients[number].simulated.session_id();
    for path in requests(world) {
        if world.zookeeper.stat(&path).is_some_and(|stat| stat.ephemeral_owner == session) {
            saw("watch-fires-on-known-change");
            let mut state = world.state();
            let arrival = state.send_off(Fate::Arrived);
            state.clients[number]
                .events
                .push_back((arrival, ClientEvent::NodeChanged { path, is_deleted: false }));
        }
    }
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

/// Often starts a stall after the second request of a keep-alive, before the marks of both are reported.
/// There it does the most harm.
pub(super) fn perhaps_stall_after_keep_alive(world: &World, client: usize) {
    let is_second = {
        let now = world.now();
        let link = &mut world.state().clients[client].link;
        let before = std::mem::replace(&mut link.kept_alive, now);
        now <= before.after(link.heard.tick / 4)
    };
    let is_possible = is_second && world.in_trouble() && world.profile.faults.stalls;
    if is_possible && !world.state().random.one_in(3) && owns(world, client) {
        stall(world, client);
    }
}

/// Stalls the link between the leader and a client's server for one to four ticks.
fn stall(world: &World, number: usize) {
    let length = {
        let mut state = world.state();
        let link = &state.clients[number].link;
        let is_served = link.connected && !link.partitioned && !link.deposed && !link.over;
        if !is_served || link.stall.is_some() {
            return;
        }
        let tick = link.heard.tick;
        let length = tick + Duration::from_nanos(state.random.below(3 * tick.as_nanos() as u64));
        let now = world.now();
        state.begin_stall(number, now.after(length), now);
        length
    };
    saw("server-link-stalls");
    world.note(format!("the leader's link to the server of client {number} stalls for {length:?}"));
}

/// Ends the stall. Often the server then crashes: the answers that were held up still arrive, but all its reports from
/// that time are lost.
///
/// This is done to owners only, because docs/guarantees.md names two limits: a lock that is *taken* by a write
/// which such a stall held up, and any such stall behind an observer master.
pub(super) fn end_stall(world: &World, number: usize) {
    if world.profile.on_wire {
        return wire::faults::end_link_stall(world, number);
    }
    let crashes = {
        let mut state = world.state();
        let link = &state.clients[number].link;
        if link.stall.is_none() {
            return;
        }
        let may_crash = !link.heard.observer && !link.over && world.in_trouble();
        may_crash && !state.random.one_in(4)
    };
    if crashes && owns(world, number) {
        world.state().die_after_stall(number);
        saw("server-link-stalls-then-server-dies");
        world.note(format!("the stall ends, and the server of client {number} crashes"));
        world.state().clients[number].link.partitioned = true;
        return stay_cut_off(world, number);
    }
    world.state().end_stall(number);
    saw("server-link-stalls-then-resumes");
    world.note(format!("the stall of the link to the server of client {number} ends"));
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

/// Changes the leader while these clients are cut off. Every server ends the connections of the other clients.
fn change_leader(world: &World, cut_off: Vec<usize>) {
    let now = world.now();
    for client in &cut_off {
        match world.profile.on_wire {
            true => wire::faults::partition(world, *client),
            false => partition(world, *client),
        }
    }
    world.note("the leader changes");
    saw("leader-changes");
    let clients = world.state().clients.len();
    match world.profile.on_wire {
        true => wire::faults::end_all_connections(world),
        false => (0..clients).filter(|client| !cut_off.contains(client)).for_each(|it| disconnect(world, it)),
    }
    world.state().change_leader(now);
}

/// Swallows everything that both sides send. Sometimes the server crashes at the same time.
pub(super) fn partition(world: &World, number: usize) {
    let server_dies = world.state().random.one_in(4);
    cut_off(world, number, server_dies);
}

/// Crashes a client's server without the client noticing.
pub(super) fn lose_server(world: &World, number: usize) {
    cut_off(world, number, true);
}

/// Sometimes crashes a server after it has answered a ping and before it reports that.
pub(super) fn perhaps_lose_server_after_ping(world: &World, client: usize) {
    if world.in_trouble() && world.profile.faults.deaths && world.state().random.one_in(16) {
        lose_server(world, client);
    }
}

fn cut_off(world: &World, number: usize, server_dies: bool) {
    {
        let mut state = world.state();
        let link = &state.clients[number].link;
        if !link.connected || link.partitioned || link.over {
            return;
        }
        state.end_stall(number);
        state.cut_stream(number);
        state.silence(number, server_dies, world.now());
        state.clients[number].link.partitioned = true;
    }
    saw("partition");
    world.note(format!("client {number} is cut off"));
}

/// Deposes a client's server if it leads, or takes its leader away. The server continues to answer reads and
/// pings for a while.
fn depose(world: &World, number: usize) {
    {
        let mut state = world.state();
        let link = &state.clients[number].link;
        if !link.connected || link.partitioned || link.deposed || link.over {
            return;
        }
        state.end_stall(number);
        state.cut_stream(number);
        let server_dies = state.random.one_in(2);
        state.silence(number, server_dies, world.now());
        state.clients[number].link.deposed = true;
        saw("server-loses-its-leader");
    }
    world.note(format!("client {number}'s server loses its leader"));
}

/// Delivers what a partition has held back. If the server has died meanwhile, it delivers nothing.
pub(super) fn end_partition(world: &World, number: usize) {
    if world.profile.on_wire {
        return;
    }
    let lives = lives(world, number);
    let simulated = {
        let mut state = world.state();
        let client = &mut state.clients[number];
        let stays = world.in_trouble() && client.link.stays_cut_off(world.now());
        if !client.link.partitioned || client.link.over || stays {
            return;
        }
        if client.link.server_died && lives {
            drop(state);
            saw("partition-hides-a-crash");
            return disconnect(world, number);
        }
        client.link.partitioned = false;
        if lives {
            client.let_arrive();
        } else {
            client.link.over = true;
            client.link.connected = false;
            client.lose_the_rest();
        }
        Arc::clone(&state.clients[number].simulated)
    };
    world.note(format!("client {number} is no longer cut off"));
    saw("partition-ends");
    if !lives {
        saw("session-expires-behind-a-partition");
        simulated.report_expiry();
    }
}

/// Suspends a process for a while, as a debugger or a full disk does.
fn pause(world: &World, number: usize) {
    let now = world.now();
    let mut state = world.state();
    let length = some_time(&mut state, number);
    state.silence(number, false, now);
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

/// Returns whether the client's session lives on the server.
pub(super) fn lives(world: &World, client: usize) -> bool {
    let session = world.state().clients[client].simulated.session_id();
    world.zookeeper.sessions().contains(&session)
}
