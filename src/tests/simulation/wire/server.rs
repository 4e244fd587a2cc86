//! [`Peer`]: a server's end of one connection. It decodes requests, has the simulated ZooKeeper execute them,
//! and encodes the replies.
//!
//! Replies come in the order of the requests, and an event comes before the reply that shows its cause. A
//! write is proposed to the leader, which commits it at a later step; until then the connection answers
//! nothing else. A proposal is committed even if its client has lost the connection meanwhile.
//!
//! Once a session has moved to another server, its writes on earlier connections are refused. But a server accepts
//! writes that it reads late if the session has come back to it, even by a connect request that the client has given
//! up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::ensemble::Mode;
use super::leader::{Proposal, note_result};
use super::ledger::{Ledger, Meaning, Table, Watched};
use super::sasl::Identity;
use super::stream::Transport;
use crate::client::{Call, Reply};
use crate::error::{ZkError, ZkResult};
use crate::fake::{ServedConnection, View};
use crate::tests::simulation::seen::saw;
use crate::tests::simulation::world::{World, short};
use zookeeper_connection::DEFAULT_JUTE_MAX_BUFFER;
use zookeeper_connection::codec::{
    AUTHENTICATION_REQUIRED, ConnectAnswer, ConnectRequest, ConnectResponse, Control, EventKind, Frames,
    Password, ReplyHeader, Request, WatchEvent, XID_AUTH, XID_PING, XID_SET_WATCHES,
};

pub(super) struct Peer {
    pub(super) number: i64,
    frames: Frames,
    stage: Stage,
    /// Whether a write waits to be committed. At a deposed leader it waits forever.
    is_waiting: bool,
    /// Whether it has left a request without a reply and now answers only pings.
    pub(super) is_stuck: bool,
    /// The frames that arrived while a write was waiting.
    held: VecDeque<Vec<u8>>,
    /// Whether it sends nothing more.
    pub(super) is_mute: bool,
    /// The number of bytes sent.
    written: u64,
    /// The number of the last ordinary request that it has answered.
    last_xid: i32,
    /// The meaning of each frame sent, by the position of its last byte.
    meanings: VecDeque<(u64, Meaning)>,
    /// What the client knew when it learned that its session was served.
    pub(super) at_greeting: Option<Ledger>,
    pub(super) session: i64,
    /// What the server knows of the client from the SASL exchange.
    pub(super) identity: Identity,
    is_authenticated: bool,
    watched: Watched,
    has_begun: bool,
}

enum Stage {
    Greeting,
    Serving(Arc<ServedConnection>),
    Closed,
}

impl Peer {
    pub(super) fn new(number: i64) -> Peer {
        Peer {
            number,
            frames: Frames::new(DEFAULT_JUTE_MAX_BUFFER),
            stage: Stage::Greeting,
            is_waiting: false,
            is_stuck: false,
            held: VecDeque::new(),
            is_mute: false,
            written: 0,
            last_xid: 0x7fff_0000,
            meanings: VecDeque::new(),
            at_greeting: None,
            session: 0,
            identity: Identity::Unknown,
            is_authenticated: false,
            watched: Watched::default(),
            has_begun: false,
        }
    }

    fn next_frame(&mut self) -> Result<Option<Vec<u8>>, zookeeper_connection::codec::DecodeError> {
        Ok(self.frames.next_frame()?.map(<[u8]>::to_vec))
    }

    pub(super) fn close(&mut self) {
        self.stage = Stage::Closed;
    }

    fn connection(&self) -> Option<&Arc<ServedConnection>> {
        match &self.stage {
            Stage::Serving(connection) => Some(connection),
            Stage::Greeting | Stage::Closed => None,
        }
    }

    pub(super) fn has_events(&self) -> bool {
        !self.is_mute && self.connection().is_some_and(|connection| connection.has_events())
    }

    /// Returns the meaning of the next frame that ends within the first `received` bytes of the stream.
    pub(super) fn next_meaning(&mut self, received: u64) -> Option<Meaning> {
        let (end, _) = self.meanings.front()?;
        if *end > received { None } else { self.meanings.pop_front().map(|(_, meaning)| meaning) }
    }
}

