//! The session: the search for servers, credentials, loss and close.

use std::time::Duration;

use super::scripted::{ID, Scripted, TIMEOUT, accepted, config, data, granted, read, watch};
use crate::Granted;
use crate::Reply;
use crate::codec::{ConnectAnswer, OpCode, XID_AUTH, XID_PING};
use crate::error::ZkError;
use crate::machine::session::{Action, Event, Phase, SessionLoss};

#[test]
fn first_connection_asks_for_a_new_session() {
    let mut scripted = Scripted::new(config());
    let request = scripted.connect();
    assert_eq!((request.session_id, request.last_zxid), (0, 0));
    assert_eq!(request.timeout_ms, 12_000);
    assert!(!request.read_only);
}

#[test]
fn session_is_resumed_with_its_password_and_last_transaction() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    scripted.reply(1, 77, &super::scripted::data());
    assert_eq!(scripted.replies().len(), 1);
    scripted.advance(TIMEOUT / 4);
    scripted.session.failed(scripted.now);
    let actions = scripted.actions();
    assert!(matches!(actions.as_slice(), [Action::Event(Event::Disconnected), Action::Open]), "{actions:?}");
    let request = scripted.open();
    assert_eq!((request.session_id, request.last_zxid), (ID, 77));
    assert_eq!(request.password.as_bytes(), b"0123456789abcdef");
}

#[test]
fn every_reconnect_requests_no_more_than_was_granted_before() {
    let mut scripted = Scripted::new(config());
    scripted.actions();
    assert_eq!(scripted.open().timeout_ms, 12_000);
    scripted.answer(&granted(ID, TIMEOUT / 2));
    for (asked, grant) in [(6_000, TIMEOUT / 2), (6_000, TIMEOUT), (6_000, TIMEOUT / 4), (3_000, TIMEOUT)] {
        scripted.advance(TIMEOUT);
        scripted.session.failed(scripted.now);
        scripted.actions();
        assert_eq!(scripted.open().timeout_ms, asked);
        scripted.answer(&granted(ID, grant));
    }
}

#[test]
fn grant_at_the_creation_counts_although_its_connection_never_serves() {
    let mut scripted = Scripted::with_credentials(1);
    scripted.actions();
    scripted.open();
    scripted.answer(&granted(ID, TIMEOUT / 2));
    scripted.session.failed(scripted.now);
    scripted.actions();
    scripted.run_to_deadline();
    scripted.actions();
    assert_eq!(scripted.open().timeout_ms, 6_000);
    // This server has a higher minimum session timeout.
    scripted.answer(&granted(ID, TIMEOUT));
    scripted.authenticated();
    let granted = Granted::new(TIMEOUT).at_most(TIMEOUT / 2);
    assert!(scripted.events().contains(&Event::Connected { granted, session_id: ID }));
    assert_eq!(
        granted.report_delay,
        Granted::new(TIMEOUT).report_delay,
        "the ticks of the server may be this long"
    );
}

#[test]
fn shortest_grant_of_a_session_is_reported_and_paces_its_connections() {
    let mut scripted = Scripted::serving();
    for (grant, shortest) in [(TIMEOUT / 2, TIMEOUT / 2), (2 * TIMEOUT, TIMEOUT / 2)] {
        scripted.advance(TIMEOUT);
        scripted.session.failed(scripted.now);
        scripted.actions();
        scripted.open();
        scripted.answer(&granted(ID, grant));
        let granted = Granted::new(grant).at_most(shortest);
        assert_eq!(scripted.events(), [Event::Connected { granted, session_id: ID }]);
        assert_eq!(scripted.session.deadline(), Some(scripted.now.after(shortest / 6)), "the next ping");
        scripted.run_to_deadline();
        scripted.pong();
    }
}

