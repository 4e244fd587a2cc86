//! [`Chroot`]: the part of a path that the servers see and the application does not.

use std::borrow::Cow;
use std::sync::Arc;

use crate::CreateMode;

/// A prefix of every path on the servers, which the application does not see.
///
/// It is added to each path sent to a server, and removed from each path received.
#[derive(Clone, Debug, Default)]
pub struct Chroot {
    /// An absolute path without a trailing slash; `None` without a chroot.
    prefix: Option<Arc<str>>,
}

impl Chroot {
    /// Creates a chroot from an absolute path without a trailing slash.
    ///
    /// An empty path means that there is no chroot.
    #[must_use]
    pub fn new(prefix: &str) -> Chroot {
        Chroot { prefix: Some(prefix).filter(|prefix| !prefix.is_empty()).map(Arc::from) }
    }

    pub(super) fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    /// Returns the two parts that together form a path as the servers see it.
    pub(super) fn add_to<'a>(&'a self, path: &'a str) -> [&'a str; 2] {
        match (self.prefix(), path) {
            (Some(prefix), "/") => [prefix, ""],
            (prefix, path) => [prefix.unwrap_or_default(), path],
        }
    }

    /// Like [`add_to`](Chroot::add_to), for the path of a create. The server appends the number of a sequential znode
    /// to the path, so the root keeps its slash.
    pub(super) fn add_to_created<'a>(&'a self, path: &'a str, mode: CreateMode) -> [&'a str; 2] {
        if mode.is_sequential() { [self.prefix().unwrap_or_default(), path] } else { self.add_to(path) }
    }

    /// Returns a path as the servers see it.
    pub(super) fn full<'a>(&self, path: &'a str) -> Cow<'a, str> {
        if self.prefix.is_none() { path.into() } else { self.add_to(path).concat().into() }
    }

    /// Removes the prefix. Returns `None` for a path outside the chroot.
    pub(super) fn remove_from<'a>(&self, path: &'a str) -> Option<&'a str> {
        let Some(prefix) = self.prefix() else { return Some(path) };
        // The prefix may also be the start of a longer name, as "/zoo" is the start of "/zookeeper".
        match path.strip_prefix(prefix)? {
            "" => Some("/"),
            rest => rest.starts_with('/').then_some(rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_prefixed_and_the_prefix_is_removed_again() {
        let chroot = Chroot::new("/app/a");
        for (path, full) in [("/", "/app/a"), ("/x", "/app/a/x"), ("/app/a", "/app/a/app/a")] {
            assert_eq!(chroot.full(path), full);
            assert_eq!(chroot.remove_from(full), Some(path));
        }
    }

    #[test]
    fn path_outside_is_not_cut() {
        let chroot = Chroot::new("/zoo");
        for path in ["/zookeeper", "/zookeeper/config", "/", "/other", ""] {
            assert_eq!(chroot.remove_from(path), None, "{path}");
        }
    }

    #[test]
    fn without_a_chroot_nothing_changes() {
        let chroot = Chroot::new("");
        for path in ["/", "/zoo"] {
            assert_eq!(chroot.full(path), path);
            assert_eq!(chroot.remove_from(path), Some(path));
        }
    }
}
