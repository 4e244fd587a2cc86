//! SASL authentication: its stages, refusals, and servers without SASL.

use super::scripted::{ID, Scripted, TIMEOUT, accepted, config, credentials, granted, read, watch};
use crate::codec::{AUTHENTICATION_REQUIRED, OpCode, XID_AUTH, XID_PING, encode_sasl_token};
use crate::error::ZkError;
use crate::machine::session::{Action, Config, Event, SaslStep, SessionLoss};
use crate::{Granted, Reply};

const AUTH_FAILED: i32 = -115;

/// Returns a machine with a first token and this many credentials. Its server has accepted the session and received the
/// token.
fn begun(count: usize) -> Scripted {
    let mut scripted = Scripted::new(Config { sasl: true, credentials: credentials(count), ..config() });
    scripted.session.set_addresses(2, true);
    scripted.actions();
    begin(&mut scripted);
    scripted
}

/// Like [`begun`], with a single address.
fn begun_alone() -> Scripted {
    let mut scripted = Scripted::new(Config { sasl: true, ..config() });
    scripted.actions();
    begin(&mut scripted);
    scripted
}

/// Continues from `Open` until the server has received the first token.
fn begin(scripted: &mut Scripted) {
    scripted.session.set_first_token(b"first".to_vec());
    scripted.open();
    scripted.answer(&accepted(ID));
    assert_eq!(operations(scripted), [OpCode::Sasl]);
}

fn operations(scripted: &mut Scripted) -> Vec<OpCode> {
    scripted.sent().into_iter().map(|request| request.operation).collect()
}

/// Delivers the server's answer to the last token. `None` stands for null.
fn answer(scripted: &mut Scripted, token: Option<&[u8]>) {
    let (xid, mut bytes) = (scripted.session.awaited_token().unwrap(), Vec::new());
    encode_sasl_token(xid, token, &mut bytes);
    scripted.session.received(scripted.now, &bytes);
}

fn refuse(scripted: &mut Scripted, error: i32) {
    let xid = scripted.session.awaited_token().unwrap();
    scripted.reply_error(xid, error);
}

fn respond(scripted: &mut Scripted, step: SaslStep) {
    scripted.session.respond(scripted.now, step);
}

/// Delivers a challenge of the server and the response of the client.
fn round(scripted: &mut Scripted, step: SaslStep) {
    answer(scripted, Some(b"challenge"));
    assert!(matches!(scripted.actions().as_slice(), [Action::Challenge(token)] if token == b"challenge"));
    respond(scripted, step);
}

fn token() -> SaslStep {
    SaslStep::Token(b"token".to_vec())
}

fn connected() -> Event {
    Event::Connected { granted: Granted::new(TIMEOUT), session_id: ID }
}

/// Asserts that the machine abandons the transport for this reason, and opens another one.
#[track_caller]
fn assert_left(scripted: &mut Scripted, reason: &str) {
    let actions = scripted.actions();
    assert!(matches!(actions.as_slice(), [Action::Drop, Action::Open]), "{actions:?}");
    let failure = scripted.session.take_failure().unwrap_or_default();
    assert!(failure.contains(reason), "{failure}");
    assert!(scripted.session.outgoing().is_empty(), "nothing is sent without the client's identity");
}

/// DIGEST-MD5 works like this.
#[test]
fn exchange_comes_before_credentials_watches_and_requests_on_every_connection() {
    let mut scripted = begun(1);
    for is_first in [true, false] {
        scripted.submit(1, &watch("/a"));
        assert!(operations(&mut scripted).is_empty());
        round(&mut scripted, token());
        assert_eq!(operations(&mut scripted), [OpCode::Sasl]);
        round(&mut scripted, SaslStep::Complete);
        assert_eq!(operations(&mut scripted), [OpCode::Auth]);
        assert!(scripted.actions().is_empty(), "not connected before the exchange is complete");
        scripted.authenticated();
        assert_eq!(scripted.events(), [connected()]);
        let sent = scripted.sent();
        let expected: &[OpCode] =
            if is_first { &[OpCode::GetData] } else { &[OpCode::SetWatches, OpCode::GetData] };
        assert_eq!(sent.iter().map(|request| request.operation).collect::<Vec<_>>(), expected);
        if is_first {
            scripted.reply(sent[0].xid, 1, &super::scripted::data());
            scripted.lose_connection();
            scripted.session.set_first_token(b"first".to_vec());
            scripted.open();
            scripted.answer(&granted(ID, TIMEOUT));
            assert_eq!(scripted.events(), [Event::TakenUp { session_timeout: TIMEOUT }]);
            assert_eq!(operations(&mut scripted), [OpCode::Sasl]);
        }
    }
}

