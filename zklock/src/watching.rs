//! Shows a value of the servers now and at each change.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select, tick};
use zookeeper_recipes_lock::{ErrorKind, ErrorReason, LockError, Session, SessionState};

use crate::failure::{CLOSED_PIPE, Failure, UNAVAILABLE, describe};
use crate::output::is_closed;
use crate::stderr::complain;

/// How often to check whether the reader of the output has gone, and to repeat a read that has failed.
const PERIOD: Duration = Duration::from_secs(1);

const NO_CONTACT: &str = "no contact with the servers";

/// Reads and shows a value now and after each change, until the reader of the output has gone or an error occurs that
/// does not pass. `show` must ignore a value that it has just shown.
pub(crate) fn follow<T>(
    session: &Session,
    changes: &Receiver<()>,
    read: impl Fn() -> Result<T, LockError>,
    show: impl FnMut(T) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    let has_contact = || session.state() == SessionState::Connected;
    let wakeups = Wakeups { changes, states: &session.subscribe(), clock: &tick(PERIOD) };
    follow_with(has_contact, &wakeups, read, show)
}

/// What makes [`follow`] read the value again.
struct Wakeups<'a> {
    changes: &'a Receiver<()>,
    states: &'a Receiver<SessionState>,
    clock: &'a Receiver<Instant>,
}

fn follow_with<T>(
    has_contact: impl Fn() -> bool,
    wakeups: &Wakeups<'_>,
    read: impl Fn() -> Result<T, LockError>,
    mut show: impl FnMut(T) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    let mut reported = None;
    loop {
        let value = match read() {
            Err(error) if !is_passing(&error) => return Err(error.into()),
            value => value,
        };
        let obstacle = match &value {
            Err(error) if !is_lost_contact(error) => Some(describe(error)),
            Ok(_) if has_contact() => None,
            _ => Some(NO_CONTACT.to_owned()),
        };
        if let Some(news) = news(&mut reported, obstacle) {
            complain(&news);
        }
        let has_failed = value.is_err();
        if let Ok(value) = value {
            show(value)?;
        }
        loop {
            select! {
                recv(wakeups.changes) -> change => match change {
                    Ok(()) => break,
                    Err(_) => return Err(Failure::new(UNAVAILABLE, "the session is lost")),
                },
                recv(wakeups.states) -> _ => break,
                recv(wakeups.clock) -> _ => {
                    if is_closed() {
                        return Ok(CLOSED_PIPE);
                    }
                    // Without contact, the read would fail again. When contact is regained, the state changes.
                    if has_failed && has_contact() {
                        break;
                    }
                }
            }
        }
    }
}

/// Returns a message if something else, or nothing any more, makes the last output doubtful.
fn news(reported: &mut Option<String>, obstacle: Option<String>) -> Option<String> {
    if *reported == obstacle {
        return None;
    }
    *reported = obstacle;
    Some(match reported {
        Some(obstacle) => format!("{obstacle}; the last output may be out of date"),
        None => "the servers answer again".to_owned(),
    })
}

/// Returns whether an error may pass. A lost session is replaced, so its loss passes as well.
fn is_passing(error: &LockError) -> bool {
    error.kind() != ErrorKind::Permanent
}

fn is_lost_contact(error: &LockError) -> bool {
    use ErrorReason::{ConnectionLoss, NoServer, SessionLost};
    matches!(error.reason(), ConnectionLoss | NoServer | SessionLost)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread;

    use crossbeam_channel::{never, unbounded};
    use zookeeper_recipes_lock::client::ZkError;

    use super::*;

    fn failed<T>(error: ZkError) -> Result<T, LockError> {
        Err(LockError::from_client("list", "/queue", error))
    }

    #[test]
    fn refused_read_is_repeated_without_another_change() {
        let (shown, values) = unbounded();
        thread::spawn(move || {
            let (_changer, changes) = unbounded();
            let wakeups =
                Wakeups { changes: &changes, states: &never(), clock: &tick(Duration::from_millis(1)) };
            let reads = Cell::new(0);
            let read = || match reads.replace(reads.get() + 1) {
                0 => failed(ZkError::Throttled),
                1 => Ok("queue"),
                _ => failed(ZkError::NoAuth),
            };
            follow_with(
                || true,
                &wakeups,
                read,
                |value| {
                    shown.send(value).unwrap();
                    Ok(())
                },
            )
        });
        assert_eq!(values.recv_timeout(Duration::from_secs(30)), Ok("queue"));
    }

    #[test]
    fn each_obstacle_is_reported_once_and_then_its_end() {
        let mut reported = None;
        let mut report = |obstacle: Option<&str>| news(&mut reported, obstacle.map(str::to_owned));
        assert_eq!(report(None), None);
        assert_eq!(report(Some("no contact")).unwrap(), "no contact; the last output may be out of date");
        assert_eq!(report(Some("no contact")), None);
        assert_eq!(report(Some("throttled")).unwrap(), "throttled; the last output may be out of date");
        assert_eq!(report(None).unwrap(), "the servers answer again");
    }

    #[test]
    fn only_a_lost_connection_or_session_is_lost_contact() {
        for (error, is_lost) in
            [(ZkError::ConnectionLoss, true), (ZkError::SessionExpired, true), (ZkError::Throttled, false)]
        {
            let error = failed::<()>(error).unwrap_err();
            assert!(is_passing(&error), "{error}");
            assert_eq!(is_lost_contact(&error), is_lost, "{error}");
        }
    }
}
