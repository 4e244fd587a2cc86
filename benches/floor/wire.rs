//! The few frames of the protocol that a lock needs, and a socket that carries them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const OP_DELETE: i32 = 2;
const OP_EXISTS: i32 = 3;
const OP_GET_DATA: i32 = 4;
const OP_GET_CHILDREN: i32 = 8;
const OP_CREATE2: i32 = 15;

const XID_EVENT: i32 = -1;

pub(crate) const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;

const PERSISTENT: i32 = 0;
const EPHEMERAL_SEQUENTIAL: i32 = 3;

const ALL_PERMISSIONS: i32 = 31;
const ANY_VERSION: i32 = -1;

/// A connected session.
pub(crate) struct Wire {
    stream: TcpStream,
    next_xid: i32,
    /// Frames that have not been sent yet.
    outgoing: Vec<u8>,
    /// Received bytes. Those before `consumed` belong to earlier frames.
    incoming: Vec<u8>,
    consumed: usize,
    /// The number of events that arrived before anyone waited for them.
    events: usize,
}

/// A frame from the server, without its length.
struct Frame(Vec<u8>);

impl Wire {
    /// Opens a session that expires this long after the last request.
    pub(crate) fn connect(address: &str, timeout: Duration) -> Wire {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("the socket is open");
        let mut wire =
            Wire { stream, next_xid: 1, outgoing: Vec::new(), incoming: Vec::new(), consumed: 0, events: 0 };
        let timeout_ms = i32::try_from(timeout.as_millis()).expect("the timeout is short");
        let frame = wire.begin();
        wire.int(0); // protocol version
        wire.long(0); // last zxid seen
        wire.int(timeout_ms);
        wire.long(0); // a new session
        wire.bytes(&[0; 16]); // no password
        wire.outgoing.push(0); // not read-only
        wire.end(frame);
        wire.send();
        let granted = wire.read_frame();
        assert!(granted.int_at(4) > 0, "the server refused a session");
        wire
    }

    /// Creates a persistent znode unless it exists.
    pub(crate) fn create_dir(&mut self, path: &str) {
        self.create(path, &[], PERSISTENT);
        self.send();
        let error = self.read_reply().error();
        assert!(error == 0 || error == NODE_EXISTS, "creating {path}: error {error}");
    }

    /// Creates an ephemeral sequential znode and lists a directory. Sends both requests in one write to the socket.
    /// Returns the path of the znode and the names of the children.
    pub(crate) fn create_and_list(&mut self, path: &str, data: &[u8], dir: &str) -> (String, Vec<String>) {
        self.create(path, data, EPHEMERAL_SEQUENTIAL);
        self.get_children(dir);
        self.send();
        let created = self.read_reply();
        assert_eq!(created.error(), 0, "creating {path}");
        let own = created.string_at(Frame::BODY);
        (own, self.read_children())
    }

    /// Does the same for several directories, each with the path of a znode in it. Sends all requests in one write to the
    /// socket. Returns the paths of the znodes.
    pub(crate) fn create_and_list_each(&mut self, requests: &[(String, String)], data: &[u8]) -> Vec<String> {
        for (dir, path) in requests {
            self.create(path, data, EPHEMERAL_SEQUENTIAL);
            self.get_children(dir);
        }
        self.send();
        let created = requests.iter().map(|(_, path)| {
            let created = self.read_reply();
            assert_eq!(created.error(), 0, "creating {path}");
            assert_eq!(self.read_children().len(), 1, "the lock is free");
            created.string_at(Frame::BODY)
        });
        created.collect()
    }

    /// Lists a directory.
    pub(crate) fn list(&mut self, dir: &str) -> Vec<String> {
        self.get_children(dir);
        self.send();
        self.read_children()
    }

    /// Receives a listing without parsing the names.
    pub(crate) fn receive_listing(&mut self, dir: &str) {
        self.get_children(dir);
        self.send();
        assert_eq!(self.read_reply().error(), 0, "listing {dir}");
    }

    /// Reads a znode and sets a watch on it. Returns `false` if it does not exist.
    pub(crate) fn watch(&mut self, path: &str) -> bool {
        let frame = self.begin_request(OP_GET_DATA);
        self.bytes(path.as_bytes());
        self.outgoing.push(1);
        self.end(frame);
        self.send();
        match self.read_reply().error() {
            0 => true,
            NO_NODE => false,
            error => panic!("watching {path}: error {error}"),
        }
    }

    /// Waits for the event of a watch.
    pub(crate) fn wait_event(&mut self) {
        while self.events == 0 {
            assert_eq!(self.read_frame().xid(), XID_EVENT, "nothing else is expected");
            self.events += 1;
        }
        self.events -= 1;
    }

