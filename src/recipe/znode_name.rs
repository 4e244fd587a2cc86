//! [`ZNodeName`]: the name of a child of a lock directory, split at its sequence number. Names have the same order as
//! in the current Java class of the same name.

use std::cmp::Ordering;
use std::convert::Infallible;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

/// The number of digits of a sequence number. ZooKeeper prints `%010d` of a signed 32-bit counter, so a number has ten
/// digits or, after the wrap, a minus and at least nine.
const WIDTH: usize = 10;

/// The name of a znode, with its prefix and sequence number.
///
/// Names are ordered as in Apache ZooKeeper 3.8 and later: by sequence number, then by prefix. Names without a number
/// come last. (The first versions of the recipe compared the prefix first, so two sessions could own one lock at the
/// same time: ZOOKEEPER-2931.) Negative numbers, which the server issues after its counter has wrapped, sort before
/// positive ones. The queue itself compares numbers by wrapping distance, which no total order can express.
///
/// ```
/// use zookeeper_recipes_lock::ZNodeName;
///
/// let name = ZNodeName::new("x-72057594037927936-0000000007");
/// assert_eq!(name.prefix(), "x-72057594037927936");
/// assert_eq!(name.sequence(), Some(7));
/// assert!(name < ZNodeName::new("a-0000000008"));
/// assert!(name < ZNodeName::new("no number"));
/// ```
#[derive(Clone, Debug)]
pub struct ZNodeName {
    name: String,
    prefix_length: usize,
    sequence: Option<i32>,
}

impl ZNodeName {
    /// Splits a name, which may be a full path. Any string is accepted.
    #[must_use]
    pub fn new(name: impl Into<String>) -> ZNodeName {
        let name = name.into();
        let (prefix_length, sequence) = match split(&name, trailing_digits(&name)) {
            Some((prefix, sequence)) => (prefix.len(), Some(sequence)),
            None => (name.rfind('-').unwrap_or(name.len()), None),
        };
        ZNodeName { name, prefix_length, sequence }
    }

    /// Returns the whole name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the text before the sequence number, without the separating dash.
    ///
    /// In a name without a number, the prefix ends at the last dash.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.name[..self.prefix_length]
    }

    /// Returns the sequence number.
    ///
    /// This is the text after the last dash, or the last ten digits if another character precedes the number. A dash is
    /// a minus if another dash precedes it (ZOOKEEPER-4372), or if the ten digits after it exceed the largest positive
    /// number. In one of kazoo's names, a dash after an underscore is a minus, too.
    #[must_use]
    pub fn sequence(&self) -> Option<i32> {
        self.sequence
    }
}

impl From<&str> for ZNodeName {
    fn from(name: &str) -> ZNodeName {
        ZNodeName::new(name)
    }
}

impl FromStr for ZNodeName {
    type Err = Infallible;

    /// Accepts any string.
    fn from_str(name: &str) -> Result<ZNodeName, Infallible> {
        Ok(ZNodeName::new(name))
    }
}

impl fmt::Display for ZNodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl PartialEq for ZNodeName {
    fn eq(&self, other: &ZNodeName) -> bool {
        self.name == other.name
    }
}

impl Eq for ZNodeName {}

