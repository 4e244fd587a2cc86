//! Checks that decoding allocates no more than a small multiple of the bytes that have arrived.
//!
//! This is a separate binary with one test, because the test counts the allocations of the whole process.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use zookeeper_connection::codec::{
    DEFAULT_MAX_FRAME, DecodeError, Frames, OpCode, ReplyHeader, Request, WatchEvent, decode_connect_answer,
};
use zookeeper_connection::{Chroot, DEFAULT_JUTE_MAX_BUFFER, Op, Reply};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The number of bytes that new vectors and the test harness allocate, whatever the frame.
const CONSTANT: usize = 8 << 10;

const FRAME: usize = 1 << 20;

/// Returns a frame of `start`, `count`, and as many copies of `item` as fit.
fn repeated(start: &[u8], count: Option<i32>, item: &[u8]) -> Vec<u8> {
    let mut frame = start.to_vec();
    frame.extend(count.map(i32::to_be_bytes).into_iter().flatten());
    while frame.len() + item.len() <= FRAME {
        frame.extend(item);
    }
    frame
}

/// Returns requests and replies with huge counts and lengths, and with as many of the smallest items as fit.
fn hostile_frames() -> Vec<Vec<u8>> {
    let fitting = i32::try_from((FRAME - 4) / 4).unwrap_or(i32::MAX);
    let mut frames = Vec::new();
    for count in [i32::MAX, i32::MIN, -1, fitting, fitting + 1, fitting / 2, fitting / 3] {
        // The count is at the start of a reply's body, after a request's header, or within `SetWatches`.
        for start in [0, 8, 16] {
            frames.push(repeated(&vec![0; start], Some(count), &[0; 4]));
            frames.push(repeated(&vec![0; start], Some(count), &[0, 0, 0, 1, b'/']));
        }
        frames.push(repeated(b"\0\0\0\x01\0\0\0\x65\0\0\0\0\0\0\0\x01", Some(count), &[0; 4]));
        frames.push(repeated(b"\0\0\0\x01\0\0\0\x0f\0\0\0\x02/a\0\0\0\0", Some(count), &[0; 12]));
    }
    // The results and the steps of a multi, with and without its end.
    let end = b"\xff\xff\xff\xff\x01\xff\xff\xff\xff";
    let result = b"\0\0\0\x02\0\0\0\0\0";
    let step = b"\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for mut multi in [
        repeated(&[], None, result),
        repeated(&[], None, result).split_off(FRAME / 2 / 9 * 9),
        repeated(b"\0\0\0\x01\0\0\0\x0e", None, step),
    ] {
        frames.push(multi.clone());
        multi.extend(end);
        frames.push(multi);
    }
    frames
}

/// A decoder: its name, the number of bytes that it may allocate for each byte of the frame, and a function that
/// decodes a frame and drops the result.
type Decoder = (String, usize, Box<dyn Fn(&[u8])>);

/// Returns the decoders for the bytes of servers and of clients.
fn decoders() -> Vec<Decoder> {
    let mut decoders: Vec<Decoder> = OpCode::ALL.into_iter().map(reply_decoder).collect();
    // A vector that grows is at most twice as long as its content.
    decoders.push(("stream".to_owned(), 4, Box::new(|stream| _ = read_stream(stream))));
    decoders.push(("handshake".to_owned(), 1, Box::new(|frame| _ = decode_connect_answer(frame))));
    decoders.push(("event".to_owned(), 0, Box::new(|frame| _ = WatchEvent::decode(frame))));
    decoders.push(("request".to_owned(), 16, Box::new(|frame| _ = Request::decode(frame))));
    decoders
}

fn reply_decoder(operation: OpCode) -> Decoder {
    let max_growth = match operation {
        // A result of nine bytes becomes an enum of a hundred bytes.
        OpCode::Multi => 16,
        // A name of four bytes becomes an end of eight bytes.
        _ => 8,
    };
    let steps = match operation {
        OpCode::Multi => {
            vec![Op::Delete { path: String::new(), version: None }; DEFAULT_JUTE_MAX_BUFFER / 17]
        }
        _ => Vec::new(),
    };
    let header = ReplyHeader { xid: 0, zxid: 0, error: 0 };
    let decode = move |frame: &[u8]| _ = Reply::decode(operation, &steps, &Chroot::default(), header, frame);
    (format!("reply to {operation:?}"), max_growth, Box::new(decode))
}

fn read_stream(stream: &[u8]) -> Result<usize, DecodeError> {
    let mut frames = Frames::new(DEFAULT_MAX_FRAME);
    let mut count = 0;
    for chunk in stream.chunks(1 << 10) {
        frames.push(chunk);
        while frames.next_frame()?.is_some() {
            count += 1;
        }
    }
    Ok(count)
}

#[test]
fn decoding_allocates_a_small_multiple_of_the_frame() {
    let frames = hostile_frames();
    for (name, max_growth, decode) in decoders() {
        for frame in frames.iter().flat_map(|frame| [&frame[..], &frame[..200], &frame[..4], &[]]) {
            let region = Region::new(ALLOCATOR);
            decode(frame);
            let allocated = region.change().bytes_allocated;
            let max = max_growth * frame.len() + CONSTANT;
            let start = &frame[..frame.len().min(40)];
            assert!(allocated <= max, "{name}: {allocated} bytes for {} of {start:02x?}", frame.len());
        }
    }
}