#[test]
fn refused_session_is_lost() {
    let mut scripted = Scripted::serving();
    scripted.advance(TIMEOUT / 4);
    scripted.session.failed(scripted.now);
    scripted.actions();
    scripted.submit(1, &read("/a"));
    scripted.open();
    scripted.answer(&ConnectAnswer::Refused);
    let actions = scripted.actions();
    let [
        Action::Event(Event::SessionLost(SessionLoss::Expired)),
        Action::Reply(1, Err(ZkError::SessionExpired)),
        Action::Drop,
        Action::Ended,
    ] = actions.as_slice()
    else {
        panic!("{actions:?}");
    };
    assert_eq!(scripted.session.submit(scripted.now, read("/a"), 2), Err(2));
    assert_eq!(scripted.session.deadline(), None);
}

#[test]
fn session_id_other_than_the_requested_one_is_a_loss() {
    let mut scripted = Scripted::serving();
    scripted.advance(TIMEOUT / 4);
    scripted.session.failed(scripted.now);
    scripted.actions();
    scripted.open();
    scripted.answer(&accepted(ID + 1));
    let actions = scripted.actions();
    assert!(
        matches!(actions.first(), Some(Action::Event(Event::SessionLost(SessionLoss::Expired)))),
        "{actions:?}"
    );
}

/// Loses the connection of a session, and lets a server at a former address answer the next attempt.
fn disown(scripted: &mut Scripted, answer: &ConnectAnswer) {
    scripted.until_open();
    scripted.session.set_current(false);
    scripted.open();
    scripted.answer(answer);
}

/// There may be another ensemble at a former address.
#[test]
fn session_that_is_unknown_at_a_former_address_lives_until_a_current_one_says_the_same() {
    for answer in [ConnectAnswer::Refused, accepted(ID + 1)] {
        let mut scripted = Scripted::serving();
        scripted.advance(TIMEOUT / 4);
        scripted.session.failed(scripted.now);
        for _ in 0..3 {
            disown(&mut scripted, &answer);
            assert!(scripted.session.take_failure().unwrap().contains("another ensemble"));
            let actions = scripted.actions();
            assert!(matches!(actions.first(), Some(Action::Drop)), "{actions:?}");
        }
        // It is resumed, so what was said is void.
        scripted.until_open();
        scripted.open();
        scripted.answer(&accepted(ID));
        assert!(matches!(scripted.events()[..], [Event::Connected { .. }]));
        for _ in 0..12 {
            scripted.advance(TIMEOUT / 6);
            scripted.session.timer(scripted.now);
            scripted.pong();
        }
        scripted.session.failed(scripted.now);
        disown(&mut scripted, &answer);
        scripted.until_open();
        scripted.open();
        scripted.answer(&answer);
        assert!(lost_for(&scripted.actions(), SessionLoss::Expired), "at a current address");
    }
}

#[test]
fn session_that_is_unknown_at_former_addresses_only_ends_a_session_timeout_after_the_last_contact() {
    for answer in [ConnectAnswer::Refused, accepted(ID + 1)] {
        let mut scripted = Scripted::serving();
        let heard = scripted.now;
        scripted.advance(TIMEOUT / 4);
        scripted.session.failed(scripted.now);
        disown(&mut scripted, &answer);
        scripted.actions();
        while scripted.session.deadline().is_some() {
            assert!(scripted.now < heard.after(TIMEOUT));
            scripted.run_to_deadline();
            if scripted.session.deadline().is_some() {
                scripted.actions();
            }
        }
        assert_eq!(scripted.now, heard.after(TIMEOUT));
        assert!(lost_for(&scripted.actions(), SessionLoss::Expired));
        scripted.session.timer(scripted.now);
        assert!(scripted.session.next_action().is_none(), "the machine has ended");

        let mut scripted = Scripted::serving();
        scripted.advance(TIMEOUT);
        scripted.session.failed(scripted.now);
        disown(&mut scripted, &answer);
        assert!(lost_for(&scripted.actions(), SessionLoss::Expired), "it cannot live any longer");
    }
}

