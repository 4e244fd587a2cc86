//! `zklock who`.

use std::time::{Duration, SystemTime};

use crossbeam_channel::{select, tick};
use zookeeper_recipes_lock::{LockDirectory, LockError, LockInfo, Wait};

use crate::args::WhoArgs;
use crate::connection::ConnectionArgs;
use crate::failure::{CLOSED_PIPE, Failure, UNAVAILABLE};
use crate::json::Json;
use crate::output::{is_closed, print};
use crate::queue;
use crate::spans::show_time;

/// How soon a closed pipe is noticed.
pub(crate) const CHECK_OUTPUT: Duration = Duration::from_secs(1);

pub(crate) fn who(connection: &ConnectionArgs, args: &WhoArgs) -> Result<u8, Failure> {
    if args.watch {
        return watch(connection, args);
    }
    let session = connection.session()?;
    let queue = queue::read(&session, &args.dir);
    session.close();
    print(&render(args, &queue?))?;
    Ok(0)
}

/// Shows the queue at each change. A directory that does not exist is an empty queue.
fn watch(connection: &ConnectionArgs, args: &WhoArgs) -> Result<u8, Failure> {
    let session = connection.lasting_session()?;
    let directory = LockDirectory::new(&session, &args.dir)?;
    let watch = directory.watch_queue(Wait::forever())?;
    let states = session.subscribe();
    let clock = tick(CHECK_OUTPUT);
    let mut shown = None;
    loop {
        match directory.contenders() {
            Ok(queue) if shown.as_ref() != Some(&queue) => {
                print(&render(args, &queue))?;
                shown = Some(queue);
            }
            Ok(_) => {}
            // Regaining contact is a change of state.
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error.into()),
        }
        loop {
            select! {
                recv(watch.changes()) -> change => match change {
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
pub(crate) fn is_passing(error: &LockError) -> bool {
    error.is_recoverable() || matches!(error, LockError::SessionLost { .. })
}

fn render(args: &WhoArgs, queue: &[LockInfo]) -> String {
    let now = show_time(SystemTime::now());
    if args.json {
        let members =
            vec![("dir", Json::text(&*args.dir)), ("at", Json::text(now)), ("queue", queue::json(queue))];
        return Json::Object(members).line();
    }
    let table = match queue {
        [] => format!("nobody holds {}, and nobody waits for it\n", args.dir),
        queue => queue::table(queue),
    };
    if args.watch { format!("{now} {}\n{table}\n", args.dir) } else { table }
}
