//! [`Wired`]: a client's connection, and what the ensemble knows of its session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Endpoint;
use super::ensemble::Mode;
use super::sasl::Tickets;
use super::stream::Transport;
use crate::tests::simulation::faults::draw_grant;
use crate::tests::simulation::link::Drift;
use crate::tests::simulation::seen::saw;
use crate::tests::simulation::world::{State, World};
use crate::time::Moment;

/// See the [module](self).
pub(in crate::tests::simulation) struct Wired {
    /// The client's end; `None` while `with_endpoint` works with it.
    pub(super) endpoint: Option<Box<Endpoint>>,
    /// Whether the client gets tickets, if it authenticates by SASL.
    pub(super) tickets: Option<Tickets>,
    /// Whether the client presents credentials.
    pub(super) authenticates: bool,
    /// The connection that has the session. `None` before the session is opened, and after it has expired.
    pub(super) owner: Option<i64>,
    /// When that connection got the session.
    owned_since: Moment,
    /// The server of that connection. The leader knows only the server, not the connection.
    pub(super) owned_by: usize,
    /// Of the servers that could report to the leader, the one that last heard from the session, and when.
    pub(super) heard_by: usize,
    last_touch: Moment,
    /// The last moment at which something other than a failed server kept the ensemble from hearing of the client, or
    /// at which the client could not know that its server was cut off from the ensemble. May lie ahead.
    clear_since: Moment,
    /// When the time limits of its calls last restarted, because something had held the calls up: for example,
    /// held-back bytes arrived, the process resumed, or a server recovered. May lie ahead.
    pub(super) disturbed_at: Moment,
    requested: Duration,
    calls: Vec<Call>,
}

/// A call that may not have returned.
struct Call {
    begun: Moment,
    what: String,
    has_returned: Arc<AtomicBool>,
}

/// Records that a call has returned.
pub(super) struct Ticket(Arc<AtomicBool>);

