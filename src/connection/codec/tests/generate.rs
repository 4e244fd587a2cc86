//! Generators of everything that the codec encodes.

use std::borrow::Cow;

use proptest::prelude::*;

use crate::client::{Acl, CreateMode, Permissions, Stat};
use crate::connection::codec::{
    ConnectAnswer, ConnectRequest, ConnectResponse, EventKind, OpCode, Password, Reply, ReplyHeader, Request,
    WatchEvent,
};
use crate::error::ZkError;

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "/[a-c]{0,3}", "(/[a-zäß€😀]{1,8}){1,3}"]
}

fn path() -> impl Strategy<Value = Cow<'static, str>> {
    text().prop_map(Cow::Owned)
}

fn paths() -> impl Strategy<Value = Vec<Cow<'static, str>>> {
    prop::collection::vec(path(), 0..4)
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..20)
}

fn password() -> impl Strategy<Value = Password> {
    prop_oneof![Just(Password::default()), data().prop_map(Password::new)]
}

fn acl() -> impl Strategy<Value = Vec<Acl>> {
    let permissions = (0..32_u8).prop_map(|bits| Permissions::from_bits(bits).unwrap());
    let entry = (permissions, text(), text()).prop_map(|(granted, scheme, id)| Acl::new(granted, scheme, id));
    prop::collection::vec(entry, 0..3)
}

fn mode() -> impl Strategy<Value = CreateMode> {
    prop::sample::select(vec![
        CreateMode::Persistent,
        CreateMode::Ephemeral,
        CreateMode::PersistentSequential,
        CreateMode::EphemeralSequential,
        CreateMode::Container,
    ])
}

fn stat() -> impl Strategy<Value = Stat> {
    (any::<[i64; 6]>(), any::<[i32; 5]>()).prop_map(|(long, short)| Stat {
        czxid: long[0],
        mzxid: long[1],
        ctime: long[2],
        mtime: long[3],
        version: short[0],
        cversion: short[1],
        aversion: short[2],
        ephemeral_owner: long[4],
        data_length: short[3],
        num_children: short[4],
        pzxid: long[5],
    })
}

/// Returns what may be within a multi.
fn step() -> impl Strategy<Value = Request<'static>> {
    prop_oneof![
        (path(), data(), acl(), mode()).prop_map(|(path, data, acl, mode)| Request::Create {
            path,
            data: data.into(),
            acl: acl.into(),
            mode
        }),
        (path(), any::<i32>()).prop_map(|(path, version)| Request::Delete { path, version }),
        (path(), any::<i32>()).prop_map(|(path, version)| Request::Check { path, version }),
        (path(), data(), any::<i32>()).prop_map(|(path, data, version)| Request::SetData {
            path,
            data: data.into(),
            version
        }),
    ]
}

pub(crate) fn request() -> impl Strategy<Value = Request<'static>> {
    prop_oneof![
        4 => step(),
        1 => (path(), any::<bool>()).prop_map(|(path, watch)| Request::Exists { path, watch }),
        1 => (path(), any::<bool>()).prop_map(|(path, watch)| Request::GetData { path, watch }),
        1 => (path(), any::<bool>()).prop_map(|(path, watch)| Request::GetChildren { path, watch }),
        3 => prop::collection::vec(step(), 0..4).prop_map(Request::Multi),
        1 => path().prop_map(|path| Request::RemoveWatches { path }),
        1 => (path(), data()).prop_map(|(scheme, auth)| Request::Auth { scheme, auth: auth.into() }),
        1 => (any::<i64>(), paths(), paths(), paths()).prop_map(|(relative_zxid, data, exist, child)| {
            Request::SetWatches { relative_zxid, data, exist, child }
        }),
        1 => prop::sample::select(vec![Request::Ping, Request::Close]),
    ]
}

pub(crate) fn connect_request() -> impl Strategy<Value = ConnectRequest> {
    (any::<i64>(), any::<i32>(), any::<i64>(), password(), any::<bool>()).prop_map(
        |(last_zxid, timeout_ms, session_id, password, read_only)| ConnectRequest {
            last_zxid,
            timeout_ms,
            session_id,
            password,
            read_only,
        },
    )
}

