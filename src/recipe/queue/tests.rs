//! Tests of the rules over the names of a queue.

use super::*;
use crate::recipe::naming_scheme::NamingScheme;
use proptest::prelude::*;
use uuid::Uuid;

const EXCLUSIVE: Access = Access::Exclusive(NamingScheme::Recipe);

fn children(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn name(prefix: &str, sequence: i32) -> String {
    format!("{prefix}-lock-{sequence:010}")
}

#[test]
fn lowest_request_owns() {
    let all = children(&["x-b-lock-0000000002", "x-a-lock-0000000001"]);
    assert_eq!(decide(EXCLUSIVE, "x-a-lock-0000000001", &all), Decision::Owner);
    assert_eq!(decide(EXCLUSIVE, "x-b-lock-0000000002", &all), Decision::WaitFor("x-a-lock-0000000001"));
}

#[test]
fn request_is_next_behind_a_single_one_that_cannot_be_replaced() {
    let own = "x-a-lock-0000000005";
    let behind = |others: &[&str]| children(&[others, &[own, "x-b-lock-0000000006", "config"]].concat());
    for ahead in ["x-b-lock-0000000004", "x-72057594037927936-0000000004", "_c_0b2e-lock-0000000004"] {
        assert_eq!(outlook(own, &behind(&[ahead])), Outlook::Next, "{ahead}");
    }
    // A reader may get the number of a writer.
    for ahead in ["write-b-lock-0000000004", "00ff__lock__0000000004", "qn-0000000004"] {
        assert_eq!(outlook(own, &behind(&[ahead])), Outlook::Unclear, "{ahead}");
    }
}

#[test]
fn request_behind_several_others_expects_the_second() {
    let own = "x-a-lock-0000000005";
    let all = children(&["x-b-lock-0000000001", own, "write-b-0000000003", "x-c-lock-0000000002"]);
    assert_eq!(outlook(own, &all), Outlook::Behind("x-c-lock-0000000002"));
}

#[test]
fn of_two_requests_with_one_number_the_larger_name_is_nearer() {
    let own = "x-a-lock-0000000005";
    let (writer, reader) = ("write-b-0000000004", "read-b-0000000004");
    let all = children(&[own, writer, reader]);
    assert_eq!(decide(EXCLUSIVE, own, &all), Decision::WaitFor(writer));
    assert_eq!(outlook(own, &all), Outlook::Behind(reader));
}

#[test]
fn numbers_without_an_order_allow_no_outlook() {
    for ahead in [i32::MAX, i32::MIN, -1] {
        let all = [name("x-a", 5), name("x-b", ahead), name("x-c", 4)];
        assert_eq!(outlook(&all[0], &all), Outlook::Unclear, "{ahead}");
    }
    let all = [name("x-a", i32::MAX), name("x-b", i32::MAX - 1)];
    assert_eq!(outlook(&all[0], &all), Outlook::Unclear);
}

#[test]
fn sequence_alone_decides_whatever_the_prefix() {
    // ZOOKEEPER-2931: if the prefix were compared first, both would own the lock.
    let all = children(&["x-9-lock-0000000001", "x-1-lock-0000000002"]);
    assert_eq!(decide(EXCLUSIVE, "x-1-lock-0000000002", &all), Decision::WaitFor("x-9-lock-0000000001"));
    assert_eq!(decide(EXCLUSIVE, "x-9-lock-0000000001", &all), Decision::Owner);
}

#[test]
fn waiter_waits_for_the_nearest_request_ahead() {
    let all = children(&["a-lock-0000000001", "a-lock-0000000007", "a-lock-0000000003", "a-lock-0000000009"]);
    assert_eq!(decide(EXCLUSIVE, "a-lock-0000000007", &all), Decision::WaitFor("a-lock-0000000003"));
}

#[test]
fn requests_of_other_libraries_count_and_other_children_do_not() {
    let all = children(&["config", "x-3", "00ff__lock__0000000004", "x-a-lock-0000000005"]);
    assert_eq!(decide(EXCLUSIVE, "x-a-lock-0000000005", &all), Decision::WaitFor("00ff__lock__0000000004"));
    let all = children(&["config", "x-3", "x-a-lock-0000000005"]);
    assert_eq!(decide(EXCLUSIVE, "x-a-lock-0000000005", &all), Decision::Owner);
}

#[test]
fn every_other_request_waits_for_an_exclusive_owner() {
    let own = "x-a-lock-0000000005";
    for waiter in ["x-b-lock-0000000006", "00ff__lock__0000000006", "read-c-0000000006", "qn--2147483648"] {
        assert!(has_waiter(own, ["config", own, waiter]), "{waiter}");
    }
    assert!(!has_waiter(own, ["config", own, "x-3"]));
    assert!(!has_waiter(own, []));
}

#[test]
fn wrapped_numbers_are_behind_the_last_one_in_order() {
    let (last, wrapped) = (name("x-a", i32::MAX - 1), name("x-b", i32::MIN));
    let all = vec![wrapped.clone(), last.clone()];
    assert_eq!(decide(EXCLUSIVE, &last, &all), Decision::Owner);
    assert_eq!(decide(EXCLUSIVE, &wrapped, &all), Decision::WaitFor(&last));
}

#[test]
fn lone_request_at_the_end_of_the_counter_owns() {
    for sequence in [i32::MAX, i32::MIN, i32::MIN + 1000] {
        let own = name("x-a", sequence);
        let all = children(&[&own, "config"]);
        assert_eq!(decide(EXCLUSIVE, &own, &all), Decision::Owner);
    }
}

/// A server may issue 2147483647, -2147483648, -2147483647 and then 2147483647 again.
#[test]
fn two_requests_at_the_end_of_the_counter_are_exhausted_whatever_their_numbers() {
    let all: Vec<String> = [("x-a", i32::MAX), ("x-b", i32::MIN), ("x-c", i32::MIN + 1), ("x-d", i32::MAX)]
        .map(|(prefix, sequence)| name(prefix, sequence))
        .into();
    let ahead = name("x-e", i32::MAX - 1);
    for own in &all {
        for other in all.iter().filter(|other| *other != own) {
            let listed = [own.clone(), other.clone(), ahead.clone()];
            assert_eq!(decide(EXCLUSIVE, own, &listed[..2]), Decision::Exhausted, "{listed:?}");
            assert_eq!(decide(EXCLUSIVE, own, &listed), Decision::Exhausted, "{listed:?}");
        }
    }
}

#[test]
fn readers_at_the_end_of_the_counter_share_whatever_their_numbers() {
    let all = children(&["read-a-2147483647", "read-b--2147483648", "read-c-2147483647"]);
    for own in &all {
        assert_eq!(decide(READ, own, &all), Decision::Owner);
    }
    let with_writer = [&all[..], &children(&["write-d--2147483647"])].concat();
    assert_eq!(decide(READ, &all[0], &with_writer), Decision::Exhausted);
    assert_eq!(decide(WRITE, &with_writer[3], &with_writer), Decision::Exhausted);
}

#[test]
fn order_is_kept_from_negative_to_positive_numbers() {
    let (last, first) = (name("x-a", -1), name("x-b", 0));
    let all = vec![first.clone(), last.clone()];
    assert_eq!(decide(EXCLUSIVE, &last, &all), Decision::Owner);
    assert_eq!(decide(EXCLUSIVE, &first, &all), Decision::WaitFor(&last));
}

const READ: Access = Access::Read(NamingScheme::Recipe);
const WRITE: Access = Access::Write(NamingScheme::Recipe);

#[test]
fn reader_waits_for_the_nearest_writer_ahead_and_not_for_readers() {
    let all =
        children(&["read-a-0000000001", "write-b-0000000002", "write-c-0000000003", "read-d-0000000004"]);
    let after = |own: &str| [&all[..], &[own.to_owned()]].concat();
    assert_eq!(decide(READ, "read-a-0000000001", &all), Decision::Owner);
    assert_eq!(decide(READ, "read-d-0000000004", &all), Decision::WaitFor("write-c-0000000003"));
    assert_eq!(
        decide(READ, "read-e-0000000005", &after("read-e-0000000005")),
        Decision::WaitFor("write-c-0000000003")
    );
}

#[test]
fn writer_waits_for_its_predecessor_of_any_kind() {
    let all =
        children(&["read-a-0000000001", "read-b-0000000002", "write-c-0000000003", "write-d-0000000004"]);
    assert_eq!(decide(WRITE, "write-c-0000000003", &all), Decision::WaitFor("read-b-0000000002"));
    assert_eq!(decide(WRITE, "write-d-0000000004", &all), Decision::WaitFor("write-c-0000000003"));
}

#[test]
fn reader_and_writer_never_wait_for_each_other() {
    // https://github.com/python-zk/kazoo/issues/649: a reader that waits for the writers behind
    // it waits forever.
    let all = children(&["read-a-0000000001", "write-b-0000000002"]);
    assert_eq!(decide(READ, "read-a-0000000001", &all), Decision::Owner);
    assert_eq!(decide(WRITE, "write-b-0000000002", &all), Decision::WaitFor("read-a-0000000001"));
}

#[test]
fn request_not_known_as_a_reader_counts_as_a_writer() {
    let own = "read-z-0000000009";
    for ahead in [
        "x-a-lock-0000000001",
        "_c_0b2e-lock-0000000001",
        "_c_0b2e-__READ__0000000001",
        "a__rlock__0000000001",
    ] {
        let all = children(&[own, ahead]);
        assert_eq!(decide(READ, own, &all), Decision::WaitFor(ahead));
    }
    let all = children(&[own, "read-0000000001", "config"]);
    assert_eq!(decide(READ, own, &all), Decision::Owner, "a reader of HBase");
}

#[test]
fn exclusive_request_waits_for_readers() {
    let all = children(&["read-a-0000000001", "x-b-lock-0000000002"]);
    assert_eq!(decide(EXCLUSIVE, "x-b-lock-0000000002", &all), Decision::WaitFor("read-a-0000000001"));
}

#[test]
fn downgraded_reader_keeps_its_writers_position() {
    let behind = children(&["read-c-0000000006", "write-d-0000000007"]);
    let both = [&behind[..], &children(&["write-a-0000000005", "read-b-0000000005"])].concat();
    assert_eq!(decide(READ, "read-c-0000000006", &both), Decision::WaitFor("write-a-0000000005"));
    assert_eq!(decide(WRITE, "write-d-0000000007", &both), Decision::WaitFor("read-c-0000000006"));
    let downgraded = [&behind[..], &children(&["read-b-0000000005"])].concat();
    assert_eq!(decide(READ, "read-c-0000000006", &downgraded), Decision::Owner);
    let only_writer = children(&["read-b-0000000005", "write-d-0000000007"]);
    assert_eq!(decide(WRITE, "write-d-0000000007", &only_writer), Decision::WaitFor("read-b-0000000005"));
}

#[test]
fn downgrade_at_the_last_number_in_order_exhausts_no_request_behind_it() {
    let (writer, reader, next) = ("write-a-2147483646", "read-b-2147483646", "write-c-2147483647");
    let all = children(&[writer, reader, next]);
    assert_eq!(decide(WRITE, next, &all), Decision::WaitFor(writer));
    assert_eq!(decide(WRITE, next, &children(&[reader, next])), Decision::WaitFor(reader));
    assert_eq!(decide(WRITE, writer, &children(&[writer, next])), Decision::Owner);
}

#[test]
fn downgrade_at_the_last_number_exhausts_requests_that_do_not_share() {
    let (writer, reader) = ("write-b-2147483647", "read-a-2147483647");
    for next in ["write-c-2147483647", "write-c--2147483648", "x-c-lock-2147483647"] {
        for listed in [&[writer, reader, next][..], &[reader, next]] {
            assert_eq!(decide(WRITE, next, &children(listed)), Decision::Exhausted, "{listed:?}");
        }
    }
    for next in ["read-c-2147483647", "read-c--2147483648"] {
        assert_eq!(decide(READ, next, &children(&[writer, reader, next])), Decision::Exhausted);
        assert_eq!(decide(READ, next, &children(&[reader, next])), Decision::Owner);
    }
}

#[test]
fn unlisted_request_is_missing() {
    assert_eq!(decide(EXCLUSIVE, "x-a-lock-0000000001", &[""; 0]), Decision::Missing);
    let all = children(&["x-b-lock-0000000000"]);
    assert_eq!(decide(EXCLUSIVE, "x-a-lock-0000000001", &all), Decision::Missing);
}

#[test]
fn exactly_one_of_two_requests_with_one_number_owns() {
    let all = children(&["x-a-lock-0000000001", "x-b-lock-0000000001"]);
    assert_eq!(decide(EXCLUSIVE, "x-a-lock-0000000001", &all), Decision::Owner);
    assert_eq!(decide(EXCLUSIVE, "x-b-lock-0000000001", &all), Decision::WaitFor("x-a-lock-0000000001"));
}

#[test]
fn exactly_one_of_two_requests_half_the_counter_apart_owns() {
    let all = children(&["x-a-lock-0000000000", "x-b-lock--2147483648"]);
    assert_eq!(decide(EXCLUSIVE, &all[0], &all), Decision::Owner);
    assert_eq!(decide(EXCLUSIVE, &all[1], &all), Decision::WaitFor(&all[0]));
}

#[test]
fn own_znode_is_found_by_its_guid() {
    let all = children(&["x-a-lock-0000000001", "x-b-lock-0000000002"]);
    assert_eq!(find_own("x-b-lock-", &all), Some("x-b-lock-0000000002"));
    assert_eq!(find_own("x-c-lock-", &all), None);
}

/// Returns requests in order of arrival, with names unrelated to the order.
fn queue_of(kinds: &[Access], start: i32, seed: u64) -> Vec<(Access, String)> {
    let named = |(index, access): (usize, &Access)| {
        let guid = Uuid::from_u64_pair(seed.rotate_left(index as u32 * 7), index as u64);
        let sequence = start.wrapping_add(index as i32);
        (*access, format!("{}{sequence:010}", access.prefix(guid)))
    };
    kinds.iter().enumerate().map(named).collect()
}

fn any_access(scheme: NamingScheme) -> impl Strategy<Value = Access> {
    prop_oneof![
        3 => Just(Access::Read(scheme)),
        2 => Just(Access::Write(scheme)),
        1 => Just(Access::Exclusive(scheme)),
    ]
}

/// Returns a start of the counter for a queue with no number in doubt.
fn any_start() -> impl Strategy<Value = i32> {
    let is_in_order = |start: &i32| !is_in_doubt(*start) && !is_in_doubt(start.wrapping_add(20));
    let corner = (prop::sample::select(vec![0, i32::MAX - 25]), -20..4_i32);
    let corner = corner.prop_map(|(corner, more)| corner + more);
    prop_oneof![any::<i32>(), corner].prop_filter("numbers in doubt", is_in_order)
}

fn any_queue() -> impl Strategy<Value = Vec<Access>> {
    prop_oneof![Just(NamingScheme::Recipe), Just(NamingScheme::Curator), Just(NamingScheme::Kazoo)]
        .prop_flat_map(|scheme| prop::collection::vec(any_access(scheme), 1..20))
}

/// Returns the decision of each request in the queue, in order.
fn decide_all<'a>(queue: &[(Access, String)], listed: &'a [String]) -> Vec<Decision<'a>> {
    queue.iter().map(|(access, own)| decide(*access, own, listed)).collect()
}

