//! The faults of the network of bytes and its servers.

use std::sync::Arc;
use std::time::Duration;

use super::endpoint::Endpoint;
use super::ensemble::Mode;
use super::sasl::Tickets;
use super::server::Front;
use super::stream::Transport;
use crate::tests::simulation::profile::Faults;
use crate::tests::simulation::seen::saw;
use crate::tests::simulation::world::{ClientState, State, World};
use crate::time::Moment;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Cut,
    Swallow,
    Partition,
    EndPartition,
    Slow,
    Garbage,
    /// A frame arrives slowly and never ends.
    Trickle,
    /// The leader stops committing, or resumes.
    Stall,
    ChangeLeader,
    Break(Mode),
    Recover,
    ChangeTickets,
}

/// Injects a fault at a client's connection or at a server.
pub(in crate::tests::simulation) fn inject(world: &World) {
    let possible = possible(world.profile.faults, world.profile.sasl);
    if possible.is_empty() {
        return;
    }
    let (fault, client, server) = {
        let mut state = world.state();
        let (clients, servers) = (state.clients.len(), state.ensemble.servers.len());
        (state.random.of(&possible), state.random.index(clients), state.random.index(servers))
    };
    match fault {
        Fault::Cut => cut(world, client),
        Fault::Swallow => swallow(world, client),
        Fault::Partition => partition(world, client),
        Fault::EndPartition => end_partition(world, client),
        Fault::Slow => slow_down(world, client),
        Fault::Garbage => send_to(world, client, |front| front.send_garbage()),
        Fault::Trickle => send_to(world, client, |front| front.send_endless()),
        Fault::Stall => stall(world),
        Fault::ChangeLeader => crate::tests::simulation::faults::change_leader_at_any_time(world),
        Fault::Break(mode) => break_server(world, server, mode),
        Fault::Recover => recover(world, server),
        Fault::ChangeTickets => {
            let tickets = world.state().random.of(&[Tickets::AtHand, Tickets::Awaited, Tickets::Missing]);
            set_tickets(world, client, tickets);
        }
    }
}

fn possible(faults: Faults, sasl: bool) -> Vec<Fault> {
    let mut possible = Vec::new();
    if faults.disconnects {
        possible.extend([Fault::Cut, Fault::Cut, Fault::Break(Mode::Down), Fault::Break(Mode::Electing)]);
    }
    if faults.partitions {
        possible.extend([Fault::Partition, Fault::EndPartition, Fault::EndPartition]);
        possible.extend([Fault::Swallow, Fault::Break(Mode::Unreachable)]);
    }
    if faults.slow_replies {
        possible.extend([Fault::Slow, Fault::Break(Mode::Silent), Fault::Break(Mode::PingsOnly)]);
        possible.extend([Fault::Trickle, Fault::Stall, Fault::Stall]);
    }
    if faults.deaths {
        possible.push(Fault::Break(Mode::Down));
    }
    if faults.regrants {
        possible.extend([Fault::Cut, Fault::ChangeLeader, Fault::EndPartition]);
    }
    if faults.deposed {
        possible.extend([Fault::Break(Mode::Deposed), Fault::Break(Mode::Deposed), Fault::Cut]);
    }
    if faults.failing_calls {
        possible.extend([Fault::Garbage, Fault::Break(Mode::Garbled), Fault::Break(Mode::ReadOnly)]);
        possible.push(Fault::Break(Mode::Demanding));
        possible.extend([Fault::Break(Mode::Lagging), Fault::Break(Mode::Lagging), Fault::Cut]);
    }
    if sasl {
        possible.extend([Mode::Refusing, Mode::WithoutSasl, Mode::Mute].map(Fault::Break));
        possible.extend([Fault::ChangeTickets, Fault::ChangeTickets, Fault::Cut]);
    }
    let breaking = possible.iter().filter(|fault| matches!(fault, Fault::Break(_))).count();
    possible.extend(std::iter::repeat_n(Fault::Recover, 2 * breaking));
    possible
}