#[test]
fn refused_new_session_and_read_only_server_are_failed_attempts() {
    for answer in [ConnectAnswer::Refused, ConnectAnswer::ReadOnlyServer] {
        let mut scripted = Scripted::new(config());
        scripted.session.set_addresses(2, true);
        scripted.actions();
        scripted.open();
        scripted.answer(&answer);
        let actions = scripted.actions();
        assert!(matches!(actions.as_slice(), [Action::Drop, Action::Open]), "{answer:?}: {actions:?}");
    }
}

#[test]
fn answer_with_another_version_or_with_the_session_minus_one_is_a_failed_attempt() {
    for (at, value) in [(4, 42_i32), (12, -1)] {
        let mut scripted = Scripted::new(config());
        scripted.session.set_addresses(2, true);
        scripted.actions();
        scripted.open();
        let mut bytes = Vec::new();
        accepted(i64::from(u32::MAX)).encode(&mut bytes);
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        scripted.session.received(scripted.now, &bytes);
        let actions = scripted.actions();
        assert!(matches!(actions.as_slice(), [Action::Drop, Action::Open]), "{value}: {actions:?}");
        assert_eq!(scripted.open().session_id, 0);
    }
}

#[test]
fn session_is_lost_after_a_round_of_clickhouse_keeper_servers() {
    for mut scripted in [Scripted::new(config()), Scripted::serving()] {
        scripted.session.set_addresses(2, true);
        scripted.session.failed(scripted.now);
        for attempt in 0..3 {
            scripted.until_open();
            scripted.open();
            scripted.answer(&ConnectAnswer::ClickHouseKeeper);
            let failure = scripted.session.take_failure().unwrap();
            assert!(failure.contains("ClickHouse"), "{failure}");
            assert_eq!(scripted.session.deadline().is_none(), attempt == 2);
        }
        assert!(lost_for(&scripted.actions(), SessionLoss::ClickHouseKeeper));
    }
}

#[test]
fn negative_session_timeout_is_a_failed_attempt() {
    let mut scripted = Scripted::serving();
    scripted.advance(TIMEOUT / 4);
    scripted.session.set_addresses(2, true);
    scripted.session.failed(scripted.now);
    scripted.actions();
    scripted.open();
    let mut bytes = Vec::new();
    granted(ID, TIMEOUT).encode(&mut bytes);
    bytes[8..12].copy_from_slice(&(-1_i32).to_be_bytes());
    scripted.session.received(scripted.now, &bytes);
    // A timeout of zero refuses the session, which is then lost. A negative one violates the protocol.
    let actions = scripted.actions();
    assert!(matches!(actions.as_slice(), [Action::Drop, Action::Open]), "{actions:?}");
}

#[test]
fn longer_session_timeout_than_requested_is_accepted() {
    let mut scripted = Scripted::new(config());
    scripted.actions();
    scripted.open();
    scripted.answer(&granted(ID, 3 * TIMEOUT));
    let connected = Event::Connected { granted: Granted::new(3 * TIMEOUT), session_id: ID };
    assert_eq!(scripted.events(), [connected]);
    scripted.admit();
    assert_eq!(scripted.session.deadline(), Some(scripted.now.after(TIMEOUT / 2)), "the next ping");
}

#[test]
fn read_only_server_does_not_end_an_existing_session() {
    let mut scripted = Scripted::serving();
    scripted.advance(TIMEOUT / 4);
    scripted.session.failed(scripted.now);
    scripted.actions();
    scripted.open();
    scripted.answer(&ConnectAnswer::ReadOnlyServer);
    assert!(matches!(scripted.actions().as_slice(), [Action::Drop]));
    scripted.run_to_deadline();
    scripted.connect();
}

