//! Requests, replies, watches and pings on successive connections.

use std::time::Duration;

use super::scripted::{ID, Received, Scripted, TIMEOUT, accepted, config, data, read, watch};
use crate::codec::{Control, EventKind, OpCode, ReplyHeader, Request};
use crate::error::ZkError;
use crate::machine::session::{Action, Event, MIN_PROGRESS};
use crate::{Acl, Call, CreateMode, Reply, Stat};

#[test]
fn request_without_a_connection_is_sent_on_the_next_one() {
    let mut scripted = Scripted::serving();
    scripted.lose_connection();
    scripted.submit(1, &read("/a"));
    assert!(scripted.session.outgoing().is_empty());
    scripted.open();
    scripted.answer(&super::scripted::accepted(super::scripted::ID));
    scripted.actions();
    let path = Some("/a".to_owned());
    assert_eq!(scripted.sent(), [Received { xid: 1, operation: OpCode::GetData, path }]);
    scripted.reply(1, 1, &data());
    assert!(matches!(scripted.replies().as_slice(), [(1, Ok(_))]));
}

#[test]
fn request_without_a_connection_fails_after_a_tenth_of_the_session_timeout() {
    let mut scripted = Scripted::new(config());
    scripted.actions();
    scripted.submit(1, &read("/a"));
    scripted.run_for(TIMEOUT / 10);
    let failed = scripted.actions();
    assert!(failed.iter().any(|action| matches!(action, Action::Reply(1, Err(ZkError::ConnectionLoss)))));
}

#[test]
fn requests_in_flight_fail_after_the_disconnect_and_before_the_next_attempt() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    scripted.submit(2, &read("/b"));
    scripted.advance(TIMEOUT / 4);
    scripted.session.failed(scripted.now);
    let actions = scripted.actions();
    let [
        Action::Event(Event::Disconnected),
        Action::Reply(1, Err(ZkError::ConnectionLoss)),
        Action::Reply(2, Err(ZkError::ConnectionLoss)),
        Action::Open,
    ] = actions.as_slice()
    else {
        panic!("{actions:?}");
    };
    scripted.open();
    scripted.answer(&accepted(ID));
    assert!(scripted.sent().is_empty(), "nothing is sent twice");
}

#[test]
fn reply_that_is_not_the_next_one_ends_the_connection_with_all_outcomes_unknown() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    scripted.submit(2, &read("/b"));
    scripted.reply(2, 1, &data());
    let actions = scripted.actions();
    assert!(matches!(actions.first(), Some(Action::Drop)), "{actions:?}");
    let failed = |action: &&Action<u32>| matches!(action, Action::Reply(_, Err(ZkError::ConnectionLoss)));
    assert_eq!(actions.iter().filter(failed).count(), 2);
}

fn delete(path: &str) -> Call {
    Call::delete(path, None).call
}

/// With `enableEagerACLCheck`, the connected server denies a write without asking the leader.
#[test]
fn write_that_is_denied_at_once_fails_alone() {
    for error in [-102, -114] {
        let mut scripted = Scripted::serving();
        scripted.submit(1, &delete("/a"));
        scripted.run_to_deadline();
        scripted.submit(2, &read("/b"));
        scripted.submit(3, &delete("/denied"));
        scripted.submit(4, &delete("/c"));
        scripted.reply_error(3, error);
        let denied = ZkError::from_code(error);
        assert!(matches!(scripted.replies().as_slice(), [(3, Err(why))] if *why == denied));
        // The other replies keep their order.
        scripted.reply(1, 7, &Reply::Done);
        scripted.pong();
        scripted.reply(2, 7, &data());
        scripted.reply(4, 8, &Reply::Done);
        let actions = scripted.actions();
        assert!(
            matches!(
                actions.as_slice(),
                [
                    Action::Reply(1, Ok(_)),
                    Action::Event(Event::PingAnswered { .. }),
                    Action::Reply(2, Ok(_)),
                    Action::Reply(4, Ok(_))
                ]
            ),
            "{actions:?}"
        );
    }
}

