//! Shows something on the servers at each change.

use std::time::Duration;

use crossbeam_channel::{Receiver, select, tick};
use zookeeper_recipes_lock::{LockError, Result, Session};

use crate::failure::{CLOSED_PIPE, Failure, UNAVAILABLE};
use crate::output::is_closed;

/// How soon a closed pipe is noticed.
const CHECK_OUTPUT: Duration = Duration::from_secs(1);

/// Reads and shows a value now and after each change, until nobody reads the output. `show` leaves
/// out what it has shown last.
pub(crate) fn follow<T>(
    session: &Session,
    changes: &Receiver<()>,
    read: impl Fn() -> Result<T>,
    mut show: impl FnMut(T) -> std::result::Result<(), Failure>,
) -> std::result::Result<u8, Failure> {
    let (states, clock) = (session.subscribe(), tick(CHECK_OUTPUT));
    loop {
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

/// Whether an error passes on a session that is replaced when it is lost.
fn is_passing(error: &LockError) -> bool {
    error.is_recoverable() || matches!(error, LockError::SessionLost { .. })
}