/// A client's connection as its server handles it.
pub(super) struct Front<'a> {
    pub(super) world: &'a World,
    pub(super) client: usize,
    pub(super) transport: &'a mut Transport,
    pub(super) ledger: &'a Ledger,
}

impl Front<'_> {
    pub(super) fn mode(&self) -> Mode {
        self.world.state().ensemble.servers[self.transport.server].mode
    }

    fn view(&self) -> Option<Arc<View>> {
        self.world.state().ensemble.servers[self.transport.server].view.clone()
    }

    fn zxid(&self) -> i64 {
        self.view().map_or_else(|| self.world.zookeeper.last_zxid(), |view| view.last_zxid())
    }

    pub(super) fn fail(&self, what: &str) {
        self.world.fail(format!("client {} {what}", self.client));
    }

    fn close(&mut self) {
        self.transport.peer.close();
        self.transport.end_down();
    }

    pub(super) fn send(&mut self, frame: &[u8], meaning: Option<Meaning>) {
        let Transport { down, peer, .. } = &mut *self.transport;
        if peer.is_mute {
            return;
        }
        down.push(frame);
        peer.written += frame.len() as u64;
        peer.meanings.extend(meaning.map(|meaning| (peer.written, meaning)));
    }

    /// Receives bytes from the client.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.transport.peer.frames.push(bytes);
        self.process();
    }

    /// Receives bytes of a probe, which asks for the shortest session timeout: two ticks.
    pub(super) fn receive_probe(&mut self, bytes: &[u8]) {
        self.transport.peer.frames.push(bytes);
        while let Ok(Some(frame)) = self.transport.peer.next_frame() {
            match (&self.transport.peer.stage, self.mode()) {
                // These servers cannot open a session.
                (Stage::Closed, _) | (_, Mode::Deposed | Mode::CutFromLeader) => return,
                (_, Mode::Electing | Mode::ReadOnly | Mode::Garbled) => {
                    saw("probe-refused");
                    return self.close();
                }
                (Stage::Greeting, _) if self.transport.peer.session == 0 => self.answer_probe(&frame),
                _ => {
                    let closes = matches!(Request::decode(&frame), Ok((_, Request::Control(Control::Close))));
                    if !closes || self.world.state().clients[self.client].wired().must_authenticate() {
                        self.fail("sends something other than the end of its probe");
                    }
                    return self.close();
                }
            }
        }
    }

    fn answer_probe(&mut self, frame: &[u8]) {
        let request = ConnectRequest::decode(frame).expect("a probe is well-formed");
        if (request.session_id, request.timeout_ms) != (0, 1) {
            return self.fail("presents a session on its probe");
        }
        if self.world.in_trouble() && self.world.state().random.one_in(8) {
            saw("probe-refused");
            return self.close();
        }
        let tick = self.world.state().clients[self.client].link.heard.tick;
        let timeout_ms = i32::try_from((2 * tick).as_millis()).expect("a tick is short");
        self.transport.peer.session = -2;
        let response =
            ConnectResponse { timeout_ms, session_id: -2, password: Password::default(), read_only: false };
        let mut frame = Vec::new();
        ConnectAnswer::Accepted(response).encode(&mut frame);
        saw("probe-answered");
        self.send(&frame, None);
    }

    /// Handles the frames that have arrived, up to a write.
    pub(super) fn process(&mut self) {
        loop {
            let is_waiting = self.transport.peer.is_waiting;
            let is_greeting = matches!(self.transport.peer.stage, Stage::Greeting);
            if is_greeting && self.mode() == Mode::CutFromLeader {
                return saw("handshake-held-up-by-a-stall");
            }
            let held = if is_waiting { None } else { self.transport.peer.held.pop_front() };
            let frame = match held.map_or_else(|| self.transport.peer.next_frame(), |held| Ok(Some(held))) {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(error) => return self.fail(&format!("sends a malformed frame: {error}")),
            };
            if is_waiting {
                if !self.deny_at_once(&frame) {
                    self.transport.peer.held.push_back(frame);
                }
                continue;
            }
            match &self.transport.peer.stage {
                Stage::Greeting => self.greet(&frame),
                Stage::Serving(connection) => {
                    let connection = Arc::clone(connection);
                    self.serve(&connection, &frame);
                }
                Stage::Closed => return,
            }
        }
    }

    // ---- the handshake

    fn greet(&mut self, frame: &[u8]) {
        let request = match ConnectRequest::decode(frame) {
            Ok(request) => request,
            Err(error) => return self.fail(&format!("sends a malformed connect request: {error}")),
        };
        let known = (self.ledger.session, self.ledger.seen_zxid);
        if !self.transport.is_late() && (request.session_id, request.last_zxid) != known {
            let sent = (request.session_id, request.last_zxid);
            self.fail(&format!("asks for the session and transaction {sent:?} instead of {known:?}"));
        }
        let mode = self.mode();
        match mode {
            Mode::Electing => {
                saw("handshake-closed-in-an-election");
                return self.close();
            }
            Mode::ReadOnly => {
                saw("handshake-answered-read-only");
                let mut frame = Vec::new();
                ConnectAnswer::ReadOnlyServer.encode(&mut frame);
                return self.send(&frame, Some(Meaning::Garbage));
            }
            Mode::Garbled => return self.send_garbage(),
            _ => {}
        }
        if request.last_zxid > self.zxid() {
            saw("handshake-closed-by-a-server-behind");
            return self.close();
        }
        let asked = Duration::from_millis(request.timeout_ms.unsigned_abs().into());
        match request.session_id {
            // A new session needs a quorum.
            0 if mode == Mode::Deposed => self.transport.peer.is_waiting = true,
            0 => self.open_session(asked),
            session => self.renew(session, &request.password, asked, mode),
        }
    }

    fn open_session(&mut self, asked: Duration) {
        // The client has left this connection. Nobody would use the session, and a server would end it
        // unused.
        if self.transport.is_late() {
            saw("connect-request-read-late");
            return self.close();
        }
        let session = self.world.open_session(self.client, self.transport, asked);
        self.accept(session);
    }

    fn renew(&mut self, session: i64, sent: &Password, asked: Duration, mode: Mode) {
        let view = self.view();
        if mode == Mode::Deposed {
            // The server may not have learned of the session's beginning or its end.
            return match view.is_some_and(|view| view.has_session(session)) && *sent == password(session) {
                true => {
                    saw("resumed-by-deposed-server");
                    self.accept(session)
                }
                false => self.close(),
            };
        }
        if !self.world.zookeeper.sessions().contains(&session) || *sent != password(session) {
            let mut frame = Vec::new();
            ConnectAnswer::Refused.encode(&mut frame);
            saw("session-refused-as-ended");
            self.send(&frame, None);
            return self.close();
        }
        if self.transport.is_late() {
            saw("session-renewed-late");
        }
        self.world.take_up_session(self.client, self.transport, asked);
        self.accept(session);
    }

    fn accept(&mut self, session: i64) {
        let granted = self.world.state().clients[self.client].session_timeout;
        let response = ConnectResponse {
            timeout_ms: i32::try_from(granted.as_millis()).expect("a session timeout fits"),
            session_id: session,
            password: password(session),
            read_only: false,
        };
        let mut frame = Vec::new();
        ConnectAnswer::Accepted(response).encode(&mut frame);
        self.send(&frame, Some(Meaning::Served { session, granted }));
        let connection = ServedConnection::open(&self.world.zookeeper, self.transport.peer.number, session);
        self.transport.peer.session = session;
        self.transport.peer.stage = Stage::Serving(Arc::new(connection));
        let server = self.transport.server;
        self.world.note(format!("server {server} serves client {}, {granted:?} granted", self.client));
        if self.mode() == Mode::Unserving {
            saw("resumed-but-not-served");
            self.close();
        }
    }

    // ---- requests

    /// Denies a deletion without asking the leader, as servers with `enableEagerACLCheck` do. The reply comes ahead of
    /// the replies that the server owes. Returns whether the frame was such a deletion.
    fn deny_at_once(&mut self, frame: &[u8]) -> bool {
        let is_serving = matches!(self.transport.peer.stage, Stage::Serving(_));
        if !is_serving || !self.world.profile.denies_at_once {
            return false;
        }
        let Ok((xid, Request::Call(call @ Call::Delete { .. }))) = Request::decode(frame) else {
            return false;
        };
        if !self.is_denied(call.path()) {
            return false;
        }
        self.touch();
        saw("write-denied-at-once");
        let denial = Err(ZkError::NoAuth);
        note_result(self.world, self.client, &call, &denial);
        let mut frame = Vec::new();
        ReplyHeader { xid, zxid: 0, error: ZkError::NoAuth.code() }.encode(&mut frame);
        self.send(&frame, Some(Meaning::Reply { zxid: 0, watch: None }));
        true
    }

    fn serve(&mut self, connection: &Arc<ServedConnection>, frame: &[u8]) {
        let (xid, request) = match Request::decode(frame) {
            Ok(decoded) => decoded,
            Err(error) => return self.fail(&format!("sends a malformed request: {error}")),
        };
        if self.mode() == Mode::Garbled && request != Request::Control(Control::Ping) {
            return self.send_garbage();
        }
        if self.is_left_without_a_reply(&request) {
            return;
        }
        if let Request::Control(Control::Sasl { token }) = &request {
            return self.take_token(xid, token);
        }
        let must = self.world.state().clients[self.client].wired().tickets.is_some();
        if must && self.transport.peer.identity != Identity::Proven {
            return self.fail("sends a request before it has authenticated by SASL");
        }
        if self.mode() == Mode::Demanding && !matches!(request, Request::Control(Control::Auth { .. })) {
            return self.demand_authentication(xid);
        }
        match request {
            Request::Control(control) => self.serve_control(connection, xid, &control),
            Request::Call(call) => {
                self.world.state().calls_decoded += 1;
                self.check_beginning();
                self.touch();
                match call {
                    Call::Create { .. } | Call::Delete { .. } | Call::SetData { .. } | Call::Multi(_) => {
                        self.propose(connection, xid, call);
                    }
                    read => self.read(connection, xid, &read),
                }
            }
        }
    }

    fn serve_control(&mut self, connection: &ServedConnection, xid: i32, control: &Control<'_>) {
        match control {
            Control::Auth { scheme, auth } => {
                self.transport.peer.is_authenticated = true;
                connection.authenticate(scheme, &String::from_utf8_lossy(auth));
                return self.reply(XID_AUTH, Ok(Reply::Done), None);
            }
            // A session that is being closed needs no watches.
            Control::SetWatches { .. } | Control::Close => {}
            _ => self.check_beginning(),
        }
        self.touch();
        match control {
            // Tokens are handled earlier.
            Control::Auth { .. } | Control::Barrier { .. } | Control::Sasl { .. } => {}
            Control::SetWatches { relative_zxid, data, exist, child } => {
                self.set_watches(connection, xid, *relative_zxid, [data, exist, child]);
            }
            Control::Ping => self.reply(XID_PING, Ok(Reply::Done), None),
            Control::RemoveWatches { path } => {
                let removed = match self.is_denied(Some(path)) {
                    true => Err(ZkError::NoAuth),
                    false => connection.remove_watches(path),
                };
                self.world.note(format!(
                    "client {}: RemoveWatches {} -> {removed:?}",
                    self.client,
                    short(path)
                ));
                self.reply(xid, removed.map(|()| Reply::Done), Some(None));
            }
            // Closing is a write like any other: the ensemble learns nothing of it.
            Control::Close if self.mode() == Mode::Deposed => self.transport.peer.is_waiting = true,
            Control::Close => {
                self.world.commit_all();
                self.world.zookeeper.expire_session(self.transport.peer.session);
                self.world.note(format!("the session of client {} is closed", self.client));
                self.reply(xid, Ok(Reply::Done), None);
                self.close();
            }
        }
    }

    /// Decides whether a request gets no reply. After the first such request, answers to pings come out of
    /// turn.
    fn is_left_without_a_reply(&mut self, request: &Request<'_>) -> bool {
        let (ends, is_ping) = match request {
            Request::Control(control) => (
                !matches!(control, Control::Ping | Control::Auth { .. } | Control::SetWatches { .. }),
                *control == Control::Ping,
            ),
            Request::Call(_) => (true, false),
        };
        if self.mode() == Mode::PingsOnly && ends {
            self.transport.peer.is_stuck = true;
            saw("request-not-answered");
        }
        if self.transport.peer.is_stuck && is_ping {
            let mut frame = Vec::new();
            Reply::Done.encode(XID_PING, self.zxid(), &mut frame);
            self.send(&frame, Some(Meaning::Garbage));
            saw("reply-out-of-turn");
        }
        self.transport.peer.is_stuck
    }

    /// Demands authentication, ahead of the replies that the server owes.
    fn demand_authentication(&mut self, xid: i32) {
        self.world.note(format!("server {} refuses client {}", self.transport.server, self.client));
        saw("authentication-demanded");
        let mut frame = Vec::new();
        ReplyHeader { xid, zxid: 0, error: AUTHENTICATION_REQUIRED }.encode(&mut frame);
        self.send(&frame, Some(Meaning::Refusal));
        self.close();
    }

    /// Checks that the credentials come before anything else and the watches before other requests.
    fn check_beginning(&mut self) {
        let peer = &mut self.transport.peer;
        if std::mem::replace(&mut peer.has_begun, true) {
            return;
        }
        let Some(known) = peer.at_greeting.take() else { return };
        if known.watched != peer.watched {
            let what = format!("sets the watches {:?} again instead of {:?}", peer.watched, known.watched);
            self.fail(&what);
        }
        let must = self.world.state().clients[self.client].wired().authenticates;
        if must && !self.transport.peer.is_authenticated {
            self.fail("does not present its credentials first");
        }
    }

    fn set_watches(
        &mut self,
        connection: &ServedConnection,
        xid: i32,
        since: i64,
        lists: [&[std::borrow::Cow<'_, str>]; 3],
    ) {
        let peer = &mut self.transport.peer;
        peer.watched.add_all(lists);
        if peer.has_begun {
            self.fail("sets its watches after its first request");
        } else if peer.at_greeting.as_ref().is_some_and(|known| known.zxid != since) {
            self.fail(&format!("asks for the events since {since}"));
        }
        let knows_more = self.reports_known_changes();
        let missed =
            connection.set_watches(if knows_more { 0 } else { since }, lists, self.view().as_deref());
        if knows_more && !missed.is_empty() {
            saw("watch-fires-on-known-change");
        }
        for fired in missed {
            self.send_event(fired, -1);
        }
        // Servers may reply with another number.
        let other = xid == XID_SET_WATCHES && self.world.state().random.one_in(4);
        if other {
            saw("watches-answered-with-another-number");
        }
        let xid = if other { 7 } else { xid };
        self.reply(xid, Ok(Reply::Done), None);
    }

    /// Decides whether the events of watches that are set again include changes of which the client knows.
    fn reports_known_changes(&self) -> bool {
        let is_possible = self.world.in_trouble() && self.world.profile.faults.deposed;
        is_possible && self.world.state().random.one_in(4)
    }

    fn read(&mut self, connection: &ServedConnection, xid: i32, call: &Call) {
        let is_denied = self.is_denied(call.path());
        if self.view().is_some() {
            saw("read-from-a-server-behind");
        }
        let result = match is_denied {
            true => {
                saw("permission-denied");
                Err(ZkError::NoAuth)
            }
            false => connection.read(call, self.view().as_deref()),
        };
        if !is_denied && result == Err(ZkError::NoAuth) {
            saw("znode-unreadable");
        }
        let watch = watch_of(call, &result, is_denied);
        note_result(self.world, self.client, call, &result);
        self.reply(xid, result, Some(watch));
    }

    fn propose(&mut self, connection: &Arc<ServedConnection>, xid: i32, call: Call) {
        self.transport.peer.is_waiting = true;
        if self.mode() == Mode::Deposed {
            return saw("write-to-deposed-server");
        }
        if let Some(error) = self.declines(&call) {
            self.transport.peer.is_waiting = false;
            note_result(self.world, self.client, &call, &Err(error));
            return self.decline(xid, error);
        }
        if self.fails_by_itself() {
            saw("call-fails-before-its-effect");
            return self.close();
        }
        // The leader accepts nothing more for a session that was closed.
        if !self.world.zookeeper.sessions().contains(&self.transport.peer.session) {
            return self.close();
        }
        let mut state = self.world.state();
        // The leader does not distinguish between the session's connections to one server. So it accepts what
        // the server has left unread on an earlier connection if the session has come back to the server
        // meanwhile.
        let wired = state.clients[self.client].wired();
        if wired.owner.is_none() || wired.owned_by != self.transport.server {
            let answers = state.random.one_in(2);
            drop(state);
            saw("write-refused-as-moved");
            if answers {
                self.decline(xid, ZkError::SessionMoved);
            }
            return self.close();
        }
        if self.transport.is_late() {
            saw("write-read-late");
        }
        state.ensemble.proposals.push_back(Proposal {
            client: self.client,
            number: self.transport.peer.number,
            server: self.transport.server,
            connection: Arc::clone(connection),
            xid,
            call,
        });
    }

    /// Returns the error, if any, with which the ensemble declines a write for now: a quota is exceeded, or the server
    /// has too many requests. It does so only while it denies the client other things, too.
    fn declines(&self, call: &Call) -> Option<ZkError> {
        let mut state = self.world.state();
        let is_possible = self.world.now() < state.clients[self.client].denied_until;
        if !is_possible || !state.random.one_in(4) {
            return None;
        }
        match call {
            Call::Create { .. } | Call::SetData { .. } if state.random.one_in(2) => {
                saw("quota-exceeded");
                Some(ZkError::QuotaExceeded)
            }
            _ => {
                saw("request-throttled");
                Some(ZkError::Throttled)
            }
        }
    }

    /// Handles the commit of this connection's proposal, with its result.
    pub(super) fn handle_commit(&mut self, xid: i32, result: ZkResult<Reply>) {
        let mode = self.mode();
        if matches!(mode, Mode::Deposed | Mode::Down) || self.transport.peer.connection().is_none() {
            return;
        }
        if mode == Mode::Lagging {
            let now = self.world.now();
            self.world.state().ensemble.servers[self.transport.server].recover(now);
        }
        if self.fails_by_itself() {
            saw("call-fails-after-its-effect");
            return self.close();
        }
        self.transport.peer.is_waiting = false;
        self.reply(xid, result, Some(None));
        self.process();
    }

    /// Decides whether a write costs the client its connection.
    fn fails_by_itself(&self) -> bool {
        let now = self.world.now();
        let mut state = self.world.state();
        let fails = state.clients[self.client].writes_to_fail > 0 && state.random.one_in(2);
        if fails {
            let client = &mut state.clients[self.client];
            client.writes_to_fail -= 1;
            client.wired_mut().disturb_attempt(self.transport.peer.number, now);
        }
        fails
    }

    /// Records that the server has heard from the session.
    fn touch(&mut self) {
        let is_deposed = self.mode() == Mode::Deposed;
        self.world.touch(self.client, self.transport.server, is_deposed);
    }

    /// Returns whether the server currently refuses this request. For a znode that does not exist, it reports
    /// just that.
    fn is_denied(&self, path: Option<&str>) -> bool {
        let path = path.unwrap_or_default();
        let exists = match self.view() {
            Some(view) => view.exists(path),
            None => self.world.zookeeper.exists(path),
        };
        exists && self.world.now() < self.world.state().clients[self.client].denied_until
    }

    // ---- what it sends

    /// Sends the events that this server has applied.
    pub(super) fn send_events(&mut self) {
        if self.view().is_some() {
            return;
        }
        let zxid = if self.world.profile.events_have_zxids { self.zxid() } else { -1 };
        while let Some(fired) =
            self.transport.peer.connection().and_then(|connection| connection.take_event())
        {
            self.send_event(fired, zxid);
        }
    }

    fn send_event(&mut self, fired: crate::fake::Fired, zxid: i64) {
        let mut frame = Vec::new();
        WatchEvent { kind: fired.kind, path: &fired.path }.encode(zxid, &mut frame);
        self.send(&frame, Some(Meaning::Event { zxid, fired }));
    }

    /// Sends a reply. For an ordinary request, `ordinary` is `Some`, with the watch that the request sets.
    fn reply(&mut self, xid: i32, result: ZkResult<Reply>, ordinary: Option<Option<(Table, String)>>) {
        self.send_events();
        let zxid = self.zxid();
        if ordinary.is_some() {
            self.transport.peer.last_xid = xid;
        }
        let mut frame = Vec::new();
        match result {
            Ok(reply) => reply.encode(xid, zxid, &mut frame),
            Err(error) => ReplyHeader { xid, zxid, error: error.code() }.encode(&mut frame),
        }
        let meaning = ordinary.map(|watch| Meaning::Reply { zxid, watch });
        self.send(&frame, meaning);
    }

    /// Answers a request that the ensemble does not carry out.
    fn decline(&mut self, xid: i32, error: ZkError) {
        self.send_events();
        self.transport.peer.last_xid = xid;
        let mut frame = Vec::new();
        ReplyHeader { xid, zxid: 0, error: error.code() }.encode(&mut frame);
        self.send(&frame, Some(Meaning::Declined));
    }

    /// Announces a frame of permitted length whose bytes arrive slowly.
    pub(super) fn send_endless(&mut self) {
        const LENGTH: usize = 1 << 16;
        self.world.note(format!("server {} trickles to client {}", self.transport.server, self.client));
        let mut frame = vec![0, 1, 0, 0];
        frame.resize(4 + LENGTH, 0);
        // Once the bytes arrive at full speed, the frame does end, and answers nothing.
        self.send(&frame, Some(Meaning::Garbage));
        self.transport.peer.is_mute = true;
        self.transport.trickles_at = Some(self.world.now());
        saw("frame-trickles");
    }

    /// Sends something that no server may send here.
    pub(super) fn send_garbage(&mut self) {
        let kind = self.world.state().random.below(6);
        saw("garbage-sent");
        let mut frame = Vec::new();
        match kind {
            0 => frame.extend((-2_i32).to_be_bytes()),
            1 => frame.extend(i32::MAX.to_be_bytes()),
            // A reply without a request.
            2 => ReplyHeader { xid: 0x7fff_0000, zxid: 1 << 40, error: -101 }.encode(&mut frame),
            4 => {
                saw("reply-duplicated");
                ReplyHeader { xid: self.transport.peer.last_xid, zxid: self.zxid(), error: -101 }
                    .encode(&mut frame);
            }
            // The reply to a request whose turn has not come. Not sent where denials may come out of turn.
            5 if !self.world.profile.denies_at_once => {
                saw("reply-for-another-request");
                let xid = self.transport.peer.last_xid.wrapping_add(2);
                ReplyHeader { xid, zxid: self.zxid(), error: -101 }.encode(&mut frame);
            }
            _ => {
                WatchEvent { kind: EventKind::Deleted, path: "/locks/a" }.encode(-1, &mut frame);
                let end = frame.len() - 3;
                frame.truncate(end);
                frame[..4]
                    .copy_from_slice(&i32::try_from(end - 4).expect("the frame is short").to_be_bytes());
            }
        }
        self.world.note(format!("server {} sends garbage to client {}", self.transport.server, self.client));
        self.send(&frame, Some(Meaning::Garbage));
        self.transport.peer.is_mute = true;
        self.transport.peer.close();
    }
}

fn watch_of(call: &Call, result: &ZkResult<Reply>, is_denied: bool) -> Option<(Table, String)> {
    let table = match result {
        Ok(Reply::Found(Some(_)) | Reply::Data(..)) => Table::Data,
        Ok(Reply::Found(None)) => Table::Existence,
        Ok(Reply::Children(_)) => Table::Children,
        _ => return None,
    };
    let path = call.watched_path().filter(|_| !is_denied)?;
    Some((table, path.to_string()))
}

/// Returns the password of a session.
fn password(session: i64) -> Password {
    Password::new([session.to_be_bytes(), session.reverse_bits().to_be_bytes()].concat())
}
