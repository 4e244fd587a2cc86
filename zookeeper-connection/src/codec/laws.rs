//! Laws of the codec that hold for any bytes.
//!
//! Each function takes untrusted input, and panics if the codec violates a law. The tests call the functions with
//! generated input, and the targets in `fuzz/` call them with mutated input.

use super::reader::Reader;
use super::{
    ConnectRequest, DecodeError, Frames, OpCode, ReplyHeader, Request, WatchEvent, decode_connect_answer,
};
use crate::chroot::Chroot;
use crate::error::ZkResult;
use crate::{CreateMode, Op, Reply};

/// The maximum length of a frame in these checks.
const MAX_FRAME: usize = 1 << 12;

/// The prefixes of longer input are not checked, because the cost grows with the square of the length.
const MAX_CHECKED_PREFIX: usize = 512;

/// Checks that a stream has the same frames wherever it is split, and checks each frame with [`check_frame`].
///
/// The stream is split after byte `i` if bit `i % 64` of `cuts` is set.
pub fn check_stream(cuts: u64, stream: &[u8]) {
    let (frames, error) = read_frames([stream]);
    let mut chunks = Vec::new();
    let mut start = 0;
    for position in 0..stream.len() {
        if cuts >> (position % 64) & 1 == 1 {
            chunks.push(&stream[start..=position]);
            start = position + 1;
        }
    }
    chunks.push(&stream[start..]);
    assert_eq!(read_frames(chunks), (frames.clone(), error), "split by {cuts:#x}");

    let read: usize = frames.iter().map(|frame| frame.len() + 4).sum();
    assert!(read <= stream.len());
    if error.is_none() {
        assert!(stream.len() - read < 4 + MAX_FRAME, "a frame that has arrived is not returned");
    }
    for frame in &frames {
        check_frame(frame);
    }
}

fn read_frames<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, Option<DecodeError>) {
    let mut frames = Frames::new(MAX_FRAME);
    let mut read = Vec::new();
    for chunk in chunks {
        frames.push(chunk);
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => read.push(frame.to_vec()),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(frames.next_frame(), Err(error), "an error lasts");
                    return (read, Some(error));
                }
            }
        }
    }
    (read, None)
}

/// Checks that a frame that can be decoded stays the same when it is encoded and decoded again. Also checks that no
/// proper prefix of it can be decoded, except for the handshake, whose last byte is optional.
pub fn check_frame(frame: &[u8]) {
    check_handshake(frame);
    check_request(frame);
    check_event(frame);
    check_replies(frame);
    if let Ok((header, body)) = ReplyHeader::decode(frame) {
        assert_eq!(encoded(|copy| header.encode(copy)), frame[..frame.len() - body.len()]);
        check_event(body);
        check_replies(body);
    }
}

fn check_handshake(frame: &[u8]) {
    if let Ok(request) = ConnectRequest::decode(frame) {
        let copy = encoded(|copy| request.encode(copy));
        assert_eq!(ConnectRequest::decode(&copy), Ok(request));
    }
    if let Ok(answer) = decode_connect_answer(frame) {
        let copy = encoded(|copy| answer.encode(copy));
        assert_eq!(decode_connect_answer(&copy), Ok(answer));
    }
}

fn check_request(frame: &[u8]) {
    if let Ok((xid, request)) = Request::decode(frame) {
        let copy = encoded(|copy| request.encode(xid, copy));
        assert_eq!(copy.len(), frame.len());
        assert_eq!(Request::decode(&copy), Ok((xid, request)));
        check_prefixes(frame, |prefix| Request::decode(prefix).is_err());
    }
}

fn check_event(body: &[u8]) {
    if let Ok(event) = WatchEvent::decode(body) {
        let copy = encoded(|copy| event.encode(0, copy));
        let (_, copy) = copy.split_at(copy.len() - body.len());
        assert_eq!(WatchEvent::decode(copy), Ok(event));
        check_prefixes(body, |prefix| WatchEvent::decode(prefix).is_err());
    }
}