fn names(queue: &[(Access, String)]) -> Vec<String> {
    queue.iter().map(|(_, name)| name.clone()).rev().collect()
}

proptest! {
    #[test]
    fn ordered_listing_decides_as_the_listing_does(
        kinds in any_queue(), start in 0..1_000_000_i32, seed: u64, strangers in 0..3_usize,
    ) {
        let queue = queue_of(&kinds, start, seed);
        let mut listed = names(&queue);
        listed.extend(["config", "x-a-lock-0000000007", "x-b-lock-0000000007"].map(str::to_owned).into_iter().take(strangers));
        let listed = Names::from(listed);
        for access in kinds {
            let ordered = Ordered::of(&listed, access).unwrap();
            for own in listed.iter().chain(["x-z-lock-0000000001"]) {
                prop_assert_eq!(ordered.decide(own, &listed), decide(access, own, &listed));
            }
        }
    }
}

#[test]
fn numbers_that_wrap_or_are_in_doubt_are_not_ordered() {
    for name in ["x-a-lock--000000001", "x-a-lock-2147483647", "x-a-lock--2147483648"] {
        assert!(Ordered::of(&Names::from_iter(["x-b-lock-0000000001", name]), EXCLUSIVE).is_none(), "{name}");
    }
}

fn share(one: Access, other: Access) -> bool {
    matches!((one, other), (Access::Read(_), Access::Read(_)))
}

