//! The frames of a client, written by hand.

use std::borrow::Cow;

use super::{bytes, framed};
use crate::chroot::Chroot;
use crate::codec::{
    ConnectRequest, Control, DecodeError, OpCode, Password, Request, XID_AUTH, XID_PING, XID_SET_WATCHES,
};
use crate::{Acl, Call, CreateMode, Op, Permissions};

#[track_caller]
fn assert_call(xid: i32, call: Call, contents: &str) {
    assert_request(xid, Request::Call(call), contents);
}

#[track_caller]
fn assert_request(xid: i32, request: Request<'_>, contents: &str) {
    let mut frame = Vec::new();
    request.encode(xid, &mut frame);
    assert_eq!(frame, framed(contents), "{request:?}");
    assert_eq!(Request::decode(&frame[4..]), Ok((xid, request)));
}

fn create(mode: CreateMode) -> Call {
    let acl = [
        Acl::new(Permissions::ALL, "world", "anyone"),
        Acl::new(Permissions::READ | Permissions::DELETE, "ip", "::1"),
    ];
    Call::create("/l/x-", *b"me", acl, mode).call
}

#[test]
fn connect_request_for_a_new_session_has_45_bytes() {
    let request = ConnectRequest {
        last_zxid: 0,
        timeout_ms: 30_000,
        session_id: 0,
        password: Password::default(),
        read_only: false,
    };
    let mut frame = Vec::new();
    request.encode(&mut frame);
    let contents = "00000000 0000000000000000 00007530 0000000000000000
        00000010 00000000000000000000000000000000 00";
    assert_eq!(frame, framed(contents));
    assert_eq!(frame.len(), 4 + 45);
    assert_eq!(frame[..4], bytes("0000002d"));
}

#[test]
fn connect_request_for_an_earlier_session_has_its_id_and_password() {
    let request = ConnectRequest {
        last_zxid: 0x1_0000_0002,
        timeout_ms: 4000,
        session_id: -2,
        password: Password::new(*b"0123456789abcdef"),
        read_only: true,
    };
    let mut frame = Vec::new();
    request.encode(&mut frame);
    let contents = "00000000 0000000100000002 00000fa0 fffffffffffffffe 00000010 '0123456789abcdef' 01";
    assert_eq!(frame, framed(contents));
    assert_eq!(ConnectRequest::decode(&frame[4..]), Ok(request));
}

#[test]
fn connect_request_without_the_last_byte_is_not_read_only() {
    let contents = bytes(
        "00000000 0000000000000000 00007530 0000000000000000 00000010 00000000000000000000000000000000",
    );
    assert!(!ConnectRequest::decode(&contents).unwrap().read_only);
}

#[test]
fn password_and_credentials_are_not_printed() {
    let password = Password::new(*b"secret");
    let auth = Control::Auth { scheme: "digest".into(), auth: Cow::Borrowed(b"secret") };
    let auth = Request::Control(auth);
    for printed in [format!("{password:?}"), format!("{auth:?}")] {
        assert!(!printed.contains("115") && !printed.contains("secret"), "{printed}");
    }
}

#[test]
fn create_is_create2_with_the_flags_of_its_mode() {
    let modes = [
        (CreateMode::Persistent, "0000000f", "00000000"),
        (CreateMode::Ephemeral, "0000000f", "00000001"),
        (CreateMode::PersistentSequential, "0000000f", "00000002"),
        (CreateMode::EphemeralSequential, "0000000f", "00000003"),
        (CreateMode::Container, "00000013", "00000004"),
    ];
    for (mode, operation, flags) in modes {
        let contents = format!(
            "00000007 {operation} 00000005 '/l/x-' 00000002 'me'
            00000002 0000001f 00000005 'world' 00000006 'anyone' 00000009 00000002 'ip' 00000003 '::1'
            {flags}"
        );
        assert_call(7, create(mode), &contents);
    }
}

