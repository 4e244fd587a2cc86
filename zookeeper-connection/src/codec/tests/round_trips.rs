//! Every frame decodes to what was encoded. No proper prefix of a frame can be decoded, except for the handshake, whose
//! last byte is optional.

use std::sync::Arc;

use proptest::prelude::*;

use super::{generate, split};
use crate::chroot::Chroot;
use crate::codec::{
    ConnectRequest, DecodeError, Frames, OpCode, ReplyHeader, Request, WatchEvent, XID_EVENT,
    decode_connect_answer,
};
use crate::{Call, CreateMode, MaxBuffer, Op, Reply};

/// Returns the contents of the only frame that `encode` appends.
fn contents(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut stream = Vec::new();
    encode(&mut stream);
    let mut frames = split(&stream);
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

fn prefixes(frame: &[u8]) -> impl Iterator<Item = &[u8]> {
    (0..frame.len()).map(|end| &frame[..end])
}

/// Returns the frames of a stream that arrives in these chunks.
fn arrivals<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let mut frames = Frames::new(1 << 20);
    let mut arrived = Vec::new();
    for chunk in chunks {
        frames.push(chunk);
        while let Some(frame) = frames.next_frame().unwrap() {
            arrived.push(frame.to_vec());
        }
    }
    arrived
}

/// Returns a copy of a call whose paths begin at the root of the servers.
fn in_chroot(call: &Call, chroot: &str) -> Call {
    let full = |path: &str| match path {
        "/" if !chroot.is_empty() => chroot.to_owned(),
        path => format!("{chroot}{path}"),
    };
    // The path of a sequential znode keeps its last slash.
    let created = |path: &str, mode: CreateMode| match mode.is_sequential() {
        true => format!("{chroot}{path}"),
        false => full(path),
    };
    let mut call = call.clone();
    match &mut call {
        Call::Multi(steps) => {
            for step in Arc::make_mut(steps) {
                match step {
                    Op::Create { path, mode, .. } => *path = created(path, *mode),
                    Op::Delete { path, .. } | Op::SetData { path, .. } | Op::Check { path, .. } => {
                        *path = full(path);
                    }
                }
            }
        }
        Call::Create { path, mode, .. } => *path = created(path, *mode).into(),
        Call::CreateAndList { dir: path, .. }
        | Call::Delete { path, .. }
        | Call::Exists { path, .. }
        | Call::GetData { path, .. }
        | Call::GetChildren { path, .. }
        | Call::SetData { path, .. } => *path = full(path).into(),
    }
    call
}

