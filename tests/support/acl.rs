//! Reads and replaces the ACLs of znodes, which the library itself cannot do. Each function opens a session
//! for one request and writes the frames by hand.

use std::io::{Read, Write};
use std::net::TcpStream;

use zookeeper_recipes_lock::client::{Acl, Permissions};

use crate::support::wait::deadline;

const GET_ACL: i32 = 6;
const SET_ACL: i32 = 7;
const CLOSE_SESSION: i32 = -11;

/// The length of a reply's header: the number of the request, the transaction id and the error.
const HEADER: usize = 16;

const SESSION_TIMEOUT_MS: i32 = 10_000;
const ANY_VERSION: i32 = -1;

/// Returns the ACL of a znode.
pub fn get(connect_string: &str, path: &str) -> Vec<Acl> {
    let reply = ask(connect_string, GET_ACL, &bytes(path.as_bytes()));
    let mut rest = &reply[..];
    (0..read_int(&mut rest))
        .map(|_| {
            let permissions = u8::try_from(read_int(&mut rest)).ok().and_then(Permissions::from_bits);
            let (scheme, id) = (read_text(&mut rest), read_text(&mut rest));
            Acl::new(permissions.expect("known permissions"), scheme, id)
        })
        .collect()
}

/// Replaces the ACL of a znode.
pub fn set(connect_string: &str, path: &str, acl: &[Acl]) {
    let entries = acl.iter().flat_map(|entry| {
        let permissions = int(entry.permissions.bits().into());
        [permissions, bytes(entry.scheme.as_bytes()), bytes(entry.id.as_bytes())].concat()
    });
    let mut body = [bytes(path.as_bytes()), int(length(acl))].concat();
    body.extend(entries);
    body.extend(int(ANY_VERSION));
    ask(connect_string, SET_ACL, &body);
}

/// Sends a request to the first server and returns the body of the reply.
fn ask(connect_string: &str, operation: i32, body: &[u8]) -> Vec<u8> {
    let server = connect_string.split(',').next().expect("there is a first server");
    let mut stream = TcpStream::connect(server).expect("the server listens");
    stream.set_read_timeout(Some(deadline())).expect("the socket is open");
    // The fields: the protocol version, the last transaction seen, the session timeout, no session, no
    // password, and the flag that only a server that accepts writes will do.
    let opening =
        [int(0), vec![0; 8], int(SESSION_TIMEOUT_MS), vec![0; 8], bytes(&[0; 16]), vec![0]].concat();
    exchange(&mut stream, &opening);
    let reply = exchange(&mut stream, &[&int(1), &int(operation), body].concat());
    let error = i32::from_be_bytes(reply[HEADER - 4..HEADER].try_into().expect("four bytes"));
    assert_eq!(error, 0, "the server refused request {operation}");
    exchange(&mut stream, &[int(2), int(CLOSE_SESSION)].concat());
    reply[HEADER..].to_vec()
}

/// Sends a frame and returns the next frame from the server.
fn exchange(stream: &mut TcpStream, frame: &[u8]) -> Vec<u8> {
    stream.write_all(&bytes(frame)).expect("the server reads");
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("the server answers");
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length)).expect("a length")];
    stream.read_exact(&mut answer).expect("the server answers");
    answer
}

fn int(value: i32) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

fn bytes(bytes: &[u8]) -> Vec<u8> {
    [&int(length(bytes)), bytes].concat()
}

fn length<T>(items: &[T]) -> i32 {
    i32::try_from(items.len()).expect("a short list")
}

fn read_int(rest: &mut &[u8]) -> i32 {
    let (value, after) = rest.split_first_chunk().expect("four bytes");
    *rest = after;
    i32::from_be_bytes(*value)
}

fn read_text(rest: &mut &[u8]) -> String {
    let length = usize::try_from(read_int(rest)).expect("a length");
    let (text, after) = rest.split_at(length);
    *rest = after;
    String::from_utf8(text.to_vec()).expect("ACLs are UTF-8")
}
