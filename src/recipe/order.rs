//! The queue as a whole, for observers: its requests in order, and how many of them hold the lock.
//!
//! A request itself never needs this. It [decides](super::queue::decide) from the requests ahead of it.

use super::kind::LockKind;
use super::znode_name::generated_sequence;

/// Returns the requests among the children of a lock directory, in order of arrival.
///
/// The counter wraps, so the numbers are compared by their distances from one of them. This is correct as long as the
/// first and the last number are less than 2^31 apart. At the [end of the counter](super::counter), the order is a
/// guess: of two requests with numbers in doubt, either may have come first.
pub(crate) fn in_order<'a, N: AsRef<str> + ?Sized + 'a>(
    children: impl IntoIterator<Item = &'a N>,
) -> Vec<&'a str> {
    let mut queue = with_distances(children);
    queue.sort_unstable();
    queue.into_iter().map(|(_, name)| name).collect()
}

/// Returns the request among the children that came first.
pub(crate) fn first<'a, N: AsRef<str> + ?Sized + 'a>(
    children: impl IntoIterator<Item = &'a N>,
) -> Option<&'a str> {
    with_distances(children).into_iter().min().map(|(_, name)| name)
}

/// Returns the requests, each with the distance of its number from a common origin.
fn with_distances<'a, N: AsRef<str> + ?Sized + 'a>(
    children: impl IntoIterator<Item = &'a N>,
) -> Vec<(i32, &'a str)> {
    let numbered = |child: &'a N| Some((generated_sequence(child.as_ref())?, child.as_ref()));
    let mut queue: Vec<(i32, &str)> = children.into_iter().filter_map(numbered).collect();
    let origin = queue.iter().map(|(sequence, _)| *sequence).min().unwrap_or_default();
    queue.iter_mut().for_each(|(sequence, _)| *sequence = sequence.wrapping_sub(origin));
    queue
}