#[test]
fn write_that_is_denied_at_once_is_not_taken_for_watches_that_are_set_again() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &watch("/a"));
    scripted.reply(1, 1, &data());
    scripted.advance(TIMEOUT / 4);
    scripted.session.failed(scripted.now);
    scripted.actions();
    scripted.submit(2, &delete("/denied"));
    scripted.open();
    scripted.answer(&accepted(ID));
    scripted.actions();
    scripted.reply_error(2, -102);
    assert!(matches!(scripted.replies().as_slice(), [(2, Err(ZkError::NoAuth))]));
    scripted.reply(-8, 1, &Reply::Done);
    assert!(scripted.actions().is_empty());
}

#[test]
fn only_a_write_may_be_denied_ahead_of_older_requests_and_without_a_transaction() {
    for (call, zxid, error) in [(read("/b"), 0, -102), (delete("/b"), 7, -102), (delete("/b"), 0, -101)] {
        let mut scripted = Scripted::serving();
        scripted.submit(1, &read("/a"));
        scripted.submit(2, &call);
        let mut bytes = Vec::new();
        ReplyHeader { xid: 2, zxid, error }.encode(&mut bytes);
        scripted.session.received(scripted.now, &bytes);
        assert!(matches!(scripted.actions().first(), Some(Action::Drop)), "{call:?}");
    }
}

#[test]
fn server_that_denies_writes_but_owes_older_replies_counts_as_silent() {
    let mut scripted = Scripted::serving();
    scripted.submit(0, &read("/a"));
    let mut xid = 1;
    let begun = scripted.now;
    while scripted.actions().iter().all(|action| !matches!(action, Action::Drop)) {
        scripted.run_for(TIMEOUT / 10);
        xid += 1;
        scripted.submit(1, &delete("/denied"));
        scripted.reply_error(xid, -102);
        assert!(scripted.now.since(begun) < TIMEOUT);
    }
}

#[test]
fn reply_to_no_request_ends_the_connection() {
    let mut scripted = Scripted::serving();
    scripted.reply(1, 1, &data());
    assert!(matches!(scripted.actions().first(), Some(Action::Drop)));
}

#[test]
fn oversized_frame_fails_the_request_for_good() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    scripted.submit(2, &read("/b"));
    scripted.session.received(scripted.now, &i32::MAX.to_be_bytes());
    let actions = scripted.actions();
    assert!(matches!(actions.first(), Some(Action::Reply(1, Err(ZkError::MarshallingError)))), "{actions:?}");
    assert!(actions.iter().any(|action| matches!(action, Action::Reply(2, Err(ZkError::ConnectionLoss)))));
}

#[test]
fn malformed_reply_fails_the_request_for_good() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    scripted.reply(1, 1, &Reply::Done);
    let actions = scripted.actions();
    assert!(matches!(actions.first(), Some(Action::Reply(1, Err(ZkError::MarshallingError)))), "{actions:?}");
}

#[test]
fn pings_are_sent_at_intervals_whatever_other_traffic_there_is() {
    let mut scripted = Scripted::serving();
    let mut pings = Vec::new();
    for xid in 1..=60 {
        scripted.submit(0, &read("/a"));
        scripted.reply(xid, 1, &data());
        scripted.advance(TIMEOUT / 30);
        scripted.session.timer(scripted.now);
        if scripted.sent().iter().any(|request| request.operation == OpCode::Ping) {
            pings.push(scripted.now);
            scripted.pong();
        }
        scripted.actions();
    }
    assert_eq!(pings.len(), 12);
    assert!(pings.is_sorted_by(|earlier, later| later.since(*earlier) == TIMEOUT / 6));
}

#[test]
fn answer_to_a_ping_is_reported_with_the_time_at_which_the_ping_was_sent() {
    let mut scripted = Scripted::serving();
    scripted.run_to_deadline();
    let sent = scripted.now;
    assert_eq!(scripted.sent()[0].operation, OpCode::Ping);
    scripted.advance(TIMEOUT / 100);
    scripted.pong();
    assert_eq!(scripted.events(), [Event::PingAnswered { sent }]);
}