/// Kerberos works like this.
#[test]
fn exchange_may_end_with_a_token_that_the_server_accepts_without_one() {
    let mut scripted = begun(0);
    round(&mut scripted, SaslStep::Token(Vec::new()));
    round(&mut scripted, SaslStep::LastToken(b"last".to_vec()));
    assert!(scripted.actions().is_empty());
    answer(&mut scripted, None);
    assert_eq!(scripted.events(), [connected()]);
}

#[test]
fn server_that_sends_no_token_before_the_end_is_left() {
    for token in [None, Some(&b""[..])] {
        let mut scripted = begun(0);
        answer(&mut scripted, token);
        assert_left(&mut scripted, "does not use SASL");
        begin(&mut scripted);
        scripted.actions();
        round(&mut scripted, SaslStep::Token(b"second".to_vec()));
        scripted.sent();
        answer(&mut scripted, token);
        scripted.run_to_deadline();
        assert!(!scripted.actions().iter().any(|action| matches!(action, Action::Event(_))));
        assert!(scripted.session.take_failure().unwrap().contains("does not use SASL"));
    }
}

#[test]
fn server_that_sends_a_token_after_the_end_is_left() {
    let mut scripted = begun(0);
    round(&mut scripted, SaslStep::LastToken(b"last".to_vec()));
    scripted.sent();
    answer(&mut scripted, Some(b"more"));
    assert_left(&mut scripted, "does not end");
}

#[test]
fn transport_without_a_first_token_is_left() {
    let mut scripted = Scripted::new(Config { sasl: true, ..config() });
    scripted.session.set_addresses(2, true);
    scripted.session.set_first_token(b"of another transport".to_vec());
    scripted.actions();
    scripted.session.failed(scripted.now);
    scripted.actions();
    scripted.open();
    scripted.answer(&accepted(ID));
    assert!(scripted.actions().iter().any(|action| matches!(action, Action::Drop)));
    assert!(scripted.session.outgoing().is_empty());
}

#[test]
fn session_that_all_servers_refuse_by_sasl_is_lost_and_not_presented_again() {
    for error in [AUTH_FAILED, AUTHENTICATION_REQUIRED] {
        let mut scripted = begun(0);
        scripted.submit(1, &read("/a"));
        refuse(&mut scripted, error);
        assert_left(&mut scripted, "refuses the SASL authentication");
        for _ in 0..2 {
            begin(&mut scripted);
            scripted.actions();
            round(&mut scripted, token());
            refuse(&mut scripted, error);
            if scripted.session.deadline().is_some() {
                scripted.until_open();
            }
        }
        let actions = scripted.actions();
        let [
            Action::Drop,
            Action::Event(Event::SessionLost(SessionLoss::SaslRefused)),
            Action::Reply(1, Err(ZkError::SessionExpired)),
            Action::Ended,
        ] = actions.as_slice()
        else {
            panic!("{actions:?}");
        };
        assert_eq!(scripted.session.deadline(), None);
    }
}

#[test]
fn server_that_has_not_authenticated_itself_counts_as_a_refusal() {
    let mut scripted = begun_alone();
    round(&mut scripted, SaslStep::Refused("wrong proof".to_owned()));
    assert_eq!(scripted.session.take_failure().unwrap(), "wrong proof");
    assert!(scripted.session.outgoing().is_empty(), "nothing is sent without the client's identity");
    assert!(matches!(scripted.actions().last(), Some(Action::Ended)));
}