pub(crate) fn connect_answer() -> impl Strategy<Value = ConnectAnswer> {
    let accepted = (1..=i32::MAX, any::<i64>(), password(), any::<bool>()).prop_map(
        |(timeout_ms, session_id, password, read_only)| {
            ConnectAnswer::Accepted(ConnectResponse { timeout_ms, session_id, password, read_only })
        },
    );
    prop_oneof![
        3 => accepted,
        1 => Just(ConnectAnswer::Refused),
        1 => Just(ConnectAnswer::ReadOnlyServer),
        1 => Just(ConnectAnswer::ClickHouseKeeper)
    ]
}

fn zk_error() -> impl Strategy<Value = ZkError> {
    prop_oneof![-130..1, any::<i32>()].prop_map(ZkError::from_code)
}

fn result() -> impl Strategy<Value = Result<Reply, ZkError>> {
    prop_oneof![
        Just(Ok(Reply::Empty)),
        (text(), stat()).prop_map(|(path, stat)| Ok(Reply::Created { path, stat })),
        stat().prop_map(|stat| Ok(Reply::Stat(stat))),
        text().prop_map(|path| Ok(Reply::Path(path))),
        zk_error().prop_map(Err),
    ]
}

/// A reply, and an operation that has such replies.
pub(crate) fn reply() -> impl Strategy<Value = (OpCode, Reply)> {
    let names = || prop::collection::vec(text(), 0..6);
    let of = |operations: &[OpCode]| prop::sample::select(operations.to_vec());
    prop_oneof![
        1 => (of(&[
            OpCode::Delete,
            OpCode::Check,
            OpCode::RemoveWatches,
            OpCode::Ping,
            OpCode::Auth,
            OpCode::SetWatches,
            OpCode::Close,
        ]), Just(Reply::Empty)),
        1 => (
            of(&[OpCode::Create2, OpCode::CreateContainer]),
            (text(), stat()).prop_map(|(path, stat)| Reply::Created { path, stat })
        ),
        1 => (of(&[OpCode::Exists, OpCode::SetData]), stat().prop_map(Reply::Stat)),
        1 => (Just(OpCode::GetData), (data(), stat()).prop_map(|(data, stat)| Reply::Data { data, stat })),
        1 => (Just(OpCode::GetChildren), names().prop_map(|names| Reply::Children(names.into()))),
        1 => (Just(OpCode::Create), text().prop_map(Reply::Path)),
        2 => (Just(OpCode::Multi), prop::collection::vec(result(), 0..5).prop_map(Reply::Multi)),
    ]
}

/// The kind and the path of an event.
pub(crate) fn event() -> impl Strategy<Value = (EventKind, String)> {
    let kinds = vec![
        EventKind::Created,
        EventKind::Deleted,
        EventKind::DataChanged,
        EventKind::ChildrenChanged,
        EventKind::Other(-1),
        EventKind::Other(5),
    ];
    (prop::sample::select(kinds), text())
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = Vec::new();
    encode(&mut frame);
    frame
}

/// A frame of a client, with its length.
pub(crate) fn client_frame() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        1 => connect_request().prop_map(|request| encoded(|frame| request.encode(frame))),
        8 => (any::<i32>(), request()).prop_map(|(xid, request)| encoded(|frame| request.encode(xid, frame))),
    ]
}

/// A frame of a server, with its length.
pub(crate) fn server_frame() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        1 => connect_answer().prop_map(|answer| encoded(|frame| answer.encode(frame))),
        6 => (any::<i32>(), any::<i64>(), reply())
            .prop_map(|(xid, zxid, (_, reply))| encoded(|frame| reply.encode(xid, zxid, frame))),
        1 => (any::<i32>(), any::<i64>(), any::<i32>())
            .prop_map(|(xid, zxid, error)| encoded(|frame| ReplyHeader { xid, zxid, error }.encode(frame))),
        1 => (event(), any::<i64>()).prop_map(|((kind, path), zxid)| {
            encoded(|frame| WatchEvent { kind, path: &path }.encode(zxid, frame))
        }),
    ]
}