#[test]
fn ping_answer_without_a_ping_ends_the_connection() {
    let mut scripted = Scripted::serving();
    scripted.pong();
    assert!(matches!(scripted.actions().first(), Some(Action::Drop)));
}

#[test]
fn silent_server_is_left_after_two_fifths_of_the_session_timeout() {
    let mut scripted = Scripted::serving();
    let heard = scripted.now;
    scripted.submit(1, &read("/a"));
    while scripted.actions().is_empty() {
        scripted.run_to_deadline();
    }
    assert_eq!(scripted.now, heard.after(TIMEOUT * 2 / 5));
}

#[test]
fn answer_to_a_ping_before_that_to_an_older_request_ends_the_connection() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    scripted.run_to_deadline();
    let sent: Vec<_> = scripted.sent().iter().map(|request| request.operation).collect();
    assert_eq!(sent, [OpCode::GetData, OpCode::Ping]);
    scripted.pong();
    let actions = scripted.actions();
    assert!(
        matches!(
            actions.as_slice(),
            [
                Action::Drop,
                Action::Event(Event::Disconnected),
                Action::Reply(1, Err(ZkError::ConnectionLoss)),
                Action::Open
            ]
        ),
        "{actions:?}"
    );
}

#[test]
fn answer_to_a_ping_may_come_before_that_to_a_younger_request() {
    let mut scripted = Scripted::serving();
    scripted.run_to_deadline();
    let first = scripted.now;
    scripted.submit(1, &read("/a"));
    scripted.run_to_deadline();
    let second = scripted.now;
    scripted.pong();
    assert_eq!(scripted.events(), [Event::PingAnswered { sent: first }]);
    scripted.reply(1, 1, &data());
    assert!(matches!(scripted.replies().as_slice(), [(1, Ok(_))]));
    scripted.pong();
    assert_eq!(scripted.events(), [Event::PingAnswered { sent: second }]);
}

#[test]
fn answer_to_a_ping_does_not_answer_the_setting_of_watches() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &watch("/a"));
    scripted.reply(1, 1, &data());
    scripted.advance(TIMEOUT / 4);
    scripted.session.failed(scripted.now);
    scripted.actions();
    scripted.open();
    scripted.answer(&accepted(ID));
    scripted.actions();
    scripted.run_to_deadline();
    scripted.pong();
    assert!(matches!(scripted.actions().first(), Some(Action::Drop)));
}

/// Runs until the request has its outcome, or for ten session timeouts. Returns how long that took.
fn time_until_the_outcome(scripted: &mut Scripted, mut step: impl FnMut(&mut Scripted)) -> Duration {
    let begun = scripted.now;
    while scripted.now.since(begun) < 10 * TIMEOUT {
        step(scripted);
        if scripted.actions().iter().any(|action| matches!(action, Action::Reply(..))) {
            break;
        }
    }
    scripted.now.since(begun)
}

#[test]
fn request_without_a_reply_fails_although_pings_are_answered() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    let time = time_until_the_outcome(&mut scripted, |scripted| {
        scripted.run_to_deadline();
        let pings = scripted.sent().iter().filter(|sent| sent.operation == OpCode::Ping).count();
        (0..pings).for_each(|_| scripted.pong());
    });
    assert_eq!(time, TIMEOUT / 6, "the first answer to a ping shows that the reply is missing");
}

#[test]
fn request_without_a_reply_fails_although_events_come() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    let time = time_until_the_outcome(&mut scripted, |scripted| {
        scripted.run_for(TIMEOUT / 10);
        scripted.fire(EventKind::DataChanged, "/b");
    });
    assert_eq!(time, TIMEOUT * 2 / 5);
}

