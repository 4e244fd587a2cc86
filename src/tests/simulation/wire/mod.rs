//! The clients: the crate's own connection, which is its [state machine](zookeeper_connection::machine) in simulated
//! time, on a network of bytes, with servers that speak the wire protocol.
//!
//! An [`Endpoint`] plays the role of the I/O thread. Each of its [steps](Step) is one choice of the
//! scheduler: an action of the machine, its timer, a segment of bytes in either direction, a commit at the
//! leader. A client is connected to one [server](ensemble) at a time. The [peer](server) on that server
//! decodes the requests, and the [simulated ZooKeeper](crate::fake) executes them. What the ensemble knows of
//! a session is [modelled](super::link), too.
//!
//! Segments may be split, delayed, swallowed (in one direction or in both), and cut at any byte. Some links are
//! narrow, to the server, to the client, or from a server to the leader: what exceeds the capacity of a link waits
//! there, in order. Time does not pass while a step is overdue, so every step is quick if no fault delays it.
//!
//! The link between a server and the leader may stall. The server then answers reads from the state before the
//! stall, and no writes, and reports no session. Later it resumes, or it dies just after it has sent its owners
//! what was held up. Paused servers resume in any order, and then read what their former clients have sent.
//!
//! Some clients know only one address, behind which a load balancer chooses a server at random. For others, the name
//! service returns other servers, or has no address for some names.
//!
//! In half of the runs, most clients authenticate by [SASL](sasl). Servers refuse them, do not use SASL, or stop in the
//! middle of the exchange, and tickets are late or missing. In many runs, when the faults have stopped, no server lets
//! such a client in for a while, or all servers take up sessions without serving them. Clients that are not served must
//! then lose their locks.
//!
//! In addition to the promises of every run:
//! - What a client sends agrees with the frames that it has received: the session, its password, the last
//!   transaction, its watches, its credentials. See [`Ledger`](ledger::Ledger).
//! - No client gives up a live session. No session expires if some server could be reached for all of its timeout,
//!   unless an attempt at such a server has run out of time on a narrow link.
//! - No call takes as long as a session timeout. No client continues to use a connection after garbage, or
//!   leaves a connection without a fault.

mod connection;
mod endpoint;
mod ensemble;
pub(super) mod faults;
mod leader;
mod ledger;
mod sasl;
mod server;
mod session;
mod stream;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(super) use self::connection::SimulatedConnection;
pub(super) use self::endpoint::Endpoint;
use self::endpoint::Work;
pub(super) use self::ensemble::Ensemble;
use self::ensemble::Mode;
use self::sasl::Tickets;
use self::server::Front;
pub(super) use self::session::Wired;
use super::seen::saw;
use super::world::{ClientState, State, World, short};
use crate::client::ClientEvent;
use crate::time::Moment;
use zookeeper_connection::machine::{Action, ContactState, LinkId};

/// The session timeout divided by the time until an unimpeded step is taken.
const STEP_DIVISOR: u32 = 200;

/// What a narrow link transmits at once, which is about two calls, and how many times in a session timeout it
/// does so.
const NARROW_SEGMENT: usize = 256;
const SEGMENTS_PER_TIMEOUT: u32 = 40;

/// A step of one client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The next action of the machine.
    Act,
    Timer,
    /// The name service answers for the server at this position.
    Resolve(usize),
    /// The first token for the server at this position is made, or cannot be made.
    MakeToken(usize),
    /// An attempt to open this transport succeeds or is refused.
    Open(LinkId),
    /// A segment arrives at the server.
    Send,
    /// The server sends watch events.
    Notify,
    /// A segment arrives at the client.
    Receive,
    /// A segment of an earlier connection arrives at the server of that connection.
    SendLate(usize),
    /// A segment of the probe arrives at its server, or at the client.
    SendProbe,
    ReceiveProbe,
    /// The leader commits the next proposal, which comes from this client.
    Commit,
}