/// Returns how many requests at the head of a queue hold the lock: the first one, or all readers before the
/// first request that is not a reader.
pub(crate) fn count_owners(mut queue: impl Iterator<Item = LockKind>) -> usize {
    match queue.next() {
        None => 0,
        Some(first) if first.is_shared() => 1 + queue.take_while(|kind| kind.is_shared()).count(),
        Some(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::access::Access;
    use crate::recipe::counter::is_in_doubt;
    use crate::recipe::naming_scheme::NamingScheme;
    use crate::recipe::queue::{Decision, decide};
    use LockKind::{Exclusive, Other, Read, Write};
    use proptest::prelude::*;
    use uuid::Uuid;

    fn children(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn has_number_in_doubt(name: &str) -> bool {
        generated_sequence(name).is_some_and(is_in_doubt)
    }

    #[test]
    fn requests_of_all_libraries_are_ordered_and_other_children_ignored() {
        let listed =
            children(&["z__lock__0000000004", "config", "x-9-lock-0000000001", "a-__READ__0000000003"]);
        assert_eq!(in_order(&listed), ["x-9-lock-0000000001", "a-__READ__0000000003", "z__lock__0000000004"]);
        assert_eq!(first(&listed), Some("x-9-lock-0000000001"));
        assert!(in_order(&children(&["config", "x-3"])).is_empty());
        assert_eq!(first(&children(&["config", "x-3"])), None);
    }

    #[test]
    fn wrapped_numbers_come_after_unwrapped_ones() {
        let listed = children(&["x-c-lock--2147483648", "x-a-lock-2147483646", "x-b-lock-2147483647"]);
        assert_eq!(in_order(&listed), ["x-a-lock-2147483646", "x-b-lock-2147483647", "x-c-lock--2147483648"]);
    }

    #[test]
    fn head_of_the_queue_holds_the_lock() {
        let cases: [(&[LockKind], usize); 8] = [
            (&[], 0),
            (&[Exclusive, Read], 1),
            (&[Write, Write], 1),
            (&[Other, Read], 1),
            (&[Read], 1),
            (&[Read, Read, Write, Read], 2),
            (&[Read, Read, Exclusive], 2),
            (&[Read, Other], 1),
        ];
        for (queue, owners) in cases {
            assert_eq!(count_owners(queue.iter().copied()), owners, "{queue:?}");
        }
    }

    proptest! {
        /// This holds for any start of the counter, for any order of the listing, and for the decision of each
        /// request.
        #[test]
        fn order_is_the_order_of_arrival(
            start: i32, gaps in prop::collection::vec(1..1000_i32, 1..40), rotation: usize, seed: u64,
        ) {
            let mut sequence = start;
            let mut queue = Vec::new();
            for (index, gap) in gaps.iter().enumerate() {
                sequence = sequence.wrapping_add(*gap);
                let prefix = seed.rotate_left(index as u32 * 7);
                queue.push(format!("x-{prefix:x}-lock-{sequence:010}"));
            }
            let mut listed = queue.clone();
            listed.push("config".to_owned());
            let rotation = rotation % listed.len();
            listed.rotate_left(rotation);
            listed.swap(0, rotation);
            prop_assert_eq!(in_order(&listed), queue.iter().map(String::as_str).collect::<Vec<_>>());
            // Requests with numbers in doubt do not follow the order.
            let are_in_order = queue.iter().take_while(|name| !has_number_in_doubt(name)).count();
            for (position, own) in queue.iter().enumerate().take(are_in_order) {
                let expected = match position {
                    0 => Decision::Owner,
                    _ => Decision::WaitFor(&queue[position - 1]),
                };
                prop_assert_eq!(decide(Access::Exclusive(NamingScheme::Recipe), own, &listed), expected);
            }
        }

        /// The decisions of requests of this crate agree with what an observer sees. Where the observer can only guess,
        /// some of the requests fail.
        #[test]
        fn count_owners_agrees_with_decide(
            scheme in prop::sample::select(vec![NamingScheme::Recipe, NamingScheme::Curator, NamingScheme::Kazoo]),
            kinds in prop::collection::vec(0..4, 1..12), start: i32, seed: u64,
        ) {
            let accesses = kinds.into_iter().map(|kind| match kind {
                0 => Access::Exclusive(scheme),
                1 => Access::Write(scheme),
                _ => Access::Read(scheme),
            });
            let named = accesses.enumerate().map(|(index, access)| {
                let guid = Uuid::from_u64_pair(seed.rotate_left(index as u32 * 7), seed);
                let sequence = start.wrapping_add(index as i32);
                (access, format!("{}{sequence:010}", access.prefix(guid)))
            });
            let queue: Vec<(Access, String)> = named.collect();
            let names: Vec<String> = queue.iter().map(|(_, name)| name.clone()).rev().collect();
            let believing = queue.iter().filter(|(access, own)| decide(*access, own, &names) == Decision::Owner);
            let owners = count_owners(in_order(&names).into_iter().filter_map(LockKind::of));
            let believing = believing.count();
            let guessed = names.iter().any(|name| has_number_in_doubt(name));
            prop_assert!(owners == believing || (guessed && owners > believing), "{} of {}", believing, owners);
        }

        #[test]
        fn any_names_can_be_ordered(listed in prop::collection::vec(".*[0-9-]{0,12}", 0..8)) {
            let ordered = in_order(&listed);
            prop_assert!(ordered.len() <= listed.len());
        }

        #[test]
        fn no_owner_is_behind_a_request_that_excludes_it(
            queue in prop::collection::vec(prop::sample::select(vec![Exclusive, Read, Write, Other]), 0..12),
        ) {
            let owners = count_owners(queue.iter().copied());
            let (holding, waiting) = queue.split_at(owners);
            prop_assert!(holding.len() <= 1 || holding.iter().all(|kind| kind.is_shared()));
            prop_assert!(holding.is_empty() == queue.is_empty());
            if let (Some(last), Some(next)) = (holding.last(), waiting.first()) {
                prop_assert!(!last.is_shared() || !next.is_shared());
            }
        }
    }
}