/// Announces a frame of 16 MiB, and delivers this many bytes of it in each quarter of the session timeout. Returns how
/// long the request waits for its outcome.
fn time_of_a_frame_in_parts(part: usize) -> Duration {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    let now = scripted.now;
    scripted.session.received(now, &[1, 0, 0, 0]);
    time_until_the_outcome(&mut scripted, |scripted| {
        scripted.run_for(TIMEOUT / 4);
        let now = scripted.now;
        scripted.session.received(now, &vec![0; part]);
    })
}

#[test]
fn frame_that_trickles_is_no_answer() {
    assert_eq!(time_of_a_frame_in_parts(1), TIMEOUT / 2);
    assert_eq!(time_of_a_frame_in_parts(MIN_PROGRESS / 2 - 4), TIMEOUT / 2);
}

#[test]
fn long_frame_that_makes_progress_is_waited_for() {
    assert_eq!(time_of_a_frame_in_parts(MIN_PROGRESS), 10 * TIMEOUT);
}

#[test]
fn pings_go_on_during_a_long_answer() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    let now = scripted.now;
    scripted.session.received(now, &[1, 0, 0, 0]);
    scripted.sent();
    for _ in 0..30 {
        scripted.run_for(TIMEOUT / 6);
        let now = scripted.now;
        scripted.session.received(now, &vec![0; MIN_PROGRESS]);
        assert_eq!(scripted.sent().len(), 1, "the server must hear from the client");
    }
}

#[test]
fn watches_that_have_not_fired_are_set_again_before_other_requests() {
    let mut scripted = Scripted::serving();
    let paths = ["/a", "/b", "/c"];
    for (number, path) in (1..).zip(paths) {
        scripted.submit(number, &watch(path));
        scripted.reply(i32::try_from(number).unwrap(), 40 + i64::from(number), &data());
    }
    scripted.submit(4, &Call::exists("/missing", true).call);
    scripted.reply_error(4, -101);
    scripted.submit(5, &watch("/missing"));
    scripted.reply_error(5, -101);
    scripted.actions();
    scripted.sent();
    scripted.fire_at(99, EventKind::Deleted, "/b");
    assert_eq!(scripted.events(), [Event::NodeChanged { path: "/b".to_owned(), is_deleted: true }]);
    scripted.fire_at(99, EventKind::DataChanged, "/c");
    assert_eq!(scripted.events(), [Event::NodeChanged { path: "/c".to_owned(), is_deleted: false }]);

    scripted.advance(TIMEOUT / 4);
    scripted.session.failed(scripted.now);
    scripted.actions();
    scripted.submit(6, &read("/z"));
    scripted.open();
    scripted.answer(&accepted(ID));
    let outgoing = scripted.session.outgoing();
    let first = 4 + usize::try_from(i32::from_be_bytes(outgoing[..4].try_into().unwrap())).unwrap();
    let (_, request) = Request::decode(&outgoing[4..first]).unwrap();
    let Request::Control(Control::SetWatches { relative_zxid: 43, data, exist, child }) = request else {
        panic!("{request:?}")
    };
    assert_eq!((data, exist, child), (vec!["/a".into()], vec!["/missing".into()], vec![]));
    let sent = scripted.sent();
    assert_eq!(sent[1].operation, OpCode::GetData);
    scripted.actions();

    // A server may answer with another xid.
    scripted.reply(0, 50, &Reply::Done);
    scripted.reply(sent[1].xid, 50, &super::scripted::data());
    assert!(matches!(scripted.replies().as_slice(), [(6, Ok(_))]));
}

#[test]
fn expired_session_in_a_reply_ends_the_session() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    scripted.reply_error(1, -112);
    let actions = scripted.actions();
    assert!(
        matches!(
            actions.as_slice(),
            [
                Action::Reply(1, Err(ZkError::SessionExpired)),
                Action::Event(Event::SessionLost(_)),
                Action::Drop,
                Action::Ended
            ]
        ),
        "{actions:?}"
    );
}

