//! The systems that are explored.

use std::num::NonZeroU32;
use std::time::Duration;

use super::system::{Case, Faults};
use crate::error::ZkError;
use crate::recipe::access::Access;
use crate::recipe::naming_scheme::NamingScheme;

const EXCLUSIVE: Access = Access::Exclusive(NamingScheme::Recipe);
const READ: Access = Access::Read(NamingScheme::Recipe);
const WRITE: Access = Access::Write(NamingScheme::Recipe);

/// A limit for holds. It is longer than an owner's first steps take.
const LIMIT: Option<Duration> = Some(Duration::from_secs(2));

const NONE: Faults = Faults {
    withdrawals: 0,
    cuts: 0,
    expiries: 0,
    deletions: 0,
    changes: 0,
    alarms: 0,
    ends: 0,
    refusals: 0,
};

fn permit(of: u32) -> Access {
    Access::Permit(NonZeroU32::new(of).unwrap())
}

fn case<const N: usize>(name: &'static str, requests: [(usize, Access); N], faults: Faults) -> Case {
    Case {
        name,
        requests: requests.to_vec(),
        faults,
        has_dir: true,
        may_lag: false,
        sets_watches_again: false,
        may_be_late: false,
        window: 512,
        refusal: ZkError::Throttled,
        max_hold: None,
    }
}

/// Returns the cases of the test suite.
pub(super) fn small_cases() -> Vec<Case> {
    let two = [(0, EXCLUSIVE), (1, EXCLUSIVE)];
    vec![
        case("two, a deletion", two, Faults { withdrawals: 1, deletions: 1, ..NONE }),
        case(
            "two of a session, a deletion",
            [(0, EXCLUSIVE); 2],
            Faults { withdrawals: 2, deletions: 1, ..NONE },
        ),
        Case {
            window: 1,
            ..case(
                "two of a session, a window of one",
                [(0, EXCLUSIVE); 2],
                Faults { withdrawals: 2, ..NONE },
            )
        },
        Case { max_hold: LIMIT, ..case("two, a limit", two, Faults { withdrawals: 1, ..NONE }) },
        case("reader and writer", [(0, READ), (1, WRITE)], Faults { withdrawals: 1, deletions: 1, ..NONE }),
        case(
            "one permit for two",
            [(0, permit(1)), (1, permit(1))],
            Faults { withdrawals: 1, changes: 1, ..NONE },
        ),
    ]
}