#[test]
fn attempts_go_on_while_no_server_answers_and_are_limited_in_time() {
    let mut scripted = Scripted::serving();
    scripted.advance(TIMEOUT / 4);
    scripted.session.set_addresses(3, true);
    scripted.session.failed(scripted.now);
    let mut attempts = 0;
    let begun = scripted.now;
    while scripted.now < begun.after(TIMEOUT / 2) {
        attempts += scripted.actions().iter().filter(|action| matches!(action, Action::Open)).count();
        scripted.run_to_deadline();
    }
    // In the first round, each attempt takes an eighth of the session timeout, but at most 1 s. In the second round, an
    // attempt takes twice as long.
    assert!((4..=12).contains(&attempts), "{attempts}");
}

#[test]
fn handshake_that_is_not_answered_ends_the_attempt() {
    let mut scripted = Scripted::new(config());
    scripted.session.set_addresses(2, true);
    scripted.actions();
    scripted.open();
    scripted.run_to_deadline();
    assert!(matches!(scripted.actions().as_slice(), [Action::Drop, Action::Open]));
    assert!(scripted.session.outgoing().is_empty());
}

/// A server that is starting refuses connections. Then it may accept a connection and never answer: the server fails to
/// close a connection whose request came before the server was ready.
#[test]
fn handshake_that_is_not_answered_after_many_refusals_leaves_time_for_others() {
    let mut scripted = Scripted::serving();
    scripted.lose_connection();
    let lost = scripted.now;
    while scripted.now < lost.after(TIMEOUT / 4) {
        scripted.session.failed(scripted.now);
        scripted.run_to_deadline();
    }
    scripted.open();
    let asked = scripted.now;
    scripted.actions();
    scripted.run_to_deadline();
    assert!(matches!(scripted.actions().as_slice(), [Action::Drop, ..]));
    assert_eq!(scripted.now.since(asked), TIMEOUT / 6);
}

#[test]
fn credentials_are_presented_on_every_connection_before_anything_else() {
    let mut scripted = Scripted::with_credentials(2);
    for _ in 0..2 {
        scripted.actions();
        scripted.submit(1, &read("/a"));
        scripted.open();
        scripted.answer(&accepted(ID));
        let sent = scripted.sent();
        assert_eq!(sent.iter().map(|request| request.operation).collect::<Vec<_>>(), [OpCode::Auth; 2]);
        let is_connected = |event: &Event| matches!(event, Event::Connected { .. });
        assert!(
            !scripted.events().iter().any(is_connected),
            "not connected before the credentials are answered"
        );
        scripted.authenticated();
        assert!(scripted.actions().is_empty());
        scripted.authenticated();
        assert!(matches!(scripted.actions().as_slice(), [Action::Event(Event::Connected { .. })]));
        assert_eq!(scripted.sent()[0].operation, OpCode::GetData);
        scripted.advance(TIMEOUT / 4);
        scripted.session.failed(scripted.now);
    }
}

#[test]
fn grant_of_a_reconnect_is_reported_before_the_credentials_are_answered() {
    let mut scripted = Scripted::with_credentials(1);
    scripted.actions();
    scripted.open();
    scripted.answer(&accepted(ID));
    scripted.authenticated();
    assert_eq!(scripted.events(), [Event::Connected { granted: Granted::new(TIMEOUT), session_id: ID }]);
    scripted.advance(TIMEOUT / 4);
    scripted.session.failed(scripted.now);
    scripted.actions();
    scripted.open();
    scripted.answer(&granted(ID, TIMEOUT / 2));
    assert_eq!(scripted.events(), [Event::TakenUp { session_timeout: TIMEOUT / 2 }]);
}

#[test]
fn session_with_refused_credentials_is_lost_and_closed_on_the_next_connection() {
    let mut scripted = Scripted::with_credentials(2);
    scripted.session.set_addresses(2, true);
    scripted.actions();
    scripted.open();
    scripted.submit(1, &read("/a"));
    scripted.answer(&accepted(ID));
    scripted.authenticated();
    scripted.reply_error(XID_AUTH, -115);
    let actions = scripted.actions();
    let [
        Action::Event(Event::SessionLost(SessionLoss::CredentialsRefused)),
        Action::Reply(1, Err(ZkError::SessionExpired)),
        Action::Drop,
        Action::Open,
    ] = actions.as_slice()
    else {
        panic!("{actions:?}");
    };
    assert_eq!(scripted.session.submit(scripted.now, read("/a"), 2), Err(2));
    assert_eq!(scripted.open().session_id, ID);
    scripted.answer(&accepted(ID));
    let sent = scripted.sent();
    assert_eq!(sent.iter().map(|request| request.operation).collect::<Vec<_>>(), [OpCode::Close]);
    scripted.reply(sent[0].xid, 2, &Reply::Done);
    assert!(matches!(scripted.actions().as_slice(), [Action::Drop, Action::Ended]));
}

