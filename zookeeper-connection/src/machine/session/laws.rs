//! Laws of the machine that hold for any sequence of requests, bytes from a server, failures and moments.
//!
//! [`check_history`] takes a history as bytes, and panics if the machine violates a law. The tests call it with
//! generated histories, and the target in `fuzz/` calls it with mutated ones.

use std::collections::HashSet;
use std::time::Duration;

use super::{Action, Config, Event, SaslStep, Session};
use crate::Names;
use crate::chroot::Chroot;
use crate::codec::{
    AUTHENTICATION_REQUIRED, ConnectAnswer, ConnectResponse, EventKind, OpCode, Password, ReplyHeader,
    WatchEvent, XID_AUTH, XID_PING, encode_sasl_token,
};
use crate::credential::Credential;
use crate::error::ZkError;
use crate::max_buffer::DEFAULT_JUTE_MAX_BUFFER;
use crate::time::Moment;
use crate::{Acl, Call, CreateMode, Reply, Stat};

const TIMEOUT: Duration = Duration::from_secs(12);
const ID: i64 = 0x1234;
const MAX_FRAME: usize = 1 << 12;
const PATHS: [&str; 4] = ["/a", "/b", "/a/b", "/"];

/// A connect request, the credentials and a close request, with their headers, take fewer bytes than this in total.
const OWN_FRAMES: usize = 1 << 10;

/// Error codes of a server. No server sends the last one.
const ERRORS: [i32; 9] = [-101, -6, -112, -115, -118, -102, -4, AUTHENTICATION_REQUIRED, 77];

