//! `zklock leader`.

use std::time::SystemTime;

use crossbeam_channel::{select, tick};
use zookeeper_recipes_lock::{LockDirectory, Wait};

use crate::args::LeaderArgs;
use crate::connection::ConnectionArgs;
use crate::failure::{CLOSED_PIPE, Failure, NOBODY, UNAVAILABLE};
use crate::output::{is_closed, print};
use crate::queue;
use crate::spans::show_time;
use crate::who::{CHECK_OUTPUT, is_passing};

pub(crate) fn leader(connection: &ConnectionArgs, args: &LeaderArgs) -> Result<u8, Failure> {
    if args.watch {
        return watch(connection, args);
    }
    let session = connection.session()?;
    let queue = queue::read(&session, &args.dir);
    session.close();
    match queue?.first() {
        Some(leader) => print(&format!("{}\n", queue::who(leader)))?,
        None => return Err(Failure::new(NOBODY, format!("nobody leads {}", args.dir))),
    }
    Ok(0)
}

/// Prints a line at each change. A directory that does not exist has no leader.
fn watch(connection: &ConnectionArgs, args: &LeaderArgs) -> Result<u8, Failure> {
    let session = connection.lasting_session()?;
    let watch = LockDirectory::new(&session, &args.dir)?.watch_leader(Wait::forever())?;
    let clock = tick(CHECK_OUTPUT);
    let mut shown = None;
    loop {
        match watch.leader() {
            Ok(leader) if shown.as_ref() != Some(&leader) => {
                let who = leader.as_ref().map_or_else(|| "-".to_owned(), queue::who);
                print(&format!("{} {who}\n", show_time(SystemTime::now())))?;
                shown = Some(leader);
            }
            Ok(_) => {}
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error.into()),
        }
        loop {
            select! {
                recv(watch.changes()) -> change => match change {
                    Ok(()) => break,
                    Err(_) => return Err(Failure::new(UNAVAILABLE, "the session is lost")),
                },
                recv(clock) -> _ => if is_closed() {
                    return Ok(CLOSED_PIPE);
                },
            }
        }
    }
}