#[test]
fn session_with_refused_credentials_expires_if_no_server_closes_it() {
    let mut scripted = Scripted::with_credentials(1);
    scripted.actions();
    scripted.open();
    scripted.answer(&accepted(ID));
    scripted.reply_error(XID_AUTH, -115);
    let heard = scripted.now;
    while scripted.session.deadline().is_some() {
        scripted.run_to_deadline();
    }
    assert_eq!(scripted.now, heard.after(TIMEOUT));
    let events = |action: &&Action<u32>| matches!(action, Action::Event(_));
    assert_eq!(scripted.actions().iter().filter(events).count(), 1);
}

#[test]
fn credentials_refused_during_a_close_do_not_prevent_it() {
    let mut scripted = Scripted::with_credentials(1);
    scripted.session.set_addresses(2, true);
    scripted.actions();
    scripted.open();
    scripted.answer(&accepted(ID));
    scripted.session.close(scripted.now);
    scripted.sent();
    scripted.reply_error(XID_AUTH, -115);
    assert!(matches!(scripted.actions().as_slice(), [Action::Drop, Action::Open]));
    scripted.open();
    scripted.answer(&accepted(ID));
    assert_eq!(scripted.sent()[0].operation, OpCode::Close);
}

#[test]
fn close_is_sent_and_its_reply_ends_the_machine_without_an_event() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &read("/a"));
    scripted.session.close(scripted.now);
    let sent = scripted.sent();
    assert_eq!(sent[1].operation, OpCode::Close);
    scripted.reply(1, 1, &super::scripted::data());
    scripted.reply(sent[1].xid, 2, &Reply::Done);
    let actions = scripted.actions();
    assert!(
        matches!(actions.as_slice(), [Action::Reply(1, Ok(_)), Action::Drop, Action::Ended]),
        "{actions:?}"
    );
}

#[test]
fn close_without_contact_is_sent_on_the_next_connection() {
    let mut scripted = Scripted::serving();
    scripted.advance(TIMEOUT / 4);
    scripted.session.failed(scripted.now);
    scripted.actions();
    scripted.submit(1, &read("/a"));
    scripted.session.close(scripted.now);
    assert!(matches!(scripted.replies().as_slice(), [(1, Err(ZkError::SessionExpired))]));
    scripted.open();
    scripted.answer(&accepted(ID));
    assert_eq!(scripted.sent()[0].operation, OpCode::Close);
    assert!(scripted.actions().is_empty());
}

#[test]
fn close_without_contact_gives_up_when_the_server_has_ended_the_session() {
    let mut scripted = Scripted::serving();
    let last_heard = scripted.now;
    scripted.advance(TIMEOUT / 4);
    scripted.session.failed(scripted.now);
    scripted.session.close(scripted.now);
    while scripted.session.deadline().is_some() {
        scripted.run_to_deadline();
    }
    assert_eq!(scripted.now, last_heard.after(TIMEOUT));
    let actions = scripted.actions();
    assert!(matches!(actions.last(), Some(Action::Ended)), "{actions:?}");
    assert!(!actions.iter().any(|action| matches!(action, Action::Event(_))), "{actions:?}");
}

#[test]
fn close_during_the_first_handshake_closes_the_session_that_it_opens() {
    let mut scripted = Scripted::new(config());
    scripted.actions();
    scripted.open();
    scripted.session.close(scripted.now);
    assert!(scripted.actions().is_empty());
    scripted.answer(&accepted(ID));
    assert_eq!(scripted.sent()[0].operation, OpCode::Close);
}

