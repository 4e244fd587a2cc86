//! Tries what a lock does, in transactions that leave nothing.
//!
//! Reading a queue shows neither that a request can be created nor that it can be deleted, so what a lock would do is
//! sent as a transaction that the leader checks and refuses.

use zookeeper_recipes_lock::client::{Acl, CreateMode, Stat, ZkError};
use zookeeper_recipes_lock::data::{RecoverableZooKeeper, Transaction};
use zookeeper_recipes_lock::{ErrorReason, LockError, Session};

use super::{Findings, PROBE};
use crate::failure::{CANNOT_CREATE, DENIED, code_of, describe};

/// As long as the data of most requests, because a quota may limit bytes.
const DATA: [u8; 32] = [b'x'; 32];

/// How often a lock is tried while the directory comes and goes.
const ATTEMPTS: u32 = 5;

/// A directory with fewer sequence numbers left is worth a warning. With a hundred requests a second, they last for
/// eleven days.
const FEW_NUMBERS: i64 = 100_000_000;

impl Findings {
    /// Tries to create a request in this directory as a lock does, and to delete it again.
    pub(super) fn try_lock(&mut self, session: &Session, zookeeper: &RecoverableZooKeeper, dir: &str) {
        let dir = dir.trim_end_matches('/');
        let mut tried = take_and_release(session, zookeeper, dir);
        for _ in 1..ATTEMPTS {
            if tried.as_ref().is_err_and(|(_, error)| is_outdated(error)) {
                tried = take_and_release(session, zookeeper, dir);
            }
        }
        match tried {
            Ok(()) => self.checked.push("that a lock can be taken and released"),
            Err((done, error)) => self.judge_refusal(dir, done, &error),
        }
    }

    /// Judges why the servers refused to create or delete a request.
    fn judge_refusal(&mut self, dir: &str, done: &str, error: &LockError) {
        let why = describe(error);
        let is_answer = matches!(error.reason(), ErrorReason::Server(_));
        if is_answer || [DENIED, CANNOT_CREATE].contains(&code_of(error)) {
            self.warn(format!("no lock can be {done} in {dir}: {why}"));
        } else {
            self.unchecked(&format!("whether a lock can be {done} in {dir}"), &why);
        }
    }

    /// Checks that the directory has sequence numbers left.
    pub(super) fn check_counter(&mut self, dir: &str, stat: &Stat) {
        self.checked.push("the sequence numbers");
        let left = numbers_left(stat);
        if left < FEW_NUMBERS {
            self.warn(format!(
                "{dir} has {left} sequence numbers left, and without any, locks there fail: delete the directory when it is \
                 empty (a new one starts at 0)"
            ));
        }
    }
}

/// Has the servers check what a lock does. Returns what cannot be done, and why.
fn take_and_release(
    session: &Session,
    zookeeper: &RecoverableZooKeeper,
    dir: &str,
) -> Result<(), (&'static str, LockError)> {
    let (acl, request) = (Acl::open_unsafe(), format!("{dir}{PROBE}{:x}", session.id().unwrap_or(0)));
    let not_taken = |error| ("taken", error);
    let mut creation = Transaction::default();
    for path in missing(zookeeper, dir).map_err(not_taken)?.into_iter().rev() {
        creation = creation.create_with(path, "", &acl, CreateMode::Persistent);
    }
    creation = creation.create_with(&request, DATA, &acl, CreateMode::Ephemeral);
    // One transaction alone would not tell a refused creation from a refused deletion.
    creation.dry_run(session).map_err(not_taken)?;
    creation.delete(&request).dry_run(session).map_err(|error| ("released", error))
}

/// Returns whether somebody may just have created or deleted the directory, as busy locks do.
fn is_outdated(error: &LockError) -> bool {
    matches!(error.reason(), ErrorReason::Server(ZkError::NodeExists | ZkError::NoNode))
}

/// Returns the znodes that a lock would create to have its directory, the last one first.
fn missing<'a>(zookeeper: &RecoverableZooKeeper, dir: &'a str) -> Result<Vec<&'a str>, LockError> {
    let mut missing = Vec::new();
    let mut path = dir;
    while !path.is_empty() && !exists(zookeeper, path)? {
        missing.push(path);
        path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    Ok(missing)
}

/// A znode whose existence may not be asked for does exist.
fn exists(zookeeper: &RecoverableZooKeeper, path: &str) -> Result<bool, LockError> {
    match zookeeper.exists(path) {
        Err(error) if error.reason() == ErrorReason::AccessDenied => Ok(true),
        stat => Ok(stat?.is_some()),
    }
}

