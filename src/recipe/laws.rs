//! The laws of the recipe rules. They must hold for any children of a lock directory, because any client may create any
//! name there.
//!
//! Each function takes untrusted input, and panics if a law is broken. The tests below call the functions with
//! generated input, and the targets in `fuzz/` call them with mutated input.

mod histories;

pub use self::histories::{check_history, check_permit_history};
use super::access::Access;
use super::counter::is_in_doubt;
use super::naming_scheme::NamingScheme;
use super::queue::{Decision, Ordered, Outlook, decide, find_own, outlook};
use super::znode_name::{ZNodeName, generated_sequence};
use zookeeper_connection::Names;

/// The separators that this crate and its peers put between their prefix and the number.
const SEPARATORS: [&str; 8] =
    ["-lock-", "__lock__", "__rlock__", "-__READ__", "-__WRIT__", "-latch-", "read-", "write-"];

const EXCLUSIVE: Access = Access::Exclusive(NamingScheme::Recipe);

/// Checks that a name splits into its prefix and its number, with nothing left over.
pub fn check_name(name: &str) {
    let split = ZNodeName::new(name);
    assert_eq!((split.name(), split.to_string().as_str()), (name, name));
    let (prefix, rest) = name.split_at(split.prefix().len());
    assert_eq!(split.prefix(), prefix);
    if let Some(sequence) = split.sequence() {
        check_number(rest, sequence);
    }
    let in_directory = ZNodeName::new(format!("/locks/{name}"));
    assert_eq!(in_directory.sequence(), split.sequence(), "{name:?} as a full path");
    if let Some(sequence) = generated_sequence(name) {
        assert_eq!(split.sequence(), Some(sequence), "{name:?} in the queue");
        let digits = name.len() - name.trim_end_matches(|last: char| last.is_ascii_digit()).len();
        assert!(digits >= 10 || (digits == 9 && sequence < 0), "{name:?} does not have full width");
    }
}

/// Checks that only the number follows a prefix: its digits, preceded by a dash, a minus, both or neither.
fn check_number(text: &str, sequence: i32) {
    let digits = text.trim_start_matches('-');
    let dashes = text.len() - digits.len();
    assert!(digits.bytes().all(|byte| byte.is_ascii_digit()), "{text:?}");
    assert_eq!(digits.parse(), Ok(sequence.unsigned_abs()), "{text:?}");
    assert!(dashes <= 2, "{text:?}");
    assert!(if sequence < 0 { dashes > 0 } else { dashes < 2 || sequence == 0 }, "{text:?}");
}

/// Checks that the order of names is total, agrees with equality, and sorts low numbers first and names without a
/// number last.
pub fn check_order(names: &[&str]) {
    let names: Vec<ZNodeName> = names.iter().copied().map(ZNodeName::new).collect();
    for one in &names {
        for other in &names {
            assert_eq!(one.cmp(other), other.cmp(one).reverse(), "{one:?}, {other:?}");
            assert_eq!(one.cmp(other).is_eq(), one.name() == other.name(), "{one:?}, {other:?}");
            if is_lower(one.sequence(), other.sequence()) {
                assert!(one < other, "{one:?}, {other:?}");
            }
            for third in &names {
                assert!(!(one <= other && other <= third) || one <= third, "{one:?}, {other:?}, {third:?}");
            }
        }
    }
}

fn is_lower(one: Option<i32>, other: Option<i32>) -> bool {
    one.is_some_and(|one| other.is_none_or(|other| one < other))
}

/// Checks that the name that ZooKeeper makes from a request's prefix is parsed back into its number.
pub fn check_generated(text: &str, sequence: i32) {
    for separator in SEPARATORS {
        let name = format!("{text}{separator}{sequence:010}");
        assert_eq!(generated_sequence(&name), Some(sequence), "{name:?}");
        assert_eq!(ZNodeName::new(name.as_str()).sequence(), Some(sequence), "{name:?}");
    }
}

/// Checks that the decisions about all children of a directory are consistent. Each name must occur once.
pub fn check_listing(children: &[String]) {
    let (requests, others): (Vec<String>, Vec<String>) =
        children.iter().cloned().partition(|child| generated_sequence(child).is_some());
    for other in &others {
        assert_eq!(decide_exclusive(other, children), Decision::Missing);
    }
    let backwards: Vec<String> = children.iter().rev().cloned().collect();
    for own in &requests {
        let decision = decide_exclusive(own, children);
        assert_eq!(
            decision,
            decide_exclusive(own, &backwards),
            "the decision depends on the order of {children:?}"
        );
        assert_eq!(
            decision,
            decide_exclusive(own, &requests),
            "the decision depends on a non-request in {children:?}"
        );
        assert_eq!(Decision::Missing, decide_exclusive(own, &without(own, children)));
        check_among_pairs(&|_| EXCLUSIVE, own, decision, &requests);
        check_outlook(own, decision, children);
        check_found_again(own, children);
    }
    check_sharing(&requests);
    check_chain(&requests);
}

