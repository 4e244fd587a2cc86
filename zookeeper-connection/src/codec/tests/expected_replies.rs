//! The frames of a server, written by hand.

use super::{bytes, framed};
use crate::Names;
use crate::chroot::Chroot;
use crate::codec::{
    ConnectAnswer, ConnectResponse, DecodeError, EventKind, OpCode, Password, ReplyHeader, WatchEvent,
    XID_EVENT, decode_connect_answer,
};
use crate::error::{ZkError, ZkResult};
use crate::{CreateMode, Op, OpOutcome, Reply, Stat, Transacted};

/// The bytes of [`stat`], which has a different number in each field.
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

/// Decodes the body of a reply that reports no error.
fn decode(operation: OpCode, steps: &[Op], body: &[u8]) -> Result<ZkResult<Reply>, DecodeError> {
    let header = ReplyHeader { xid: 5, zxid: 9, error: 0 };
    Reply::decode(operation, steps, &Chroot::default(), header, body)
}

#[track_caller]
fn assert_reply(operation: OpCode, reply: Reply, body: &str) {
    assert_eq!(decode(operation, &[], &bytes(body)).as_ref(), Ok(&Ok(reply.clone())), "{operation:?}");
    assert_encoded(&reply, body);
}

#[track_caller]
fn assert_encoded(reply: &Reply, body: &str) {
    let mut frame = Vec::new();
    reply.encode(5, 0x1_0000_0009, &mut frame);
    assert_eq!(frame, framed(&format!("00000005 0000000100000009 00000000 {body}")), "{reply:?}");
}

#[track_caller]
fn assert_malformed(operation: OpCode, body: &str, error: DecodeError) {
    assert_eq!(decode(operation, &[], &bytes(body)), Err(error), "{operation:?} {body}");
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

/// ClickHouse Keeper answers like this while it has no leader: with version 42 and the session -1.
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
        let created = Reply::Created { path: "/l/x-0000000007".to_owned(), stat: Some(stat()) };
        assert_reply(operation, created, &format!("0000000f '/l/x-0000000007' {STAT}"));
    }
    assert_reply(OpCode::Exists, Reply::Found(Some(stat())), STAT);
    assert_reply(OpCode::SetData, Reply::Stat(stat()), STAT);
    let data = Reply::Data(b"me".to_vec(), stat());
    assert_reply(OpCode::GetData, data, &format!("00000002 'me' {STAT}"));
    let created = Reply::Created { path: "/a".to_owned(), stat: None };
    assert_reply(OpCode::Create, created, "00000002 '/a'");
}

#[test]
fn error_in_the_header_is_the_outcome_except_for_exists_of_a_missing_znode() {
    let decode = |operation, error| {
        let header = ReplyHeader { xid: 5, zxid: 9, error };
        Reply::decode(operation, &[], &Chroot::default(), header, b"garbage").unwrap()
    };
    assert_eq!(decode(OpCode::Exists, -101), Ok(Reply::Found(None)));
    assert_eq!(decode(OpCode::GetData, -101), Err(ZkError::NoNode));
    assert_eq!(decode(OpCode::Exists, -102), Err(ZkError::NoAuth));
    let mut missing = Vec::new();
    Reply::Found(None).encode(5, 9, &mut missing);
    assert_eq!(missing, framed("00000005 0000000000000009 ffffff9b"));
}

#[test]
fn chroot_is_removed_from_the_paths_of_replies_and_a_path_outside_cannot_be_read() {
    let chroot = Chroot::new("/zoo");
    let header = ReplyHeader { xid: 5, zxid: 9, error: 0 };
    let step = Op::Create { path: "/a".to_owned(), data: vec![], acl: vec![], mode: CreateMode::Persistent };
    for (path, inside) in [("'/zoo/aa'", Ok("/aa")), ("'/zoobaa'", Err(ZkError::MarshallingError))] {
        let created =
            Reply::decode(OpCode::Create2, &[], &chroot, header, &bytes(&format!("00000007 {path} {STAT}")));
        let expected = inside.map(|path| Reply::Created { path: path.to_owned(), stat: Some(stat()) });
        assert_eq!(created, Ok(expected));
        let body = bytes(&format!("00000001 00 00000000 00000007 {path} ffffffff 01 ffffffff"));
        let created = Reply::decode(OpCode::Multi, std::slice::from_ref(&step), &chroot, header, &body);
        let outcome = |path: &str| OpOutcome::Created(path.to_owned());
        assert_eq!(created, Ok(inside.map(|path| Reply::Multi(Transacted::Committed(vec![outcome(path)])))));
    }
}

#[test]
fn stat_has_68_bytes() {
    assert_eq!(bytes(STAT).len(), 68);
    let longer = format!("{STAT} 00");
    assert_malformed(OpCode::Exists, &longer, DecodeError::TrailingBytes);
}

