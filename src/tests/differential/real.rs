//! [`RealConnection`]: a connection to a real server, frame by frame.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::seen::Seen;
use crate::client::{Call, Op, Reply};
use crate::tests::deadline;
use zookeeper_connection::Chroot;
use zookeeper_connection::codec::{
    ConnectAnswer, ConnectRequest, Control, DEFAULT_MAX_FRAME, Frames, Password, ReplyHeader, Request,
    WatchEvent, XID_AUTH, XID_EVENT, XID_PING, XID_SET_WATCHES, decode_connect_answer,
};

/// How long a server may be silent before it gets another request.
const NUDGE: Duration = Duration::from_secs(2);

/// The number used only for that other request.
const XID_NUDGE: i32 = i32::MAX;

/// A session that a server has granted.
#[derive(Clone, Debug)]
pub(super) struct RealSession {
    pub(super) id: i64,
    password: Password,
    /// The last transaction in a reply. Events do not count.
    pub(super) zxid: i64,
}

impl RealSession {
    /// Returns the empty session that a connect request for a new session names.
    pub(super) fn none() -> RealSession {
        RealSession { id: 0, password: Password::default(), zxid: 0 }
    }

    pub(super) fn with_a_wrong_password(&self) -> RealSession {
        RealSession { password: Password::new([1; 16]), ..self.clone() }
    }
}

pub(super) struct RealConnection {
    stream: TcpStream,
    frames: Frames,
    next_xid: i32,
    last_sent: Instant,
    /// The number of pings that have no reply yet. Their replies arrive before the replies to later requests.
    pings: usize,
}

impl RealConnection {
    /// Opens a new session or resumes a session. Returns `None` if the server does not know the session.
    ///
    /// If a server lags behind what the session has seen, it closes the connection, and this function tries again.
    pub(super) fn open(server: &str, session: &mut RealSession, timeout: Duration) -> Option<RealConnection> {
        let until = Instant::now() + deadline();
        loop {
            let mut connection = RealConnection::greet(server, session, timeout);
            let Ok(answer) = connection.read_frame(NUDGE) else {
                assert!(Instant::now() < until, "the server does not answer connect requests");
                thread::sleep(Duration::from_millis(5));
                continue;
            };
            return match decode_connect_answer(&answer).unwrap() {
                ConnectAnswer::Accepted(granted) => {
                    assert!(session.id == 0 || session.id == granted.session_id);
                    (session.id, session.password) = (granted.session_id, granted.password);
                    Some(connection)
                }
                ConnectAnswer::Refused => None,
                ConnectAnswer::ClickHouseKeeper => panic!("not a ZooKeeper server"),
                ConnectAnswer::ReadOnlyServer => panic!("a read-only server"),
            };
        }
    }

    fn greet(server: &str, session: &RealSession, timeout: Duration) -> RealConnection {
        let mut stream = TcpStream::connect(server).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(NUDGE)).unwrap();
        let request = ConnectRequest {
            last_zxid: session.zxid,
            timeout_ms: timeout.as_millis() as i32,
            session_id: session.id,
            password: session.password.clone(),
            read_only: false,
        };
        let mut frame = Vec::new();
        request.encode(&mut frame);
        stream.write_all(&frame).unwrap();
        let frames = Frames::new(DEFAULT_MAX_FRAME);
        RealConnection { stream, frames, next_xid: 1, last_sent: Instant::now(), pings: 0 }
    }

    /// Pings the server to keep the session alive. The reply arrives before the replies to later requests.
    pub(super) fn keep_alive(&mut self) {
        if self.last_sent.elapsed() < super::SHORT / 3 {
            return;
        }
        let mut bytes = Vec::new();
        Control::Ping.encode(XID_PING, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
        self.last_sent = Instant::now();
        self.pings += 1;
    }

    /// Sends requests in one write. Returns everything that arrives up to the last reply.
    pub(super) fn make(&mut self, requests: &[Request<'_>], session: &mut RealSession) -> Vec<Seen> {
        let mut bytes = Vec::new();
        for request in requests {
            let xid = match request {
                Request::Control(Control::Ping) => XID_PING,
                Request::Control(Control::Auth { .. }) => XID_AUTH,
                Request::Control(Control::SetWatches { .. }) => XID_SET_WATCHES,
                _ => self.next_xid,
            };
            self.next_xid += 1;
            request.encode(xid, &mut bytes);
        }
        self.stream.write_all(&bytes).unwrap();
        self.last_sent = Instant::now();
        let mut seen = Vec::new();
        for request in requests {
            while !self.read_one(request, session, &mut seen) {}
        }
        seen
    }

    /// Reads an event or the reply to this request. Returns `true` for the reply, at the end of the connection, or if
    /// the server stays silent.
    fn read_one(&mut self, request: &Request<'_>, session: &mut RealSession, seen: &mut Vec<Seen>) -> bool {
        let frame = match self.read_frame(deadline()) {
            Ok(frame) => frame,
            Err(end) => {
                seen.push(*end);
                return true;
            }
        };
        let (header, body) = ReplyHeader::decode(&frame).unwrap();
        if header.xid == XID_NUDGE {
            return false;
        }
        if header.xid == XID_EVENT {
            let event = WatchEvent::decode(body).unwrap();
            seen.push(Seen::Event(event.kind, event.path.to_owned()));
            return false;
        }
        session.zxid = session.zxid.max(header.zxid);
        if header.xid == XID_PING && self.pings > 0 {
            self.pings -= 1;
            return false;
        }
        let steps: &[Op] = match request {
            Request::Call(Call::Multi(steps)) => steps,
            _ => &[],
        };
        let reply = Reply::decode(request.operation(), steps, &Chroot::default(), header, body);
        seen.push(Seen::reply(reply.unwrap()));
        true
    }

    /// Reads the next frame. If there is none, returns [`Seen::End`] or [`Seen::Silence`] as the error.
    fn read_frame(&mut self, limit: Duration) -> Result<Vec<u8>, Box<Seen>> {
        let until = Instant::now() + limit;
        loop {
            if let Some(frame) = self.frames.next_frame().unwrap() {
                return Ok(frame.to_vec());
            }
            let mut bytes = [0; 16 << 10];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Box::new(Seen::End)),
                Ok(length) => self.frames.push(&bytes[..length]),
                Err(error) => match error.kind() {
                    ErrorKind::ConnectionReset => return Err(Box::new(Seen::End)),
                    ErrorKind::WouldBlock if Instant::now() < until => self.nudge(),
                    ErrorKind::WouldBlock => return Err(Box::new(Seen::Silence)),
                    _ => panic!("no answer: {error}"),
                },
            }
        }
    }

    /// Makes a request whose answer is ignored.
    ///
    /// Before release 3.8.1, a server in an ensemble may stop answering until another request arrives
    /// (ZOOKEEPER-4537).
    fn nudge(&mut self) {
        println!("differential: the server is silent and gets another request");
        let mut bytes = Vec::new();
        Request::Call(Call::exists("/", false).call).encode(XID_NUDGE, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }
}