/// Checks that the outlook of a request agrees with its decision after the predecessor has left.
fn check_outlook(own: &String, decision: Decision<'_>, children: &[String]) {
    let expected = outlook(own, children);
    let listed = Names::from(children.to_vec());
    if let Some(ordered) = Ordered::of(&listed, EXCLUSIVE) {
        assert_eq!(expected, ordered.outlook(own, &listed), "in order, {own:?} among {children:?}");
    }
    let Decision::WaitFor(nearest) = decision else {
        return assert_eq!(expected, Outlook::Unclear, "{own:?} does not wait among {children:?}");
    };
    let rest = without(nearest, children);
    match expected {
        Outlook::Next => assert_eq!(decide_exclusive(own, &rest), Decision::Owner, "{children:?}"),
        Outlook::Behind(second) => {
            assert_eq!(decide_exclusive(own, &rest), Decision::WaitFor(second), "{children:?}");
        }
        Outlook::Unclear => {}
    }
}

/// Returns the access that a request asks for, given its name.
type Rule<'a> = &'a dyn Fn(&str) -> Access;

/// Checks the decisions among readers and writers, with the names of each scheme that has readers.
fn check_sharing(requests: &[String]) {
    for scheme in [NamingScheme::Recipe, NamingScheme::Curator, NamingScheme::Kazoo] {
        let rule = |name: &str| match scheme.is_reader(name) {
            true => Access::Read(scheme),
            false => Access::Write(scheme),
        };
        for own in requests {
            check_among_pairs(&rule, own, decide(rule(own), own, requests), requests);
        }
    }
}

/// Checks that of any two requests, one owns the lock and the other waits for it, or they share the lock, or at least
/// one of them fails. Also checks that the decisions among all requests agree with the decisions in pairs. It follows
/// that in any listing, no two owners exclude each other.
fn check_among_pairs(rule: Rule<'_>, own: &String, decision: Decision<'_>, requests: &[String]) {
    let mut ahead = Vec::new();
    let mut exhausted = false;
    for other in requests.iter().filter(|other| *other != own) {
        let pair = [own.clone(), other.clone()];
        match (decide(rule(own), own, &pair), decide(rule(other), other, &pair)) {
            (Decision::Owner, Decision::WaitFor(first)) if first == own => {}
            (Decision::WaitFor(first), Decision::Owner) if first == other => ahead.push(other.as_str()),
            (Decision::Owner, Decision::Owner) if do_share(rule(own), rule(other)) => {}
            (Decision::Exhausted, Decision::Exhausted) if are_in_doubt(&pair) => exhausted = true,
            // A request in doubt fails although the other request, which is in order, counts it as ahead.
            (Decision::Exhausted, Decision::WaitFor(first)) if first == own => exhausted = true,
            (Decision::WaitFor(first), Decision::Exhausted) if first == other => ahead.push(other.as_str()),
            both => unreachable!("{both:?} of {pair:?}"),
        }
    }
    match decision {
        Decision::Owner => assert!(ahead.is_empty() && !exhausted, "{own:?} owns in {requests:?}"),
        Decision::WaitFor(first) => {
            assert!(ahead.contains(&first) && !exhausted, "{own:?} waits for {first:?} in {requests:?}");
        }
        Decision::Exhausted => {
            assert!(exhausted && are_in_doubt(std::slice::from_ref(own)), "{own:?} gives up in {requests:?}");
        }
        Decision::Full => unreachable!("{own:?} asks for no permit"),
        Decision::Missing => assert!(!requests.contains(own), "{own:?} is listed in {requests:?}"),
    }
}

fn are_in_doubt(names: &[String]) -> bool {
    names.iter().filter_map(|name| generated_sequence(name)).all(is_in_doubt)
}

fn do_share(one: Access, other: Access) -> bool {
    matches!((one, other), (Access::Read(_), Access::Read(_)))
}

