//! Who owns the lock and whom to watch, decided from the names of a lock directory's children alone.
//!
//! Origin: step 3 and 4 of ZooKeeper's lock recipe, `LockZooKeeperOperation.execute` in the Java class `WriteLock`. It
//! makes one pass over the children and sorts nothing.

use super::access::Access;
use super::znode_name::generated_sequence;

/// What the children of a lock directory mean for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision<'a> {
    /// No request that excludes this one is ahead.
    Owner,
    /// This child is the nearest one ahead that excludes this one; watch it and nobody else.
    WaitFor(&'a str),
    /// The request's own znode is not among the children.
    Missing,
    /// Another request has the same number, the last one of the counter, which some servers hand out again and again
    /// where others wrap: nothing tells which of them came first.
    Exhausted,
}

/// Decides for a request by the children ahead of it; those behind it never matter.
pub(crate) fn decide<'a>(access: Access, own: &str, children: &'a [String]) -> Decision<'a> {
    let Some(sequence) = generated_sequence(own) else { return Decision::Missing };
    let mut present = false;
    let mut exhausted = false;
    let mut nearest: Option<(u32, &str)> = None;
    for child in children {
        if child == own {
            present = true;
            continue;
        }
        let Some(theirs) = generated_sequence(child) else { continue };
        let distance = distance_ahead(sequence, theirs);
        exhausted |= distance == 0 && sequence == i32::MAX;
        let is_ahead = match distance {
            0 | HALF_CIRCLE => child.as_str() < own,
            _ => distance < HALF_CIRCLE,
        };
        if is_ahead
            && access.waits_for(child)
            && nearest.is_none_or(|found| (distance, found.1) < (found.0, child))
        {
            nearest = Some((distance, child));
        }
    }
    match nearest {
        _ if !present => Decision::Missing,
        _ if exhausted => Decision::Exhausted,
        None => Decision::Owner,
        Some((_, child)) => Decision::WaitFor(child),
    }
}

/// From this distance on a number is behind. At this very distance two are as much ahead of each other as behind; their
/// names decide then, so that of any two requests one owns, whatever names anybody puts into the directory.
const HALF_CIRCLE: u32 = 1 << 31;

/// How far `theirs` is ahead of `mine`.
///
/// The counter wraps from 2147483647 to -2147483648, so the distance wraps too; it is right as long as the two are less than
/// 2^31 apart.
fn distance_ahead(mine: i32, theirs: i32) -> u32 {
    mine.wrapping_sub(theirs) as u32
}

/// The child that a request made under this prefix, whatever its number: how a request finds its znode again after the
/// reply to its creation was lost.
pub(crate) fn find_own<'a>(prefix: &str, children: &'a [String]) -> Option<&'a str> {
    children.iter().map(String::as_str).find(|child| child.starts_with(prefix))
}