#[test]
fn transaction_numbers_of_pings_are_not_taken_over() {
    let mut scripted = Scripted::serving();
    scripted.run_to_deadline();
    scripted.sent();
    scripted.reply(-2, 99, &Reply::Done);
    scripted.lose_connection();
    assert_eq!(scripted.open().last_zxid, 0);
}

#[test]
fn server_behind_an_event_is_refused_and_watches_count_from_the_last_reply() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &watch("/a"));
    scripted.reply(1, 50, &data());
    scripted.fire_at(60, EventKind::Deleted, "/b");
    scripted.lose_connection();
    assert_eq!(scripted.open().last_zxid, 60, "the number of the event");
    scripted.answer(&accepted(ID));
    let outgoing = std::mem::take(scripted.session.outgoing());
    let (_, request) = Request::decode(&outgoing[4..]).unwrap();
    let is_expected = matches!(request, Request::Control(Control::SetWatches { relative_zxid: 50, .. }));
    assert!(is_expected, "{request:?}");
}

#[test]
fn write_goes_before_the_requests_of_a_session_that_has_seen_an_event_without_a_number() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &watch("/a"));
    scripted.reply(1, 50, &data());
    scripted.fire(EventKind::Deleted, "/b");
    let reconnect = |scripted: &mut Scripted| {
        scripted.lose_connection();
        scripted.submit(2, &read("/state"));
        scripted.open();
        scripted.answer(&accepted(ID));
        scripted.sent().iter().map(|request| request.operation).collect::<Vec<_>>()
    };
    let with_write = [OpCode::SetWatches, OpCode::SetData, OpCode::GetData];
    assert_eq!(reconnect(&mut scripted), with_write);
    assert_eq!(reconnect(&mut scripted), with_write, "no reply has come since the event");
    scripted.reply(-8, 40, &Reply::Done);
    let (xid, _) = scripted.session.traffic.next_reply().unwrap();
    scripted.reply_error_at(xid, 70, -101);
    assert_eq!(reconnect(&mut scripted), [OpCode::SetWatches, OpCode::GetData]);
}

#[test]
fn write_before_the_requests_counts_only_when_the_leader_has_answered_it() {
    for (error, zxid) in [(-127, 60), (-102, 0)] {
        let mut scripted = Scripted::serving();
        scripted.fire(EventKind::Deleted, "/b");
        let reconnect = |scripted: &mut Scripted| {
            scripted.submit(2, &read("/state"));
            scripted.open();
            scripted.answer(&accepted(ID));
            scripted.sent().iter().map(|request| request.operation).collect::<Vec<_>>()
        };
        scripted.lose_connection();
        assert_eq!(reconnect(&mut scripted), [OpCode::SetData, OpCode::GetData]);
        let (xid, _) = scripted.session.traffic.next_reply().unwrap();
        scripted.advance(TIMEOUT / 4);
        scripted.actions();
        scripted.reply_error_at(xid, zxid, error);
        // The requests after the write do not count, because the server may answer them with an older state.
        assert_eq!(scripted.session.traffic.next_reply(), None, "{error}: the connection is left");
        scripted.actions();
        assert_eq!(reconnect(&mut scripted), [OpCode::SetData, OpCode::GetData], "{error}");
        let (xid, _) = scripted.session.traffic.next_reply().unwrap();
        scripted.reply_error_at(xid, 70, -102);
        assert!(scripted.session.traffic.next_reply().is_some(), "{error}: the leader denies it");
    }
}

#[test]
fn xids_of_requests_stay_positive() {
    let mut scripted = Scripted::serving();
    scripted.session.traffic.last_xid = i32::MAX - 1;
    scripted.submit(1, &read("/a"));
    scripted.submit(2, &read("/a"));
    let xids: Vec<_> = scripted.sent().iter().map(|request| request.xid).collect();
    assert_eq!(xids, [i32::MAX, 1]);
}

fn create(path: &str, mode: CreateMode) -> Call {
    Call::create(path, [], [], mode).call
}

