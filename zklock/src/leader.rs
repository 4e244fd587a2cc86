//! `zklock leader`.

use std::time::SystemTime;

use serde_json::json;
use zookeeper_recipes_lock::Wait;
use zookeeper_recipes_lock::queue::{LockDirectory, LockInfo};

use crate::args::LeaderArgs;
use crate::connection::ConnectionArgs;
use crate::failure::{DENIED, Failure, NOBODY};
use crate::json;
use crate::output::{one_line, print};
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
    let leader = queue?.into_iter().next();
    if args.json {
        print(&json_line(args, leader.as_ref()))?;
    }
    let Some(leader) = leader else {
        return Err(Failure::new(NOBODY, format!("nobody leads {}", args.dir)));
    };
    if !args.json {
        print(&format!("{}\n", data_of(&leader, args)?))?;
    }
    Ok(0)
}

/// Prints a line now and at each change. A directory that does not exist has no leader.
fn watch(connection: &ConnectionArgs, args: &LeaderArgs) -> Result<u8, Failure> {
    let session = connection.lasting_session()?;
    let watch = LockDirectory::new(&session, &args.dir)?.watch_leader(Wait::forever())?;
    let mut shown = None;
    let show = |leader: Option<LockInfo>| {
        if !is_shown(&leader, shown.as_ref()) {
            print(&line(args, leader.as_ref()))?;
            shown = Some(leader);
        }
        Ok(())
    };
    follow(&session, watch.changes(), || watch.leader(), show)
}

/// The line that `--watch` prints for this leader.
fn line(args: &LeaderArgs, leader: Option<&LockInfo>) -> String {
    if args.json {
        return json_line(args, leader);
    }
    let nobody = || "-".to_owned();
    let data = leader.map_or_else(nobody, |leader| {
        data_of(leader, args).unwrap_or_else(|unknown| {
            unknown.report();
            nobody()
        })
    });
    format!("{} {data}\n", show_time(SystemTime::now()))
}

fn json_line(args: &LeaderArgs, leader: Option<&LockInfo>) -> String {
    let at = show_time(SystemTime::now());
    json::line(&json!({ "dir": args.dir, "at": at, "leader": leader.map(queue::json_of) }))
}

/// The data of the leader, in one line.
///
/// # Errors
/// The data is not known: it was overwritten, or READ is denied.
fn data_of(leader: &LockInfo, args: &LeaderArgs) -> Result<String, Failure> {
    let dir = &args.dir;
    if leader.is_revocation_requested() {
        let message =
            format!("the leader of {dir} is asked to step down, and the request has overwritten its data");
        return Err(Failure::new(NOBODY, message));
    }
    match leader.data {
        Some(_) => Ok(one_line(&leader.data_lossy())),
        None => Err(Failure::new(
            DENIED,
            format!("access denied: the data of the leader of {dir} cannot be read"),
        )),
    }
}

/// Returns whether the line shown last is still right. A leader that is asked to step down still leads until it does,
/// but its data has been overwritten.
fn is_shown(leader: &Option<LockInfo>, shown: Option<&Option<LockInfo>>) -> bool {
    match (leader, shown) {
        (Some(leader), Some(Some(shown))) if leader.is_revocation_requested() => leader.path == shown.path,
        (leader, shown) => shown == Some(leader),
    }
}