#[test]
fn null_data_and_null_lists_are_empty() {
    let data = decode(OpCode::GetData, &[], &bytes(&format!("ffffffff {STAT}")));
    assert_eq!(data, Ok(Ok(Reply::Data(Vec::new(), stat()))));
    let names = decode(OpCode::GetChildren, &[], &bytes("ffffffff"));
    assert_eq!(names, Ok(Ok(Reply::Children(Names::default()))));
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
        assert_reply(operation, Reply::Done, "");
        assert_malformed(operation, "00", DecodeError::TrailingBytes);
    }
}

fn create(mode: CreateMode) -> Op {
    Op::Create { path: "/b".to_owned(), data: Vec::new(), acl: Vec::new(), mode }
}

fn set_data() -> Op {
    Op::SetData { path: "/c".to_owned(), data: Vec::new(), version: None }
}

fn delete() -> Op {
    Op::Delete { path: String::new(), version: None }
}

fn check() -> Op {
    Op::Check { path: "/e".to_owned(), version: None }
}

fn committed(outcomes: Vec<OpOutcome>) -> Reply {
    Reply::Multi(Transacted::Committed(outcomes))
}

const END: &str = "ffffffff 01 ffffffff";

#[test]
fn multi_that_succeeded() {
    let steps =
        [create(CreateMode::Persistent), set_data(), delete(), create(CreateMode::Container), check()];
    let reply = committed(vec![
        OpOutcome::Created("/b".to_owned()),
        OpOutcome::DataSet(stat()),
        OpOutcome::Deleted,
        OpOutcome::Created("/d".to_owned()),
        OpOutcome::Checked,
    ]);
    let rest = format!("0000000d 00 00000000 {END}");
    let body = format!(
        "00000001 00 00000000  00000002 '/b'
        00000005 00 00000000  {STAT}
        00000002 00 00000000
        00000001 00 00000000  00000002 '/d' {rest}"
    );
    assert_eq!(decode(OpCode::Multi, &steps, &bytes(&body)), Ok(Ok(reply.clone())));
    assert_encoded(&reply, &body);
    // Some servers also send the metadata of a create, and some use another number for a check.
    for (number, check) in [("0000000f", "0000000d"), ("00000013", "00000002")] {
        let body = format!(
            "{number} 00 00000000  00000002 '/b' {STAT}
            00000005 00 00000000  {STAT}
            00000002 00 00000000
            {number} 00 00000000  00000002 '/d' {STAT}
            {check} 00 00000000 {END}"
        );
        assert_eq!(decode(OpCode::Multi, &steps, &bytes(&body)), Ok(Ok(reply.clone())));
    }
    assert_reply(OpCode::Multi, committed(Vec::new()), END);
}

#[test]
fn multi_that_failed_has_an_error_for_each_step() {
    let steps = [delete(), create(CreateMode::Persistent), check()];
    let failed = Reply::Multi(Transacted::Failed { position: 1, error: ZkError::NodeExists });
    let until_then = "ffffffff 00 00000000  00000000
        ffffffff 00 ffffff92  ffffff92";
    let body = format!("{until_then} ffffffff 00 fffffffe  fffffffe {END}");
    assert_eq!(decode(OpCode::Multi, &steps, &bytes(&body)), Ok(Ok(failed.clone())));
    assert_encoded(&failed, &format!("{until_then} {END}"));
}

#[test]
fn multi_that_fails_with_its_session_has_no_failed_step() {
    for error in [ZkError::SessionExpired, ZkError::SessionMoved, ZkError::ConnectionLoss] {
        let code = error.code();
        let body = format!("ffffffff 00 {code:08x} {code:08x} {END}");
        assert_eq!(decode(OpCode::Multi, &[delete()], &bytes(&body)), Ok(Err(error)));
    }
}

#[test]
fn multi_whose_results_do_not_fit_its_steps_cannot_be_read() {
    let deleted = "00000002 00 00000000";
    let set = format!("00000005 00 00000000 {STAT}");
    let created = "00000001 00 00000000 00000002 '/b'";
    for (steps, results) in [
        (vec![delete(), delete()], deleted),
        (vec![], deleted),
        (vec![create(CreateMode::Persistent)], deleted),
        (vec![set_data()], deleted),
        (vec![delete()], created),
        (vec![check()], &set),
    ] {
        let outcome = decode(OpCode::Multi, &steps, &bytes(&format!("{results} {END}")));
        assert_eq!(outcome, Ok(Err(ZkError::MarshallingError)), "{results} for {steps:?}");
    }
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
fn multi_may_have_as_many_results_as_steps_and_no_more() {
    let decode = |steps, results| {
        let body = [bytes("00000002 00 00000000").repeat(results), bytes(END)].concat();
        decode(OpCode::Multi, &vec![delete(); steps], &body)
    };
    // As many deletions fit into a request if `jute.maxbuffer` is raised to 4 MiB.
    let many = 200_000;
    assert_eq!(decode(many, many), Ok(Ok(committed(vec![OpOutcome::Deleted; many]))));
    assert_eq!(decode(2, many), Ok(Err(ZkError::MarshallingError)));
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