impl Step {
    /// Returns whether the step only moves bytes: it runs no code of the library above its connection.
    pub(super) fn is_of_the_network(self) -> bool {
        self != Step::Act
    }
}

impl State {
    /// Returns the steps that are possible now. A suspended process takes none, but the network and the
    /// servers do.
    pub(super) fn wire_steps(&self, number: usize, now: Moment) -> Vec<Step> {
        let mut steps = Vec::new();
        let client = &self.clients[number];
        let Some(endpoint) = client.wire.as_ref().and_then(|wired| wired.endpoint.as_ref()) else {
            return steps;
        };
        let flows = !client.link.partitioned && client.link.slow_until <= now;
        let server_of = |server: usize| &self.ensemble.servers[server];
        let is_awake = client.paused_until <= now;
        let has_tickets = client.wired().tickets != Some(Tickets::Awaited);
        if is_awake {
            if endpoint.has_actions() {
                steps.push(Step::Act);
            }
            if endpoint.timer_is_due(now) {
                steps.push(Step::Timer);
            }
            steps.extend(endpoint.lookups.iter().copied().map(Step::Resolve));
            if has_tickets {
                steps.extend(endpoint.tokens.iter().copied().map(Step::MakeToken));
            }
            if let Some(transport) = &endpoint.transport {
                let arrives = flows && !transport.is_swallowed && server_of(transport.server).is_reachable();
                // The client's own system knows that the connection has ended.
                let is_reset = transport.down.has_ended && transport.down.is_empty();
                let arrives = arrives && transport.may_receive(now);
                if transport.has_arrivals() && (arrives || is_reset) {
                    steps.push(Step::Receive);
                }
            }
        }
        for attempt in &endpoint.attempts {
            let server = server_of(attempt.server);
            if !flows || !server.is_reachable() {
                continue;
            }
            if !attempt.is_open && is_awake && has_tickets {
                steps.push(Step::Open(attempt.link));
            }
            if !attempt.up.is_empty() && server.reads() {
                steps.push(Step::SendProbe);
            }
            if attempt.has_arrivals() && is_awake {
                steps.push(Step::ReceiveProbe);
            }
        }
        if let Some(transport) = endpoint.transport.as_ref().filter(|it| flows && !it.is_swallowed) {
            if server_of(transport.server).reads() {
                if transport.may_send(now) {
                    steps.push(Step::Send);
                }
                if server_of(transport.server).view.is_none() && transport.peer.has_events() {
                    steps.push(Step::Notify);
                }
            }
        }
        for (index, late) in endpoint.late.iter().enumerate() {
            // A server may read the connections of a client in any order.
            let is_last = late.peer.number % 2 == 0;
            let mut later = endpoint.late[index + 1..].iter();
            let waits = is_last && later.any(|other| other.server == late.server);
            if flows && server_of(late.server).reads() && !waits {
                steps.push(Step::SendLate(index));
            }
        }
        let next = self.ensemble.next_proposal(now);
        if next.is_some_and(|next| self.ensemble.proposals[next].client == number) {
            steps.push(Step::Commit);
        }
        steps
    }

    /// Returns whether this client must take a step before time may pass.
    pub(super) fn is_wire_overdue(&self, number: usize, now: Moment) -> bool {
        self.step_limit(number).is_some_and(|limit| limit <= now) && !self.wire_steps(number, now).is_empty()
    }

    /// Returns when the client must take a step if it can take any.
    fn step_limit(&self, number: usize) -> Option<Moment> {
        let client = &self.clients[number];
        let endpoint = client.wire.as_ref()?.endpoint.as_ref()?;
        Some(endpoint.last_step.after(client.session_timeout / STEP_DIVISOR))
    }