pub(super) fn large_cases() -> Vec<Case> {
    let two = [(0, EXCLUSIVE), (1, EXCLUSIVE)];
    let three = [(0, EXCLUSIVE), (1, EXCLUSIVE), (2, EXCLUSIVE)];
    let three_of_two = [(0, EXCLUSIVE), (1, EXCLUSIVE), (0, EXCLUSIVE)];
    let cut = Faults { withdrawals: 1, cuts: 1, ..NONE };
    vec![
        case("two, a cut", two, cut),
        case("two, a cut and a deletion", two, Faults { deletions: 1, ..cut }),
        case("two, a cut and a change", two, Faults { changes: 1, ..cut }),
        case(
            "two, a change and a deletion",
            two,
            Faults { withdrawals: 1, changes: 1, deletions: 1, ..NONE },
        ),
        case("two, a cut and an alarm", two, Faults { alarms: 1, ..cut }),
        case("two, two cuts", two, Faults { cuts: 2, ..cut }),
        Case { max_hold: LIMIT, ..case("two, a limit, a cut and alarms", two, Faults { alarms: 3, ..cut }) },
        Case { max_hold: LIMIT, ..case("two, a limit and a cut", two, cut) },
        Case { max_hold: LIMIT, ..case("two, a limit and a deletion", two, Faults { deletions: 1, ..cut }) },
        Case {
            max_hold: LIMIT,
            ..case("two, a limit, an expiry and alarms", two, Faults { expiries: 1, alarms: 2, ..cut })
        },
        Case {
            max_hold: LIMIT,
            ..case(
                "one permit for two, a limit and a cut",
                [(0, permit(1)), (1, permit(1))],
                Faults { alarms: 2, ..cut },
            )
        },
        case("two, an expiry", two, Faults { withdrawals: 1, cuts: 1, expiries: 1, ..NONE }),
        case("two, an end and a cut", two, Faults { ends: 1, ..cut }),
        Case { may_lag: true, ..case("two, servers lag, a cut", two, cut) },
        Case {
            may_lag: true,
            ..case("two, servers lag, a deletion", two, Faults { withdrawals: 1, deletions: 1, ..NONE })
        },
        Case { sets_watches_again: true, ..case("two, watches set again, a cut", two, cut) },
        Case {
            sets_watches_again: true,
            ..case("two, watches set again, a deletion", two, Faults { deletions: 1, ..cut })
        },
        Case { may_be_late: true, ..case("two, late writes", two, cut) },
        Case { may_be_late: true, ..case("two of a session, late writes", [(0, EXCLUSIVE); 2], cut) },
        Case { may_be_late: true, ..case("reader and writer, late writes", [(0, READ), (1, WRITE)], cut) },
        Case {
            may_be_late: true,
            ..case("one permit for two, late writes", [(0, permit(1)), (1, permit(1))], cut)
        },
        Case { has_dir: false, ..case("two, no directory", two, cut) },
        case("two, throttled", two, Faults { withdrawals: 1, refusals: 2, ..NONE }),
        case("two, a cut, throttled", two, Faults { refusals: 1, ..cut }),
        Case {
            refusal: ZkError::NoAuth,
            ..case(
                "two, a deletion, denied",
                two,
                Faults { withdrawals: 1, deletions: 1, refusals: 1, ..NONE },
            )
        },
        Case { refusal: ZkError::NoAuth, ..case("two, a cut, denied", two, Faults { refusals: 1, ..cut }) },
        Case {
            window: 1,
            ..case("two, a window of one, a cut and a deletion", two, Faults { deletions: 1, ..cut })
        },
        Case { window: 1, ..case("two of a session, a window of one, a cut", [(0, EXCLUSIVE); 2], cut) },
        Case {
            window: 1,
            ..case(
                "two of a session, a window of one, an end",
                [(0, EXCLUSIVE); 2],
                Faults { ends: 1, ..cut },
            )
        },
        Case {
            window: 1,
            ..case("three of two sessions, a window of one", three_of_two, Faults { withdrawals: 2, ..NONE })
        },
        case("three, a withdrawal", three, Faults { withdrawals: 1, ..NONE }),
        case("three, a cut", three, Faults { cuts: 1, ..NONE }),
        case("three of two sessions", three_of_two, Faults { withdrawals: 2, ..NONE }),
        case(
            "three of two sessions, a deletion",
            three_of_two,
            Faults { withdrawals: 1, deletions: 1, ..NONE },
        ),
        case(
            "three of a session, a deletion",
            [(0, EXCLUSIVE); 3],
            Faults { withdrawals: 2, deletions: 1, ..NONE },
        ),
        case("three of a session, a cut", [(0, EXCLUSIVE); 3], Faults { withdrawals: 1, cuts: 1, ..NONE }),
        case("reader and writer, a cut", [(0, READ), (1, WRITE)], Faults { deletions: 1, ..cut }),
        case(
            "reader, writer, reader",
            [(0, READ), (1, WRITE), (1, READ)],
            Faults { withdrawals: 1, deletions: 1, ..NONE },
        ),
        Case {
            sets_watches_again: true,
            ..case(
                "one permit for three, a cut",
                [(0, permit(1)), (1, permit(1)), (0, permit(1))],
                Faults { cuts: 1, ..NONE },
            )
        },
        case(
            "reader, exclusive, reader",
            [(0, READ), (1, EXCLUSIVE), (1, READ)],
            Faults { withdrawals: 1, deletions: 1, ..NONE },
        ),
        case("one permit for two, a cut", [(0, permit(1)), (1, permit(1))], cut),
        case(
            "two permits for three",
            [(0, permit(2)), (1, permit(2)), (1, permit(2))],
            Faults { withdrawals: 1, ..NONE },
        ),
    ]
}
