//! [`ZNodePath`]: the full path of a znode, checked before anything is sent.
//!
//! It is a separate type so that nobody confuses a full path with the bare name of a child. The Java recipe sometimes
//! kept one and sometimes the other in the same string field, so a lock that found its znode again after a lost reply
//! never became the owner.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use zookeeper_connection::{broken_rule, printable};

use crate::error::{LockError, Result};

/// The servers keep their own znodes here and below.
const RESERVED: &str = "/zookeeper";

/// The full path of a znode. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ZNodePath(Arc<str>);

impl From<&ZNodePath> for Arc<str> {
    fn from(path: &ZNodePath) -> Arc<str> {
        Arc::clone(&path.0)
    }
}

impl ZNodePath {
    /// Checks a path that a caller has given for a lock directory, or for another znode that may be created or deleted.
    pub(crate) fn parse(path: &str) -> Result<ZNodePath> {
        let rule = match path {
            "/" => Some("the root can be neither locked nor created nor deleted"),
            path => broken_rule(path),
        };
        match rule {
            None => Ok(ZNodePath(path.into())),
            Some(rule) => Err(LockError::invalid_path(printable(path), rule)),
        }
    }

    /// Checks a path that a caller has given for a lock below this chroot.
    pub(crate) fn of_lock(chroot: Option<&str>, dir: &str) -> Result<ZNodePath> {
        let path = ZNodePath::parse(dir)?;
        let full = [chroot.unwrap_or_default(), dir].concat();
        match full.strip_prefix(RESERVED) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                let rule =
                    "the servers keep znodes of their own at and below /zookeeper; use another directory";
                Err(LockError::invalid_path(printable(dir), rule))
            }
            _ => Ok(path),
        }
    }

    /// Checks a path that a caller has given for an existing znode, which may be the root.
    pub(crate) fn parse_or_root(path: &str) -> Result<ZNodePath> {
        if path == "/" { Ok(ZNodePath::root()) } else { ZNodePath::parse(path) }
    }

    pub(crate) fn root() -> ZNodePath {
        ZNodePath("/".into())
    }

    /// Takes a path from a server's answer. It needs no check.
    pub(crate) fn from_server(path: impl Into<Arc<str>>) -> ZNodePath {
        ZNodePath(path.into())
    }

    pub(crate) fn child(&self, name: &str) -> ZNodePath {
        // Only the root ends with a slash.
        ZNodePath([self.0.trim_end_matches('/'), "/", name].concat().into())
    }

    /// Returns the part after the last slash.
    pub(crate) fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the parent znode, or `None` if the parent is the root, which is never created with its children.
    pub(crate) fn parent(&self) -> Option<ZNodePath> {
        self.dir().map(|dir| ZNodePath(dir.into()))
    }

    /// Returns the path of the [parent](ZNodePath::parent).
    pub(crate) fn dir(&self) -> Option<&str> {
        self.0.rsplit_once('/').map(|(dir, _)| dir).filter(|dir| !dir.is_empty())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ZNodePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ZNodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorReason;

    #[test]
    fn valid_paths_are_kept_unchanged() {
        for path in ["/a", "/a/b/c", "/locks/daily report", "/…/ü", "/a.b/..c"] {
            assert_eq!(ZNodePath::parse(path).unwrap().as_str(), path);
        }
    }

    #[test]
    fn refused_path_is_reported_with_the_broken_rule() {
        let long = format!("/{}", "a".repeat(4096));
        let cases = [
            ("", "empty"),
            ("a/b", "absolute"),
            ("/", "root"),
            ("/a/", "end with a slash"),
            ("//a", "doubled slash"),
            ("/a//b", "doubled slash"),
            ("/a/./b", "'.'"),
            ("/..", "'..'"),
            ("/a\0", "NUL"),
            ("/a\n", "control"),
            ("/a\u{7f}", "control"),
            ("/a\u{e000}", "private-use"),
            ("/a\u{fffd}", "beyond U+FFFF"),
            ("/🦀", "beyond U+FFFF"),
            (long.as_str(), "4096"),
        ];
        for (path, rule) in cases {
            let error = ZNodePath::parse(path).unwrap_err();
            assert_eq!(error.reason(), ErrorReason::InvalidArgument, "{path:?}: {error:?}");
            assert!(error.to_string().contains(rule), "{path:?}: {error}");
        }
    }

    #[test]
    fn znodes_of_the_servers_cannot_be_locked() {
        for (chroot, dir) in [
            (None, "/zookeeper"),
            (None, "/zookeeper/quota/a"),
            (Some("/zookeeper"), "/a"),
            (Some("/zookeeper/config"), "/a"),
        ] {
            let error = ZNodePath::of_lock(chroot, dir).unwrap_err();
            assert!(error.is_invalid_argument() && error.to_string().contains("/zookeeper"), "{error}");
        }
        for (chroot, dir) in [(None, "/zookeepers"), (None, "/a/zookeeper"), (Some("/app"), "/zookeeper/a")] {
            assert_eq!(ZNodePath::of_lock(chroot, dir).unwrap().as_str(), dir);
        }
    }

    #[test]
    fn parents_end_below_the_root() {
        let path = ZNodePath::parse("/a/b").unwrap();
        assert_eq!(path.name(), "b");
        let parent = path.parent().unwrap();
        assert_eq!(parent.as_str(), "/a");
        assert_eq!(parent.parent(), None);
        assert_eq!(parent.child("c").as_str(), "/a/c");
        assert_eq!(ZNodePath::root().child("c").as_str(), "/c");
    }
}