    /// Returns when the clock next matters to this client's connection.
    pub(super) fn next_wire_time(&self, number: usize, now: Moment) -> Option<Moment> {
        let client = &self.clients[number];
        let endpoint = client.wire.as_ref()?.endpoint.as_ref()?;
        let deadline = endpoint.deadline().map(|deadline| deadline.max(client.paused_until));
        let transport = endpoint.transport.as_ref();
        let trickle = transport.and_then(|transport| transport.trickles_at).filter(|at| *at > now);
        let transmits = transport.filter(|transport| !transport.up.is_empty());
        let transmits = transmits.and_then(|transport| transport.transmits_until).filter(|at| *at > now);
        let receives = transport.and_then(|transport| transport.receives_until).filter(|at| *at > now);
        let proposed = self.ensemble.proposals.iter().filter(|proposal| proposal.client == number);
        let link = |server: usize| self.ensemble.servers[server].transmits_until.filter(|at| *at > now);
        let proposes = proposed.filter_map(|proposal| link(proposal.server)).min();
        let limit = self.step_limit(number).filter(|_| !self.wire_steps(number, now).is_empty());
        [deadline, limit, trickle, transmits, receives, proposes].into_iter().flatten().min()
    }

    /// Records that time has passed up to `now`.
    pub(super) fn note_wire_time(&mut self, now: Moment) {
        for number in 0..self.clients.len() {
            let is_idle = self.wire_steps(number, now).is_empty();
            let Some(endpoint) = self.clients[number].endpoint() else { continue };
            if is_idle {
                endpoint.last_step = now;
            }
            endpoint.late.retain(|transport| transport.may_arrive(now));
        }
    }
}

impl ClientState {
    pub(super) fn endpoint(&mut self) -> Option<&mut Endpoint> {
        self.wire.as_mut()?.endpoint.as_deref_mut()
    }

    pub(super) fn wired(&self) -> &Wired {
        self.wire.as_ref().expect("a client that has begun to connect")
    }

    pub(super) fn wired_mut(&mut self) -> &mut Wired {
        self.wire.as_mut().expect("a client that has begun to connect")
    }
}

impl World {
    /// Works with a client's endpoint without holding the lock.
    fn with_endpoint<T>(&self, number: usize, work: impl FnOnce(&mut Endpoint) -> T) -> Option<T> {
        let mut endpoint = self.state().clients[number].wire.as_mut()?.endpoint.take()?;
        let result = work(&mut endpoint);
        self.state().clients[number].wired_mut().endpoint = Some(endpoint);
        Some(result)
    }

    pub(super) fn take_wire_step(&self, number: usize, step: Step) {
        let now = self.now();
        let work = self.with_endpoint(number, |endpoint| {
            endpoint.last_step = now;
            match step {
                Step::Act => return self.act_on_wire(number, endpoint),
                Step::Timer => {
                    if let Some(server) = endpoint.timer(now) {
                        self.lose_attempt(number, server);
                    }
                }
                Step::Resolve(name) => endpoint.resolve(now, name),
                Step::MakeToken(server) => self.make_token(number, endpoint, server),
                Step::Open(link) => self.open_transport(number, endpoint, link),
                Step::Send => self.send_up(number, endpoint, None),
                Step::Notify => self.serve_on(number, endpoint, |front| front.send_events()),
                Step::Receive => self.receive_down(number, endpoint),
                Step::SendLate(index) => self.send_up(number, endpoint, Some(index)),
                Step::SendProbe => self.send_probe(number, endpoint),
                Step::ReceiveProbe => {
                    let mut random = self.state().random.clone();
                    endpoint.read_probe(now, &mut random, self.in_trouble());
                    self.state().random = random;
                }
                Step::Commit => {}
            }
            Work::Nothing
        });
        match step {
            Step::Commit => self.commit_next(),
            Step::Open(_) => faults::perhaps_hold_back_connect(self, number),
            Step::Send => faults::perhaps_lose_server_of(self, number),
            _ => {}
        }
        self.check_losses(number);
        match work.unwrap_or(Work::Nothing) {
            Work::Nothing => {}
            Work::Report(loopback, event) => loopback.tell(event),
            Work::Reply(continuation, result) => continuation.answered(result),
        }
    }

