//! The frames of a server, written by hand.

use super::{bytes, framed};
use crate::client::Stat;
use crate::connection::codec::{
    ConnectAnswer, ConnectResponse, DecodeError, EventKind, MAX_REQUEST, OpCode, Password, Reply,
    ReplyHeader, Request, WatchEvent, XID_EVENT, decode_connect_answer,
};
use crate::error::ZkError;
use crate::recipe::names::Names;

/// A `Stat` with a different number in each field.
const STAT: &str = "
    0000000100000001 0000000100000002 0000000100000003 0000000100000004
    00000005 00000006 00000007 8000000000000008 00000009 0000000a 000000010000000b";

fn stat() -> Stat {
    Stat {
        czxid: 0x1_0000_0001,
        mzxid: 0x1_0000_0002,
        ctime: 0x1_0000_0003,
        mtime: 0x1_0000_0004,
        version: 5,
        cversion: 6,
        aversion: 7,
        ephemeral_owner: i64::MIN + 8,
        data_length: 9,
        num_children: 10,
        pzxid: 0x1_0000_000b,
    }
}

#[track_caller]
fn assert_reply(operation: OpCode, reply: Reply, body: &str) {
    assert_eq!(Reply::decode(operation, &bytes(body)).as_ref(), Ok(&reply), "{operation:?}");
    let mut frame = Vec::new();
    reply.encode(5, 0x1_0000_0009, &mut frame);
    assert_eq!(frame, framed(&format!("00000005 0000000100000009 00000000 {body}")), "{operation:?}");
}

#[track_caller]
fn assert_malformed(operation: OpCode, body: &str, error: DecodeError) {
    assert_eq!(Reply::decode(operation, &bytes(body)), Err(error), "{operation:?} {body}");
}

const ACCEPTED: &str = "00000000 00000fa0 8000000000000001 00000010 '0123456789abcdef'";

fn accepted(read_only: bool) -> ConnectAnswer {
    ConnectAnswer::Accepted(ConnectResponse {
        timeout_ms: 4000,
        session_id: i64::MIN + 1,
        password: Password::new(*b"0123456789abcdef"),
        read_only,
    })
}

#[test]
fn connect_answer_of_37_bytes_ends_with_whether_the_server_is_read_only() {
    for (last, read_only) in [("00", false), ("01", true), ("02", true)] {
        let frame = bytes(&format!("{ACCEPTED} {last}"));
        assert_eq!(frame.len(), 37);
        assert_eq!(decode_connect_answer(&frame), Ok(accepted(read_only)));
    }
}

#[test]
fn connect_answer_of_36_bytes_is_of_a_server_that_is_not_read_only() {
    let frame = bytes(ACCEPTED);
    assert_eq!(frame.len(), 36);
    assert_eq!(decode_connect_answer(&frame), Ok(accepted(false)));
}

#[test]
fn connect_answer_of_36_bytes_with_a_password_of_zeros_is_of_clickhouse_keeper() {
    let keeper = "00000000 00002710 0000000000000001 00000010 00000000000000000000000000000000";
    assert_eq!(decode_connect_answer(&bytes(keeper)), Ok(ConnectAnswer::ClickHouseKeeper));
    let zookeeper = decode_connect_answer(&bytes(&format!("{keeper} 00")));
    assert!(matches!(zookeeper, Ok(ConnectAnswer::Accepted(_))), "{zookeeper:?}");
}

/// So answers ClickHouse Keeper without a leader: with version 42 and the session -1.
#[test]
fn connect_answer_of_another_version_is_malformed() {
    let electing = "0000002a 00002710 ffffffffffffffff 00000010 00000000000000000000000000000000";
    assert_eq!(decode_connect_answer(&bytes(electing)), Err(DecodeError::UnknownValue(42)));
}

#[test]
fn connect_answer_without_a_timeout_is_a_refusal() {
    let refused = "00000000 00000000 0000000000000000 00000010 00000000000000000000000000000000";
    assert_eq!(decode_connect_answer(&bytes(refused)), Ok(ConnectAnswer::Refused));
    assert_eq!(decode_connect_answer(&bytes(&format!("{refused} 00"))), Ok(ConnectAnswer::Refused));
    assert_eq!(decode_connect_answer(&[0; 37]), Err(DecodeError::TrailingBytes));
}

#[test]
fn connect_answer_of_16_bytes_is_a_reply_header() {
    let read_only = bytes("00000000 0000000000000000 ffffff89");
    assert_eq!(read_only.len(), 16);
    assert_eq!(decode_connect_answer(&read_only), Ok(ConnectAnswer::ReadOnlyServer));
    let other = bytes("00000000 0000000000000000 ffffff84");
    assert_eq!(decode_connect_answer(&other), Err(DecodeError::ConnectError(-124)));
}

