//! The faults: each a verb of what happens to a client, or of what another client does.

use std::sync::Arc;
use std::time::Duration;

use crate::client::{Acl, Permissions};

use super::baton::{Wait, pause as pause_thread};
use super::link::Fate;
use super::scheduler::DIRS;
use super::world::{State, World, short};
use crate::client::ClientEvent;
use crate::request::Request;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Disconnect,
    Reconnect,
    Partition,
    Heal,
    Pause,
    ClockJump,
    DeleteRequest,
    AskToLetGo,
    Stranger,
    DeleteDir,
    FailCalls,
    PanicInCalls,
    Deny,
    HideStranger,
}

/// Lets something go wrong.
pub(super) fn inject(world: &Arc<World>) {
    let faults = world.profile.faults;
    let mut possible = Vec::new();
    if faults.disconnects {
        possible.extend([Fault::Disconnect, Fault::Reconnect, Fault::Reconnect]);
    }
    if faults.deposed || faults.regrants {
        possible.extend([Fault::Disconnect, Fault::Reconnect]);
    }
    if faults.regrants {
        possible.push(Fault::Heal);
    }
    if faults.partitions {
        possible.extend([Fault::Partition, Fault::Heal, Fault::Reconnect]);
    }
    if faults.slow_replies || faults.deaths {
        possible.extend([Fault::Heal, Fault::Reconnect]);
    }
    if faults.pauses {
        possible.extend([Fault::Pause, Fault::ClockJump]);
    }
    if faults.deletions {
        possible.extend([Fault::DeleteRequest, Fault::Stranger, Fault::Stranger]);
        if !world.profile.unreadable {
            possible.extend([Fault::AskToLetGo, Fault::DeleteDir]);
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
        possible.extend([Fault::Stranger, Fault::Stranger, Fault::HideStranger, Fault::HideStranger]);
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
        Fault::Heal => heal(world, client),
        Fault::Pause => pause(world, client),
        Fault::ClockJump => leap(world),
        Fault::DeleteRequest => delete_request(world),
        Fault::AskToLetGo => ask_to_let_go(world),
        Fault::Stranger => stranger(world),
        Fault::DeleteDir => delete_dir(world),
        Fault::FailCalls => {
            let mut state = world.state();
            let calls = state.random.of(&[1, 2, 12]);
            state.clients[client].calls_to_fail += calls;
        }
        Fault::PanicInCalls => world.state().clients[client].calls_to_panic += 1,
        Fault::Deny => deny(world, client),
        Fault::HideStranger => hide_stranger(world),
    }
}

/// Cuts a client's connection, which it notices.
pub(super) fn disconnect(world: &World, number: usize) {
    let simulated = {
        let mut state = world.state();
        let link = &state.clients[number].link;
        if !link.connected || link.over {
            return;
        }
        // What a partition has cut before stays as it is.
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
        client.link.deposed = false;
        Arc::clone(&client.simulated)
    };
    world.note(format!("client {number} is disconnected"));
    simulated.disconnect();
}

/// How long a client that was disconnected finds no server. A leader that was deposed does the most
/// harm to a session of which the others have heard nothing for long.
fn search_time(state: &mut State, number: usize, deposed: bool) -> Duration {
    if !deposed || state.random.one_in(2) {
        return Duration::ZERO;
    }
    let longest = state.clients[number].session_timeout.as_nanos() as u64;
    Duration::from_nanos(state.random.below(longest))
}

pub(super) fn reconnect(world: &World, number: usize) {
    let lives = lives(world, number);
    let now = world.now();
    let in_trouble = world.in_trouble();
    let (simulated, granted, deposed, shortly) = {
        let mut state = world.state();
        let client = &mut state.clients[number];
        if in_trouble && now < client.link.searches_until {
            return;
        }
        // It tells of the loss before it looks for another server.
        if client.link.connected || client.link.over || !client.lets_go_on(&Wait::Told, now) {
            return;
        }
        let link = &mut client.link;
        link.connected = lives;
        link.over = !lives;
        link.connection += 1;
        let deposed = in_trouble && world.profile.faults.deposed && lives && state.random.one_in(3);
        // Long enough to learn what is granted, and no longer.
        let shortly = in_trouble && world.profile.faults.regrants && state.random.one_in(3);
        if !deposed {
            if in_trouble && world.profile.faults.regrants {
                grant_anew(&mut state, number);
            }
            state.hear_of_connection(number, now);
        }
        let client = &mut state.clients[number];
        client.link.deposed = deposed;
        (Arc::clone(&client.simulated), client.granted(), deposed, shortly)
    };
    let to = if deposed { " to a leader that was deposed" } else { "" };
    world.note(format!("client {number} connects again{to}; {:?} granted", granted.session_timeout));
    simulated.grant(granted);
    simulated.reconnect();
    if deposed {
        fire_watches(world, number);
    }
    if shortly {
        cut_off(world, number, false);
    }
}

/// A client that sets its watches again may be told of changes that it knows.
fn fire_watches(world: &World, number: usize) {
    let session = world.state().clients[number].simulated.session_id();
    for path in requests(world) {
        if world.zookeeper.stat(&path).is_some_and(|stat| stat.ephemeral_owner == session) {
            let mut state = world.state();
            let arrival = state.send_off(Fate::Arrived);
            state.clients[number].events.push_back((arrival, ClientEvent::NodeChanged { path }));
        }
    }
}

/// Draws another session timeout, of two ticks at least, for a client that connects again.
fn grant_anew(state: &mut State, number: usize) {
    let client = &state.clients[number];
    let (now, shortest) = (client.session_timeout, 2 * client.link.heard.tick);
    let granted = state.random.of(&[now, now / 2, now / 4, 2 * now]);
    state.clients[number].session_timeout = granted.max(shortest);
}

/// Swallows what either side sends.
fn partition(world: &World, number: usize) {
    let server_dies = world.state().random.one_in(4);
    cut_off(world, number, server_dies);
}

/// A client's server dies, and the client does not notice.
pub(super) fn lose_server(world: &World, number: usize) {
    cut_off(world, number, true);
}

fn cut_off(world: &World, number: usize, server_dies: bool) {
    {
        let mut state = world.state();
        let link = &state.clients[number].link;
        if !link.connected || link.partitioned || link.over {
            return;
        }
        state.cut_stream(number);
        state.silence(number, server_dies, world.now());
        state.clients[number].link.partitioned = true;
    }
    world.note(format!("client {number} is cut off"));
}

/// Lets through what a partition held back.
pub(super) fn heal(world: &World, number: usize) {
    let lives = lives(world, number);
    let simulated = {
        let mut state = world.state();
        let client = &mut state.clients[number];
        if !client.link.partitioned || client.link.over {
            return;
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
    if !lives {
        simulated.report_expiry();
    }
}

/// Stops a process for a while, as a debugger or a full disk does.
fn pause(world: &World, number: usize) {
    let now = world.now();
    let mut state = world.state();
    let length = some_time(&mut state, number);
    state.silence(number, false, now);
    let client = &mut state.clients[number];
    client.paused_until = client.paused_until.max(now.after(length));
    drop(state);
    world.note(format!("client {number} stands still for {length:?}"));
}

/// Lets time pass for everybody at once.
fn leap(world: &World) {
    let mut state = world.state();
    let length = some_time(&mut state, 0);
    drop(state);
    world.set_now(world.now().after(length));
    world.note(format!("time leaps by {length:?}"));
}

/// Up to two session timeouts.
fn some_time(state: &mut State, client: usize) -> Duration {
    let longest = 2 * state.clients[client].session_timeout.as_nanos() as u64;
    Duration::from_nanos(state.random.below(longest))
}

/// Another client deletes the znode of one of our requests.
fn delete_request(world: &World) {
    let Some(path) = some_request(world) else { return };
    rob(world, &path);
}

/// Sometimes another client deletes the znode of an owner who is about to do something, and somebody else owns before the
/// owner hears of it, if that can be.
pub(super) fn rob_owner(world: &Arc<World>, dir: &'static str, owner: &Arc<Request>) {
    let strikes = world.in_trouble() && world.profile.faults.deletions && world.state().random.one_in(2);
    let Some(znode) = owner.znode().filter(|znode| strikes && world.zookeeper.exists(znode.as_str())) else {
        return;
    };
    rob(world, znode.as_str());
    let (world, owner) = (Arc::clone(world), Arc::clone(owner));
    pause_thread(Wait::Until(Box::new(move || {
        !owner.is_owner() || world.owners(dir).len() > 1 || world.zookeeper.children(dir).is_empty()
    })));
}

fn rob(world: &World, path: &str) {
    let owner = world.zookeeper.stat(path).map_or(0, |stat| stat.ephemeral_owner);
    world.note(format!("somebody deletes {}", short(path)));
    {
        let mut state = world.state();
        state.deleted_by_another.insert(path.to_owned());
        state.node_deleted.insert(owner);
    }
    world.zookeeper.delete(path);
}

/// Another client asks one of our requests to let go.
fn ask_to_let_go(world: &World) {
    let Some(path) = some_request(world) else { return };
    let owner = world.zookeeper.stat(&path).map_or(0, |stat| stat.ephemeral_owner);
    world.note(format!("somebody asks {} to let go", short(&path)));
    world.state().asked.insert(owner);
    world.zookeeper.set_data(&path, b"unlock");
}

/// What stands in the queues.
fn requests(world: &World) -> Vec<String> {
    let in_dir = |dir: &&str| -> Vec<String> {
        world.zookeeper.children(dir).into_iter().map(|name| format!("{dir}/{name}")).collect()
    };
    DIRS.iter().flat_map(in_dir).collect()
}

/// One of our requests in the queues.
fn some_request(world: &World) -> Option<String> {
    let all = requests(world);
    if all.is_empty() {
        return None;
    }
    let mut state = world.state();
    let chosen = state.random.index(all.len());
    (!state.strangers.contains(&all[chosen])).then(|| all[chosen].clone())
}

/// Another client joins a queue, or leaves it.
fn stranger(world: &World) {
    let leaving = {
        let mut state = world.state();
        if state.strangers.len() < 2 && state.random.one_in(2) {
            None
        } else if state.strangers.is_empty() {
            return;
        } else {
            let strangers = state.strangers.len();
            let chosen = state.random.index(strangers);
            Some(state.strangers.remove(chosen))
        }
    };
    match leaving {
        Some(path) => {
            world.note(format!("a stranger leaves: {}", short(&path)));
            world.zookeeper.delete(&path);
        }
        None => {
            let (dir, prefix) = {
                let mut state = world.state();
                let reads = world.profile.shares && state.random.one_in(2);
                state.strangers_so_far += 1;
                // At the end of the counter two may have the same number, but not the same name.
                let name = format!("stranger{}", state.strangers_so_far);
                let prefix = if reads { format!("read-{name}-") } else { format!("x-{name}-lock-") };
                (DIRS[state.random.index(world.profile.dirs)], prefix)
            };
            let path = world.zookeeper.create_sequential(dir, &prefix, None);
            world.note(format!("a stranger joins: {}", short(&path)));
            world.state().strangers.push(path);
        }
    }
}

/// Denies a client what it needs the permissions READ and DELETE for, for a while.
fn deny(world: &World, number: usize) {
    let now = world.now();
    let mut state = world.state();
    let length = some_time(&mut state, number);
    state.clients[number].denied_until = now.after(length);
    drop(state);
    world.note(format!("client {number} is denied READ and DELETE for {length:?}"));
}

/// Denies everybody READ of another client's request, so that no event tells of its deletion.
fn hide_stranger(world: &World) {
    let hidden = {
        let mut state = world.state();
        let strangers = state.strangers.len();
        let chosen = state.random.index(strangers);
        state.strangers.get(chosen).cloned()
    };
    if let Some(path) = hidden {
        world.note(format!("nobody may read {} any more", short(&path)));
        world.zookeeper.set_acl(&path, &[Acl::new(Permissions::DELETE, "world", "anyone")]);
    }
}

/// Another client tidies up a directory that nobody uses at the moment.
fn delete_dir(world: &World) {
    let dir = {
        let mut state = world.state();
        DIRS[state.random.index(world.profile.dirs)]
    };
    if world.zookeeper.exists(dir) && world.zookeeper.children(dir).is_empty() {
        world.note(format!("somebody deletes {dir}"));
        world.zookeeper.delete(dir);
    }
}

/// Whether the client's session lives on the server.
pub(super) fn lives(world: &World, client: usize) -> bool {
    let session = world.state().clients[client].simulated.session_id();
    world.zookeeper.sessions().contains(&session)
}
