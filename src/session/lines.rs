//! The text of the engine's [`Line`]s in the log.

use std::fmt;

use log::Level;

use crate::engine::{Ending, Line};
use crate::error::{LockError, LossReason};
use crate::logging;

/// Writes a line to the log. The logger is the application's: the caller holds no mutex.
pub(super) fn write(line: &Line) {
    let target = if matches!(line, Line::SessionEnded(_)) { logging::SESSION } else { logging::LOCKS };
    logging::log!(target: target, level(line), "{line}");
}

/// Returns whether the log takes the line at all.
pub(super) fn is_wanted(line: &Line) -> bool {
    level(line) <= log::max_level()
}

fn level(line: &Line) -> Level {
    match line {
        // There may be thousands in a second.
        Line::Acquired(_) | Line::Released(_) | Line::Joined { .. } => Level::Debug,
        Line::RevocationRequested(_) => Level::Info,
        Line::Removed { was_refused: true, .. } | Line::RemovedWithSession(_) | Line::Stray(_) => Level::Info,
        Line::FoundAgain(_) | Line::JoinFailed { .. } | Line::Directory(_) => Level::Debug,
        Line::Removed { was_refused: false, .. } | Line::Suspended { is_owner: false, .. } => Level::Debug,
        // There may be one for each request of an outage, which is mentioned by itself.
        Line::CannotRemove { error, .. } | Line::CannotSweep { error, .. } if error.is_reply_lost() => {
            Level::Debug
        }
        Line::Persistent(_) | Line::Peers { .. } | Line::CannotRemove { .. } | Line::CannotSweep { .. } => {
            Level::Warn
        }
        Line::Suspended { is_owner: true, .. } => Level::Warn,
        // The caller of one that was not placed gets the error.
        Line::Ended { was_placed: false, .. } => Level::Debug,
        Line::Ended { how, .. } if how.reason() == Some(LossReason::SessionClosed) => Level::Info,
        Line::SessionEnded(LossReason::SessionClosed) => Level::Info,
        Line::Ended { .. } | Line::SessionEnded(_) => Level::Warn,
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::FoundAgain(znode) => write!(f, "found {znode} again, whose creation was not confirmed"),
            Line::JoinFailed { dir, attempts, failure } => {
                write!(f, "attempt {attempts} to join {dir} failed: {}", LockError::from(failure.clone()))
            }
            Line::Joined { znode, ahead } => write!(f, "joined {znode}, which waits for {ahead}"),
            Line::Persistent(ahead) => {
                write!(f, "requests wait for {ahead}, which is persistent: no session's end deletes it")
            }
            Line::Directory(path) => {
                write!(f, "{path} is named as a request, but is a directory: passed over")
            }
            Line::Peers { dir, mismatch } => write!(f, "in {dir}, {mismatch}"),
            Line::Stray(path) => {
                write!(f, "deleting {path}, whose creation was not confirmed, as no request has it")
            }
            Line::Acquired(znode) => write!(f, "acquired {znode}"),
            Line::RevocationRequested(znode) => write!(f, "somebody asks to release {znode}"),
            Line::Released(name) => write!(f, "released {name}"),
            Line::Ended { name, how, .. } => {
                let (what, reason, failure) = match how {
                    Ending::Withdrawn => return write!(f, "withdrew {name}"),
                    Ending::Lost(reason) => ("lost", reason, None),
                    Ending::Dropped(reason, failure) => ("dropped from the queue:", reason, failure.as_ref()),
                };
                write!(f, "{what} {name}: {reason}")?;
                match failure {
                    Some(failure) => write!(f, ": {}", LockError::from(failure.clone())),
                    None => Ok(()),
                }
            }
            Line::Suspended { znode, is_owner: true } => {
                write!(f, "suspended {znode}: no contact, owned until the lease ends")
            }
            Line::Suspended { znode, is_owner: false } => {
                write!(f, "suspended {znode}: no contact, waiting for it")
            }
            Line::CannotRemove { path, error } => {
                write!(f, "cannot remove {path} ({error:?}): it blocks others until a retry succeeds")
            }
            Line::CannotSweep { dir, error } => write!(
                f,
                "cannot list {dir} ({error:?}): a request whose creation was not confirmed may block others there \
                 until a retry succeeds"
            ),
            Line::Removed { path, was_refused: true } => write!(f, "removed {path} after all"),
            Line::Removed { path, was_refused: false } => write!(f, "removed {path}"),
            Line::RemovedWithSession(path) => write!(f, "{path} is removed with its session"),
            Line::SessionEnded(LossReason::SessionClosed) => f.write_str("ZooKeeper session closed"),
            Line::SessionEnded(reason) => write!(f, "ZooKeeper session lost: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::path::ZNodePath;

    #[test]
    fn loss_is_a_warning_and_the_end_of_a_closed_session_is_none() {
        let levels = [(LossReason::SessionClosed, Level::Info), (LossReason::SessionExpired, Level::Warn)];
        for (reason, expected) in levels {
            let name = ZNodePath::parse("/locks/a").unwrap();
            let ended = Line::Ended { name, was_placed: true, how: Ending::Lost(reason) };
            assert_eq!(level(&ended), expected, "{reason}");
            assert_eq!(level(&Line::SessionEnded(reason)), expected, "{reason}");
        }
    }

    #[test]
    fn cycles_of_a_lock_are_below_info_and_name_whom_they_wait_for() {
        let [znode, ahead] = ["/locks/a/x-b-lock-0000000002", "/locks/a/x-a-lock-0000000001"]
            .map(|path| ZNodePath::parse(path).unwrap());
        let joined = Line::Joined { znode: znode.clone(), ahead: ahead.clone() };
        assert_eq!(joined.to_string(), format!("joined {znode}, which waits for {ahead}"));
        for line in [joined, Line::Acquired(znode.clone()), Line::Released(znode.clone())] {
            assert_eq!(level(&line), Level::Debug, "{line}");
        }
        assert_eq!(level(&Line::RevocationRequested(znode)), Level::Info);
    }
}
