//! [`Server`]: answers as simply as the protocol allows, or as a test demands.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use zookeeper_connection::codec::{
    ConnectAnswer, ConnectRequest, ConnectResponse, Control, Frames, Password, ReplyHeader, Request,
};
use zookeeper_connection::{Call, Names, Reply, Stat, ZkError};

use crate::tests::deadline;

/// The id of every session, except those of probes.
pub(super) const SESSION: i64 = 0x77;

/// The shortest session timeout that a server grants, as it tells a probe.
pub(super) const MIN_TIMEOUT_MS: i32 = 400;

/// The timeout that a probe requests.
const PROBE_TIMEOUT_MS: i32 = 1;

/// Something that a server has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Connected(ConnectRequest),
    /// The operation and its path.
    Request(String),
    Disconnected,
}

/// A server that runs until the end of the test process.
pub(super) struct Server {
    address: SocketAddr,
    /// Receives what happens on connections other than those of probes.
    pub(super) seen: Receiver<Seen>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    pub(super) connections: Arc<AtomicUsize>,
}

impl Server {
    /// Starts a server that serves every session.
    pub(super) fn start() -> Server {
        Server::with(|mut client| client.serve())
    }

    /// Starts a server that runs `serve` for each connection, on its own thread, and then closes the connection.
    pub(super) fn with(serve: impl Fn(Client) + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, seen) = unbounded();
        let (streams, connections) = (Arc::<Mutex<Vec<TcpStream>>>::default(), Arc::<AtomicUsize>::default());
        let (kept, counted, serve) = (Arc::clone(&streams), Arc::clone(&connections), Arc::new(serve));
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                counted.fetch_add(1, Ordering::SeqCst);
                stream.set_read_timeout(Some(deadline())).unwrap();
                let kept_open = stream.try_clone().unwrap();
                kept.lock().push(stream.try_clone().unwrap());
                let client = Client::new(Box::new(stream), sender.clone());
                let serve = Arc::clone(&serve);
                thread::spawn(move || {
                    serve(client);
                    let _ = kept_open.shutdown(Shutdown::Both);
                });
            }
        });
        Server { address, seen, streams, connections }
    }

    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Closes all open connections.
    pub(super) fn disconnect(&self) {
        for stream in self.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// A stream of bytes in both directions.
pub(super) trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// One connection of a client.
pub(super) struct Client {
    pub(super) stream: Box<dyn Stream>,
    frames: Frames,
    /// A frame that has been read but not yet handled.
    unread: Option<Vec<u8>>,
    seen: Sender<Seen>,
}

impl Client {
    fn new(stream: Box<dyn Stream>, seen: Sender<Seen>) -> Client {
        Client { stream, frames: Frames::new(usize::MAX), unread: None, seen }
    }

    /// Returns the same client, with its stream wrapped in another one.
    #[cfg(feature = "tls")]
    pub(super) fn within<S: Stream + 'static>(self, wrap: impl FnOnce(Box<dyn Stream>) -> S) -> Client {
        Client::new(Box::new(wrap(self.stream)), self.seen)
    }

    /// Reads the next frame. Returns `None` at the end of the stream.
    pub(super) fn read(&mut self) -> Option<Vec<u8>> {
        if let Some(frame) = self.unread.take() {
            return Some(frame);
        }
        loop {
            if let Some(frame) = self.frames.next_frame().unwrap() {
                return Some(frame.to_vec());
            }
            let mut buffer = vec![0; 64 * 1024];
            let count = self.stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
            self.frames.push(&buffer[..count]);
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        // The write fails if the client is gone, which is fine.
        let _ = self.stream.write_all(bytes);
    }

    /// Reads the connect request. Handles a probe, and returns `None` for it.
    pub(super) fn read_connect(&mut self) -> Option<ConnectRequest> {
        let request = ConnectRequest::decode(&self.read()?).unwrap();
        if request.timeout_ms == PROBE_TIMEOUT_MS {
            self.write(&accepted(MIN_TIMEOUT_MS, SESSION + 1));
            while self.read().is_some() {}
            return None;
        }
        let _ = self.seen.send(Seen::Connected(request.clone()));
        Some(request)
    }

    /// Accepts a session. Handles a probe, and returns `None` for it.
    pub(super) fn accept(&mut self) -> Option<ConnectRequest> {
        let request = self.read_connect()?;
        self.write(&accepted(request.timeout_ms, SESSION));
        if request.session_id == 0 {
            self.answer_first_ping()?;
        }
        Some(request)
    }

    /// Answers the first ping of a new session, which shows the client that it is admitted. If another request comes
    /// first, leaves that request for the next `read`.
    pub(super) fn answer_first_ping(&mut self) -> Option<()> {
        let frame = self.read()?;
        match Request::decode(&frame).unwrap() {
            (xid, Request::Control(Control::Ping)) => self.write(&replied(xid, &Reply::Done)),
            // Credentials come before the first ping.
            _ => self.unread = Some(frame),
        }
        Some(())
    }

    /// Accepts a session and answers its requests.
    pub(super) fn serve(&mut self) {
        self.serve_by(answer);
    }

    /// Accepts a session, and answers its requests with `answer`.
    pub(super) fn serve_by(&mut self, mut answer: impl FnMut(i32, &Request<'_>) -> Vec<u8>) {
        self.serve_while(|xid, request| (answer(xid, request), true));
    }

    /// Like [`serve_by`](Client::serve_by), but stops after an answer that comes with `false`.
    pub(super) fn serve_while(&mut self, mut answer: impl FnMut(i32, &Request<'_>) -> (Vec<u8>, bool)) {
        if self.accept().is_some() {
            self.serve_accepted(&mut answer);
        }
    }

    /// Answers the requests of a session.
    pub(super) fn serve_accepted(&mut self, mut answer: impl FnMut(i32, &Request<'_>) -> (Vec<u8>, bool)) {
        while let Some(frame) = self.read() {
            let (xid, request) = Request::decode(&frame).unwrap();
            if request != Request::Control(Control::Ping) {
                let _ = self.seen.send(Seen::Request(format!("{request:?}")));
            }
            let (bytes, goes_on) = answer(xid, &request);
            self.write(&bytes);
            if !goes_on || request == Request::Control(Control::Close) {
                break;
            }
        }
        let _ = self.seen.send(Seen::Disconnected);
    }
}

pub(super) fn accepted(timeout_ms: i32, session_id: i64) -> Vec<u8> {
    let password = Password::new([7; 16]);
    let response = ConnectResponse { timeout_ms, session_id, password, read_only: false };
    let mut frame = Vec::new();
    ConnectAnswer::Accepted(response).encode(&mut frame);
    frame
}

/// Returns the reply of a server on which every znode exists.
pub(super) fn answer(xid: i32, request: &Request<'_>) -> Vec<u8> {
    let stat = Stat { czxid: 5, ..Stat::default() };
    let reply = match request {
        Request::Call(Call::Create { path, mode, .. }) => {
            let number = if mode.is_sequential() { "0000000003" } else { "" };
            Reply::Created { path: format!("{path}{number}"), stat: Some(stat) }
        }
        Request::Call(Call::Exists { .. } | Call::SetData { .. }) => Reply::Stat(stat),
        Request::Call(Call::GetData { .. }) => Reply::Data(b"data".to_vec(), stat),
        Request::Call(Call::GetChildren { path, .. }) => {
            Reply::Children(Names::from_iter([format!("child of {path}")]))
        }
        _ => Reply::Done,
    };
    replied(xid, &reply)
}

pub(super) fn replied(xid: i32, reply: &Reply) -> Vec<u8> {
    let mut frame = Vec::new();
    reply.encode(xid, 9, &mut frame);
    frame
}

pub(super) fn refused(xid: i32, error: ZkError) -> Vec<u8> {
    let mut frame = Vec::new();
    ReplyHeader { xid, zxid: 9, error: error.code() }.encode(&mut frame);
    frame
}
