//! [`Scripted`]: a machine, its clock, and the server's side of its transport.

use std::time::Duration;

use crate::chroot::Chroot;
use crate::codec::{
    ConnectAnswer, ConnectRequest, ConnectResponse, DEFAULT_MAX_FRAME, EventKind, Frames, OpCode, Password,
    ReplyHeader, Request, WatchEvent, XID_AUTH, XID_PING,
};
use crate::credential::Credential;
use crate::error::ZkResult;
use crate::machine::session::{Action, Config, Event, Phase, Session};
use crate::max_buffer::DEFAULT_JUTE_MAX_BUFFER;
use crate::time::Moment;
use crate::{Call, Granted, Reply, Stat};

pub(super) const TIMEOUT: Duration = Duration::from_secs(12);
pub(super) const ID: i64 = 0x1234;

pub(super) struct Scripted {
    pub(super) session: Session<u32>,
    pub(super) now: Moment,
}

/// A request as a server has received it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) xid: i32,
    pub(super) operation: OpCode,
    pub(super) path: Option<String>,
}

pub(super) fn config() -> Config {
    Config {
        session_timeout: TIMEOUT,
        credentials: Vec::new(),
        sasl: false,
        chroot: Chroot::default(),
        max_frame: DEFAULT_MAX_FRAME,
        jute_max_buffer: DEFAULT_JUTE_MAX_BUFFER,
        barrier_paths: ["/barrier", "/barrier/none"],
        seed: 5,
    }
}

pub(super) fn credentials(count: usize) -> Vec<Credential> {
    vec![Credential { scheme: "digest".to_owned(), auth: b"user:secret".to_vec() }; count]
}

impl Scripted {
    pub(super) fn new(config: Config) -> Scripted {
        let now = Moment::from_nanos(0).after(TIMEOUT);
        Scripted { session: Session::new(config, now), now }
    }

    pub(super) fn with_credentials(count: usize) -> Scripted {
        Scripted::new(Config { credentials: credentials(count), ..config() })
    }

    /// Returns a machine whose session is served.
    pub(super) fn serving() -> Scripted {
        let mut scripted = Scripted::new(config());
        scripted.connect();
        scripted
    }

    /// Continues from `Open` to `Connected` and, for a new session, to the answer to the first ping.
    pub(super) fn connect(&mut self) -> ConnectRequest {
        assert!(matches!(self.actions().as_slice(), [Action::Open]));
        let request = self.open();
        self.answer(&accepted(ID));
        let connected = Event::Connected { granted: Granted::new(TIMEOUT), session_id: ID };
        assert_eq!(self.events(), [connected]);
        if request.session_id == 0 {
            self.admit();
        }
        request
    }

    /// Answers the ping that shows that the server admits the client.
    pub(super) fn admit(&mut self) {
        self.session.timer(self.now);
        let sent = self.sent();
        assert_eq!(sent.iter().map(|request| request.operation).collect::<Vec<_>>(), [OpCode::Ping]);
        self.pong();
        assert_eq!(self.events(), [Event::PingAnswered { sent: self.now }]);
    }

    /// Opens the transport, and returns the connect request.
    pub(super) fn open(&mut self) -> ConnectRequest {
        self.session.opened(self.now);
        let bytes = std::mem::take(self.session.outgoing());
        ConnectRequest::decode(&bytes[4..]).unwrap()
    }

    pub(super) fn answer(&mut self, answer: &ConnectAnswer) {
        let mut bytes = Vec::new();
        answer.encode(&mut bytes);
        self.session.received(self.now, &bytes);
    }

    pub(super) fn actions(&mut self) -> Vec<Action<u32>> {
        std::iter::from_fn(|| self.session.next_action()).collect()
    }

    /// Returns the next actions, all of which must be events.
    pub(super) fn events(&mut self) -> Vec<Event> {
        let event = |action| match action {
            Action::Event(event) => event,
            other => panic!("{other:?}"),
        };
        self.actions().into_iter().map(event).collect()
    }