fn check_replies(body: &[u8]) {
    let steps = steps_of(body);
    for operation in OpCode::ALL {
        if let Ok(outcome) = decode_reply(operation, &steps, body) {
            if let Ok(reply) = outcome {
                let copy = encoded(|copy| reply.encode(0, 0, copy));
                let (header, copy) = copy.split_at(16);
                assert!(header.iter().all(|byte| *byte == 0));
                // Within a multi, some servers return more than the decoder keeps.
                assert!(copy.len() == body.len() || operation == OpCode::Multi);
                assert_eq!(decode_reply(operation, &steps, copy), Ok(Ok(reply)), "{operation:?}");
            }
            check_prefixes(body, |prefix| decode_reply(operation, &steps, prefix).is_err());
        }
    }
}

/// Decodes the body of a reply that reports no error.
fn decode_reply(operation: OpCode, steps: &[Op], body: &[u8]) -> Result<ZkResult<Reply>, DecodeError> {
    let header = ReplyHeader { xid: 0, zxid: 0, error: 0 };
    Reply::decode(operation, steps, &Chroot::default(), header, body)
}

/// Returns the steps of a multi with this reply, as far as the reply can be read.
fn steps_of(body: &[u8]) -> Vec<Op> {
    let mut reader = Reader::new(body);
    let mut steps = Vec::new();
    while let Ok(Some(step)) = read_step(&mut reader) {
        steps.push(step);
    }
    steps
}

fn read_step(reader: &mut Reader<'_>) -> Result<Option<Op>, DecodeError> {
    let (path, version) = (String::new(), None);
    let number = reader.i32()?;
    let (_is_end, _error) = (reader.bool()?, reader.i32()?);
    Ok(Some(match OpCode::from_number(number) {
        Some(operation @ (OpCode::Create | OpCode::Create2 | OpCode::CreateContainer)) => {
            reader.str()?;
            if operation != OpCode::Create {
                reader.stat()?;
            }
            Op::Create { path, data: Vec::new(), acl: Vec::new(), mode: CreateMode::Persistent }
        }
        Some(OpCode::SetData) => {
            reader.stat()?;
            Op::SetData { path, data: Vec::new(), version }
        }
        Some(OpCode::Check) => Op::Check { path, version },
        Some(OpCode::Delete) => delete(),
        _ => return Ok(None),
    }))
}

fn delete() -> Op {
    Op::Delete { path: String::new(), version: None }
}

/// Returns the contents of the only frame that `encode` appends.
fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    let length = u32::try_from(bytes.len() - 4).unwrap_or(u32::MAX);
    assert_eq!(bytes[..4], length.to_be_bytes());
    bytes.split_off(4)
}

fn check_prefixes(bytes: &[u8], fails: impl Fn(&[u8]) -> bool) {
    if bytes.len() <= MAX_CHECKED_PREFIX {
        for end in 0..bytes.len() {
            assert!(fails(&bytes[..end]), "{end} of {} bytes can be decoded", bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::generate;
    use super::*;
    use proptest::prelude::*;

    /// Generates frames of both sides, with a few bytes changed, added or removed.
    fn mutated_stream() -> impl Strategy<Value = Vec<u8>> {
        let frame = prop_oneof![generate::server_frame(), generate::client_frame()];
        let stream = prop::collection::vec(frame, 1..4).prop_map(|frames| frames.concat());
        let changes = prop::collection::vec((any::<prop::sample::Index>(), 0..3, any::<u8>()), 0..4);
        (stream, changes).prop_map(|(mut stream, changes)| {
            for (index, change, byte) in changes {
                match (change, stream.len()) {
                    (0, length) => stream.insert(index.index(length + 1), byte),
                    (_, 0) => {}
                    (1, length) => stream[index.index(length)] = byte,
                    (_, length) => drop(stream.remove(index.index(length))),
                }
            }
            stream
        })
    }

    proptest! {
        #[test]
        fn any_stream_has_the_same_frames_wherever_it_is_split(
            cuts in any::<u64>(),
            stream in prop_oneof![mutated_stream(), prop::collection::vec(any::<u8>(), 0..100)],
        ) {
            check_stream(cuts, &stream);
        }

        #[test]
        fn any_frame_that_can_be_decoded_survives_a_copy(
            stream in mutated_stream(),
            small in prop::collection::vec(0..4_u8, 0..100),
        ) {
            check_frame(stream.get(4..).unwrap_or_default());
            check_frame(&small);
        }
    }
}