    /// Takes all possible steps of one client, without faults.
    pub(super) fn run_wire(&self, number: usize) {
        loop {
            let step = self.state().wire_steps(number, self.now()).first().copied();
            match step {
                Some(step) => self.take_wire_step(number, step),
                // The proposals of other clients come first.
                None if !self.state().ensemble.proposals.is_empty() => self.commit_next(),
                None => return,
            }
        }
    }

    fn open_transport(&self, number: usize, endpoint: &mut Endpoint, link: LinkId) {
        let attempt = endpoint.attempts.iter().find(|attempt| attempt.link == link);
        let Some(server) = attempt.map(|attempt| attempt.server) else { return };
        let (is_down, tickets) = {
            let state = self.state();
            (state.ensemble.servers[server].mode == Mode::Down, state.clients[number].wired().tickets)
        };
        // A ticket may expire between the first token and the exchange.
        let has_failed = is_down || tickets == Some(Tickets::Missing);
        let outcome = if has_failed { "is not opened" } else { "is opened" };
        self.note_routine(format!("a connection of client {number} to server {server} {outcome}"));
        if has_failed {
            saw(if is_down { "connect-refused" } else { "no-ticket-to-connect" });
        }
        endpoint.end_attempt(self.now(), link, !has_failed);
    }

    fn make_token(&self, number: usize, endpoint: &mut Endpoint, server: usize) {
        let is_missing = self.state().clients[number].wired().tickets == Some(Tickets::Missing);
        if is_missing {
            saw("no-ticket-to-connect");
        }
        let token = if is_missing { Err("no ticket".to_owned()) } else { Ok(sasl::FIRST) };
        endpoint.take_token(self.now(), server, token);
    }

    fn send_probe(&self, number: usize, endpoint: &mut Endpoint) {
        let splits = self.in_trouble();
        let Some(probe) = endpoint.attempts.iter_mut().find(|attempt| !attempt.up.is_empty()) else { return };
        let segment = probe.up.take(&mut self.state().random, splits, usize::MAX);
        Front { world: self, client: number, transport: probe, ledger: &endpoint.ledger }
            .receive_probe(&segment);
    }

    /// Makes a segment arrive at the server of the current transport, or of an earlier one.
    fn send_up(&self, number: usize, endpoint: &mut Endpoint, late: Option<usize>) {
        let splits = self.in_trouble();
        let transport = match late {
            None => endpoint.transport.as_mut(),
            Some(index) => endpoint.late.get_mut(index),
        };
        let Some(transport) = transport else { return };
        let is_opening = self.state().clients[number].opening;
        let is_narrow = splits && self.profile.is_narrow && late.is_none() && !is_opening;
        let longest = if is_narrow { NARROW_SEGMENT } else { usize::MAX };
        let segment = transport.up.take(&mut self.state().random, splits, longest);
        if is_narrow {
            saw("narrow-link-to-the-server");
            let time = self.state().clients[number].session_timeout / SEGMENTS_PER_TIMEOUT;
            transport.transmits_until = Some(self.now().after(time));
        }
        Front { world: self, client: number, transport, ledger: &endpoint.ledger }.receive(&segment);
        endpoint.late.retain(|transport| !transport.up.is_empty());
    }

