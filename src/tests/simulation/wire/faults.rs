//! The faults of the network and the servers.

use std::sync::Arc;
use std::time::Duration;

use super::endpoint::Endpoint;
use super::ensemble::Mode;
use super::sasl::Tickets;
use super::server::Front;
use super::stream::Transport;
use crate::client::Call;
use crate::tests::simulation::profile::{Faults, Profile};
use crate::tests::simulation::records::RECORDS;
use crate::tests::simulation::seen::saw;
use crate::tests::simulation::world::{ClientState, State, World};
use crate::time::Moment;
use zookeeper_connection::machine::LinkId;

/// The number of proposals that a narrow link passes on to the leader in a session timeout.
const PROPOSALS_PER_TIMEOUT: u32 = 80;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Cut,
    /// The server ends its stream, but executes what the client has sent.
    HalfClose,
    Swallow,
    /// Only one direction is lost.
    SwallowUp,
    SwallowDown,
    /// The name service answers with other servers.
    ChangeServers,
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
    /// Some of the client's next writes cost it the connection.
    FailWrites,
}

/// Injects a fault into a client's connection or a server.
pub(in crate::tests::simulation) fn inject(world: &World) {
    let mut possible = possible(world.profile.faults, world.profile.sasl);
    if world.profile.holds_back {
        possible.extend([Fault::Recover, Fault::Recover, Fault::Recover]);
    }
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
        Fault::HalfClose => half_close(world, client),
        Fault::Swallow => swallow(world, client, "connection-swallowed", |it| it.is_swallowed = true),
        Fault::SwallowUp => swallow(world, client, "only-requests-swallowed", |it| it.swallows_up = true),
        Fault::SwallowDown => swallow(world, client, "only-replies-swallowed", |it| it.swallows_down = true),
        Fault::ChangeServers => change_servers(world, client),
        Fault::Partition => partition(world, client),
        Fault::EndPartition => end_partition(world, client),
        Fault::Slow => slow_down(world, client),
        Fault::Garbage => send_to(world, client, |front| front.send_garbage()),
        Fault::Trickle => send_to(world, client, |front| front.send_endless()),
        Fault::Stall => stall(world),
        Fault::ChangeLeader => crate::tests::simulation::faults::change_leader_at_any_time(world),
        Fault::Break(mode) => break_server(world, server, mode),
        Fault::Recover => recover(world, server),
        Fault::FailWrites => {
            let mut state = world.state();
            let writes = state.random.of(&[1, 2, 12]);
            state.clients[client].writes_to_fail += writes;
        }
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
        possible.extend([Fault::HalfClose, Fault::ChangeServers]);
    }
    if faults.partitions {
        possible.extend([Fault::Partition, Fault::EndPartition, Fault::EndPartition]);
        possible.extend([Fault::Swallow, Fault::Break(Mode::Unreachable)]);
        possible.extend([Fault::SwallowUp, Fault::SwallowDown]);
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
        possible.push(Fault::Break(Mode::Unserving));
    }
    if faults.stalls {
        possible.extend([Fault::Break(Mode::CutFromLeader), Fault::EndPartition]);
    }
    if faults.deposed {
        possible.extend([Fault::Break(Mode::Deposed), Fault::Break(Mode::Deposed), Fault::Cut]);
    }
    if faults.failing_calls {
        possible.extend([Fault::FailWrites; 3]);
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
pub(in crate::tests::simulation) fn cut(world: &World, client: usize) {
    change_transport(world, client, "is disconnected", |transport, random| {
        transport.cut(random);
        saw("connection-reset");
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
    let connection = transport.peer.number;
    state.random = random;
    state.clients[client].wired_mut().disturb_attempt(connection, world.now());
    drop(state);
    world.note(format!("client {client} {what}"));
}

/// Ends the stream from the server. The server still reads what arrives, but answers nothing.
fn half_close(world: &World, client: usize) {
    change_transport(world, client, "has a connection that its server half-closes", |transport, _| {
        transport.end_down();
        saw(if transport.up.is_empty() {
            "half-closed-by-the-server"
        } else {
            "half-closed-with-requests-unread"
        });
    });
}

/// Changes the servers that a client knows, unless it knows only a load balancer.
fn change_servers(world: &World, number: usize) {
    let now = world.now();
    let mut state = world.state();
    let mut servers = state.ensemble.all_servers();
    let left = 1 + state.random.index(servers.len());
    let are_all = !state.random.one_in(3);
    while servers.len() > left {
        let chosen = state.random.index(servers.len());
        servers.remove(chosen);
    }
    let Some(endpoint) = state.clients[number].endpoint().filter(|endpoint| !endpoint.is_balanced) else {
        return;
    };
    endpoint.set_servers(servers.clone(), are_all);
    disturb(&mut state.clients[number], now);
    drop(state);
    saw(if are_all { "servers-change" } else { "servers-without-an-address" });
    world.note(format!("client {number} knows the servers {servers:?}"));
}

/// Loses packets of a client's current connection, without either side knowing.
fn swallow(world: &World, number: usize, what: &'static str, begin: impl FnOnce(&mut Transport)) {
    change_transport(world, number, &format!("has a fault: {what}"), |transport, _| begin(transport));
    saw(what);
}

/// Holds back everything that both sides send.
pub(in crate::tests::simulation) fn partition(world: &World, number: usize) {
    world.state().clients[number].link.partitioned = true;
    saw("partition");
    world.note(format!("client {number} is cut off"));
}

/// Delivers what was held back.
pub(in crate::tests::simulation) fn end_partition(world: &World, number: usize) {
    let now = world.now();
    let mut state = world.state();
    let client = &mut state.clients[number];
    if world.in_trouble() && client.link.stays_cut_off(now) || !std::mem::take(&mut client.link.partitioned) {
        return;
    }
    disturb(client, now);
    drop(state);
    saw("partition-ends");
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
    saw("network-slow");
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

/// Makes a server fail. If its process ends or is restarted, its connections end, and whatever it has not reported
/// about its sessions is lost.
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
        // It has crashed, or an operator has restarted it with another configuration.
        Mode::Down
        | Mode::Electing
        | Mode::ReadOnly
        | Mode::Demanding
        | Mode::Refusing
        | Mode::WithoutSasl => lose_server(world, server),
        Mode::Lagging | Mode::Deposed | Mode::CutFromLeader => send_all_events(world, server),
        Mode::Serving
        | Mode::Silent
        | Mode::Unreachable
        | Mode::Garbled
        | Mode::PingsOnly
        | Mode::Unserving
        | Mode::Mute => {}
    }
    if mode == Mode::CutFromLeader {
        stall_link(world, server);
    }
    let view = matches!(mode, Mode::Lagging | Mode::Deposed | Mode::CutFromLeader)
        .then(|| Arc::new(world.zookeeper.view()));
    let mut state = world.state();
    let server = &mut state.ensemble.servers[server];
    (server.mode, server.view, server.well_since) = (mode, view, None);
}

fn recover(world: &World, server: usize) {
    let now = world.now();
    let former = world.state().ensemble.servers[server].mode;
    let stays = world.in_trouble() && world.state().ensemble.servers[server].paused_until > now;
    if former == Mode::Serving || stays {
        return;
    }
    world.note(format!("server {server} recovers"));
    saw("server-recovers");
    if former == Mode::CutFromLeader {
        return resume_link(world, server);
    }
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

// ---- stalls of the link between one server and the leader

/// Returns the clients whose session a server reports to the leader.
fn heard_by(state: &State, server: usize) -> Vec<usize> {
    let is_its_own = |client: &usize| {
        let wired = state.clients[*client].wire.as_ref();
        wired.is_some_and(|wired| wired.owner.is_some() && wired.heard_by == server)
    };
    (0..state.clients.len()).filter(is_its_own).collect()
}

/// Begins a stall of one to four ticks, unless it ends earlier.
fn stall_link(world: &World, server: usize) {
    let now = world.now();
    let mut state = world.state();
    for client in heard_by(&state, server) {
        let tick = state.clients[client].link.heard.tick;
        let length = tick + Duration::from_nanos(state.random.below(3 * tick.as_nanos() as u64));
        state.begin_stall(client, now.after(length), now);
    }
}

/// Often stalls the link of a server after a keep-alive of an owner, before the server reports that.
pub(super) fn perhaps_stall_link(world: &World, client: usize) {
    let is_possible = world.in_trouble() && world.profile.faults.stalls;
    let server = {
        let mut state = world.state();
        let is_possible = is_possible && !state.is_opening() && state.random.one_in(3);
        let wired = state.clients[client].wire.as_ref();
        wired.filter(|wired| is_possible && wired.owner.is_some()).map(|wired| wired.owned_by)
    };
    if let Some(server) = server.filter(|_| crate::tests::simulation::faults::owns(world, client)) {
        break_server(world, server, Mode::CutFromLeader);
    }
}

/// Ends the stall of the link of a client's server. Often the server crashes just after it has passed on what was held
/// up, and its reports are lost.
pub(in crate::tests::simulation) fn end_link_stall(world: &World, client: usize) {
    let (server, crashes) = {
        let mut state = world.state();
        if state.clients[client].link.stall.is_none() {
            return;
        }
        // Another server may have heard from the session meanwhile, by a late request.
        let server = state.clients[client].wired().owned_by;
        if state.ensemble.servers[server].mode != Mode::CutFromLeader {
            state.clients[client].link.stall = None;
            return;
        }
        (server, world.in_trouble() && !state.random.one_in(4))
    };
    match crashes {
        true => die_after_stall(world, server),
        false => recover(world, server),
    }
}

/// Makes a server handle what its stalled link has held up, and read the handshakes that have waited.
fn deliver_held_up(world: &World, server: usize) {
    let now = world.now();
    let held_up = {
        let mut state = world.state();
        let server = &mut state.ensemble.servers[server];
        server.recover(now);
        std::mem::take(&mut server.held_up)
    };
    held_up.into_iter().for_each(|commit| world.deliver_commit(commit));
    let clients = world.state().clients.len();
    for number in 0..clients {
        world.with_endpoint(number, |endpoint| {
            let Endpoint { transport, late, ledger, .. } = endpoint;
            let all = transport.iter_mut().chain(late.iter_mut());
            for transport in all.filter(|transport| transport.server == server) {
                Front { world, client: number, transport, ledger }.process();
            }
        });
    }
}

fn resume_link(world: &World, server: usize) {
    {
        let mut state = world.state();
        for client in heard_by(&state, server) {
            state.end_stall(client);
        }
    }
    saw("server-link-stalls-then-resumes");
    deliver_held_up(world, server);
    let now = world.now();
    let mut state = world.state();
    state.clients.iter_mut().for_each(|client| disturb(client, now));
}

/// The server passes on what was held up, and crashes before it reports anything. The replies reach clients that own a
/// lock, and these are then cut off. Others get nothing, because docs/guarantees.md names two limits: a lock that is
/// *taken* by a write that such a stall held up, and any such stall behind an observer master.
fn die_after_stall(world: &World, server: usize) {
    let clients = heard_by(&world.state(), server);
    let is_observer = |client: &usize| world.state().clients[*client].link.heard.observer;
    let receives =
        |client: &usize| !is_observer(client) && crate::tests::simulation::faults::owns(world, *client);
    let owners: Vec<usize> = clients.into_iter().filter(receives).collect();
    let held_up = std::mem::take(&mut world.state().ensemble.servers[server].held_up);
    world.state().ensemble.servers[server].recover(world.now());
    for commit in held_up.into_iter().filter(|commit| owners.contains(&commit.client)) {
        saw("reply-held-up-by-a-stall-arrives-as-the-server-dies");
        world.deliver_commit(commit);
    }
    owners.iter().for_each(|client| receive_all(world, *client, server));
    saw("server-link-stalls-then-server-dies");
    break_server(world, server, Mode::Down);
    for client in owners {
        // Its calls begin anew with the replies that were held up.
        disturb(&mut world.state().clients[client], world.now());
        partition(world, client);
        crate::tests::simulation::faults::stay_cut_off(world, client);
    }
}

/// Makes everything arrive at the client that a server has sent.
fn receive_all(world: &World, client: usize, server: usize) {
    let has_more = || {
        let mut state = world.state();
        let is_paused =
            state.clients[client].paused_until > world.now() || state.clients[client].link.partitioned;
        let endpoint = state.clients[client].endpoint();
        let transport = endpoint.and_then(|endpoint| endpoint.transport.as_ref());
        let is_readable = |it: &&Transport| {
            it.server == server
                && it.is_open
                && !it.down.is_empty()
                && !it.loses_packets()
                && it.trickles_at.is_none()
        };
        !is_paused && transport.filter(is_readable).is_some()
    };
    while has_more() {
        world.take_wire_step(client, super::Step::Receive);
    }
}

/// Occupies a server's link to the leader for a while, if such links are narrow.
pub(super) fn occupy_link(world: &World, server: usize, client: usize) {
    if !world.in_trouble() || !world.profile.is_narrow_to_leader {
        return;
    }
    let now = world.now();
    let mut state = world.state();
    let time = state.clients[client].session_timeout / PROPOSALS_PER_TIMEOUT;
    state.ensemble.servers[server].transmits_until = Some(now.after(time));
    saw("narrow-link-to-the-leader");
}

/// Lets a server recover if none serves.
pub(super) fn have_a_well_server(world: &World) {
    let is_missing = world.state().ensemble.well_servers().is_empty();
    if is_missing {
        world.state().ensemble.servers[0].paused_until = world.now();
        recover(world, 0);
    }
}

/// Sometimes crashes the server right after its reply, before it reports the session's activity. This happens most
/// often when the reply would seem to prove something.
pub(super) fn perhaps_lose_server(world: &World, server: usize, is_proof: bool) {
    let is_possible = world.in_trouble() && world.profile.faults.deaths;
    let one_in = if is_proof { 4 } else { 16 };
    if is_possible && !world.state().is_opening() && world.state().random.one_in(one_in) {
        break_server(world, server, Mode::Down);
        saw("server-crashes-after-its-reply");
    }
}

/// Sometimes crashes a client's server after it has read what the client has sent.
pub(super) fn perhaps_lose_server_of(world: &World, client: usize) {
    let server = {
        let mut state = world.state();
        let strikes = world.profile.faults.deaths && state.random.one_in(4);
        let endpoint = state.clients[client].endpoint().filter(|endpoint| strikes && endpoint.is_served());
        endpoint.and_then(|endpoint| endpoint.transport.as_ref().map(|transport| transport.server))
    };
    if let Some(server) = server {
        perhaps_lose_server(world, server, false);
    }
}

/// Sometimes crashes the server of a new owner, or makes another server lag behind from then on. The owner's
/// successor may then lose its server and find the one that lags.
pub(in crate::tests::simulation) fn perhaps_strike_at_hand_over(world: &World, client: usize) {
    if world.profile.is_calm() {
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

/// Sometimes pauses a server before it reads what a client has sent, and resets the client's connection. The
/// client then turns to another server, and perhaps back to this one. Sometimes another server pauses as well.
pub(super) fn perhaps_hold_back(world: &World, client: usize, held: Held) {
    let (one_in, what) = match held {
        Held::Others => (24, "request-held-back"),
        Held::Create => (3, "create-held-back"),
        Held::Transaction => (3, "transaction-held-back"),
        Held::Record => (2, "record-held-back"),
    };
    let is_served = world.state().clients[client].endpoint().is_some_and(|endpoint| endpoint.is_served());
    if is_served && hold_back(world, client, one_in) {
        saw(what);
    }
}

/// What a paused server holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Held {
    Others,
    Create,
    Transaction,
    /// The creation of a record, which must not come back.
    Record,
}

impl Held {
    pub(super) fn of(call: &Call) -> Held {
        match call {
            Call::Create { path, .. } if path.starts_with(RECORDS) => Held::Record,
            Call::Create { .. } | Call::CreateAndList { .. } => Held::Create,
            Call::Multi(_) => Held::Transaction,
            _ => Held::Others,
        }
    }
}

/// Sometimes pauses a server before it reads a connect request. The server may then renew the session late.
pub(super) fn perhaps_hold_back_connect(world: &World, client: usize) {
    if hold_back(world, client, 12) {
        saw("connect-request-held-back");
    }
}

fn hold_back(world: &World, client: usize, one_in: u64) -> bool {
    let now = world.now();
    let mut state = world.state();
    let is_possible = world.in_trouble() && world.profile.holds_back && !state.is_opening();
    if !is_possible || state.ensemble.well_servers().len() < 2 || !state.random.one_in(one_in) {
        return false;
    }
    let transport = state.clients[client].endpoint().and_then(|endpoint| endpoint.transport.as_ref());
    let Some(server) = transport.filter(|it| it.is_open).map(|transport| transport.server) else {
        return false;
    };
    if state.ensemble.servers[server].mode != Mode::Serving {
        return false;
    }
    pause_server(&mut state, server);
    let others = state.ensemble.well_servers();
    if others.len() > 1 && state.random.one_in(3) {
        let also = state.random.of(&others);
        pause_server(&mut state, also);
        saw("several-servers-paused");
    }
    let returns = state.random.one_in(2);
    if returns {
        // Long enough for the client to give this server up and to find another one.
        let timeout = state.clients[client].session_timeout;
        let length = timeout / 2 + Duration::from_nanos(state.random.below(2 * timeout.as_nanos() as u64));
        state.ensemble.servers[server].paused_until = now.after(length);
    }
    if let Some(endpoint) = state.clients[client].endpoint() {
        endpoint.lose_transport(now);
        endpoint.next_server = returns.then_some(server);
    }
    // The client loses time at this server, perhaps after it has lost some at another one.
    disturb(&mut state.clients[client], now.after(Duration::from_nanos(1)));
    drop(state);
    world.note(format!("server {server} is paused before it reads what client {client} has sent"));
    true
}

fn pause_server(state: &mut State, server: usize) {
    let paused = &mut state.ensemble.servers[server];
    (paused.mode, paused.well_since) = (Mode::Silent, None);
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
    saw("server-crashes");
    for client in heard_by(&state, server) {
        match state.clients[client].link.stall.is_some() {
            true => state.die_after_stall(client),
            false => state.lose_report(client, now),
        }
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
        if server.mode == Mode::CutFromLeader {
            // It gets a new link to the next leader.
            server.held_up.clear();
            server.recover(now);
        }
    }
    state.clients.iter_mut().for_each(|client| client.link.stall = None);
}

fn end_connections(state: &mut State, server: usize, crashes: bool, now: Moment) {
    let State { clients, random, .. } = state;
    for client in clients {
        let Some(wired) = &mut client.wire else { continue };
        let Some(endpoint) = wired.endpoint.as_deref_mut() else { continue };
        let Endpoint { transport, attempts, late, .. } = endpoint;
        late.retain(|transport| transport.server != server);
        for probe in attempts.iter_mut().filter(|attempt| attempt.is_open && attempt.server == server) {
            probe.peer.close();
            probe.end_down();
        }
        let Some(transport) = transport.as_mut().filter(|transport| transport.server == server) else {
            continue;
        };
        if crashes && client.link.partitioned {
            saw("partition-hides-a-crash");
        }
        if !crashes {
            transport.peer.close();
            transport.end_down();
        } else if !transport.lose_server(random) {
            let connection = transport.peer.number;
            wired.disturb_attempt(connection, now);
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

/// Ends all faults. Connections whose packets are swallowed stay that way. Frames that trickle in now arrive at once:
/// byte by byte, each reply would come in time but would keep the client on its connection for a long time.
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
            (transport.trickles_at, transport.transmits_until, transport.receives_until) = (None, None, None);
        }
    }
    let all = state.ensemble.all_servers();
    for endpoint in state.clients.iter_mut().filter_map(|client| client.endpoint()) {
        endpoint.set_servers(all.clone(), true);
    }
    for server in &mut state.ensemble.servers {
        server.transmits_until = None;
    }
    drop(state);
    for server in 0..servers {
        recover(world, server);
    }
}

/// In some runs, keeps clients from being served from now on. The servers take up all sessions and serve none of them,
/// or let no client in that authenticates by SASL, or these clients get no tickets. Then returns the znodes of these
/// clients.
pub(in crate::tests::simulation) fn lock_out(world: &World) -> Option<Vec<String>> {
    let Profile { sasl, faults, .. } = world.profile;
    if world.profile.is_calm() || !(sasl || faults.regrants) || world.state().random.one_in(2) {
        return None;
    }
    let all = (Mode::Unserving, Tickets::AtHand);
    let (mode, tickets) = match sasl {
        true => world.state().random.of(&[
            all,
            (Mode::Serving, Tickets::Missing),
            (Mode::Serving, Tickets::Awaited),
            (Mode::Refusing, Tickets::AtHand),
            (Mode::WithoutSasl, Tickets::AtHand),
            (Mode::Mute, Tickets::AtHand),
        ]),
        false => all,
    };
    world.note(format!("all servers are {mode:?}, and all tickets {tickets:?}"));
    saw(match mode {
        Mode::Unserving => "all-servers-leave-clients-unserved",
        _ => "all-servers-lock-sasl-clients-out",
    });
    end_all_connections(world);
    let clients = world.state().clients.len();
    (0..clients).for_each(|client| set_tickets(world, client, tickets));
    let mut state = world.state();
    for server in &mut state.ensemble.servers {
        (server.mode, server.well_since) = (mode, None);
    }
    let is_locked_out = |client: &&ClientState| {
        let uses_sasl = client.wire.as_ref().is_some_and(|wired| wired.tickets.is_some());
        uses_sasl || mode == Mode::Unserving
    };
    let locked_out = state.clients.iter().filter(is_locked_out).map(|client| client.session_id);
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
pub(in crate::tests::simulation) fn undisturbed_connection(endpoint: &Endpoint) -> Option<LinkId> {
    endpoint.link_number().filter(|_| endpoint.is_served())
}

/// Returns the numbers of the clients' transports. Without faults they stay the same, except for clients
/// whose sessions are over or have moved to an earlier connection that was served late.
pub(in crate::tests::simulation) fn transports(world: &World) -> Vec<Option<LinkId>> {
    let number = |client: &mut ClientState| {
        let owner = client.wire.as_ref()?.owner?;
        let endpoint = client.endpoint()?;
        let is_owner = endpoint.transport.as_ref().is_some_and(|transport| transport.peer.number == owner);
        endpoint.link_number().filter(|_| is_owner && !endpoint.is_over())
    };
    world.state().clients.iter_mut().map(number).collect()
}

/// Restarts the time limits of a process that is suspended until this moment.
pub(in crate::tests::simulation) fn suspend(state: &mut State, number: usize, until: Moment) {
    disturb(&mut state.clients[number], until);
}

fn disturb(client: &mut ClientState, until: Moment) {
    if let Some(wired) = &mut client.wire {
        wired.disturb(until);
    }
}