/// Returns how many sequence numbers a directory has left.
fn numbers_left(stat: &Stat) -> i64 {
    // A server shows the number of creations plus that of deletions, modulo 2^32. The first minus the second is the
    // number of children.
    let twice_created = i64::from(stat.cversion) + i64::from(stat.num_children);
    i64::from(i32::MAX) - twice_created.rem_euclid(1 << 32) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use zookeeper_recipes_lock::client::Permissions;
    use zookeeper_recipes_lock::fake::{Effect, SimOperation, SimulatedZooKeeper};

    fn tried(zookeeper: &SimulatedZooKeeper, dir: &str) -> Findings {
        let session = zookeeper.connect(Duration::from_secs(30)).open_session().unwrap();
        let mut findings = Findings::default();
        findings.try_lock(&session, &RecoverableZooKeeper::new(&session, super::super::retry()), dir);
        session.close();
        findings
    }

    #[test]
    fn lock_is_tried_in_the_directory_or_its_nearest_parent_and_leaves_nothing() {
        let zookeeper = SimulatedZooKeeper::new();
        zookeeper.create("/locks", b"");
        for dir in ["/locks", "/locks/", "/locks/a/b", "/elsewhere"] {
            let findings = tried(&zookeeper, dir);
            assert_eq!(findings.checked, ["that a lock can be taken and released"], "{dir}: {findings:?}");
            assert!(findings.warnings.is_empty());
        }
        assert_eq!(zookeeper.stat("/locks").unwrap().cversion, 0);
        assert!(!zookeeper.exists("/elsewhere"));
    }

    #[test]
    fn missing_permission_is_a_warning_in_the_directory_and_above_a_missing_one() {
        let zookeeper = SimulatedZooKeeper::new();
        for (dir, granted) in [
            ("/no-create", Permissions::READ | Permissions::DELETE),
            ("/no-delete", Permissions::READ | Permissions::CREATE),
        ] {
            zookeeper.create_with_acl(dir, b"", &[Acl::new(granted, "world", "anyone")]);
        }
        for (dir, warning) in [
            ("/no-create", "no lock can be taken in /no-create: "),
            ("/no-create/a/b", "no lock can be taken in /no-create/a/b: "),
            ("/no-delete", "no lock can be released in /no-delete: "),
        ] {
            let findings = tried(&zookeeper, dir);
            assert!(findings.checked.is_empty() && findings.warnings.len() == 1, "{dir}: {findings:?}");
            assert!(findings.warnings[0].starts_with(warning), "{findings:?}");
        }
        // The lock grants itself all permissions in a directory of its own.
        assert!(tried(&zookeeper, "/no-delete/a").warnings.is_empty());
    }

    #[test]
    fn what_could_not_be_tried_is_said() {
        let zookeeper = SimulatedZooKeeper::new();
        let client = zookeeper.connect(Duration::from_secs(30));
        let session = client.open_session().unwrap();
        for _ in 0..10 {
            client.fail_next(SimOperation::Exists, Effect::Before, ZkError::ConnectionLoss);
        }
        let mut findings = Findings::default();
        let zookeeper = RecoverableZooKeeper::new(&session, super::super::retry());
        findings.try_lock(&session, &zookeeper, "/locks");
        assert!(findings.checked.is_empty(), "{findings:?}");
        assert!(
            findings.warnings[0].starts_with("not checked: whether a lock can be taken in /locks, because ")
        );
    }

    #[test]
    fn directory_that_comes_and_goes_is_no_warning() {
        let zookeeper = SimulatedZooKeeper::new();
        let client = zookeeper.connect(Duration::from_secs(30));
        let session = client.open_session().unwrap();
        for error in [ZkError::NoNode, ZkError::NodeExists] {
            client.fail_next(SimOperation::Transact, Effect::Before, error);
        }
        let mut findings = Findings::default();
        let zookeeper = RecoverableZooKeeper::new(&session, super::super::retry());
        findings.try_lock(&session, &zookeeper, "/locks");
        assert!(findings.warnings.is_empty() && findings.checked.len() == 1, "{findings:?}");
    }

    #[test]
    fn numbers_are_counted_from_what_servers_show() {
        let stat = |created: i32, children: i32| Stat {
            cversion: created.wrapping_mul(2).wrapping_sub(children),
            num_children: children,
            ..SimulatedZooKeeper::new().stat("/").unwrap()
        };
        for created in [0, 7, 1 << 30, i32::MAX - 1, i32::MAX] {
            for children in [0, 1, 2, 1000] {
                assert_eq!(numbers_left(&stat(created, children)), i64::from(i32::MAX - created));
            }
        }
        for (created, warnings) in [(0, 0), (i32::MAX / 2, 0), (i32::MAX - 1000, 1), (i32::MAX, 1)] {
            let mut findings = Findings::default();
            findings.check_counter("/locks", &stat(created, 3));
            assert_eq!(findings.warnings.len(), warnings, "{findings:?}");
        }
    }
}