/// A second child that a request made under this prefix: one of two creates had seemed lost and came through late.
pub(crate) fn find_duplicate<'a>(prefix: &str, own: &str, children: &'a [String]) -> Option<&'a str> {
    children.iter().map(String::as_str).find(|child| child.starts_with(prefix) && *child != own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn name(prefix: &str, sequence: i32) -> String {
        format!("{prefix}-lock-{sequence:010}")
    }

    #[test]
    fn the_lowest_request_owns() {
        let all = children(&["x-b-lock-0000000002", "x-a-lock-0000000001"]);
        assert_eq!(decide(Access::Exclusive, "x-a-lock-0000000001", &all), Decision::Owner);
        assert_eq!(
            decide(Access::Exclusive, "x-b-lock-0000000002", &all),
            Decision::WaitFor("x-a-lock-0000000001")
        );
    }

    #[test]
    fn the_sequence_alone_decides_whatever_the_prefix() {
        // ZOOKEEPER-2931: with the prefix compared first, both of these own the lock.
        let all = children(&["x-9-lock-0000000001", "x-1-lock-0000000002"]);
        assert_eq!(
            decide(Access::Exclusive, "x-1-lock-0000000002", &all),
            Decision::WaitFor("x-9-lock-0000000001")
        );
        assert_eq!(decide(Access::Exclusive, "x-9-lock-0000000001", &all), Decision::Owner);
    }

    #[test]
    fn a_waiter_waits_for_the_nearest_ahead() {
        let all =
            children(&["a-lock-0000000001", "a-lock-0000000007", "a-lock-0000000003", "a-lock-0000000009"]);
        assert_eq!(
            decide(Access::Exclusive, "a-lock-0000000007", &all),
            Decision::WaitFor("a-lock-0000000003")
        );
    }

    #[test]
    fn requests_of_other_libraries_count_and_other_children_do_not() {
        let all = children(&["config", "x-3", "00ff__lock__0000000004", "x-a-lock-0000000005"]);
        assert_eq!(
            decide(Access::Exclusive, "x-a-lock-0000000005", &all),
            Decision::WaitFor("00ff__lock__0000000004")
        );
        let all = children(&["config", "x-3", "x-a-lock-0000000005"]);
        assert_eq!(decide(Access::Exclusive, "x-a-lock-0000000005", &all), Decision::Owner);
    }

    #[test]
    fn the_order_survives_the_wrap() {
        let last = name("x-a", i32::MAX);
        let first = name("x-b", i32::MIN);
        let all = vec![first.clone(), last.clone()];
        assert_eq!(decide(Access::Exclusive, &last, &all), Decision::Owner);
        assert_eq!(decide(Access::Exclusive, &first, &all), Decision::WaitFor(&last));
    }

    #[test]
    fn a_counter_that_sticks_at_its_end_is_no_order() {
        let (first, second) = (name("x-b", i32::MAX), name("x-a", i32::MAX));
        assert_eq!(decide(Access::Exclusive, &first, std::slice::from_ref(&first)), Decision::Owner);
        let all = vec![first.clone(), second.clone()];
        assert_eq!(decide(Access::Exclusive, &second, &all), Decision::Exhausted);
    }

    #[test]
    fn a_request_that_is_not_listed_is_missing() {
        assert_eq!(decide(Access::Exclusive, "x-a-lock-0000000001", &[]), Decision::Missing);
        let all = children(&["x-b-lock-0000000000"]);
        assert_eq!(decide(Access::Exclusive, "x-a-lock-0000000001", &all), Decision::Missing);
    }

    #[test]
    fn of_two_requests_with_one_number_exactly_one_owns() {
        let all = children(&["x-a-lock-0000000001", "x-b-lock-0000000001"]);
        assert_eq!(decide(Access::Exclusive, "x-a-lock-0000000001", &all), Decision::Owner);
        assert_eq!(
            decide(Access::Exclusive, "x-b-lock-0000000001", &all),
            Decision::WaitFor("x-a-lock-0000000001")
        );
    }

    #[test]
    fn of_two_requests_half_the_counter_apart_exactly_one_owns() {
        let all = children(&["x-a-lock-0000000000", "x-b-lock--2147483648"]);
        assert_eq!(decide(Access::Exclusive, &all[0], &all), Decision::Owner);
        assert_eq!(decide(Access::Exclusive, &all[1], &all), Decision::WaitFor(&all[0]));
    }

    #[test]
    fn the_own_znode_is_found_by_its_guid() {
        let all = children(&["x-a-lock-0000000001", "x-b-lock-0000000002"]);
        assert_eq!(find_own("x-b-lock-", &all), Some("x-b-lock-0000000002"));
        assert_eq!(find_own("x-c-lock-", &all), None);
    }

    #[test]
    fn a_second_znode_of_one_request_is_found_wherever_it_stands() {
        let all = children(&["x-a-lock-0000000001", "x-b-lock-0000000002", "x-a-lock-0000000003"]);
        assert_eq!(find_duplicate("x-a-lock-", "x-a-lock-0000000001", &all), Some("x-a-lock-0000000003"));
        assert_eq!(find_duplicate("x-a-lock-", "x-a-lock-0000000003", &all), Some("x-a-lock-0000000001"));
        assert_eq!(find_duplicate("x-b-lock-", "x-b-lock-0000000002", &all), None);
    }
}
