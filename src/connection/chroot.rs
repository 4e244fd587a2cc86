//! [`Chroot`]: the part of a path that the servers see and the application does not.

use std::borrow::Cow;

/// Prefixes paths on their way to a server, and removes the prefix on their way back.
#[derive(Clone, Debug, Default)]
pub(super) struct Chroot {
    /// Empty, or a path that does not end with a slash.
    prefix: String,
}

impl Chroot {
    pub(super) fn new(prefix: &str) -> Chroot {
        Chroot { prefix: prefix.to_owned() }
    }

    pub(super) fn add<'a>(&self, path: &'a str) -> Cow<'a, str> {
        match (self.prefix.as_str(), path) {
            ("", path) => path.into(),
            (prefix, "/") => prefix.to_owned().into(),
            (prefix, path) => format!("{prefix}{path}").into(),
        }
    }

    /// Returns `None` for a path outside.
    pub(super) fn remove(&self, path: String) -> Option<String> {
        if self.prefix.is_empty() {
            return Some(path);
        }
        // The prefix may also be the start of a longer name, as "/zoo" is of "/zookeeper".
        match path.strip_prefix(&self.prefix)? {
            "" => Some("/".to_owned()),
            rest => rest.starts_with('/').then(|| rest.to_owned()),
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
            assert_eq!(chroot.add(path), full);
            assert_eq!(chroot.remove(full.to_owned()).as_deref(), Some(path));
        }
    }

    #[test]
    fn path_outside_is_not_cut() {
        let chroot = Chroot::new("/zoo");
        for path in ["/zookeeper", "/zookeeper/config", "/", "/other", ""] {
            assert_eq!(chroot.remove(path.to_owned()), None, "{path}");
        }
    }

    #[test]
    fn without_a_chroot_nothing_changes() {
        let chroot = Chroot::new("");
        for path in ["/", "/zoo"] {
            assert_eq!(chroot.add(path), path);
            assert_eq!(chroot.remove(path.to_owned()).as_deref(), Some(path));
        }
    }
}