/// An attempt that fails for another reason, such as a missing ticket, does not show what the server would answer.
#[test]
fn only_consecutive_refusals_end_a_session_early() {
    fn be_refused_twice(scripted: &mut Scripted) {
        for _ in 0..2 {
            scripted.until_open();
            begin(scripted);
            refuse(scripted, AUTH_FAILED);
        }
        scripted.until_open();
    }
    fn begin_and_respond(scripted: &mut Scripted, step: SaslStep) {
        begin(scripted);
        scripted.actions();
        round(scripted, step);
    }
    let others: [fn(&mut Scripted); 5] = [
        |scripted| scripted.session.failed(scripted.now),
        |scripted| scripted.session.set_addresses(2, true),
        |scripted| scripted.session.opening_another(scripted.now),
        |scripted| begin_and_respond(scripted, SaslStep::Failed("no answer".to_owned())),
        |scripted| {
            begin_and_respond(scripted, SaslStep::Complete);
            scripted.lose_connection();
        },
    ];
    let mut scripted = begun(0);
    scripted.session.failed(scripted.now);
    for fails_otherwise in others {
        be_refused_twice(&mut scripted);
        fails_otherwise(&mut scripted);
    }
    be_refused_twice(&mut scripted);
    begin(&mut scripted);
    refuse(&mut scripted, AUTH_FAILED);
    assert!(matches!(scripted.actions().last(), Some(Action::Ended)));
}

#[test]
fn silent_server_is_left_after_one_greeting_time_for_all_stages_and_gets_no_ping() {
    let mut scripted = begun(1);
    let begun = scripted.now;
    scripted.advance(TIMEOUT / 12);
    round(&mut scripted, token());
    scripted.advance(TIMEOUT / 24);
    round(&mut scripted, SaslStep::Complete);
    scripted.session.timer(scripted.now);
    assert_eq!(operations(&mut scripted), [OpCode::Sasl, OpCode::Auth]);
    scripted.run_to_deadline();
    assert_eq!(scripted.now, begun.after(TIMEOUT / 6));
    assert_left(&mut scripted, "");
}

#[test]
fn endless_exchange_is_left_after_eight_tokens() {
    let mut scripted = begun(0);
    for _ in 0..7 {
        round(&mut scripted, token());
        assert_eq!(operations(&mut scripted), [OpCode::Sasl]);
    }
    round(&mut scripted, token());
    assert_left(&mut scripted, "does not end");
}

#[test]
fn long_tokens_of_either_side_end_the_attempt() {
    let mut scripted = begun(0);
    answer(&mut scripted, Some(&vec![0; (256 << 10) + 1]));
    assert_left(&mut scripted, "too long");
    begin(&mut scripted);
    scripted.actions();
    answer(&mut scripted, Some(&vec![0; 256 << 10]));
    assert!(matches!(scripted.actions().as_slice(), [Action::Challenge(token)] if token.len() == 256 << 10));
    respond(&mut scripted, SaslStep::Token(vec![0; (256 << 10) + 1]));
    assert!(scripted.actions().iter().any(|action| matches!(action, Action::Drop)));
    assert!(scripted.session.take_failure().unwrap().contains("too long"));
}

/// A reply may be up to 64 MiB long, but not before the client is authenticated.
#[test]
fn long_frames_are_accepted_only_while_the_server_serves() {
    let long = ((256_i32 << 10) + 65).to_be_bytes();
    let mut scripted = begun(0);
    scripted.session.received(scripted.now, &long);
    assert_left(&mut scripted, "");
    begin(&mut scripted);
    scripted.actions();
    round(&mut scripted, SaslStep::Complete);
    assert_eq!(scripted.events(), [connected()]);
    let mut by_last_token = begun(0);
    round(&mut by_last_token, SaslStep::LastToken(b"last".to_vec()));
    answer(&mut by_last_token, None);
    assert_eq!(by_last_token.events(), [connected()]);
    for mut serving in [scripted, by_last_token, Scripted::serving()] {
        serving.session.received(serving.now, &long);
        assert!(serving.actions().is_empty(), "the machine waits for the rest of the frame");
    }
}