/// Breaks a client's connection.
fn cut(world: &World, client: usize) {
    change_transport(world, client, "is disconnected", |transport, random| {
        transport.cut(random);
        saw("wire-connection-reset");
    });
}

fn change_transport(
    world: &World,
    client: usize,
    what: &str,
    change: impl FnOnce(&mut Transport, &mut crate::tests::simulation::random::Random),
) {
    let mut state = world.state();
    let mut random = state.random.clone();
    let transport = state.clients[client].endpoint().and_then(|endpoint| endpoint.transport.as_mut());
    let Some(transport) = transport else { return };
    change(transport, &mut random);
    state.random = random;
    drop(state);
    world.note(format!("client {client} {what}"));
}

/// Loses all packets of a client's current connection.
fn swallow(world: &World, number: usize) {
    let mut swallowed = None;
    change_transport(world, number, "has a connection that is swallowed", |transport, _| {
        transport.is_swallowed = true;
        swallowed = Some(transport.peer.number);
    });
    let Some(connection) = swallowed else { return };
    saw("wire-connection-swallowed");
    world.state().clients[number].wired_mut().swallow(connection, world.now());
}

/// Holds back everything that both sides send.
pub(in crate::tests::simulation) fn partition(world: &World, number: usize) {
    world.state().clients[number].link.partitioned = true;
    saw("wire-partition");
    world.note(format!("client {number} is cut off"));
}

/// Delivers what was held back.
pub(in crate::tests::simulation) fn end_partition(world: &World, number: usize) {
    let now = world.now();
    let mut state = world.state();
    let client = &mut state.clients[number];
    if !std::mem::take(&mut client.link.partitioned) {
        return;
    }
    disturb(client, now);
    drop(state);
    saw("wire-partition-ends");
    world.note(format!("client {number} is no longer cut off"));
}

fn slow_down(world: &World, number: usize) {
    let now = world.now();
    let mut state = world.state();
    let longest = state.clients[number].session_timeout.as_nanos() as u64 / 8;
    let until = now.after(Duration::from_nanos(state.random.below(longest)));
    let client = &mut state.clients[number];
    client.link.slow_until = client.link.slow_until.max(until);
    disturb(client, until);
    drop(state);
    saw("wire-network-slow");
    world.note(format!("the network of client {number} is slow"));
}

/// Decides whether a client gets tickets, if it needs any.
fn set_tickets(world: &World, number: usize, tickets: Tickets) {
    let now = world.now();
    let mut state = world.state();
    let Some(wired) = state.clients[number].wire.as_mut().filter(|wired| wired.tickets.is_some()) else {
        return;
    };
    saw(match tickets {
        Tickets::AtHand => "kdc-answers",
        Tickets::Awaited => "kdc-silent",
        Tickets::Missing => "no-ticket",
    });
    wired.tickets = Some(tickets);
    wired.disturb(now);
    drop(state);
    world.note(format!("the tickets of client {number} are {tickets:?}"));
}