    fn serve_on(&self, number: usize, endpoint: &mut Endpoint, serve: impl FnOnce(&mut Front<'_>)) {
        if let Some(transport) = &mut endpoint.transport {
            serve(&mut Front { world: self, client: number, transport, ledger: &endpoint.ledger });
        }
    }

    fn receive_down(&self, number: usize, endpoint: &mut Endpoint) {
        let splits = self.in_trouble();
        let is_narrow = splits && self.profile.is_narrow_down && !self.state().clients[number].opening;
        let longest = if is_narrow { NARROW_SEGMENT } else { usize::MAX };
        if let Some(transport) = endpoint.transport.as_mut().filter(|_| is_narrow) {
            saw("narrow-link-to-the-client");
            let time = self.state().clients[number].session_timeout / SEGMENTS_PER_TIMEOUT;
            transport.receives_until = Some(self.now().after(time));
        }
        let mut random = self.state().random.clone();
        let wrong = endpoint.read(self.now(), &mut random, splits, longest);
        self.state().random = random;
        if let Some(wrong) = wrong {
            self.fail(format!("client {number} {wrong}"));
        }
    }

    fn act_on_wire(&self, number: usize, endpoint: &mut Endpoint) -> Work {
        match endpoint.next_action() {
            Some(Action::Open { link, address, .. }) => {
                let mut state = self.state();
                let peer = state.ensemble.next_number();
                let server = endpoint.begin_to_open(link, address, peer, &mut state.random);
                drop(state);
                if let Some(server) = server {
                    self.note_routine(format!("client {number} tries server {server}"));
                }
            }
            Some(Action::Resolve(lookup)) => endpoint.lookups.push(lookup.server),
            Some(Action::MakeToken { server, .. }) => endpoint.tokens.push(server),
            Some(Action::Challenge { link, token }) => {
                endpoint.respond(self.now(), link, sasl::respond(&token.0));
            }
            Some(Action::Tell(event)) => return self.on_wire_event(number, endpoint, event),
            Some(Action::Reply(continuation, result)) => return Work::Reply(continuation, result),
            Some(Action::Ended) => {
                self.note(format!("the connection of client {number} has ended"));
                endpoint.has_ended = true;
                endpoint.late.retain(|transport| !transport.up.is_empty());
            }
            Some(Action::FetchTicket { .. }) => saw("ticket-fetched-ahead"),
            Some(Action::FirstContact(_) | Action::Log(..)) | None => {}
        }
        Work::Nothing
    }

    fn on_wire_event(&self, number: usize, endpoint: &mut Endpoint, event: ClientEvent) -> Work {
        if endpoint.contact() == ContactState::Closed {
            return Work::Nothing;
        }
        match &event {
            ClientEvent::Connected(granted) => {
                if granted.session_timeout != endpoint.ledger.granted {
                    self.fail(format!(
                        "client {number} reports a session timeout other than the granted one"
                    ));
                }
                self.learn_timeout(number, endpoint.ledger.granted);
            }
            ClientEvent::TakenUp { session_timeout } => {
                let known = self.state().clients[number].known_timeout;
                self.learn_timeout(number, known.min(*session_timeout));
            }
            ClientEvent::ReportDelay(_) => saw("tick-found-by-a-probe"),
            _ => {}
        }
        self.note(format!("client {number} gets {}", describe(&event)));
        Work::Report(endpoint.loopback(), event)
    }

    /// Records what timeout the client knows. A client that learns of a shorter one may learn of it too late
    /// to keep its session.
    fn learn_timeout(&self, number: usize, known: Duration) {
        let now = self.now();
        let mut state = self.state();
        let client = &mut state.clients[number];
        if std::mem::replace(&mut client.known_timeout, known) > known {
            client.wired_mut().hinder(now);
        }
    }
}

fn describe(event: &ClientEvent) -> String {
    match event {
        ClientEvent::NodeChanged { path, is_deleted } => {
            let what = if *is_deleted { "the deletion" } else { "a change" };
            format!("{what} of {}", short(path))
        }
        event => format!("{event:?}"),
    }
}

/// How long a call may take, as a fraction of the longest session timeout that may apply.
const CALL_LIMIT: (u32, u32) = (3, 4);

fn call_limit(session_timeout: Duration) -> Duration {
    session_timeout * CALL_LIMIT.0 / CALL_LIMIT.1
}