/// Returns machines in a handshake, one with and one without a session. No server has been heard from for a long time.
fn late_handshakes() -> [Scripted; 2] {
    [Scripted::serving(), Scripted::new(config())].map(|mut scripted| {
        scripted.lose_connection();
        scripted.run_for(2 * TIMEOUT);
        scripted.until_open();
        scripted.open();
        scripted
    })
}

/// The session that the handshake opens or resumes would otherwise keep its znodes for a session timeout.
#[test]
fn close_during_a_handshake_awaits_its_answer_however_long_no_server_was_heard() {
    for mut scripted in late_handshakes() {
        scripted.session.close(scripted.now);
        scripted.session.timer(scripted.now);
        assert!(scripted.actions().is_empty());
        scripted.answer(&accepted(ID));
        assert_eq!(scripted.sent()[0].operation, OpCode::Close);
    }
}

#[test]
fn close_during_a_late_handshake_ends_with_it() {
    for mut scripted in late_handshakes() {
        let handshake_ends = scripted.session.deadline();
        scripted.session.close(scripted.now);
        scripted.run_to_deadline();
        assert_eq!((scripted.session.deadline(), handshake_ends), (None, Some(scripted.now)));
    }
}

#[test]
fn close_before_any_handshake_ends_at_once() {
    let mut scripted = Scripted::new(config());
    scripted.actions();
    scripted.session.close(scripted.now);
    assert!(matches!(scripted.actions().as_slice(), [Action::Drop, Action::Ended]));
}

#[test]
fn servers_that_end_each_connection_at_once_are_not_tried_in_a_loop_without_pauses() {
    let mut scripted = Scripted::new(config());
    let mut connections = 0;
    let begun = scripted.now;
    while scripted.now < begun.after(Duration::from_secs(5)) {
        if scripted.actions().iter().any(|action| matches!(action, Action::Open)) {
            scripted.open();
            scripted.answer(&accepted(ID));
            connections += 1;
            scripted.session.failed(scripted.now);
        }
        scripted.run_to_deadline();
    }
    assert!(connections < 40, "{connections}");
}

/// The error of a server that requires authentication.
const DEMANDED: i32 = crate::codec::AUTHENTICATION_REQUIRED;

/// Answers the first request on a new connection with the authentication-required error.
fn demand(scripted: &mut Scripted) {
    scripted.open();
    scripted.answer(&accepted(ID));
    scripted.run_to_deadline();
    assert_eq!(scripted.sent()[0].operation, OpCode::Ping, "pinged at once");
    scripted.reply_error(XID_PING, DEMANDED);
}

fn lost_for(actions: &[Action<u32>], loss: SessionLoss) -> bool {
    actions.iter().any(|action| matches!(action, Action::Event(Event::SessionLost(why)) if *why == loss))
        && matches!(actions.last(), Some(Action::Ended))
}

/// The first attempt may be in the middle of a round, so two rounds (less one attempt) are needed to ask all servers.
#[test]
fn session_is_lost_when_each_server_was_asked_and_all_demand_an_authentication() {
    let mut scripted = Scripted::new(config());
    scripted.session.set_addresses(3, true);
    for _ in 0..4 {
        scripted.until_open();
        demand(&mut scripted);
        assert!(scripted.session.deadline().is_some(), "another server may admit the client");
    }
    scripted.until_open();
    demand(&mut scripted);
    let actions = scripted.actions();
    assert!(lost_for(&actions, SessionLoss::AuthenticationRequired), "{actions:?}");
    assert_eq!(scripted.session.deadline(), None, "the session is not presented again");
}