#[test]
fn password_may_have_256_bytes() {
    let frame = format!("00000000 00000fa0 0000000000000001 00000100 {} 00", "ab".repeat(256));
    let Ok(ConnectAnswer::Accepted(response)) = decode_connect_answer(&bytes(&frame)) else {
        panic!("not accepted");
    };
    assert_eq!(response.password, Password::new([0xab; 256]));
    assert_eq!(response.password.as_bytes().len(), 256);
}

#[test]
fn malformed_connect_answer_is_an_error() {
    let long_password = format!("00000000 00000fa0 0000000000000001 00000101 {}", "00".repeat(257));
    let cases = [
        ("", DecodeError::Truncated),
        ("00000000 00000fa0 0000000000000001", DecodeError::ConnectError(1)),
        ("00000000 00000fa0 0000000000000001 00000010 00", DecodeError::Truncated),
        ("00000000 00000fa0 0000000000000001 fffffffe", DecodeError::NegativeLength),
        ("00000000 00000fa0 0000000000000001 ffffffff 00 00", DecodeError::TrailingBytes),
        ("00000000 ffffffff 0000000000000001 ffffffff 00", DecodeError::UnknownValue(-1)),
        (&long_password, DecodeError::TooLong),
    ];
    for (frame, error) in cases {
        assert_eq!(decode_connect_answer(&bytes(frame)), Err(error), "{frame}");
    }
}

#[test]
fn reply_header_has_16_bytes_and_the_body_follows() {
    let frame = bytes("00000003 0000000100000002 ffffff9b 0a0b");
    let header = ReplyHeader { xid: 3, zxid: 0x1_0000_0002, error: -101 };
    assert_eq!(ReplyHeader::decode(&frame), Ok((header, &[10, 11][..])));
    let mut error = Vec::new();
    header.encode(&mut error);
    assert_eq!(error, framed("00000003 0000000100000002 ffffff9b"));
}

#[test]
fn replies_about_one_znode() {
    for operation in [OpCode::Create2, OpCode::CreateContainer] {
        let created = Reply::Created { path: "/l/x-0000000007".to_owned(), stat: stat() };
        assert_reply(operation, created, &format!("0000000f '/l/x-0000000007' {STAT}"));
    }
    for operation in [OpCode::Exists, OpCode::SetData] {
        assert_reply(operation, Reply::Stat(stat()), STAT);
    }
    let data = Reply::Data { data: b"me".to_vec(), stat: stat() };
    assert_reply(OpCode::GetData, data, &format!("00000002 'me' {STAT}"));
    assert_reply(OpCode::Create, Reply::Path("/a".to_owned()), "00000002 '/a'");
}

#[test]
fn stat_has_68_bytes() {
    assert_eq!(bytes(STAT).len(), 68);
    let longer = format!("{STAT} 00");
    assert_malformed(OpCode::Exists, &longer, DecodeError::TrailingBytes);
}

#[test]
fn null_data_and_null_lists_are_empty() {
    let data = Reply::decode(OpCode::GetData, &bytes(&format!("ffffffff {STAT}")));
    assert_eq!(data, Ok(Reply::Data { data: Vec::new(), stat: stat() }));
    assert_eq!(Reply::decode(OpCode::GetChildren, &bytes("ffffffff")), Ok(Reply::Children(Names::default())));
}

#[test]
fn lists_of_names() {
    let names = Names::from_iter(["x-0000000001", "é"]);
    let body = "00000002 0000000c 'x-0000000001' 00000002 'é'";
    assert_reply(OpCode::GetChildren, Reply::Children(names), body);
    assert_reply(OpCode::GetChildren, Reply::Children(Names::default()), "00000000");
}

#[test]
fn list_is_an_error_unless_its_count_fits_its_length() {
    assert_malformed(OpCode::GetChildren, "7fffffff", DecodeError::Truncated);
    assert_malformed(OpCode::GetChildren, "00000002 00000000 000000", DecodeError::Truncated);
    assert_malformed(OpCode::GetChildren, "fffffffe", DecodeError::NegativeLength);
    assert_malformed(OpCode::GetChildren, "00000001 7fffffff '/'", DecodeError::Truncated);
    assert_malformed(OpCode::GetChildren, "00000001 00000000 00", DecodeError::TrailingBytes);
    assert_malformed(OpCode::GetChildren, "00000001 00000001 c3", DecodeError::NotUtf8);
}