proptest! {
    /// Requests leave a queue of readers and writers in any order. A request owns the lock if no request ahead
    /// excludes it. Every other request waits for the nearest one that excludes it. When a request leaves, only those
    /// that waited for it get a new decision.
    #[test]
    fn readers_share_and_writers_exclude_while_a_queue_empties(
        kinds in any_queue(), start in any_start(), seed: u64, leaving in prop::collection::vec(any::<prop::sample::Index>(), 20),
    ) {
        let mut queue = queue_of(&kinds, start, seed);
        for leaves in leaving {
            let listed = names(&queue);
            let decisions = decide_all(&queue, &listed);
            for (position, (access, _)) in queue.iter().enumerate() {
                let nearest = queue[..position].iter().rfind(|(ahead, _)| !share(*ahead, *access));
                let expected = nearest.map_or(Decision::Owner, |(_, ahead)| Decision::WaitFor(ahead));
                prop_assert_eq!(decisions[position], expected);
            }
            let gone = leaves.index(queue.len());
            let (_, name) = queue.remove(gone);
            if queue.is_empty() {
                break;
            }
            let still_listed = names(&queue);
            let before = decisions.iter().enumerate().filter(|(position, _)| *position != gone);
            for (now, (_, before)) in decide_all(&queue, &still_listed).into_iter().zip(before) {
                prop_assert!(now == *before || *before == Decision::WaitFor(&name));
            }
        }
    }
}
