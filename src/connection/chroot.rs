//! [`Chroot`]: the part of a path that the servers see and the application does not.

use std::borrow::Cow;
use std::sync::Arc;

use crate::client::{Call, Op, OpOutcome, Reply, Transacted};
use crate::error::{ZkError, ZkResult};

/// Prefixes paths on their way to a server, and removes the prefix on their way back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chroot {
    /// Empty, or a path that does not end with a slash.
    prefix: Arc<str>,
}

impl Chroot {
    pub(super) fn new(prefix: &str) -> Chroot {
        Chroot { prefix: prefix.into() }
    }

    pub(super) fn prefix(&self) -> Option<&str> {
        Some(&*self.prefix).filter(|prefix| !prefix.is_empty())
    }

    /// Prefixes the paths of a call.
    pub(crate) fn add(&self, mut call: Call) -> Call {
        if self.prefix.is_empty() {
            return call;
        }
        match &mut call {
            Call::Create { path, .. }
            | Call::CreateAndList { dir: path, .. }
            | Call::Delete { path, .. }
            | Call::Exists { path, .. }
            | Call::GetData { path, .. }
            | Call::GetChildren { path, .. }
            | Call::SetData { path, .. } => *path = self.add_to(path).into(),
            Call::Multi(operations) => {
                for operation in Arc::make_mut(operations) {
                    let (Op::Create { path, .. }
                    | Op::Delete { path, .. }
                    | Op::SetData { path, .. }
                    | Op::Check { path, .. }) = operation;
                    *path = self.add_to(path).into_owned();
                }
            }
        }
        call
    }

    pub(super) fn add_to<'a>(&self, path: &'a str) -> Cow<'a, str> {
        match (&*self.prefix, path) {
            ("", path) => path.into(),
            (prefix, "/") => prefix.to_owned().into(),
            (prefix, path) => format!("{prefix}{path}").into(),
        }
    }

    /// Removes the prefix from the paths of a reply. A path outside cannot be read.
    pub(crate) fn remove_from(&self, mut reply: Reply) -> ZkResult<Reply> {
        let remove = |path: &mut String| {
            *path = self.remove(std::mem::take(path)).ok_or(ZkError::MarshallingError)?;
            Ok::<(), ZkError>(())
        };
        match &mut reply {
            Reply::Created { path, .. } => remove(path)?,
            Reply::Enqueued(enqueued) => remove(&mut enqueued.path)?,
            Reply::Multi(Transacted::Committed(outcomes)) => {
                for outcome in outcomes {
                    if let OpOutcome::Created(path) = outcome {
                        remove(path)?;
                    }
                }
            }
            _ => {}
        }
        Ok(reply)
    }

    /// Returns `None` for a path outside.
    pub(super) fn remove(&self, path: String) -> Option<String> {
        if self.prefix.is_empty() {
            return Some(path);
        }
        // The prefix may also be the start of a longer name, as "/zoo" is of "/zookeeper".
        match path.strip_prefix(&*self.prefix)? {
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
            assert_eq!(chroot.add_to(path), full);
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
            assert_eq!(chroot.add_to(path), path);
            assert_eq!(chroot.remove(path.to_owned()).as_deref(), Some(path));
        }
    }
}