#[test]
fn empty_replies_have_no_body() {
    let operations = [
        OpCode::Delete,
        OpCode::Check,
        OpCode::RemoveWatches,
        OpCode::Ping,
        OpCode::Auth,
        OpCode::SetWatches,
        OpCode::Close,
    ];
    for operation in operations {
        assert_reply(operation, Reply::Empty, "");
        assert_malformed(operation, "00", DecodeError::TrailingBytes);
    }
}

#[test]
fn multi_that_succeeded() {
    let results = vec![
        Ok(Reply::Created { path: "/b".to_owned(), stat: stat() }),
        Ok(Reply::Stat(stat())),
        Ok(Reply::Empty),
        Ok(Reply::Path("/d".to_owned())),
    ];
    let body = format!(
        "0000000f 00 00000000  00000002 '/b' {STAT}
        00000005 00 00000000  {STAT}
        00000002 00 00000000
        00000001 00 00000000  00000002 '/d'
        ffffffff 01 ffffffff"
    );
    let reply = Reply::Multi(results);
    assert_eq!(reply.multi_failure(), None);
    assert_reply(OpCode::Multi, reply, &body);
    assert_reply(OpCode::Multi, Reply::Multi(Vec::new()), "ffffffff 01 ffffffff");
    let check = bytes("0000000d 00 00000000 ffffffff 01 ffffffff");
    assert_eq!(Reply::decode(OpCode::Multi, &check), Ok(Reply::Multi(vec![Ok(Reply::Empty)])));
}

#[test]
fn multi_that_failed_has_an_error_for_each_step() {
    let reply = Reply::Multi(vec![Err(ZkError::Other(0)), Err(ZkError::NodeExists), Err(ZkError::Other(-2))]);
    assert_eq!(reply.multi_failure(), Some((1, ZkError::NodeExists)));
    assert_reply(
        OpCode::Multi,
        reply,
        "ffffffff 00 00000000  00000000
        ffffffff 00 ffffff92  ffffff92
        ffffffff 00 fffffffe  fffffffe
        ffffffff 01 ffffffff",
    );
}

#[test]
fn malformed_multi_is_an_error() {
    assert_malformed(OpCode::Multi, "", DecodeError::Truncated);
    assert_malformed(OpCode::Multi, "00000002 00 00000000", DecodeError::Truncated);
    assert_malformed(OpCode::Multi, "00000008 00 00000000", DecodeError::UnknownOperation(8));
    assert_malformed(OpCode::Multi, "0000000e 00 00000000", DecodeError::UnknownOperation(14));
    assert_malformed(OpCode::Multi, "ffffffff 01 ffffffff 00", DecodeError::TrailingBytes);
}

#[test]
fn multi_has_no_more_results_than_a_request_has_steps() {
    let step = Request::Delete { path: "".into(), version: -1 };
    let mut one = Vec::new();
    Request::Multi(vec![step.clone()]).encode(1, &mut one);
    let mut two = Vec::new();
    Request::Multi(vec![step.clone(), step]).encode(1, &mut two);
    let max = MAX_REQUEST / (two.len() - one.len());

    let decode = |count| {
        let body = [bytes("00000002 00 00000000").repeat(count), bytes("ffffffff 01 ffffffff")].concat();
        Reply::decode(OpCode::Multi, &body)
    };
    assert_eq!(decode(max), Ok(Reply::Multi(vec![Ok(Reply::Empty); max])));
    assert_eq!(decode(max + 1), Err(DecodeError::TooLong));
}

#[test]
fn only_a_multi_has_a_failure() {
    assert_eq!(Reply::Empty.multi_failure(), None);
}

#[test]
fn events_have_the_path_of_their_znode() {
    let kinds = [
        ("00000001", EventKind::Created),
        ("00000002", EventKind::Deleted),
        ("00000003", EventKind::DataChanged),
        ("00000004", EventKind::ChildrenChanged),
        ("ffffffff", EventKind::Other(-1)),
    ];
    for (number, kind) in kinds {
        let mut frame = Vec::new();
        let event = WatchEvent { kind, path: "/l/x" };
        event.encode(-1, &mut frame);
        let contents = format!("ffffffff ffffffffffffffff 00000000 {number} 00000003 00000004 '/l/x'");
        assert_eq!(frame, framed(&contents));
        let (header, body) = ReplyHeader::decode(&frame[4..]).unwrap();
        assert_eq!(header, ReplyHeader { xid: XID_EVENT, zxid: -1, error: 0 });
        assert_eq!(WatchEvent::decode(body), Ok(event));
    }
    assert_eq!(WatchEvent::decode(&bytes("00000001 00000003")), Err(DecodeError::Truncated));
    let longer = bytes("00000001 00000003 00000001 '/' 00");
    assert_eq!(WatchEvent::decode(&longer), Err(DecodeError::TrailingBytes));
}