fn send_to(world: &World, client: usize, send: impl FnOnce(&mut Front<'_>)) {
    world.with_endpoint(client, |endpoint| {
        world.serve_on(client, endpoint, |front| {
            if front.transport.is_open {
                send(front);
            }
        });
    });
}

fn stall(world: &World) {
    if !std::mem::replace(&mut world.state().ensemble.is_stalled, true) {
        saw("leader-stalls");
        return world.note("the leader stalls");
    }
    end_stall(world);
}

/// Makes the leader resume if it is stalled. Until now no server could help any client.
pub(super) fn end_stall(world: &World) {
    if !std::mem::take(&mut world.state().ensemble.is_stalled) {
        return;
    }
    world.note("the leader goes on");
    saw("leader-resumes");
    let now = world.now();
    let mut state = world.state();
    let wired = state.clients.iter_mut().filter_map(|client| client.wire.as_mut());
    wired.for_each(|wired| wired.disturb(now));
}

/// Makes a server fail. Unless it only becomes silent, its connections end, and whatever it has not reported
/// of its sessions is lost.
fn break_server(world: &World, server: usize, mode: Mode) {
    if world.state().ensemble.servers[server].mode != Mode::Serving {
        return;
    }
    world.note(format!("server {server} is {mode:?}"));
    saw(mode.name());
    if world.state().ensemble.servers.iter().any(|other| other.mode != Mode::Serving && other.mode != mode) {
        saw("servers-fail-in-different-ways");
    }
    match mode {
        // An operator has restarted it with another configuration.
        Mode::Down
        | Mode::Electing
        | Mode::ReadOnly
        | Mode::Demanding
        | Mode::Refusing
        | Mode::WithoutSasl => lose_server(world, server),
        Mode::Lagging | Mode::Deposed => send_all_events(world, server),
        Mode::Serving | Mode::Silent | Mode::Unreachable | Mode::Garbled | Mode::PingsOnly | Mode::Mute => {}
    }
    let view = matches!(mode, Mode::Lagging | Mode::Deposed).then(|| Arc::new(world.zookeeper.view()));
    let mut state = world.state();
    let server = &mut state.ensemble.servers[server];
    (server.mode, server.view, server.well_since) = (mode, view, None);
}

fn recover(world: &World, server: usize) {
    let now = world.now();
    let former = world.state().ensemble.servers[server].mode;
    if former == Mode::Serving {
        return;
    }
    world.note(format!("server {server} recovers"));
    saw("server-recovers");
    if former == Mode::Deposed {
        // The server joins the new leader.
        end_connections(&mut world.state(), server, false, now);
    }
    let mut state = world.state();
    state.ensemble.servers[server].recover(now);
    for client in &mut state.clients {
        // Clients that have not begun to connect have no endpoint yet.
        if let Some(wired) = &mut client.wire {
            wired.disturbed_at = wired.disturbed_at.max(now);
        }
    }
}

/// Lets a server recover if none serves.
pub(super) fn have_a_well_server(world: &World) {
    let is_missing = world.state().ensemble.well_servers().is_empty();
    if is_missing {
        recover(world, 0);
    }
}

/// Sometimes the server crashes with its reply, before it reports the session's activity. Most often it does
/// so when the reply would seem to prove something.
pub(super) fn perhaps_lose_server(world: &World, server: usize, is_proof: bool) {
    let is_possible = world.in_trouble() && world.profile.faults.deaths;
    let is_opening = world.state().clients.iter().any(|client| client.opening);
    let one_in = if is_proof { 4 } else { 16 };
    if is_possible && !is_opening && world.state().random.one_in(one_in) {
        break_server(world, server, Mode::Down);
        saw("wire-server-crashes-after-its-reply");
    }
}

/// Sometimes crashes the server of a new owner and makes another server lag behind from then on. The owner's
/// successor may then lose its server and find the one that lags.
pub(in crate::tests::simulation) fn perhaps_strike_at_hand_over(world: &World, client: usize) {
    if !world.profile.on_wire || !world.profile.faults.any() {
        return;
    }
    let (own, other, what) = {
        let mut state = world.state();
        let servers = state.ensemble.servers.len();
        let endpoint = state.clients[client].endpoint();
        let own = endpoint.and_then(|endpoint| endpoint.transport.as_ref().map(|transport| transport.server));
        (own, state.random.index(servers), state.random.below(4))
    };
    match (own, what) {
        (Some(own), 0) => break_server(world, own, Mode::Down),
        (Some(own), 1 | 2) if own != other => break_server(world, other, Mode::Lagging),
        _ => {}
    }
}

/// Sometimes pauses a server before it reads the creation of a request, and resets the client's connection.
/// The client then turns to another server, and perhaps back to this one.
pub(super) fn perhaps_hold_back(world: &World, client: usize) {
    let now = world.now();
    let mut state = world.state();
    let is_possible =
        world.in_trouble() && world.profile.faults.slow_replies && !state.clients[client].opening;
    if !is_possible || state.ensemble.well_servers().len() < 2 || !state.random.one_in(3) {
        return;
    }
    let Some(endpoint) = state.clients[client].endpoint().filter(|endpoint| endpoint.is_served()) else {
        return;
    };
    let Some(server) = endpoint.transport.as_ref().map(|transport| transport.server) else { return };
    if state.ensemble.servers[server].mode != Mode::Serving {
        return;
    }
    let paused = &mut state.ensemble.servers[server];
    (paused.mode, paused.well_since) = (Mode::Silent, None);
    let returns = state.random.one_in(2);
    if let Some(endpoint) = state.clients[client].endpoint() {
        endpoint.lose_transport(now);
        endpoint.next_server = returns.then_some(server);
    }
    // The client loses time at this server, perhaps after it has lost some at another one.
    disturb(&mut state.clients[client], now.after(Duration::from_nanos(1)));
    drop(state);
    saw("request-held-back");
    world.note(format!("server {server} is paused before it reads what client {client} has sent"));
}

fn lose_server(world: &World, server: usize) {
    let now = world.now();
    let mut state = world.state();
    end_connections(&mut state, server, true, now);
    let mut random = state.random.clone();
    // The leader may not have received the proposals.
    let before = state.ensemble.proposals.len();
    state.ensemble.proposals.retain(|proposal| proposal.server != server || random.one_in(2));
    if state.ensemble.proposals.len() < before {
        saw("proposal-lost");
    }
    state.random = random;
    let was_its_own = |client: &usize| {
        let wired = state.clients[*client].wire.as_ref();
        wired.is_some_and(|wired| wired.owner.is_some() && wired.heard_by == server)
    };
    let clients: Vec<usize> = (0..state.clients.len()).filter(was_its_own).collect();
    for client in clients {
        state.lose_report(client, now);
    }
}

/// Ends the connections of all servers. The servers turn to another leader, which has everything that was
/// proposed.
pub(in crate::tests::simulation) fn end_all_connections(world: &World) {
    world.commit_all();
    let now = world.now();
    let mut state = world.state();
    for server in 0..state.ensemble.servers.len() {
        end_connections(&mut state, server, false, now);
        let server = &mut state.ensemble.servers[server];
        server.well_since = server.well_since.map(|_| now);
    }
}

fn end_connections(state: &mut State, server: usize, crashes: bool, now: Moment) {
    let State { clients, random, .. } = state;
    for wired in clients.iter_mut().filter_map(|client| client.wire.as_mut()) {
        let Some(Endpoint { transport, late, .. }) = wired.endpoint.as_deref_mut() else { continue };
        late.retain(|transport| transport.server != server);
        let Some(transport) = transport.as_mut().filter(|transport| transport.server == server) else {
            continue;
        };
        if !crashes {
            transport.peer.close();
            transport.end_down();
        } else if !transport.lose_server(random) {
            let connection = transport.peer.number;
            wired.swallow(connection, now);
        }
    }
}

/// Sends the events that a server has applied, before it stops applying changes.
fn send_all_events(world: &World, server: usize) {
    let clients = world.state().clients.len();
    for client in 0..clients {
        world.with_endpoint(client, |endpoint| {
            world.serve_on(client, endpoint, |front: &mut Front<'_>| {
                if front.transport.server == server {
                    front.send_events();
                }
            });
        });
    }
}

