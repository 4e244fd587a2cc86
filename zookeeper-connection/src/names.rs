//! [`Names`]: the names of a znode's children, in one buffer.

use std::fmt;
use std::slice;
use std::sync::Arc;

/// The names of a znode's children.
///
/// All names share one buffer, so a listing costs three allocations however long it is, and a clone costs none. This
/// matters for a lock directory, which may have thousands of children and is listed whenever the lock passes from one
/// session to another.
///
/// ```
/// # use zookeeper_connection::Names;
/// let names = Names::from(vec!["a".to_owned(), "b".to_owned()]);
/// assert_eq!(names, Names::from_iter(["a", "b"]));
/// assert_eq!(names.len(), 2);
/// for name in &names {
///     println!("{name}");
/// }
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Names(Arc<List>);

#[derive(Default, PartialEq, Eq, Hash)]
struct List {
    text: String,
    /// The end of each name in the text, in ascending order. The next name begins there.
    ends: Vec<usize>,
}

impl Names {
    /// Creates a list from the concatenated names and the end of each name.
    ///
    /// Returns `None` unless every name is UTF-8, the ends ascend, and the last name ends with the text.
    pub fn from_utf8(text: Vec<u8>, ends: Vec<usize>) -> Option<Names> {
        let text = String::from_utf8(text).ok()?;
        let divides = ends.is_sorted() && ends.last().copied().unwrap_or_default() == text.len();
        // The bytes of one character may be split between two names.
        let splits_none = ends.iter().all(|end| text.is_char_boundary(*end));
        (divides && splits_none).then(|| Names(Arc::new(List { text, ends })))
    }

    /// Returns the number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.ends.len()
    }

    /// Returns whether there are no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.ends.is_empty()
    }

    /// Returns the name at this position.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<&str> {
        let List { text, ends } = &*self.0;
        let end = *ends.get(position)?;
        let start = position.checked_sub(1).map_or(0, |before| ends[before]);
        Some(&text[start..end])
    }

    /// Returns whether the list contains this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.iter().any(|listed| listed == name)
    }

    /// Iterates over the names, in the order of the listing.
    pub fn iter(&self) -> NamesIter<'_> {
        NamesIter { text: &self.0.text, start: 0, ends: self.0.ends.iter() }
    }
}

/// An iterator over [`Names`].
#[derive(Clone, Debug)]
pub struct NamesIter<'a> {
    text: &'a str,
    start: usize,
    ends: slice::Iter<'a, usize>,
}

impl<'a> Iterator for NamesIter<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let end = *self.ends.next()?;
        let start = std::mem::replace(&mut self.start, end);
        Some(&self.text[start..end])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ends.size_hint()
    }
}

impl ExactSizeIterator for NamesIter<'_> {}

impl<'a> IntoIterator for &'a Names {
    type Item = &'a str;
    type IntoIter = NamesIter<'a>;

    fn into_iter(self) -> NamesIter<'a> {
        self.iter()
    }
}

impl<S: AsRef<str>> FromIterator<S> for Names {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Names {
        let mut list = List::default();
        for name in names {
            list.text.push_str(name.as_ref());
            list.ends.push(list.text.len());
        }
        Names(Arc::new(list))
    }
}

impl From<Vec<String>> for Names {
    fn from(names: Vec<String>) -> Names {
        names.iter().collect()
    }
}

impl From<Names> for Vec<String> {
    fn from(names: Names) -> Vec<String> {
        names.iter().map(str::to_owned).collect()
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_are_those_that_were_collected(list in prop::collection::vec(".{0,3}", 0..6)) {
            let names = Names::from(list.clone());
            prop_assert_eq!((names.len(), names.iter().len()), (list.len(), list.len()));
            prop_assert_eq!(names.is_empty(), list.is_empty());
            for position in 0..=list.len() {
                prop_assert_eq!(names.get(position), list.get(position).map(String::as_str));
            }
            prop_assert_eq!(format!("{names:?}"), format!("{list:?}"));
            prop_assert_eq!(Vec::from(names), list);
        }
    }

    proptest! {
        #[test]
        fn bytes_are_names_if_each_of_them_is_utf8(list in prop::collection::vec(
            prop::sample::select(vec![&b"\xc3"[..], b"\xa9", b"\xc3\xa9", b"a", b""]), 0..5,
        )) {
            let ends = list.iter().scan(0, |end, name| { *end += name.len(); Some(*end) }).collect();
            let expected: Option<Names> = list.iter().map(|name| std::str::from_utf8(name).ok()).collect();
            prop_assert_eq!(Names::from_utf8(list.concat(), ends), expected);
        }
    }

    #[test]
    fn ends_that_do_not_divide_the_text_into_names_are_refused() {
        for ends in [&[2, 1][..], &[0, 2, 1, 2], &[3], &[1], &[]] {
            assert!(Names::from_utf8(b"ab".to_vec(), ends.to_vec()).is_none(), "{ends:?}");
        }
    }

    #[test]
    fn names_split_differently_are_not_equal() {
        assert_ne!(Names::from_iter(["ab", "c"]), Names::from_iter(["a", "bc"]));
        assert_ne!(Names::from_iter([""; 1]), Names::default());
    }
}