#[test]
fn requests_for_one_znode() {
    let path = "/é";
    let on = "00000003 '/é'";
    assert_call(1, Call::delete(path, None).call, &format!("00000001 00000002 {on} ffffffff"));
    assert_call(2, Call::exists(path, true).call, &format!("00000002 00000003 {on} 01"));
    assert_call(3, Call::get_data(path, false).call, &format!("00000003 00000004 {on} 00"));
    let set_data = Call::set_data(path, [0xff], Some(9)).call;
    assert_call(4, set_data, &format!("00000004 00000005 {on} 00000001 ff 00000009"));
    assert_call(5, Call::get_children(path, true).call, &format!("00000005 00000008 {on} 01"));
    let removal = Request::Control(Control::RemoveWatches { path: path.into() });
    assert_request(i32::MAX, removal, &format!("7fffffff 00000012 {on} 00000003"));
}

/// The listing is a separate request.
#[test]
fn create_and_list_begins_with_the_create() {
    for (chroot, contents) in [
        ("", "00000007 0000000f 00000005 '/l/x-' 00000002 'me' 00000000 00000003"),
        ("/zoo", "00000007 0000000f 00000009 '/zoo/l/x-' 00000002 'me' 00000000 00000003"),
    ] {
        let call = Call::create_and_list("/l", "x-", *b"me", []).call;
        let mut frame = Vec::new();
        call.encode(OpCode::of_call(&call), &Chroot::new(chroot), 7, &mut frame);
        assert_eq!(frame, framed(contents));
    }
}

#[test]
fn multi_has_a_header_for_each_step_and_one_at_the_end() {
    let (path, acl, mode) = ("/b".to_owned(), Vec::new(), CreateMode::Ephemeral);
    let steps = [
        Op::Check { path: "/a".to_owned(), version: Some(3) },
        Op::Create { path, data: Vec::new(), acl, mode },
        Op::SetData { path: "/c".to_owned(), data: b"d".to_vec(), version: None },
        Op::Delete { path: "/e".to_owned(), version: Some(0) },
    ];
    assert_call(
        1,
        Call::multi(steps).call,
        "00000001 0000000e
        0000000d 00 ffffffff  00000002 '/a' 00000003
        0000000f 00 ffffffff  00000002 '/b' 00000000 00000000 00000001
        00000005 00 ffffffff  00000002 '/c' 00000001 'd' ffffffff
        00000002 00 ffffffff  00000002 '/e' 00000000
        ffffffff 01 ffffffff",
    );
    assert_call(2, Call::multi([]).call, "00000002 0000000e ffffffff 01 ffffffff");
}

#[test]
fn requests_of_the_connection() {
    let assert = |xid, control, contents| assert_request(xid, Request::Control(control), contents);
    assert(XID_PING, Control::Ping, "fffffffe 0000000b");
    assert(8, Control::Close, "00000008 fffffff5");
    assert(
        XID_AUTH,
        Control::Auth { scheme: "digest".into(), auth: Cow::Borrowed(b"me:pw") },
        "fffffffc 00000064 00000000 00000006 'digest' 00000005 'me:pw'",
    );
    assert(
        XID_SET_WATCHES,
        Control::SetWatches {
            relative_zxid: 0x2_0000_0001,
            data: vec!["/a".into(), "/b".into()],
            exist: Vec::new(),
            child: vec!["/".into()],
        },
        "fffffff8 00000065 0000000200000001
        00000002 00000002 '/a' 00000002 '/b'  00000000  00000001 00000001 '/'",
    );
}

#[test]
fn barrier_is_a_write_at_a_version_that_no_znode_has() {
    let mut frame = Vec::new();
    Control::Barrier { path: "/a" }.encode(9, &mut frame);
    assert_eq!(frame, framed("00000009 00000005 00000002 '/a' 00000000 7fffffff"));
}