/// Ends all faults. Connections whose packets are swallowed stay so. Frames that trickle in do arrive: byte
/// by byte, each reply is in time, and keeps a client on its connection for long.
pub(in crate::tests::simulation) fn stop(world: &World) {
    let (servers, clients) = {
        let state = world.state();
        (state.ensemble.servers.len(), state.clients.len())
    };
    for client in 0..clients {
        end_partition(world, client);
        set_tickets(world, client, Tickets::AtHand);
        if !world.profile.is_calm() && world.state().random.one_in(2) {
            cut(world, client);
        }
    }
    end_stall(world);
    let mut state = world.state();
    for endpoint in state.clients.iter_mut().filter_map(|client| client.endpoint()) {
        if let Some(transport) = &mut endpoint.transport {
            (transport.trickles_at, transport.transmits_until) = (None, None);
        }
    }
    drop(state);
    for server in 0..servers {
        recover(world, server);
    }
}

/// In some runs, makes all servers refuse clients that authenticate by SASL from now on. Then returns the
/// znodes of these clients.
pub(in crate::tests::simulation) fn lock_out(world: &World) -> Option<Vec<String>> {
    if !world.profile.sasl || world.profile.is_calm() || world.state().random.one_in(2) {
        return None;
    }
    let (mode, tickets) = world.state().random.of(&[
        (Mode::Serving, Tickets::Missing),
        (Mode::Serving, Tickets::Awaited),
        (Mode::Refusing, Tickets::AtHand),
        (Mode::WithoutSasl, Tickets::AtHand),
        (Mode::Mute, Tickets::AtHand),
    ]);
    world.note(format!("all servers are {mode:?}, and all tickets {tickets:?}"));
    saw("all-servers-lock-sasl-clients-out");
    end_all_connections(world);
    let clients = world.state().clients.len();
    (0..clients).for_each(|client| set_tickets(world, client, tickets));
    let mut state = world.state();
    for server in &mut state.ensemble.servers {
        (server.mode, server.well_since) = (mode, None);
    }
    let uses_sasl = |client: &&ClientState| client.wire.as_ref().is_some_and(|wired| wired.tickets.is_some());
    let locked_out = state.clients.iter().filter(uses_sasl).map(|client| client.simulated.session_id());
    let locked_out: Vec<i64> = locked_out.collect();
    drop(state);
    let ephemerals = world.zookeeper.ephemerals().into_iter();
    let of_them = ephemerals.filter(|(session, _)| locked_out.contains(session));
    Some(of_them.map(|(_, path)| path).collect())
}