impl Hash for ZNodeName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl PartialOrd for ZNodeName {
    fn partial_cmp(&self, other: &ZNodeName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ZNodeName {
    fn cmp(&self, other: &ZNodeName) -> Ordering {
        let by_sequence = match (self.sequence, other.sequence) {
            (Some(mine), Some(theirs)) => mine.cmp(&theirs),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        };
        by_sequence
            .then_with(|| self.prefix().cmp(other.prefix()))
            // Names with the same number and prefix may still differ, for example in leading zeros.
            // The order must agree with equality.
            .then_with(|| self.name.cmp(&other.name))
    }
}

/// Returns the sequence number of a child in ZooKeeper's own format, or `None` for a child that is not a request.
///
/// The name of every request ends in a number of full width, whichever library made it and whatever precedes the
/// number.
pub(crate) fn generated_sequence(name: &str) -> Option<i32> {
    split_generated(name).map(|(_, sequence)| sequence)
}

/// Returns the prefix and the [number](generated_sequence) of a request.
pub(super) fn split_generated(name: &str) -> Option<(&str, i32)> {
    let digits = trailing_digits(name);
    let (prefix, sequence) = split(name, digits)?;
    let signed = digits < name.len() && !prefix.is_empty() && sequence < 0;
    (digits >= WIDTH || (signed && digits == WIDTH - 1)).then_some((prefix, sequence))
}

/// Splits a name that ends in this many digits.
fn split(name: &str, digits: usize) -> Option<(&str, i32)> {
    split_at_dash(name, digits).or_else(|| split_at_width(name, digits))
}

/// Splits a name at its last dash. The dash is the minus of the number if another separator precedes it.
fn split_at_dash(name: &str, digits: usize) -> Option<(&str, i32)> {
    let (before, digits) = name.split_at(name.len() - digits);
    let before = before.strip_suffix('-').filter(|_| !digits.is_empty())?;
    let dash = before.len();
    if let Some(prefix) = before.strip_suffix('-') {
        return Some((prefix, name[dash..].parse().ok()?));
    }
    // If the first of ten digits is a zero, there is no minus, because a minus would take the place of that zero.
    let may_be_minus = digits.len() == WIDTH - 1 || (digits.len() == WIDTH && !digits.starts_with('0'));
    if before.ends_with('_') && may_be_minus {
        return Some((before, name[dash..].parse().ok()?));
    }
    Some((before, digits.parse().ok()?))
}

/// Splits a name before its last ten digits, whatever precedes them.
fn split_at_width(name: &str, digits: usize) -> Option<(&str, i32)> {
    if digits < WIDTH {
        return None;
    }
    let (prefix, digits) = name.split_at(name.len() - WIDTH);
    match (digits.parse(), prefix.strip_suffix('-')) {
        (Ok(sequence), _) => Some((prefix, sequence)),
        // These ten digits exceed the largest positive number, so the dash before them is a minus.
        (Err(_), Some(before)) => Some((before, name[prefix.len() - 1..].parse().ok()?)),
        (Err(_), None) => None,
    }
}

fn trailing_digits(name: &str) -> usize {
    name.bytes().rev().take_while(u8::is_ascii_digit).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_ordered(names: &[&str], expected: &[&str]) {
        let mut sorted: Vec<ZNodeName> = names.iter().copied().map(ZNodeName::new).collect();
        sorted.sort();
        let sorted: Vec<&str> = sorted.iter().map(ZNodeName::name).collect();
        assert_eq!(sorted, expected);
    }

    // The next seven tests are those of Apache's ZNodeNameTest. Where the first version of Apache's class had a
    // different order, the tests expect the order of version 3.8.

    #[test]
    fn order_with_same_prefix() {
        assert_ordered(&["x-3", "x-5", "x-11", "x-1"], &["x-1", "x-3", "x-5", "x-11"]);
    }

    #[test]
    fn order_with_different_prefixes() {
        assert_ordered(&["r-3", "r-2", "r-1", "w-2", "w-1"], &["r-1", "w-1", "r-2", "w-2", "r-3"]);
    }

    #[test]
    fn order_with_different_prefix_including_session_id() {
        assert_ordered(
            &["x-242681582799028564-0000000170", "x-98566387950223723-0000000001"],
            &["x-98566387950223723-0000000001", "x-242681582799028564-0000000170"],
        );
    }

    #[test]
    fn order_with_extra_prefixes() {
        assert_ordered(&["r-1-3-2", "r-2-2-1", "r-3-1-3"], &["r-2-2-1", "r-1-3-2", "r-3-1-3"]);
    }

    #[test]
    fn missing_sequence_number_comes_last() {
        assert_ordered(&["c", "b-1", "a"], &["b-1", "a", "c"]);
    }

    #[test]
    fn two_dashes_make_a_negative_number() {
        assert_ordered(
            &["x-1-2147483647", "x-2--2147483648", "x-3--000000001"],
            &["x-2--2147483648", "x-3--000000001", "x-1-2147483647"],
        );
    }

    #[test]
    fn too_large_number_is_none() {
        assert_eq!(ZNodeName::new("x-99999999999999999999").sequence(), None);
        assert_eq!(ZNodeName::new("x-").sequence(), None);
        assert_eq!(ZNodeName::new("").sequence(), None);
        assert_eq!(ZNodeName::new("-").prefix(), "");
    }

    #[test]
    fn names_of_all_peers_are_split() {
        let cases = [
            ("x-0b2e-lock-0000000012", "x-0b2e-lock", 12),
            ("x-0b2e-lock--2147483648", "x-0b2e-lock", i32::MIN),
            ("x-0b2e-lock--000000005", "x-0b2e-lock", -5),
            ("_c_0b2e-lock-0000000003", "_c_0b2e-lock", 3),
            ("_c_0b2e-__WRIT__0000000004", "_c_0b2e-__WRIT__", 4),
            ("_c_0b2e-latch-0000000004", "_c_0b2e-latch", 4),
            ("00ff__lock__0000000005", "00ff__lock__", 5),
            ("00ff__lock__-2147483648", "00ff__lock__", i32::MIN),
            ("read-0000000006", "read", 6),
            ("_c_0b2e-task10000000003", "_c_0b2e-task1", 3),
            ("x-2147483648", "x", i32::MIN),
        ];
        for (name, prefix, sequence) in cases {
            let split = ZNodeName::new(name);
            assert_eq!((split.prefix(), split.sequence()), (prefix, Some(sequence)), "{name}");
            assert_eq!(generated_sequence(name), Some(sequence), "{name}");
        }
    }

    #[test]
    fn child_without_a_generated_number_is_not_a_request() {
        for name in ["config", "x-3", "x-123456789", "v-1.2", "", "-", "x-abc", "x-99999999999"] {
            assert_eq!(generated_sequence(name), None, "{name}");
        }
    }
}