#[test]
fn refusal_of_an_address_that_became_known_during_a_pause_counts() {
    let mut scripted = Scripted::new(config());
    scripted.actions();
    scripted.session.failed(scripted.now);
    assert!(matches!(scripted.session.phase, Phase::Pausing { .. }));
    scripted.session.set_addresses(1, true);
    scripted.until_open();
    demand(&mut scripted);
    assert!(lost_for(&scripted.actions(), SessionLoss::AuthenticationRequired));
}

/// One of the three servers cannot be reached, or its address is unknown. Each connect request renews the session, so a
/// session that is presented forever blocks others with its znodes.
#[test]
fn session_that_some_servers_refuse_and_none_serves_is_lost_after_a_session_timeout() {
    for misses_addresses in [false, true] {
        let mut scripted = Scripted::serving();
        scripted.session.set_addresses(if misses_addresses { 2 } else { 3 }, !misses_addresses);
        scripted.submit(1, &read("/a"));
        scripted.submit(2, &read("/b"));
        // The error overtakes the outstanding replies.
        scripted.reply_error(2, DEMANDED);
        let first = scripted.now;
        while scripted.session.deadline().is_some() {
            assert!(scripted.now.since(first) <= TIMEOUT + TIMEOUT / 4, "the session is renewed forever");
            if !misses_addresses {
                scripted.until_open();
                scripted.session.failed(scripted.now);
            }
            for _ in 0..2 {
                if scripted.session.deadline().is_some() {
                    scripted.until_open();
                    demand(&mut scripted);
                }
            }
        }
        assert!(scripted.now.since(first) >= TIMEOUT, "the third server may serve the session");
        assert!(lost_for(&scripted.actions(), SessionLoss::AuthenticationRequired));
    }
}

/// Servers that resume the session but answer nothing may be cut off from the others. Each connect request renews the
/// session.
#[test]
fn session_whose_servers_take_it_up_and_answer_nothing_is_lost_when_all_were_asked() {
    for (addresses, attempts) in [(1, 3), (3, 5)] {
        let mut scripted = Scripted::serving();
        scripted.session.set_addresses(addresses, true);
        scripted.lose_connection();
        let (begun, mut asked) = (scripted.now, 0);
        while scripted.session.deadline().is_some() {
            assert!(scripted.now.since(begun) <= 3 * TIMEOUT, "the session is renewed forever");
            scripted.until_open();
            scripted.open();
            scripted.answer(&accepted(ID));
            asked += 1;
            while matches!(scripted.session.phase, Phase::Serving(_)) {
                scripted.run_to_deadline();
            }
        }
        assert!(scripted.now.since(begun) >= TIMEOUT && asked >= attempts, "{asked}");
        assert!(lost_for(&scripted.actions(), SessionLoss::Unserved));
    }
}

/// A server that refuses to set the watches does not serve the session.
#[test]
fn session_whose_watches_cannot_be_set_again_on_any_server_is_lost() {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &watch("/a"));
    scripted.reply(1, 1, &data());
    scripted.lose_connection();
    let begun = scripted.now;
    while scripted.session.deadline().is_some() {
        assert!(scripted.now.since(begun) <= 2 * TIMEOUT, "the session is renewed forever");
        scripted.until_open();
        scripted.open();
        scripted.answer(&accepted(ID));
        let sent = scripted.sent();
        scripted.reply_error(sent[0].xid, -127);
    }
    assert!(lost_for(&scripted.actions(), SessionLoss::Unserved));
}

#[test]
fn servers_whose_answers_are_too_long_serve_the_session() {
    let mut scripted = Scripted::serving();
    let begun = scripted.now;
    while scripted.now.since(begun) < 3 * TIMEOUT {
        scripted.submit(1, &read("/a"));
        scripted.session.received(scripted.now, &i32::MAX.to_be_bytes());
        scripted.until_open();
        scripted.open();
        scripted.answer(&accepted(ID));
        scripted.advance(TIMEOUT / 20);
    }
    assert!(scripted.session.deadline().is_some());
}