/// Returns the clients that no server serves and that wait for one.
pub(in crate::tests::simulation) fn unserved(world: &World) -> Vec<usize> {
    let mut state = world.state();
    let waits = |endpoint: &mut Endpoint| !endpoint.is_served() && !endpoint.is_over();
    let clients = state.clients.iter_mut().enumerate();
    clients.filter_map(|(number, client)| client.endpoint().is_some_and(waits).then_some(number)).collect()
}

/// Returns the number of a client's transport if a server serves the client there.
pub(in crate::tests::simulation) fn undisturbed_connection(endpoint: &Endpoint) -> Option<u64> {
    endpoint.is_served().then(|| endpoint.link_number())
}

/// Returns the numbers of the clients' transports. Without faults they stay the same, except for clients
/// whose sessions are over or have moved to an earlier connection that was served late.
pub(in crate::tests::simulation) fn transports(world: &World) -> Vec<Option<u64>> {
    let number = |client: &mut ClientState| {
        let owner = client.wire.as_ref()?.owner?;
        let endpoint = client.endpoint()?;
        let is_owner = endpoint.transport.as_ref().is_some_and(|transport| transport.peer.number == owner);
        (is_owner && !endpoint.is_over()).then(|| endpoint.link_number())
    };
    world.state().clients.iter_mut().map(number).collect()
}

/// Suspends a process until this moment.
pub(in crate::tests::simulation) fn suspend(state: &mut State, number: usize, until: Moment) {
    disturb(&mut state.clients[number], until);
}

fn disturb(client: &mut ClientState, until: Moment) {
    if let Some(wired) = &mut client.wire {
        wired.disturb(until);
    }
}
