//! Shows something on the servers at each change.

use std::time::Duration;

use crossbeam_channel::{Receiver, select, tick};
use zookeeper_recipes_lock::{ErrorKind, LockError, Session, SessionState};

use crate::failure::{CLOSED_PIPE, Failure, UNAVAILABLE};
use crate::output::is_closed;
use crate::stderr::complain;

/// The time within which a closed pipe is noticed.
const CHECK_OUTPUT: Duration = Duration::from_secs(1);

/// Reads and shows a value now and after each change, until nobody reads the output. `show` leaves
/// out what it has shown last.
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
            (true, true) => complain("no contact with the servers: what was shown last may have changed"),
            (false, false) => complain("there is contact with the servers again"),
            _ => {}
        }
        match read() {
            Ok(value) => show(value)?,
            // Regaining contact is a change of state.
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

/// Returns whether an error passes on a session that is replaced when it is lost.
fn is_passing(error: &LockError) -> bool {
    matches!(error.kind(), ErrorKind::Retry | ErrorKind::Reconnect)
}