#[test]
fn debug_output_has_no_token() {
    let token = || b"s3cret".to_vec();
    let steps = [SaslStep::Token(token()), SaslStep::LastToken(token())];
    let text = format!("{steps:?} {:?}", Action::<()>::Challenge(token()));
    assert_eq!(text, "[Token, LastToken] Challenge");
}

#[test]
fn frames_that_are_not_an_answer_end_the_attempt() {
    for wrong in [
        |scripted: &mut Scripted| {
            let mut of_another_request = Vec::new();
            encode_sasl_token(77, Some(b"challenge"), &mut of_another_request);
            scripted.session.received(scripted.now, &of_another_request);
        },
        |scripted: &mut Scripted| scripted.reply(XID_PING, 0, &Reply::Done),
        |scripted: &mut Scripted| scripted.reply(scripted.session.awaited_token().unwrap(), 0, &Reply::Done),
        |scripted: &mut Scripted| refuse(scripted, -112),
        // A second answer before the response to the first.
        |scripted: &mut Scripted| {
            let xid = scripted.session.awaited_token().unwrap();
            answer(scripted, Some(b"challenge"));
            assert!(scripted.session.next_action().is_some());
            scripted.reply(xid, 0, &Reply::Done);
        },
    ] {
        let mut scripted = begun(0);
        wrong(&mut scripted);
        assert_left(&mut scripted, "");
        // A late response belongs to no connection.
        respond(&mut scripted, SaslStep::Complete);
        assert!(scripted.actions().is_empty());
    }
}

#[test]
fn closing_session_authenticates_and_is_closed() {
    for stage in 0..4 {
        let mut scripted = begun(1);
        let close_at = |now: usize, scripted: &mut Scripted| {
            if stage == now {
                scripted.session.close(scripted.now);
                assert!(scripted.actions().is_empty());
            }
        };
        close_at(0, &mut scripted);
        answer(&mut scripted, Some(b"challenge"));
        assert!(matches!(scripted.actions().as_slice(), [Action::Challenge(_)]));
        close_at(1, &mut scripted);
        respond(&mut scripted, SaslStep::LastToken(b"last".to_vec()));
        close_at(2, &mut scripted);
        answer(&mut scripted, None);
        close_at(3, &mut scripted);
        assert_eq!(operations(&mut scripted), [OpCode::Sasl, OpCode::Auth]);
        scripted.authenticated();
        let close = scripted.sent();
        assert_eq!(close.iter().map(|request| request.operation).collect::<Vec<_>>(), [OpCode::Close]);
        scripted.reply(close[0].xid, 2, &Reply::Done);
        assert!(matches!(scripted.actions().as_slice(), [Action::Drop, Action::Ended]));
    }
}

/// The attempt may still be to one of the former addresses.
#[test]
fn refusal_on_the_attempt_during_which_the_addresses_change_is_not_counted() {
    let mut scripted = begun_alone();
    scripted.session.set_addresses(1, true);
    refuse(&mut scripted, AUTH_FAILED);
    assert_eq!(scripted.session.refusal(), Some(SessionLoss::SaslRefused));
    scripted.until_open();
    begin(&mut scripted);
    refuse(&mut scripted, AUTH_FAILED);
    assert!(matches!(scripted.actions().last(), Some(Action::Ended)));
}