impl Ticket {
    pub(super) fn answered(self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Wired {
    pub(super) fn new(
        endpoint: Endpoint,
        timeout: Duration,
        tickets: Option<Tickets>,
        authenticates: bool,
        now: Moment,
    ) -> Wired {
        Wired {
            endpoint: Some(Box::new(endpoint)),
            tickets,
            authenticates,
            owner: None,
            owned_since: now,
            owned_by: 0,
            heard_by: 0,
            last_touch: now,
            clear_since: Moment::from_nanos(0),
            disturbed_at: now,
            requested: timeout,
            calls: Vec::new(),
        }
    }

    /// Returns whether the client authenticates in any way.
    pub(super) fn must_authenticate(&self) -> bool {
        self.authenticates || self.tickets.is_some()
    }

    pub(super) fn begin_call(&mut self, what: String, now: Moment) -> Ticket {
        let has_returned = Arc::new(AtomicBool::new(false));
        self.calls.push(Call { begun: now, what, has_returned: Arc::clone(&has_returned) });
        Ticket(has_returned)
    }

    /// Restarts the time limits at this moment, because until then the client cannot act or cannot be served.
    pub(in crate::tests::simulation) fn disturb(&mut self, until: Moment) {
        self.hinder(until);
        self.disturbed_at = self.disturbed_at.max(until);
    }

    /// Notes that something other than a failed server may keep the client from its ensemble until this moment.
    pub(super) fn hinder(&mut self, until: Moment) {
        self.clear_since = self.clear_since.max(until);
    }

    /// Records a fault of a connection. If the connection has had the session for a while, the client finds another
    /// server in time. If not, the client has already lost time on earlier connections, may have become patient with
    /// slow servers, and may be too late.
    pub(super) fn disturb_attempt(&mut self, connection: i64, now: Moment) {
        // A third is for an attempt to authenticate and an answered ping.
        let is_settled = self.owner == Some(connection) && now.since(self.owned_since) >= self.requested / 3;
        if !is_settled {
            self.hinder(now);
        }
    }

    fn overdue_call(&mut self, granted: Duration, now: Moment) -> Option<&str> {
        self.calls.retain(|call| !call.has_returned.load(Ordering::Relaxed));
        let limit = super::call_limit(granted.max(self.requested));
        let is_overdue = |call: &&Call| now > call.begun.max(self.disturbed_at).after(limit);
        let overdue = self.calls.iter().find(is_overdue);
        overdue.map(|call| &*call.what)
    }
}

impl World {
    /// Opens the session of a client. Ends an earlier session of which the client has not learned.
    pub(super) fn open_session(&self, number: usize, transport: &Transport, asked: Duration) -> i64 {
        let (former, timeout) = {
            let mut state = self.state();
            self.grant(&mut state, number, asked);
            let client = &mut state.clients[number];
            client.created_timeout = client.session_timeout;
            (client.session_id, client.session_timeout)
        };
        self.zookeeper.expire_session(former);
        let session = self.zookeeper.connect(timeout).session_id();
        self.state().clients[number].session_id = session;
        self.own_session(number, transport, Duration::MAX, self.now());
        session
    }

    /// Takes a session up again, by a message to the leader.
    pub(super) fn take_up_session(&self, number: usize, transport: &Transport, asked: Duration) {
        let is_moved = self.state().clients[number].wired().owned_by != transport.server;
        saw(if is_moved { "session-moved" } else { "session-resumed" });
        let former = self.grant(&mut self.state(), number, asked);
        self.own_session(number, transport, former, self.now());
    }

    /// Grants a session timeout. Returns the timeout granted before.
    fn grant(&self, state: &mut State, number: usize, asked: Duration) -> Duration {
        let former = state.clients[number].session_timeout;
        if self.in_trouble() && self.profile.faults.regrants {
            draw_grant(state, number, asked, self.profile.raises);
        } else {
            state.clients[number].session_timeout = asked;
        }
        former
    }

    fn own_session(&self, number: usize, transport: &Transport, former: Duration, now: Moment) {
        let mut state = self.state();
        // The server to which the session has moved reports from now on.
        state.clients[number].link.stall = None;
        state.report_connection(number, former, now);
        let wired = state.clients[number].wired_mut();
        (wired.owner, wired.owned_since) = (Some(transport.peer.number), now);
        (wired.owned_by, wired.heard_by) = (transport.server, transport.server);
        wired.last_touch = now;
    }

    /// Records that a server has received a request. Unless the server is deposed or cut off, it reports that to the
    /// leader, even if the session has moved to another connection meanwhile.
    pub(super) fn touch(&self, number: usize, server: usize, is_deposed: bool) {
        let now = self.now();
        let mut state = self.state();
        let is_cut_off = state.ensemble.servers[server].mode == Mode::CutFromLeader;
        let wired = state.clients[number].wired_mut();
        if is_deposed {
            // The client cannot know, and the ensemble learns nothing of it.
            wired.hinder(now);
            saw("request-to-deposed-server");
        } else if is_cut_off {
            // The client cannot know, and the leader learns of it only if the server reports again.
            wired.hinder(now);
            saw("request-to-a-server-without-its-leader");
            if wired.owned_by == server {
                state.clients[number].record_activity(now, false);
            }
        } else if wired.owner.is_some() {
            wired.heard_by = server;
            wired.last_touch = now;
            state.draw_grace(number);
            let races = !self.profile.is_calm() && state.random.one_in(3);
            state.clients[number].record_activity(now, races);
        }
    }

    /// Ends a session that the ensemble has not heard from.
    pub(in crate::tests::simulation) fn expire(&self, number: usize) {
        self.note(format!("the server ends the session of client {number}"));
        saw("session-expires");
        let (session, drift, is_cut_off) = {
            let client = &self.state().clients[number];
            (client.session_id, client.link.heard.drift, client.link.partitioned)
        };
        match drift {
            Drift::None => {}
            Drift::Faster => saw("session-expires-by-a-faster-clock"),
            Drift::Slower => saw("session-expires-by-a-slower-clock"),
        }
        if is_cut_off {
            saw("session-expires-behind-a-partition");
        }
        self.commit_all();
        self.check_expiry(number);
        self.zookeeper.expire_session(session);
        self.with_endpoint(number, |endpoint| {
            let transport = endpoint.transport.as_mut();
            if let Some(transport) = transport.filter(|transport| transport.peer.session == session) {
                transport.peer.close();
                transport.end_down();
            }
        });
        if let Some(wired) = &mut self.state().clients[number].wire {
            wired.owner = None;
        }
    }

    /// Records that an attempt has run out of time on a narrow link. If only the link was to blame, the client has lost
    /// the time that it needs when the other servers fail.
    pub(super) fn lose_attempt(&self, number: usize, server: usize) {
        let now = self.now();
        let mut state = self.state();
        if state.ensemble.servers[server].well_since.is_some() {
            state.clients[number].wired_mut().hinder(now);
            saw("attempt-outlasted-by-a-narrow-link");
        }
    }

    /// Checks that no session expires if its client could reach some server all the time.
    fn check_expiry(&self, number: usize) {
        let now = self.now();
        let mut state = self.state();
        let is_stalled = state.ensemble.is_stalled || state.clients[number].link.stall.is_some();
        let client = &mut state.clients[number];
        let (granted, known) = (client.session_timeout, client.known_timeout);
        let lasts = client.link.heard.drift.by_the_servers(granted);
        let is_paused = client.paused_until > now;
        let is_hindered = is_stalled || is_paused || client.link.partitioned || client.link.slow_until > now;
        let Some(wired) = client.wire.as_ref() else { return };
        let is_hindered = is_hindered || wired.tickets.is_some_and(|tickets| tickets != Tickets::AtHand);
        let (since, clear_since) = (wired.last_touch, wired.clear_since);
        let Some(endpoint) = client.endpoint() else { return };
        let is_over = endpoint.is_over();
        // The client has not received the answer that opened the session, so it may open another one.
        let is_unknown = endpoint.ledger.session == 0;
        let is_swallowed = endpoint.transport.as_ref().is_some_and(Transport::loses_packets);
        let is_balanced = endpoint.is_balanced;
        let known_servers = endpoint.known_servers();
        // A client that has not learned of a shorter grant is too slow.
        // A load balancer may always choose a server that does not serve.
        if is_over
            || is_unknown
            || is_hindered
            || is_balanced
            || clear_since >= since
            || known > granted
            || now < since.after(lasts)
        {
            return;
        }
        let is_well =
            |server: &usize| state.ensemble.servers[*server].well_since.is_some_and(|at| at <= since);
        let well = known_servers.into_iter().find(is_well);
        drop(state);
        if let Some(well) = well {
            let note = if is_swallowed { " (its present connection is swallowed)" } else { "" };
            self.fail(format!(
                "the session of client {number} expires although server {well} was well{note}"
            ));
        }
    }

    /// Checks that no client gives up a live session unless all servers have refused it, or none has answered for a
    /// session timeout.
    pub(super) fn check_losses(&self, number: usize) {
        let now = self.now();
        let (session, loss) = {
            let mut state = self.state();
            let Some(endpoint) = state.clients[number].endpoint() else { return };
            let Some(loss) = endpoint.take_loss() else { return };
            let session = endpoint.ledger.session;
            if endpoint.may_give_up(loss, now) {
                state.given_up.insert(session);
                return;
            }
            (session, loss)
        };
        if self.zookeeper.sessions().contains(&session) {
            self.fail(format!("client {number} gives up a session that lives: {loss:?}"));
        }
    }

    /// Checks that no call takes too long. Returns a description of one that does.
    pub(in crate::tests::simulation) fn check_calls(&self) -> Option<String> {
        let now = self.now();
        let mut state = self.state();
        for (number, client) in state.clients.iter_mut().enumerate() {
            let granted = client.session_timeout.max(client.created_timeout);
            if client.paused_until > now {
                continue;
            }
            let Some(wired) = &mut client.wire else { continue };
            let transport = wired.endpoint.as_ref().and_then(|endpoint| endpoint.transport.as_ref());
            if transport.is_some_and(|transport| transport.trickles_at.is_some()) {
                // Answers arrive, but byte by byte and one after the other.
                wired.disturb(now);
            }
            if let Some(what) = wired.overdue_call(granted, now) {
                return Some(format!("{what} of client {number} does not return"));
            }
        }
        None
    }
}