proptest! {
    #[test]
    fn requests_decode_to_themselves_and_no_prefix_decodes(
        xid in any::<i32>(),
        request in generate::request(),
    ) {
        let frame = contents(|frame| request.encode(xid, frame));
        prop_assert!(Request::decode(&frame) == Ok((xid, request)), "{:02x?}", frame);
        for prefix in prefixes(&frame) {
            prop_assert!(Request::decode(prefix).is_err(), "{:02x?}", prefix);
        }
    }

    #[test]
    fn requests_are_no_longer_than_their_bound(request in generate::request()) {
        // The xid, the number of the operation, and the end of a multi.
        const HEADERS: usize = 4 + 4 + 9;
        if let Request::Call(call) = &request {
            let (length, bound) = (contents(|frame| request.encode(1, frame)).len(), MaxBuffer::new(0).bytes(call));
            prop_assert!(length <= bound + HEADERS, "{} bytes, bound {}", length, bound);
        }
    }

    #[test]
    fn requests_are_appended_to_those_before(requests in prop::collection::vec(generate::request(), 0..5)) {
        let mut stream = Vec::new();
        for (request, xid) in requests.iter().zip(1..) {
            request.encode(xid, &mut stream);
        }
        let frames = split(&stream);
        let decoded: Result<Vec<_>, _> = frames.iter().map(|frame| Request::decode(frame)).collect();
        prop_assert!(decoded == Ok((1..).zip(requests).collect()), "{:02x?}", stream);
    }

    /// A call with a chroot is encoded like a call whose paths contain the chroot.
    #[test]
    fn chroot_is_put_before_every_path(call in generate::call(), path in "(/[a-z]{1,3}){0,2}") {
        let chroot = Chroot::new(&path);
        let frame = contents(|frame| call.encode(OpCode::of_call(&call), &chroot, 1, frame));
        prop_assert!(Request::decode(&frame) == Ok((1, Request::Call(in_chroot(&call, &path)))), "{:02x?}", frame);
    }

    #[test]
    fn replies_decode_to_themselves_and_no_prefix_decodes(
        xid in any::<i32>(),
        zxid in any::<i64>(),
        (operation, steps, reply) in generate::reply(),
    ) {
        let frame = contents(|frame| reply.encode(xid, zxid, frame));
        let (header, body) = ReplyHeader::decode(&frame).unwrap();
        prop_assert_eq!(header, ReplyHeader { xid, zxid, error: 0 });
        let decode = |body| Reply::decode(operation, &steps, &Chroot::default(), header, body);
        prop_assert_eq!(decode(body), Ok(Ok(reply)));
        for prefix in prefixes(body) {
            prop_assert!(decode(prefix).is_err(), "{:02x?}", prefix);
        }
        for prefix in prefixes(&frame[..16]) {
            prop_assert_eq!(ReplyHeader::decode(prefix), Err(DecodeError::Truncated));
        }
    }

    #[test]
    fn events_decode_to_themselves_and_no_prefix_decodes(
        zxid in any::<i64>(),
        (kind, path) in generate::event(),
    ) {
        let event = WatchEvent { kind, path: &path };
        let frame = contents(|frame| event.encode(zxid, frame));
        let (header, body) = ReplyHeader::decode(&frame).unwrap();
        prop_assert_eq!(header, ReplyHeader { xid: XID_EVENT, zxid, error: 0 });
        prop_assert_eq!(WatchEvent::decode(body), Ok(event));
        for prefix in prefixes(body) {
            prop_assert!(WatchEvent::decode(prefix).is_err(), "{:02x?}", prefix);
        }
    }

    #[test]
    fn connect_requests_decode_to_themselves(request in generate::connect_request()) {
        let frame = contents(|frame| request.encode(frame));
        prop_assert_eq!(ConnectRequest::decode(&frame), Ok(request));
        // The last byte is optional.
        for prefix in prefixes(&frame[..frame.len() - 1]) {
            prop_assert!(ConnectRequest::decode(prefix).is_err(), "{:02x?}", prefix);
        }
    }

    #[test]
    fn connect_answers_decode_to_themselves(answer in generate::connect_answer()) {
        let frame = contents(|frame| answer.encode(frame));
        prop_assert_eq!(decode_connect_answer(&frame), Ok(answer));
        // The last byte of a response is optional. A frame of 16 bytes is a reply header.
        for prefix in prefixes(&frame[..frame.len() - 1]).filter(|prefix| prefix.len() != 16) {
            prop_assert!(decode_connect_answer(prefix).is_err(), "{:02x?}", prefix);
        }
    }

    #[test]
    fn frames_arrive_split_at_every_byte(stream in prop::collection::vec(generate::server_frame(), 0..4)) {
        let stream = stream.concat();
        let expected = split(&stream);
        for position in 0..=stream.len() {
            let (start, end) = stream.split_at(position);
            prop_assert_eq!(&arrivals([start, end]), &expected, "split at {}", position);
        }
        prop_assert_eq!(&arrivals(stream.chunks(1)), &expected);
    }

    #[test]
    fn a_frame_is_returned_with_its_last_byte(frame in generate::server_frame()) {
        let mut frames = Frames::new(1 << 20);
        for (byte, position) in frame.iter().zip(1..) {
            frames.push(&[*byte]);
            let arrived = frames.next_frame().unwrap();
            prop_assert_eq!(arrived, (position == frame.len()).then_some(&frame[4..]));
        }
    }
}