/// Each attempt renews the session: the server uses no SASL, the server closes the connection, or the client cannot
/// respond to the server's token.
#[test]
fn session_that_is_resumed_but_not_served_for_a_session_timeout_is_lost() {
    let ends: [fn(&mut Scripted); 3] = [
        |scripted| answer(scripted, None),
        |scripted| scripted.session.failed(scripted.now),
        |scripted| round(scripted, SaslStep::Failed("no answer".to_owned())),
    ];
    for fails in ends {
        let mut scripted = begun_alone();
        round(&mut scripted, SaslStep::Complete);
        scripted.actions();
        scripted.admit();
        scripted.lose_connection();
        let begun = scripted.now;
        while scripted.session.deadline().is_some() {
            assert!(scripted.now.since(begun) <= TIMEOUT + TIMEOUT / 10, "the session is renewed forever");
            scripted.until_open();
            begin(&mut scripted);
            scripted.actions();
            fails(&mut scripted);
        }
        assert!(scripted.now.since(begun) >= TIMEOUT);
        let actions = scripted.actions();
        let lost = Event::SessionLost(SessionLoss::Unserved);
        let is_lost = |action: &Action<u32>| matches!(action, Action::Event(event) if *event == lost);
        assert!(actions.iter().any(is_lost), "{actions:?}");
    }
}

/// A session that was never served has no znodes that block others.
#[test]
fn session_that_was_never_served_is_tried_as_long_as_its_owner_waits() {
    let mut scripted = begun_alone();
    for _ in 0..100 {
        answer(&mut scripted, None);
        scripted.until_open();
        begin(&mut scripted);
    }
    assert!(scripted.session.deadline().is_some());
}

/// During an outage nothing renews the session, and only a server knows whether it has expired.
#[test]
fn outage_after_a_refusal_ends_no_session() {
    let mut scripted = begun(0);
    refuse(&mut scripted, AUTH_FAILED);
    let begun = scripted.now;
    while scripted.now.since(begun) < 2 * TIMEOUT {
        scripted.until_open();
        scripted.session.failed(scripted.now);
    }
    scripted.until_open();
    begin(&mut scripted);
    refuse(&mut scripted, AUTH_FAILED);
    assert!(scripted.session.deadline().is_some(), "another server may serve the session");
}

/// Another attempt would renew the session.
#[test]
fn closing_session_ends_if_an_exchange_is_not_completed() {
    for ends in [
        |scripted: &mut Scripted| scripted.run_to_deadline(),
        |scripted: &mut Scripted| {
            scripted.session.failed(scripted.now);
        },
    ] {
        let mut scripted = begun(0);
        scripted.session.close(scripted.now);
        assert!(scripted.actions().is_empty());
        ends(&mut scripted);
        assert!(matches!(scripted.actions().last(), Some(Action::Ended)));
    }
}

/// Another attempt would renew the session.
#[test]
fn closing_session_that_a_server_refuses_ends_without_an_event() {
    for error in [AUTH_FAILED, AUTHENTICATION_REQUIRED] {
        let mut scripted = begun(0);
        scripted.session.close(scripted.now);
        refuse(&mut scripted, error);
        assert!(matches!(scripted.actions().as_slice(), [Action::Drop, Action::Ended]));
    }
}

#[test]
fn session_whose_credentials_are_refused_after_the_exchange_is_closed_with_another_exchange() {
    let mut scripted = begun(1);
    round(&mut scripted, SaslStep::Complete);
    scripted.reply_error(XID_AUTH, AUTH_FAILED);
    let actions = scripted.actions();
    assert!(
        matches!(
            actions.as_slice(),
            [Action::Event(Event::SessionLost(SessionLoss::CredentialsRefused)), Action::Drop, Action::Open]
        ),
        "{actions:?}"
    );
    begin(&mut scripted);
    round(&mut scripted, SaslStep::Complete);
    assert_eq!(operations(&mut scripted), [OpCode::Close]);
}

/// A server may require a certificate in addition to SASL.
#[test]
fn authenticated_session_whose_requests_are_refused_is_lost() {
    let mut scripted = begun_alone();
    round(&mut scripted, SaslStep::Complete);
    scripted.actions();
    scripted.run_to_deadline();
    scripted.reply_error(XID_PING, AUTHENTICATION_REQUIRED);
    let actions = scripted.actions();
    let lost = Event::SessionLost(SessionLoss::AuthenticationRequired);
    assert!(
        actions.iter().any(|action| matches!(action, Action::Event(event) if *event == lost)),
        "{actions:?}"
    );
}
