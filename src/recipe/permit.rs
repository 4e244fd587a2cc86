//! Decides which requests own the permits of a semaphore, from nothing but the names of a directory's children.
//!
//! Origin: `internalAcquire1Lease` of Curator's `InterProcessSemaphoreV2`, which counts all children. Here, a request
//! counts only the requests ahead of it, so the bound holds no matter how requests join. The lock in front of the
//! directory keeps the order and prevents a thundering herd, but safety does not depend on that lock.
//!
//! # Why no more than `n` requests own a permit
//! A request decides from a listing that contains its own znode, so it sees every older request that still exists.
//! Suppose that there are `n + 1` owners whose znodes exist, and take the youngest. When it decided, the other `n`
//! existed. If its number is in order, it counted them as ahead. If its number is [in doubt](super::counter), it
//! counted every request. Either way, it cannot have become an owner. If clients allow different numbers of permits,
//! the largest of these numbers bounds the owners.

use std::num::NonZeroU32;

use super::counter::{distance_ahead, is_in_doubt};
use super::queue::{Decision, HALF_CIRCLE};
use super::znode_name::generated_sequence;

/// The directory, below that of a semaphore, of the lock that lets one waiter at a time request a permit.
pub(crate) const TURNS: &str = "locks";

/// The directory, below that of a semaphore, whose children are the held permits and the requests for permits.
pub(crate) const LEASES: &str = "leases";

