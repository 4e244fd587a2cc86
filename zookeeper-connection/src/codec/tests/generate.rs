//! Generators of what the codec encodes, except barriers and the SASL tokens of servers.

use std::borrow::Cow;

use proptest::prelude::*;

use crate::codec::{
    ConnectAnswer, ConnectRequest, ConnectResponse, Control, EventKind, OpCode, Password, ReplyHeader,
    Request, WatchEvent,
};
use crate::error::ZkError;
use crate::{Acl, Call, CreateMode, Op, OpOutcome, Permissions, Reply, Stat, Transacted};

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

/// Generates a version, except the one that stands for any version.
fn version() -> impl Strategy<Value = Option<i32>> {
    any::<Option<i32>>().prop_map(|version| version.filter(|version| *version != -1))
}

/// Generates the requests that may be within a multi.
pub(crate) fn step() -> impl Strategy<Value = Op> {
    prop_oneof![
        (text(), data(), acl(), mode()).prop_map(|(path, data, acl, mode)| Op::Create {
            path,
            data,
            acl,
            mode
        }),
        (text(), version()).prop_map(|(path, version)| Op::Delete { path, version }),
        (text(), version()).prop_map(|(path, version)| Op::Check { path, version }),
        (text(), data(), version()).prop_map(|(path, data, version)| Op::SetData { path, data, version }),
    ]
}

/// Generates a call that is a single request.
pub(crate) fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        1 => (text(), data(), acl(), mode())
            .prop_map(|(path, data, acl, mode)| Call::create(path, data, acl, mode).call),
        1 => (text(), version()).prop_map(|(path, version)| Call::delete(path, version).call),
        1 => (text(), data(), version())
            .prop_map(|(path, data, version)| Call::set_data(path, data, version).call),
        1 => (text(), any::<bool>()).prop_map(|(path, watch)| Call::exists(path, watch).call),
        1 => (text(), any::<bool>()).prop_map(|(path, watch)| Call::get_data(path, watch).call),
        1 => (text(), any::<bool>()).prop_map(|(path, watch)| Call::get_children(path, watch).call),
        3 => prop::collection::vec(step(), 0..4).prop_map(|steps| Call::multi(steps).call),
    ]
}

fn control() -> impl Strategy<Value = Control<'static>> {
    prop_oneof![
        1 => path().prop_map(|path| Control::RemoveWatches { path }),
        1 => (path(), data()).prop_map(|(scheme, auth)| Control::Auth { scheme, auth: auth.into() }),
        1 => data().prop_map(|token| Control::Sasl { token: token.into() }),
        1 => (any::<i64>(), paths(), paths(), paths()).prop_map(|(relative_zxid, data, exist, child)| {
            Control::SetWatches { relative_zxid, data, exist, child }
        }),
        1 => prop::sample::select(vec![Control::Ping, Control::Close]),
    ]
}

pub(crate) fn request() -> impl Strategy<Value = Request<'static>> {
    prop_oneof![3 => call().prop_map(Request::Call), 1 => control().prop_map(Request::Control)]
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

/// Generates a step of a multi, and its outcome.
fn outcome() -> impl Strategy<Value = (Op, OpOutcome)> {
    (step(), text(), stat()).prop_map(|(step, path, stat)| {
        let outcome = match &step {
            Op::Create { .. } => OpOutcome::Created(path),
            Op::Delete { .. } => OpOutcome::Deleted,
            Op::SetData { .. } => OpOutcome::DataSet(stat),
            Op::Check { .. } => OpOutcome::Checked,
        };
        (step, outcome)
    })
}

/// Generates the steps of a multi, and its reply.
fn transacted() -> impl Strategy<Value = (Vec<Op>, Transacted)> {
    let failed = (prop::collection::vec(step(), 1..5), any::<prop::sample::Index>(), zk_error());
    let is_of_step =
        |error: &ZkError| error.code() != 0 && *error != ZkError::SessionExpired && !error.is_reply_lost();
    prop_oneof![
        prop::collection::vec(outcome(), 0..5).prop_map(|pairs| {
            let (steps, outcomes) = pairs.into_iter().unzip();
            (steps, Transacted::Committed(outcomes))
        }),
        failed.prop_filter("of a step", move |(_, _, error)| is_of_step(error)).prop_map(
            |(steps, position, error)| {
                let position = position.index(steps.len());
                (steps, Transacted::Failed { position, error })
            }
        ),
    ]
}

/// Generates a reply, together with an operation and steps that the reply fits.
pub(crate) fn reply() -> impl Strategy<Value = (OpCode, Vec<Op>, Reply)> {
    let names = || prop::collection::vec(text(), 0..6);
    let of = |operations: &[OpCode]| prop::sample::select(operations.to_vec());
    let simple = prop_oneof![
        (
            of(&[
                OpCode::Delete,
                OpCode::Check,
                OpCode::RemoveWatches,
                OpCode::Ping,
                OpCode::Auth,
                OpCode::SetWatches,
                OpCode::Close,
            ]),
            Just(Reply::Done)
        ),
        (
            of(&[OpCode::Create2, OpCode::CreateContainer]),
            (text(), stat()).prop_map(|(path, stat)| Reply::Created { path, stat: Some(stat) })
        ),
        (Just(OpCode::Create), text().prop_map(|path| Reply::Created { path, stat: None })),
        (Just(OpCode::Exists), stat().prop_map(|stat| Reply::Found(Some(stat)))),
        (Just(OpCode::SetData), stat().prop_map(Reply::Stat)),
        (Just(OpCode::GetData), (data(), stat()).prop_map(|(data, stat)| Reply::Data(data, stat))),
        (Just(OpCode::GetChildren), names().prop_map(|names| Reply::Children(names.into()))),
    ];
    prop_oneof![
        7 => simple.prop_map(|(operation, reply)| (operation, Vec::new(), reply)),
        2 => transacted().prop_map(|(steps, transacted)| (OpCode::Multi, steps, Reply::Multi(transacted))),
    ]
}

/// Generates the kind and the path of an event.
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

/// Generates a frame of a client, including its length.
pub(crate) fn client_frame() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        1 => connect_request().prop_map(|request| encoded(|frame| request.encode(frame))),
        8 => (any::<i32>(), request()).prop_map(|(xid, request)| encoded(|frame| request.encode(xid, frame))),
    ]
}

/// Generates a frame of a server, including its length.
pub(crate) fn server_frame() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        1 => connect_answer().prop_map(|answer| encoded(|frame| answer.encode(frame))),
        6 => (any::<i32>(), any::<i64>(), reply())
            .prop_map(|(xid, zxid, (.., reply))| encoded(|frame| reply.encode(xid, zxid, frame))),
        1 => (any::<i32>(), any::<i64>(), any::<i32>())
            .prop_map(|(xid, zxid, error)| encoded(|frame| ReplyHeader { xid, zxid, error }.encode(frame))),
        1 => (event(), any::<i64>()).prop_map(|((kind, path), zxid)| {
            encoded(|frame| WatchEvent { kind, path: &path }.encode(zxid, frame))
        }),
    ]
}