/// Checks that a request finds a znode with its prefix if there is one.
fn check_found_again(own: &str, children: &[String]) {
    let prefix = own.trim_end_matches(|last: char| last.is_ascii_digit());
    let alike: Vec<&str> =
        children.iter().map(String::as_str).filter(|name| name.starts_with(prefix)).collect();
    assert!(
        find_own(prefix, children).is_some_and(|found| alike.contains(&found)),
        "{own:?} in {children:?}"
    );
}

fn decide_exclusive<'a>(own: &str, children: &'a [String]) -> Decision<'a> {
    decide(EXCLUSIVE, own, children)
}

fn without(name: &str, children: &[String]) -> Vec<String> {
    children.iter().filter(|child| *child != name).cloned().collect()
}

/// Checks that numbers within half of the counter's circle form one chain: the first request owns the lock, and every
/// other request waits for the one just before it, or fails. So from each request, the chain of waits leads to the
/// owner, or to a request that fails.
fn check_chain(requests: &[String]) {
    let Some(queue) = queue(requests) else { return };
    // A request in doubt can only be the last of the chain.
    let first_in_doubt = queue.iter().position(|(_, sequence)| is_in_doubt(*sequence));
    let is_passed = first_in_doubt.is_some_and(|first| first + 1 < queue.len());
    let mut before = None;
    for (own, sequence) in queue {
        let expected = match before {
            _ if is_passed && is_in_doubt(sequence) => Decision::Exhausted,
            None => Decision::Owner,
            Some(before) => Decision::WaitFor(before),
        };
        assert_eq!(decide_exclusive(own, requests), expected, "{own:?} in {requests:?}");
        before = Some(own);
    }
}

/// Returns the requests in order of creation, with their numbers, or `None` if the numbers do not define an order.
fn queue(requests: &[String]) -> Option<Vec<(&str, i32)>> {
    let mut queue: Vec<(&str, i32)> =
        requests.iter().filter_map(|name| Some((name.as_str(), generated_sequence(name)?))).collect();
    let is_first = |first: i32| queue.iter().all(|(_, sequence)| sequence.wrapping_sub(first) >= 0);
    let first = queue.iter().map(|(_, sequence)| *sequence).find(|sequence| is_first(*sequence))?;
    queue.sort_by_key(|(name, sequence)| (sequence.wrapping_sub(first), *name));
    Some(queue)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns numbers around those where the rules change, so that some are equal and others lie on opposite sides.
    fn sequence() -> impl Strategy<Value = i32> {
        let corner =
            prop::sample::select(vec![0, i32::MAX, i32::MIN + (1 << 30), 1_000_000_000, -1_000_000_000]);
        prop_oneof![any::<i32>(), (corner, -3..4_i32).prop_map(|(corner, more)| corner.wrapping_add(more))]
    }

    fn request() -> impl Strategy<Value = String> {
        let before = (prop_oneof!["[a-c]{0,2}", "read-[a-c]"], prop::sample::select(SEPARATORS.to_vec()));
        (before, sequence()).prop_map(|((text, separator), number)| format!("{text}{separator}{number:010}"))
    }

    /// Returns something like a number, of any width.
    fn odd_name() -> impl Strategy<Value = String> {
        "[a-z]{0,2}[-_]{0,3}[0-9]{0,12}[-_+]{0,3}[0-9]{0,12}"
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![2 => request(), 2 => odd_name(), 1 => ".*"]
    }

    proptest! {
        #[test]
        fn any_name_splits_without_a_rest(name in name()) {
            check_name(&name);
        }

        #[test]
        fn order_is_total_and_agrees_with_equality(names in prop::collection::vec(name(), 3)) {
            check_order(&names.iter().map(String::as_str).collect::<Vec<_>>());
        }

        #[test]
        fn generated_names_are_parsed_back(text in ".*", sequence in sequence()) {
            check_generated(&text, sequence);
        }

        #[test]
        fn decisions_about_any_listing_are_consistent(children in prop::collection::hash_set(name(), 0..8)) {
            check_listing(&children.into_iter().collect::<Vec<_>>());
        }

        /// The counter starts anywhere, prefixes are unrelated to the order, and the listing has other children, too.
        #[test]
        fn queue_is_one_chain(
            start in sequence(),
            requests in prop::collection::vec(("[a-f]{0,3}", 1..1000_i32), 1..30),
            others in prop::collection::hash_set("[g-z]{1,5}", 0..3),
        ) {
            let mut sequence = start;
            let queue = requests.into_iter().map(|(text, gap)| {
                sequence = sequence.wrapping_add(gap);
                format!("x-{text}-lock-{sequence:010}")
            });
            let listing: Vec<String> = others.into_iter().chain(queue).collect();
            check_listing(&listing);
        }
    }
}