#[test]
fn closing_session_is_closed_on_the_next_connection_however_long_it_was_not_served() {
    let mut scripted = Scripted::serving();
    scripted.session.set_addresses(3, true);
    scripted.lose_connection();
    for _ in 0..4 {
        scripted.until_open();
        scripted.open();
        scripted.answer(&accepted(ID));
        while matches!(scripted.session.phase, Phase::Serving(_)) {
            scripted.run_to_deadline();
        }
    }
    scripted.session.close(scripted.now);
    for _ in 0..9 {
        scripted.until_open();
        scripted.open();
        scripted.answer(&accepted(ID));
        scripted.session.failed(scripted.now);
    }
    scripted.until_open();
    scripted.open();
    scripted.answer(&accepted(ID));
    assert_eq!(scripted.sent().last().map(|request| request.operation), Some(OpCode::Close));
}

/// The first answer shows that the session is admitted.
#[test]
fn server_whose_answer_is_too_long_makes_up_for_one_that_demands_an_authentication() {
    let mut scripted = Scripted::serving();
    scripted.session.set_addresses(2, true);
    scripted.lose_connection();
    scripted.until_open();
    demand(&mut scripted);
    scripted.until_open();
    scripted.open();
    scripted.submit(1, &read("/a"));
    scripted.answer(&accepted(ID));
    scripted.session.received(scripted.now, &i32::MAX.to_be_bytes());
    assert_eq!(scripted.session.refusal(), None);
    let begun = scripted.now;
    while scripted.session.deadline().is_some() {
        assert!(scripted.now.since(begun) <= 2 * TIMEOUT, "the session is renewed forever");
        scripted.until_open();
        scripted.open();
        scripted.answer(&accepted(ID));
        scripted.session.failed(scripted.now);
    }
    assert!(lost_for(&scripted.actions(), SessionLoss::Unserved));
}

/// The server that refused the session has since resumed it.
#[test]
fn reason_of_the_loss_is_that_of_the_last_attempts() {
    let mut scripted = Scripted::serving();
    scripted.session.set_addresses(2, true);
    scripted.lose_connection();
    scripted.until_open();
    demand(&mut scripted);
    while scripted.session.deadline().is_some() {
        scripted.until_open();
        scripted.open();
        scripted.answer(&accepted(ID));
        scripted.session.failed(scripted.now);
    }
    assert!(lost_for(&scripted.actions(), SessionLoss::Unserved));
}

#[test]
fn session_that_finds_a_server_each_time_before_it_is_cut_off_lives() {
    let mut scripted = Scripted::serving();
    for _ in 0..100 {
        scripted.lose_connection();
        scripted.until_open();
        scripted.open();
        scripted.answer(&accepted(ID));
        scripted.actions();
        // This connection is cut off before the server has answered a request.
        scripted.lose_connection();
        scripted.until_open();
        scripted.open();
        scripted.answer(&accepted(ID));
        assert_eq!(scripted.session.deadline(), Some(scripted.now), "pinged at once");
        scripted.run_to_deadline();
        scripted.pong();
        scripted.run_for(TIMEOUT / 30);
        scripted.actions();
    }
    assert!(scripted.session.deadline().is_some());
}

#[test]
fn server_that_answers_makes_up_for_one_that_demands_an_authentication() {
    let mut scripted = Scripted::new(config());
    scripted.session.set_addresses(2, true);
    for _ in 0..3 {
        scripted.actions();
        demand(&mut scripted);
        scripted.actions();
        scripted.open();
        scripted.answer(&accepted(ID));
        scripted.actions();
        scripted.admit();
        scripted.lose_connection();
    }
    assert!(scripted.session.deadline().is_some());
}

#[test]
fn refusal_to_close_an_unauthenticated_session_ends_the_close() {
    let mut scripted = Scripted::serving();
    scripted.session.close(scripted.now);
    let close = scripted.sent().pop().unwrap();
    scripted.reply_error(close.xid, DEMANDED);
    let actions = scripted.actions();
    assert!(matches!(actions.as_slice(), [Action::Drop, Action::Ended]), "{actions:?}");
}