#[test]
fn session_uses_create_once_a_server_does_not_know_create2() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &create("/a", CreateMode::Ephemeral));
    scripted.submit(2, &read("/a"));
    scripted.sent();
    scripted.advance(TIMEOUT / 4);
    scripted.reply_error(1, -6);
    let actions = scripted.actions();
    let [
        Action::Drop,
        Action::Event(Event::Disconnected),
        Action::Reply(1, Err(ZkError::ConnectionLoss)),
        Action::Reply(2, Err(ZkError::ConnectionLoss)),
        Action::Open,
    ] = actions.as_slice()
    else {
        panic!("{actions:?}");
    };
    // One request is sent after the handshake, the other at once.
    scripted.submit(3, &create("/b", CreateMode::Ephemeral));
    scripted.open();
    scripted.answer(&accepted(ID));
    scripted.actions();
    scripted.submit(4, &create("/c", CreateMode::Ephemeral));
    let mut frames = crate::codec::Frames::new(1 << 20);
    frames.push(&std::mem::take(scripted.session.outgoing()));
    for (number, xid, path) in [(3, 3, "/b"), (4, 4, "/c")] {
        let frame = frames.next_frame().unwrap().unwrap();
        assert_eq!(frame[4..8], OpCode::Create.number().to_be_bytes());
        let created = Reply::Created { path: path.to_owned(), stat: None };
        scripted.reply(xid, 1, &created);
        assert_eq!(scripted.replies(), [(number, Ok(created))]);
    }
}

/// A server before 3.5 refuses an unknown operation ahead of older requests.
#[test]
fn unknown_operation_is_noticed_behind_a_request_without_a_reply() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    scripted.submit(2, &create("/a", CreateMode::Ephemeral));
    scripted.sent();
    scripted.advance(TIMEOUT / 4);
    scripted.reply_error(2, -6);
    scripted.actions();
    reconnect(&mut scripted);
    scripted.submit(3, &create("/a", CreateMode::Ephemeral));
    let mut frames = crate::codec::Frames::new(1 << 20);
    frames.push(&std::mem::take(scripted.session.outgoing()));
    assert_eq!(frames.next_frame().unwrap().unwrap()[4..8], OpCode::Create.number().to_be_bytes());

    let container = create("/c", CreateMode::Container);
    scripted.submit(4, &container);
    scripted.sent();
    scripted.advance(TIMEOUT / 4);
    scripted.reply_error(4, -6);
    scripted.actions();
    reconnect(&mut scripted);
    scripted.submit(5, &container);
    assert!(matches!(scripted.replies().as_slice(), [.., (5, Err(ZkError::Unimplemented))]));
}

#[test]
fn container_is_requested_only_once_if_servers_do_not_know_containers() {
    let mut scripted = Scripted::serving();
    let create = create("/a", CreateMode::Container);
    scripted.submit(1, &create);
    assert_eq!(scripted.sent().len(), 1);
    scripted.reply_error(1, -6);
    assert!(matches!(scripted.replies().as_slice(), [(1, Err(ZkError::Unimplemented))]));
    // Each further request would end the connection.
    scripted.submit(2, &create);
    assert!(scripted.sent().is_empty());
    assert!(matches!(scripted.replies().as_slice(), [(2, Err(ZkError::Unimplemented))]));
}

fn create_of(length: usize) -> Call {
    Call::create("/a/x-", vec![0; length], Acl::open_unsafe(), CreateMode::EphemeralSequential).call
}

/// Sends this call, has the server close the connection, and resumes the session.
fn close_at(scripted: &mut Scripted, number: u32, call: &Call) {
    scripted.submit(number, call);
    let actions = scripted.actions();
    assert!(actions.is_empty(), "the call is sent: {actions:?}");
    scripted.lose_connection();
    reconnect(scripted);
}

fn reconnect(scripted: &mut Scripted) {
    scripted.open();
    scripted.answer(&accepted(ID));
    scripted.actions();
    scripted.sent();
}

