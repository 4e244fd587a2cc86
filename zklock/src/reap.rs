//! `zklock reap`.

use zookeeper_recipes_lock::Session;
use zookeeper_recipes_lock::queue::{LockDirectory, LockInfo};
use zookeeper_recipes_lock::recipe::LockKind;

use crate::args::ReapArgs;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{one_line, print};
use crate::queue;
use crate::spans::show_duration;
use crate::stderr::complain;

pub(crate) fn reap(connection: &ConnectionArgs, args: &ReapArgs) -> Result<u8, Failure> {
    let session = connection.session()?;
    let found = find(&session, args);
    session.close();
    let Found { requests, staying } = found?;
    for obstacle in staying.iter().filter_map(queue::obstacle) {
        complain(&obstacle);
    }
    if requests.is_empty() {
        let age = show_duration(args.older_than);
        print(&format!("no persistent request of a known kind in {} is older than {age}\n", args.dir))?;
        return Ok(0);
    }
    let done = if args.yes { "deleted" } else { "would delete" };
    let lines = requests
        .iter()
        .map(|request| format!("{done}  {}  {}\n", queue::line(request), one_line(&request.path)));
    print(&lines.collect::<String>())?;
    if !args.yes {
        complain("nothing was deleted; --yes deletes these requests");
    }
    Ok(0)
}

struct Found {
    /// The requests that were deleted, or would be.
    requests: Vec<LockInfo>,
    /// The persistent requests of an unknown kind, which are not deleted.
    staying: Vec<LockInfo>,
}

fn find(session: &Session, args: &ReapArgs) -> Result<Found, Failure> {
    let mut staying = queue::read(session, &args.dir)?;
    staying.retain(|request| request.is_persistent && request.kind == LockKind::Other);
    let directory = LockDirectory::new(session, &args.dir)?;
    let requests = match args.yes {
        true => directory.reap_expired(args.older_than)?,
        false => directory.expired(args.older_than)?,
    };
    Ok(Found { requests, staying })
}
