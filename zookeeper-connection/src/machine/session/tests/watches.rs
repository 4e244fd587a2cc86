//! Tests of watches that are removed or set again.

use super::scripted::{ID, Scripted, TIMEOUT, accepted, data, watch};
use crate::Reply;
use crate::codec::OpCode;
use crate::machine::session::Action;

/// Returns a machine with a watch on this path.
fn watching(path: &str) -> Scripted {
    let mut scripted = Scripted::serving();
    scripted.submit(1, &watch(path));
    scripted.sent();
    scripted.reply(1, 1, &data());
    scripted.replies();
    scripted
}

fn reconnect(scripted: &mut Scripted) {
    scripted.advance(TIMEOUT / 4);
    scripted.session.failed(scripted.now);
    scripted.actions();
    scripted.open();
    scripted.answer(&accepted(ID));
    scripted.actions();
}

fn operations(scripted: &mut Scripted) -> Vec<OpCode> {
    scripted.sent().into_iter().map(|request| request.operation).collect()
}

#[test]
fn unwanted_watch_is_removed_once_and_not_set_again() {
    let mut scripted = watching("/a");
    for expected in [&[OpCode::RemoveWatches][..], &[]] {
        scripted.session.remove_watches("/a");
        assert_eq!(operations(&mut scripted), expected);
    }
    scripted.reply(2, 1, &Reply::Done);
    assert!(scripted.actions().is_empty());
    reconnect(&mut scripted);
    assert!(operations(&mut scripted).is_empty());
}

#[test]
fn nothing_is_sent_for_a_path_without_a_watch() {
    let mut scripted = watching("/a");
    scripted.session.remove_watches("/b");
    assert!(operations(&mut scripted).is_empty());
}

#[test]
fn watch_set_after_the_removal_is_set_again_on_the_next_connection() {
    let mut scripted = watching("/a");
    scripted.session.remove_watches("/a");
    scripted.submit(3, &watch("/a"));
    assert_eq!(operations(&mut scripted), [OpCode::RemoveWatches, OpCode::GetData]);
    scripted.reply(2, 1, &Reply::Done);
    scripted.reply(3, 1, &data());
    assert!(matches!(scripted.replies().as_slice(), [(3, Ok(_))]));
    reconnect(&mut scripted);
    assert_eq!(operations(&mut scripted), [OpCode::SetWatches]);
}

#[test]
fn refused_removal_changes_nothing() {
    let mut scripted = watching("/a");
    scripted.session.remove_watches("/a");
    // The error `NoWatcher`: the watch has fired in the meantime.
    scripted.reply_error(2, -121);
    assert!(scripted.actions().is_empty());
}

#[test]
fn server_before_3_5_gets_no_second_removal() {
    let mut scripted = watching("/a");
    scripted.session.remove_watches("/a");
    scripted.reply_error(2, -6);
    let actions = scripted.actions();
    assert!(matches!(actions.first(), Some(Action::Drop)), "{actions:?}");
    scripted.run_to_deadline();
    scripted.open();
    scripted.answer(&accepted(ID));
    scripted.actions();
    scripted.submit(3, &watch("/b"));
    scripted.sent();
    scripted.reply(3, 1, &data());
    scripted.session.remove_watches("/b");
    assert!(operations(&mut scripted).is_empty());
}

#[test]
fn watches_that_do_not_fit_into_one_request_are_set_again_in_several() {
    let mut scripted = Scripted::serving();
    for (number, xid) in (1..=3).zip(1..) {
        scripted.submit(number, &watch(&format!("/{number}{}", "a".repeat(60_000))));
        scripted.sent();
        scripted.reply(xid, 1, &data());
    }
    scripted.replies();
    reconnect(&mut scripted);
    assert_eq!(operations(&mut scripted), [OpCode::SetWatches, OpCode::SetWatches]);
}