    /// Deletes a znode.
    pub(crate) fn delete(&mut self, path: &str) {
        self.delete_each(&[path.to_owned()]);
    }

    /// Deletes several znodes. Sends all requests in one write to the socket.
    pub(crate) fn delete_each(&mut self, paths: &[String]) {
        for path in paths {
            let frame = self.begin_request(OP_DELETE);
            self.bytes(path.as_bytes());
            self.int(ANY_VERSION);
            self.end(frame);
        }
        self.send();
        for path in paths {
            assert_eq!(self.read_reply().error(), 0, "deleting {path}");
        }
    }

    /// Makes one round trip that changes nothing.
    pub(crate) fn ask(&mut self) {
        let frame = self.begin_request(OP_EXISTS);
        self.bytes(b"/");
        self.outgoing.push(0);
        self.end(frame);
        self.send();
        assert_eq!(self.read_reply().error(), 0, "the root exists");
    }

    fn create(&mut self, path: &str, data: &[u8], flags: i32) {
        let frame = self.begin_request(OP_CREATE2);
        self.bytes(path.as_bytes());
        self.bytes(data);
        self.int(1); // the number of entries of the ACL
        self.int(ALL_PERMISSIONS);
        self.bytes(b"world");
        self.bytes(b"anyone");
        self.int(flags);
        self.end(frame);
    }

    fn get_children(&mut self, dir: &str) {
        let frame = self.begin_request(OP_GET_CHILDREN);
        self.bytes(dir.as_bytes());
        self.outgoing.push(0);
        self.end(frame);
    }

    fn read_children(&mut self) -> Vec<String> {
        let reply = self.read_reply();
        assert_eq!(reply.error(), 0, "listing the directory");
        let mut at = Frame::BODY + 4;
        (0..reply.int_at(Frame::BODY))
            .map(|_| {
                let name = reply.string_at(at);
                at += 4 + name.len();
                name
            })
            .collect()
    }

    /// Reads the reply to a request. Events that arrive before it are counted.
    fn read_reply(&mut self) -> Frame {
        loop {
            let frame = self.read_frame();
            if frame.xid() != XID_EVENT {
                return frame;
            }
            self.events += 1;
        }
    }

    fn read_frame(&mut self) -> Frame {
        loop {
            let received = &self.incoming[self.consumed..];
            if let Some((length, rest)) = received.split_first_chunk() {
                let length = usize::try_from(i32::from_be_bytes(*length)).expect("a length");
                if let Some(frame) = rest.get(..length) {
                    let frame = Frame(frame.to_vec());
                    self.consumed += 4 + length;
                    return frame;
                }
            }
            self.receive();
        }
    }

    fn receive(&mut self) {
        self.incoming.drain(..self.consumed);
        self.consumed = 0;
        let mut buffer = [0; 16 * 1024];
        let count = self.stream.read(&mut buffer).expect("the connection is open");
        assert!(count > 0, "the server closed the connection");
        self.incoming.extend_from_slice(&buffer[..count]);
    }

    fn send(&mut self) {
        self.stream.write_all(&self.outgoing).expect("the connection is open");
        self.outgoing.clear();
    }

    /// Begins a frame. Returns the position of its length field.
    fn begin(&mut self) -> usize {
        let frame = self.outgoing.len();
        self.int(0);
        frame
    }

    fn begin_request(&mut self, operation: i32) -> usize {
        let frame = self.begin();
        self.int(self.next_xid);
        self.int(operation);
        self.next_xid += 1;
        frame
    }

    fn end(&mut self, frame: usize) {
        let length = i32::try_from(self.outgoing.len() - frame - 4).expect("a short frame");
        self.outgoing[frame..frame + 4].copy_from_slice(&length.to_be_bytes());
    }

    fn int(&mut self, value: i32) {
        self.outgoing.extend_from_slice(&value.to_be_bytes());
    }

    fn long(&mut self, value: i64) {
        self.outgoing.extend_from_slice(&value.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.int(i32::try_from(bytes.len()).expect("a short text"));
        self.outgoing.extend_from_slice(bytes);
    }
}

impl Frame {
    /// The offset of a reply's body, which follows the number of the request, a zxid and an error.
    const BODY: usize = 16;

    fn xid(&self) -> i32 {
        self.int_at(0)
    }

    fn error(&self) -> i32 {
        self.int_at(12)
    }

    fn int_at(&self, at: usize) -> i32 {
        let bytes = self.0[at..at + 4].try_into().expect("four bytes");
        i32::from_be_bytes(bytes)
    }

    fn string_at(&self, at: usize) -> String {
        let length = usize::try_from(self.int_at(at)).expect("a length");
        String::from_utf8(self.0[at + 4..at + 4 + length].to_vec()).expect("names are UTF-8")
    }
}