#[test]
fn request_at_which_three_connections_end_is_not_sent_any_more() {
    let mut scripted = Scripted::serving();
    for number in 1..=3 {
        close_at(&mut scripted, number, &create_of(9000));
    }
    scripted.submit(4, &create_of(9000));
    let replies = scripted.replies();
    assert!(
        matches!(replies.as_slice(), [(4, Err(ZkError::EndsConnection { bytes: 9000.. }))]),
        "{replies:?}"
    );
    assert!(scripted.sent().is_empty());
    scripted.submit(5, &create_of(8000));
    assert_eq!(scripted.sent().len(), 1, "a shorter request may be accepted");
}

/// Servers also close connections when their leader changes.
#[test]
fn request_at_which_three_connections_ended_is_tried_once_after_each_session_timeout() {
    let mut scripted = Scripted::serving();
    let refused = |scripted: &mut Scripted, number| {
        scripted.submit(number, &create_of(9000));
        matches!(scripted.replies().as_slice(), [(_, Err(ZkError::EndsConnection { .. }))])
    };
    for number in 1..=3 {
        close_at(&mut scripted, number, &create_of(9000));
    }
    assert!(refused(&mut scripted, 4));
    // In between, a connection ends for another reason.
    scripted.lose_connection();
    reconnect(&mut scripted);
    for _ in 0..4 {
        scripted.advance(TIMEOUT);
        close_at(&mut scripted, 5, &create_of(9100));
        assert!(refused(&mut scripted, 6));
    }
    scripted.advance(TIMEOUT);
    assert!(!refused(&mut scripted, 7));
    let stat = Some(Stat::default());
    let (xid, _) = scripted.session.traffic.next_reply().unwrap();
    scripted.reply(xid, 5, &Reply::Created { path: "/a/x-1".to_owned(), stat });
    scripted.replies();
    close_at(&mut scripted, 8, &create_of(9100));
    assert!(!refused(&mut scripted, 9), "a request of this length was answered");
}

/// A server may accept a transport, and never answer the connect request.
#[test]
fn attempts_that_the_client_abandons_do_not_hide_the_request_at_which_connections_end() {
    let mut scripted = Scripted::serving();
    for number in 1..=3 {
        scripted.submit(number, &create_of(9000));
        scripted.lose_connection();
        scripted.open();
        scripted.run_to_deadline();
        assert!(matches!(scripted.actions().as_slice(), [Action::Drop, ..]));
        scripted.until_open();
        reconnect(&mut scripted);
    }
    scripted.submit(4, &create_of(9000));
    assert!(matches!(scripted.replies().as_slice(), [(4, Err(ZkError::EndsConnection { .. }))]));
}

#[test]
fn request_is_not_blamed_if_one_like_it_was_answered_or_it_must_always_be_tried() {
    let proof = Call::set_data("/keep-alive", [], Some(i32::MAX)).call;
    let answered = create_of(100);
    for call in [proof, delete("/a/x-1"), answered, read("/a")] {
        let mut scripted = Scripted::serving();
        scripted.submit(1, &create_of(200));
        let stat = Some(Stat::default());
        scripted.reply(1, 5, &Reply::Created { path: "/a/x-1".to_owned(), stat });
        scripted.replies();
        scripted.sent();
        for number in 2..7 {
            close_at(&mut scripted, number, &call);
        }
    }
}

#[test]
fn three_connections_that_end_in_other_ways_are_not_blamed_on_a_request() {
    let mut scripted = Scripted::serving();
    for number in 1..=6 {
        if number % 3 == 0 {
            // The client leaves the server, which does not answer.
            scripted.submit(number, &create_of(9000));
            scripted.advance(TIMEOUT * 2 / 5);
            scripted.session.timer(scripted.now);
            scripted.actions();
            reconnect(&mut scripted);
            // The session is served, not only resumed.
            scripted.run_to_deadline();
            scripted.pong();
            scripted.actions();
            scripted.sent();
        } else {
            close_at(&mut scripted, number, &create_of(9000));
        }
    }
}