/// Decides for a request for one of `permits` permits.
///
/// A request whose number is in order owns a permit if fewer requests than permits are ahead. Otherwise, it waits. A
/// request whose number is [in doubt](super::counter) owns a permit if fewer other requests than permits exist.
/// Otherwise, it waits if all other requests are in order and ahead, and fails if not.
pub(super) fn decide_permit<'a, 'c, N: AsRef<str> + ?Sized + 'c>(
    permits: NonZeroU32,
    own: &str,
    children: impl IntoIterator<Item = &'c N>,
) -> Decision<'a> {
    let Some(sequence) = generated_sequence(own) else { return Decision::Missing };
    let in_doubt = is_in_doubt(sequence);
    let mut present = false;
    let mut taken: u32 = 0;
    let mut unordered = false;
    for child in children {
        let child = child.as_ref();
        if child == own {
            present = true;
            continue;
        }
        let Some(theirs) = generated_sequence(child) else { continue };
        let is_ahead = match distance_ahead(sequence, theirs) {
            0 | HALF_CIRCLE => child < own,
            distance => distance < HALF_CIRCLE,
        };
        unordered |= in_doubt && (!is_ahead || is_in_doubt(theirs));
        taken = taken.saturating_add(u32::from(is_ahead || in_doubt));
    }
    match () {
        () if !present => Decision::Missing,
        () if taken < permits.get() => Decision::Owner,
        () if unordered => Decision::Exhausted,
        () => Decision::Full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn permits(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap()
    }

    fn lease(guid: &str, sequence: i32) -> String {
        format!("_c_{guid}-lease-{sequence:010}")
    }

    fn decide_all(number: u32, listed: &[String]) -> Vec<Decision<'static>> {
        listed.iter().map(|own| decide_permit(permits(number), own, listed)).collect()
    }

    #[test]
    fn first_requests_own_as_many_as_there_are_permits() {
        use Decision::{Full, Owner};
        let listed = [lease("d", 1), lease("c", 2), lease("b", 5), lease("a", 9)];
        assert_eq!(decide_all(1, &listed), [Owner, Full, Full, Full]);
        assert_eq!(decide_all(3, &listed), [Owner, Owner, Owner, Full]);
        assert_eq!(decide_all(4, &listed), [Owner; 4]);
        assert_eq!(decide_all(u32::MAX, &listed), [Owner; 4]);
    }

    #[test]
    fn requests_behind_take_no_permit() {
        let listed = [lease("a", 1), lease("b", 2), lease("c", 3)];
        assert_eq!(decide_permit(permits(1), &listed[0], &listed), Decision::Owner);
    }

    #[test]
    fn every_request_counts_and_other_children_do_not() {
        let own = lease("a", 5);
        for ahead in ["x-b-lock-0000000004", "00ff__lock__0000000004", "qn-0000000004"] {
            let listed = [own.clone(), ahead.to_owned()];
            assert_eq!(decide_permit(permits(1), &own, &listed), Decision::Full, "{ahead}");
        }
        let listed = [own.clone(), "config".to_owned(), "x-3".to_owned()];
        assert_eq!(decide_permit(permits(1), &own, &listed), Decision::Owner);
    }

    #[test]
    fn unlisted_request_is_missing() {
        let listed = [lease("b", 1)];
        for own in [lease("a", 0), lease("a", 2), "config".to_owned()] {
            for number in [1, 5] {
                assert_eq!(decide_permit(permits(number), &own, &listed), Decision::Missing, "{own}");
            }
        }
    }

    #[test]
    fn request_in_doubt_counts_all_others() {
        let (ahead, first, second) = (lease("a", 7), lease("b", i32::MAX), lease("c", i32::MIN));
        let listed = [ahead.clone(), first.clone(), second.clone()];
        for own in [&first, &second] {
            assert_eq!(decide_permit(permits(2), own, &listed), Decision::Exhausted, "{own}");
            assert_eq!(decide_permit(permits(3), own, &listed), Decision::Owner, "{own}");
            let with_one_ahead = [ahead.clone(), own.clone()];
            // 7 is more than 2^30 before these numbers, but the server has passed through 7.
            assert_eq!(decide_permit(permits(1), own, &with_one_ahead), Decision::Full, "{own}");
        }
    }

    #[test]
    fn numbers_that_wrap_keep_their_order() {
        let (last, first) = (lease("a", -1), lease("b", 0));
        let listed = [first.clone(), last.clone()];
        assert_eq!(decide_permit(permits(1), &last, &listed), Decision::Owner);
        assert_eq!(decide_permit(permits(1), &first, &listed), Decision::Full);
    }

    /// Returns a start of the counter for a queue with no number in doubt.
    fn any_start() -> impl Strategy<Value = i32> {
        let is_in_order = |start: &i32| !is_in_doubt(*start) && !is_in_doubt(start.wrapping_add(20));
        any::<i32>().prop_filter("numbers in doubt", is_in_order)
    }

    proptest! {
        /// While requests leave a queue in any order, the first of the remaining requests own the permits, and no owner
        /// loses its permit to a request behind it.
        #[test]
        fn first_of_the_rest_own_while_a_queue_empties(
            start in any_start(), number in 1..6_u32, seed: u64,
            leaving in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
        ) {
            let mut queue: Vec<String> = (0..leaving.len())
                .map(|index| lease(&seed.rotate_left(7 * index as u32).to_string(), start.wrapping_add(index as i32)))
                .collect();
            for leaves in leaving {
                let mut listed: Vec<String> = queue.iter().rev().cloned().collect();
                listed.push("config".to_owned());
                for (position, own) in queue.iter().enumerate() {
                    let expected = if position < number as usize { Decision::Owner } else { Decision::Full };
                    prop_assert_eq!(decide_permit(permits(number), own, &listed), expected);
                }
                queue.remove(leaves.index(queue.len()));
            }
        }

        /// With one permit, the rule is that of an exclusive lock.
        #[test]
        fn one_permit_is_an_exclusive_lock(
            numbers in prop::collection::btree_set(any::<i32>(), 1..8),
            near_the_end: bool,
        ) {
            use crate::recipe::access::Access;
            use crate::recipe::naming_scheme::NamingScheme;
            use crate::recipe::queue::decide;

            let base = if near_the_end { i32::MAX - 2 } else { 0 };
            let listed: Vec<String> = numbers
                .iter()
                .enumerate()
                .map(|(index, number)| lease(&index.to_string(), if near_the_end { base.wrapping_add(number % 5) } else { *number }))
                .collect();
            for own in &listed {
                let exclusive = match decide(Access::Exclusive(NamingScheme::Recipe), own, &listed) {
                    Decision::WaitFor(_) => Decision::Full,
                    other => other,
                };
                prop_assert_eq!(decide_permit(permits(1), own, &listed), exclusive);
            }
        }
    }
}
