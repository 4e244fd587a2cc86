//! Shows a value of the servers now and at each change.

use std::time::Duration;

use crossbeam_channel::{Receiver, select, tick};
use zookeeper_recipes_lock::{ErrorKind, LockError, Session, SessionState};

use crate::failure::{CLOSED_PIPE, Failure, UNAVAILABLE};
use crate::output::is_closed;
use crate::stderr::complain;

/// How often to check whether the reader of the output has gone.
const CHECK_OUTPUT: Duration = Duration::from_secs(1);

/// Reads and shows a value now and after each change, until the reader of the output has gone or an error occurs that
/// does not pass. `show` must ignore a value that it has just shown.
pub(crate) fn follow<T>(
    session: &Session,
    changes: &Receiver<()>,
    read: impl Fn() -> Result<T, LockError>,
    mut show: impl FnMut(T) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    let (states, clock) = (session.subscribe(), tick(CHECK_OUTPUT));
    let mut is_stale = false;
    loop {
        let had_contact = !std::mem::replace(&mut is_stale, session.state() != SessionState::Connected);
        match (had_contact, is_stale) {
            (true, true) => complain("no contact with the servers; the last output may be out of date"),
            (false, false) => complain("in contact with the servers again"),
            _ => {}
        }
        match read() {
            Ok(value) => show(value)?,
            // When contact is regained, the state changes, and the value is read again.
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error.into()),
        }
        loop {
            select! {
                recv(changes) -> change => match change {
                    Ok(()) => break,
                    Err(_) => return Err(Failure::new(UNAVAILABLE, "the session is lost")),
                },
                recv(states) -> _ => break,
                recv(clock) -> _ => if is_closed() {
                    return Ok(CLOSED_PIPE);
                },
            }
        }
    }
}

/// Returns whether an error may pass. A lost session is replaced, so its loss passes as well.
fn is_passing(error: &LockError) -> bool {
    matches!(error.kind(), ErrorKind::Retry | ErrorKind::Reconnect)
}