#[test]
fn null_is_decoded_as_empty() {
    let create = "00000001 0000000f 00000002 '/a' ffffffff ffffffff 00000000";
    let empty = Call::create("/a", [], [], CreateMode::Persistent).call;
    assert_eq!(Request::decode(&bytes(create)), Ok((1, Request::Call(empty))));
}

#[test]
fn malformed_request_is_an_error() {
    let cases = [
        ("", DecodeError::Truncated),
        ("00000001 0000000b 00", DecodeError::TrailingBytes),
        ("00000001 00000001", DecodeError::Truncated),
        ("00000001 00000006", DecodeError::UnknownOperation(6)),
        ("00000001 00000009", DecodeError::UnknownOperation(9)),
        ("00000001 000003e7", DecodeError::UnknownOperation(999)),
        ("00000001 0000000d 00000002 '/a' ffffffff", DecodeError::UnknownOperation(13)),
        ("00000001 00000003 00000003 '/a'", DecodeError::Truncated),
        ("00000001 00000003 fffffffe '/a'", DecodeError::NegativeLength),
        ("00000001 00000003 00000002 '/' ff", DecodeError::NotUtf8),
        ("00000001 0000000f 00000002 '/a' ffffffff 7fffffff", DecodeError::Truncated),
        ("00000001 0000000f 00000002 '/a' ffffffff ffffffff 00000004", DecodeError::UnknownValue(4)),
        ("00000001 00000013 00000002 '/a' ffffffff ffffffff 00000000", DecodeError::UnknownValue(0)),
        (
            "00000001 0000000f 00000002 '/a' ffffffff 00000001 00000020 ffffffff ffffffff 00000000",
            DecodeError::UnknownValue(32),
        ),
        ("00000001 00000012 00000002 '/a' 00000004", DecodeError::UnknownValue(4)),
        ("00000001 0000000e 00000004 00 ffffffff 00000002 '/a' 00", DecodeError::UnknownOperation(4)),
        ("00000001 0000000e 0000000e 00 ffffffff ffffffff 01 ffffffff", DecodeError::UnknownOperation(14)),
        ("00000001 0000000e 00000002 00 ffffffff 00000002 '/a' 00000000", DecodeError::Truncated),
    ];
    for (contents, error) in cases {
        assert_eq!(Request::decode(&bytes(contents)), Err(error), "{contents}");
    }
}

#[test]
fn create_of_servers_before_3_5_differs_in_its_number_only() {
    let call = create(CreateMode::EphemeralSequential);
    let (mut plain, mut create2) = (Vec::new(), Vec::new());
    call.encode(OpCode::Create, &Chroot::default(), 7, &mut plain);
    call.encode(OpCode::Create2, &Chroot::default(), 7, &mut create2);
    assert_eq!((&plain[8..12], &create2[8..12]), (&[0, 0, 0, 1][..], &[0, 0, 0, 15][..]));
    assert_eq!((&plain[..8], &plain[12..]), (&create2[..8], &create2[12..]));
    assert_eq!(Request::decode(&plain[4..]), Ok((7, Request::Call(call))));
}

#[test]
fn operations_have_distinct_numbers() {
    for operation in OpCode::ALL {
        assert_eq!(OpCode::from_number(operation.number()), Some(operation));
    }
    assert_eq!(OpCode::from_number(0), None);
}

#[test]
fn request_is_printed_with_the_path_of_its_only_znode() {
    let print = |request: Request<'_>| format!("{request:?}");
    assert_eq!(print(Request::Call(create(CreateMode::Container))), "Create(\"/l/x-\")");
    assert_eq!(print(Request::Call(Call::multi([]).call)), "Multi");
    let removal = Control::RemoveWatches { path: "/a".into() };
    assert_eq!(print(Request::Control(removal)), "RemoveWatches(\"/a\")");
    assert_eq!(print(Request::Control(Control::Ping)), "Ping");
}