    /// Returns the next actions, all of which must be replies.
    pub(super) fn replies(&mut self) -> Vec<(u32, ZkResult<Reply>)> {
        let reply = |action| match action {
            Action::Reply(number, result) => (number, result),
            other => panic!("{other:?}"),
        };
        self.actions().into_iter().map(reply).collect()
    }

    /// Returns what the server receives now.
    pub(super) fn sent(&mut self) -> Vec<Received> {
        let mut frames = Frames::new(1 << 20);
        frames.push(&std::mem::take(self.session.outgoing()));
        let mut received = Vec::new();
        while let Some(frame) = frames.next_frame().unwrap() {
            let (xid, request) = Request::decode(frame).unwrap();
            let path = match &request {
                Request::Call(call) => call.path().map(str::to_owned),
                Request::Control(_) => None,
            };
            received.push(Received { xid, operation: request.operation(), path });
        }
        received
    }

    pub(super) fn submit(&mut self, number: u32, call: &Call) {
        self.session.submit(self.now, call.clone(), number).unwrap();
    }

    pub(super) fn reply(&mut self, xid: i32, zxid: i64, reply: &Reply) {
        let mut bytes = Vec::new();
        reply.encode(xid, zxid, &mut bytes);
        self.session.received(self.now, &bytes);
    }

    pub(super) fn reply_error(&mut self, xid: i32, error: i32) {
        self.reply_error_at(xid, 0, error);
    }

    pub(super) fn reply_error_at(&mut self, xid: i32, zxid: i64, error: i32) {
        let mut bytes = Vec::new();
        ReplyHeader { xid, zxid, error }.encode(&mut bytes);
        self.session.received(self.now, &bytes);
    }

    pub(super) fn fire(&mut self, kind: EventKind, path: &str) {
        self.fire_at(-1, kind, path);
    }

    /// Delivers an event from a server of version 3.9 or later, which numbers its events.
    pub(super) fn fire_at(&mut self, zxid: i64, kind: EventKind, path: &str) {
        let mut bytes = Vec::new();
        WatchEvent { kind, path }.encode(zxid, &mut bytes);
        self.session.received(self.now, &bytes);
    }

    /// Loses a connection that has lasted for a while.
    pub(super) fn lose_connection(&mut self) {
        self.advance(TIMEOUT / 4);
        self.session.failed(self.now);
        self.actions();
    }

    pub(super) fn pong(&mut self) {
        self.reply(XID_PING, 0, &Reply::Done);
    }

    pub(super) fn authenticated(&mut self) {
        self.reply(XID_AUTH, 0, &Reply::Done);
    }

    pub(super) fn advance(&mut self, duration: Duration) {
        self.now = self.now.after(duration);
    }

    /// Advances to the deadline and calls the timer.
    pub(super) fn run_to_deadline(&mut self) {
        self.now = self.now.max(self.session.deadline().unwrap());
        self.session.timer(self.now);
    }

    /// Runs the timer until the machine opens a transport, and drops the actions.
    pub(super) fn until_open(&mut self) {
        while !matches!(self.session.phase, Phase::Opening { .. }) {
            self.run_to_deadline();
        }
        self.actions();
    }

    /// Runs the timer for this long.
    pub(super) fn run_for(&mut self, duration: Duration) {
        let until = self.now.after(duration);
        while self.session.deadline().is_some_and(|deadline| deadline <= until) {
            self.run_to_deadline();
        }
        self.now = until;
    }
}

pub(super) fn accepted(session_id: i64) -> ConnectAnswer {
    granted(session_id, TIMEOUT)
}

pub(super) fn granted(session_id: i64, timeout: Duration) -> ConnectAnswer {
    ConnectAnswer::Accepted(ConnectResponse {
        timeout_ms: i32::try_from(timeout.as_millis()).unwrap(),
        session_id,
        password: Password::new(*b"0123456789abcdef"),
        read_only: false,
    })
}

pub(super) fn read(path: &str) -> Call {
    Call::get_data(path, false).call
}

pub(super) fn watch(path: &str) -> Call {
    Call::get_data(path, true).call
}

pub(super) fn data() -> Reply {
    Reply::Data(Vec::new(), Stat::default())
}
