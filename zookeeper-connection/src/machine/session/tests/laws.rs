//! Checks the laws of the machine with generated histories.

use proptest::prelude::*;

use super::scripted::{Scripted, read};
use crate::machine::session::laws::check_history;

/// Generates a step of a history. Steps that lead to a serving connection are more frequent.
fn step() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        4 => Just(0_u8),
        4 => Just(2),
        1 => Just(3),
        4 => Just(5),
        4 => Just(6),
        2 => Just(11),
        3 => Just(14),
        4 => 0..20_u8,
        2 => 16..19_u8,
    ];
    (kind, any::<u8>(), any::<u8>()).prop_map(|(kind, first, second)| match kind {
        // Deliver only a few bytes. Otherwise, the following steps would be taken as arguments.
        4 => vec![kind, 2, first, second],
        0 | 1 | 10 => vec![kind, first, second],
        2 | 5 | 8 | 13 | 15..=19 => vec![kind, first],
        _ => vec![kind],
    })
}

proptest! {
    #[test]
    fn every_request_has_one_outcome_and_actions_fit_the_state(
        first in any::<u8>(),
        steps in proptest::collection::vec(step(), 0..80),
    ) {
        check_history(&[vec![first], steps.concat()].concat());
    }

    #[test]
    fn any_bytes_are_a_history(history in proptest::collection::vec(any::<u8>(), 0..300)) {
        check_history(&history);
    }

    #[test]
    fn bytes_of_a_serving_server_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0_usize..200) {
        let mut scripted = Scripted::serving();
        scripted.submit(1, &read("/a"));
        let (first, second) = bytes.split_at(cut.min(bytes.len()));
        scripted.session.received(scripted.now, first);
        scripted.session.received(scripted.now, second);
        scripted.actions();
    }
}

#[test]
fn close_ends_on_a_server_that_grants_a_millisecond() {
    check_history(b"~r\0\0\x0f\x0f\x0f\x0f\0\0\0\0\0\0\0\0\0\0\0\0\x0f\x25\x25\xc2\x8a");
}