/// The rest of a history.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Returns the next byte, or zero at the end.
    fn next(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Checks a history. Its first byte determines the number of credentials, whether SASL is used, and the size of the
/// pieces in which bytes arrive. Each step takes a byte for its kind, and further ones for its arguments.
///
/// The laws:
/// - Every request has exactly one outcome.
/// - The actions fit the state of the transport, the connection and the session.
/// - The number of bytes that wait to be written is bounded by the requests.
/// - With SASL, no connection is reported before the owner considers the exchange complete.
/// - After the timer is called, the deadline is in the future.
/// - A close ends the machine.
pub fn check_history(history: &[u8]) {
    let mut bytes = Bytes(history);
    let mut run = Run::new(bytes.next());
    while !bytes.0.is_empty() {
        run.step(&mut bytes);
    }
    run.close();
    // Enough even for the attempts after a grant of one millisecond, which are the most frequent.
    for _ in 0..10_000 {
        let Some(deadline) = run.session.deadline() else { break };
        run.now = run.now.max(deadline);
        run.timer();
    }
    assert!(run.owner.has_ended && run.owner.unanswered.is_empty(), "{:?}", run.owner.unanswered);
}

/// A machine, its clock, its owner and the server's side of its transport.
struct Run {
    session: Session<u32>,
    now: Moment,
    owner: Owner,
    last_request: u32,
    /// Bytes arrive in pieces of this size.
    piece: usize,
    /// The maximum number of bytes that may wait to be written.
    max_outgoing: usize,
    uses_sasl: bool,
}

/// The state that the owner of a machine relies on.
#[derive(Default)]
struct Owner {
    has_transport: bool,
    is_connected: bool,
    has_ended: bool,
    is_closing: bool,
    is_lost: bool,
    /// Whether the machine uses SASL, and the owner does not yet consider the exchange on this transport complete.
    needs_sasl: bool,
    /// Whether the owner owes a response to a challenge.
    has_challenge: bool,
    unanswered: HashSet<u32>,
}

impl Run {
    fn new(first: u8) -> Run {
        let uses_sasl = first >= 128;
        let credential = Credential { scheme: "digest".to_owned(), auth: b"user:secret".to_vec() };
        let config = Config {
            session_timeout: TIMEOUT,
            credentials: vec![credential; usize::from(first % 3)],
            sasl: uses_sasl,
            chroot: Chroot::default(),
            max_frame: MAX_FRAME,
            jute_max_buffer: DEFAULT_JUTE_MAX_BUFFER,
            barrier_paths: ["/barrier", "/barrier/none"],
            seed: 5,
        };
        let now = Moment::from_nanos(0).after(TIMEOUT);
        let mut run = Run {
            session: Session::new(config, now),
            now,
            owner: Owner::default(),
            last_request: 0,
            piece: usize::from(first / 3).max(1),
            max_outgoing: OWN_FRAMES,
            uses_sasl,
        };
        run.session.set_addresses(2, true);
        run.carry_out(0);
        run
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        let has_transport = self.owner.has_transport;
        let kinds = if self.uses_sasl { 20 } else { 16 };
        match bytes.next() % kinds {
            0 | 1 => self.submit(bytes.next(), bytes.next()),
            2 if has_transport => {
                match bytes.next() % 4 {
                    0 => self.session.opening_another(self.now),
                    1 => {
                        self.session.set_current(false);
                        self.session.opened(self.now);
                    }
                    _ => {
                        self.session.set_first_token(vec![1]);
                        self.session.opened(self.now);
                    }
                }
                self.carry_out(0);
            }
            3 if has_transport => {
                self.owner.has_transport = false;
                self.session.failed(self.now);
                self.carry_out(0);
            }
            4 => {
                let count = usize::from(bytes.next());
                self.deliver(bytes.take(count));
            }
            5 => self.answer(bytes.next()),
            6 | 7 => self.reply(),
            8 => self.reply_error(ERRORS[usize::from(bytes.next()) % ERRORS.len()]),
            9 => self.deliver(&encoded(|frame| Reply::Done.encode(XID_PING, 0, frame))),
            10 => self.fire(bytes.next(), bytes.next()),
            11 => self.deliver(&encoded(|frame| {
                ReplyHeader { xid: XID_AUTH, zxid: 0, error: 0 }.encode(frame);
            })),
            12 => self.deliver(&encoded(|frame| {
                ReplyHeader { xid: XID_AUTH, zxid: 0, error: ZkError::AuthFailed.code() }.encode(frame);
            })),
            13 => {
                let part = u32::from(bytes.next());
                self.now = self.now.after(TIMEOUT * part / 256);
            }
            14 => self.timer(),
            16 => self.token(bytes.next()),
            17 | 18 => self.respond(bytes.next()),
            19 => {
                if let Some(xid) = self.session.awaited_token() {
                    let error = ERRORS[usize::from(bytes.next()) % ERRORS.len()];
                    self.deliver(&encoded(|frame| ReplyHeader { xid, zxid: 0, error }.encode(frame)));
                }
            }
            _ => match bytes.next() {
                0 => self.close(),
                count => {
                    // The transport takes some of the bytes.
                    let outgoing = self.session.outgoing();
                    let written = outgoing.len() * usize::from(count) / 255;
                    outgoing.drain(..written);
                }
            },
        }
    }

    fn submit(&mut self, kind: u8, path: u8) {
        let path = PATHS[usize::from(path) % PATHS.len()];
        let watch = kind & 8 != 0;
        let create = |mode| Call::create(path, [7; 9], Acl::open_unsafe(), mode).call;
        let call = match kind % 8 {
            0 | 1 => Call::get_data(path, watch).call,
            2 => Call::get_children(path, watch).call,
            3 => Call::exists(path, watch).call,
            4 => create(CreateMode::EphemeralSequential),
            5 => create(CreateMode::Container),
            6 => Call::set_data(path, [7; 99], None).call,
            _ => Call::delete(path, None).call,
        };
        self.last_request += 1;
        let root = Chroot::default();
        let length = encoded(|frame| call.encode(OpCode::of_call(&call), &root, 1, frame)).len();
        match self.session.submit(self.now, call, self.last_request) {
            Ok(()) => {
                self.owner.unanswered.insert(self.last_request);
                // The request itself, and its path among the watches to be set again.
                self.max_outgoing += length + path.len() + 4;
            }
            Err(continuation) => {
                assert_eq!(continuation, self.last_request);
                assert!(self.owner.is_closing || self.owner.is_lost || self.owner.has_ended);
            }
        }
        self.carry_out(0);
    }

    /// Delivers an answer to the connect request.
    fn answer(&mut self, kind: u8) {
        let accepted = |session_id, timeout: Duration| {
            ConnectAnswer::Accepted(ConnectResponse {
                timeout_ms: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
                session_id,
                password: Password::new(*b"0123456789abcdef"),
                read_only: false,
            })
        };
        let answer = match kind % 16 {
            0 => ConnectAnswer::Refused,
            1 => ConnectAnswer::ReadOnlyServer,
            15 => ConnectAnswer::ClickHouseKeeper,
            2 => accepted(ID + 1, TIMEOUT),
            3 => accepted(0, TIMEOUT),
            4 => accepted(ID, TIMEOUT / 3),
            5 => accepted(ID, Duration::from_millis(1)),
            _ => accepted(ID, TIMEOUT),
        };
        self.deliver(&encoded(|frame| answer.encode(frame)));
    }

    /// Delivers the server's answer to a token.
    fn token(&mut self, length: u8) {
        let Some(xid) = self.session.awaited_token() else { return };
        let token = [2; 255];
        let token = if length == 255 { None } else { Some(&token[..usize::from(length)]) };
        self.deliver(&encoded(|frame| encode_sasl_token(xid, token, frame)));
    }

    fn respond(&mut self, kind: u8) {
        let token = vec![3; usize::from(kind)];
        self.max_outgoing += token.len() + 16;
        let step = match kind % 8 {
            0 => SaslStep::Complete,
            1 => SaslStep::Refused("wrong".to_owned()),
            2 => SaslStep::Failed("over".to_owned()),
            3 | 4 => SaslStep::LastToken(token),
            _ => SaslStep::Token(token),
        };
        let is_end = matches!(step, SaslStep::Complete | SaslStep::LastToken(_));
        self.owner.needs_sasl &= !(is_end && self.owner.has_challenge);
        self.owner.has_challenge = false;
        self.session.respond(self.now, step);
        self.carry_out(0);
    }

    /// Delivers the expected reply.
    fn reply(&mut self) {
        let Some((xid, operation)) = self.session.traffic.next_reply() else { return };
        let (stat, path) = (Stat::default(), "/a".to_owned());
        let reply = match operation {
            OpCode::GetData => Reply::Data(vec![1, 2], stat),
            OpCode::GetChildren => Reply::Children(Names::from_iter([path])),
            OpCode::Exists | OpCode::SetData => Reply::Stat(stat),
            OpCode::Create2 | OpCode::CreateContainer => Reply::Created { path, stat: Some(stat) },
            OpCode::Create => Reply::Created { path, stat: None },
            _ => Reply::Done,
        };
        self.deliver(&encoded(|frame| reply.encode(xid, 7, frame)));
    }

    fn reply_error(&mut self, error: i32) {
        let Some((xid, _)) = self.session.traffic.next_reply() else { return };
        self.deliver(&encoded(|frame| ReplyHeader { xid, zxid: 7, error }.encode(frame)));
    }

    fn fire(&mut self, kind: u8, path: u8) {
        let path = PATHS[usize::from(path) % PATHS.len()];
        let kind = match kind % 5 {
            0 => EventKind::Created,
            1 => EventKind::Deleted,
            2 => EventKind::DataChanged,
            3 => EventKind::ChildrenChanged,
            _ => EventKind::Other(9),
        };
        self.deliver(&encoded(|frame| WatchEvent { kind, path }.encode(-1, frame)));
    }

    /// Delivers bytes from the server in pieces, as long as the transport lasts.
    fn deliver(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(self.piece) {
            if !self.owner.has_transport {
                return;
            }
            self.session.received(self.now, piece);
            self.carry_out(piece.len());
        }
    }

    fn timer(&mut self) {
        // The timer sends at most a ping.
        self.max_outgoing += 12;
        self.session.timer(self.now);
        // With a deadline in the past, the I/O thread would never sleep.
        let deadline = self.session.deadline();
        assert!(deadline.is_none_or(|deadline| deadline > self.now), "{deadline:?} at {:?}", self.now);
        self.carry_out(0);
    }

    fn close(&mut self) {
        self.session.close(self.now);
        self.owner.is_closing = true;
        self.carry_out(0);
    }

    /// Carries out the actions that follow from an input of this many bytes.
    fn carry_out(&mut self, received: usize) {
        // There is one action for each request, two for each frame, and a few at the end of a connection or of the
        // session. The bytes may complete a frame that began earlier.
        let most = self.owner.unanswered.len() + 2 * (received / 20 + 1) + 8;
        let mut count = 0;
        while let Some(action) = self.session.next_action() {
            if matches!(action, Action::Open) {
                (self.owner.needs_sasl, self.owner.has_challenge) = (self.uses_sasl, false);
            }
            self.owner.take(action);
            count += 1;
        }
        assert!(count <= most, "{count} actions");
        let outgoing = self.session.outgoing().len();
        assert!(outgoing <= self.max_outgoing, "{outgoing} bytes wait to be written");
        assert_eq!(self.session.deadline().is_none(), self.owner.has_ended);
        assert!(!self.owner.has_ended || outgoing == 0);
    }
}

impl Owner {
    fn take(&mut self, action: Action<u32>) {
        assert!(!self.has_ended, "{action:?} after the end");
        match action {
            Action::Open => {
                assert!(!self.has_transport);
                self.has_transport = true;
            }
            Action::Drop => {
                assert!(self.has_transport);
                self.has_transport = false;
            }
            Action::Challenge(token) => {
                assert!(self.has_transport && !token.is_empty() && !self.has_challenge);
                self.has_challenge = true;
            }
            Action::Event(event) => {
                assert!(!self.is_closing && !self.is_lost, "{event:?} after the close or the loss");
                match event {
                    Event::Connected { .. } => {
                        assert!(!self.is_connected && !self.needs_sasl);
                        self.is_connected = true;
                    }
                    Event::Disconnected => assert!(std::mem::take(&mut self.is_connected)),
                    Event::TakenUp { .. } => assert!(!self.is_connected),
                    Event::SessionLost(_) => self.is_lost = true,
                    Event::NodeChanged { .. } | Event::PingAnswered { .. } => assert!(self.is_connected),
                }
            }
            Action::Reply(number, result) => {
                assert!(self.unanswered.remove(&number), "two outcomes of request {number}");
                assert!(result.is_err() || self.is_connected, "a reply without a connection");
            }
            Action::Ended => {
                assert!(!self.has_transport);
                self.has_ended = true;
            }
        }
    }
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    bytes
}
