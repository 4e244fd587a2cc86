//! `zklock leader`.

use std::time::SystemTime;

use zookeeper_recipes_lock::{LockDirectory, LockInfo, Wait};

use crate::args::LeaderArgs;
use crate::connection::ConnectionArgs;
use crate::failure::{Failure, NOBODY};
use crate::output::print;
use crate::queue;
use crate::spans::show_time;
use crate::watching::follow;

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
    let mut shown = None;
    let show = |leader: Option<LockInfo>| {
        if !is_shown(&leader, shown.as_ref()) {
            let who = leader.as_ref().map_or_else(|| "-".to_owned(), queue::who);
            print(&format!("{} {who}\n", show_time(SystemTime::now())))?;
            shown = Some(leader);
        }
        Ok(())
    };
    follow(&session, watch.changes(), || watch.leader(), show)
}

/// Whether the line that was shown last holds. A leader that is asked to step down leads until it
/// does; the message has replaced its data.
fn is_shown(leader: &Option<LockInfo>, shown: Option<&Option<LockInfo>>) -> bool {
    match (leader, shown) {
        (Some(leader), Some(Some(shown))) if leader.is_revocation_requested() => leader.path == shown.path,
        (leader, shown) => shown == Some(leader),
    }
}
