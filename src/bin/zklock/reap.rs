//! `zklock reap`.

use zookeeper_recipes_lock::{LockDirectory, LockInfo, Session};

use crate::args::ReapArgs;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{complain, print};
use crate::queue;
use crate::spans::show_duration;

pub(crate) fn reap(connection: &ConnectionArgs, args: &ReapArgs) -> Result<u8, Failure> {
    let session = connection.session()?;
    let requests = requests(&session, args);
    session.close();
    let requests = requests?;
    if requests.is_empty() {
        let age = show_duration(args.older_than);
        print(&format!("no persistent request in {} is older than {age}\n", args.dir))?;
        return Ok(0);
    }
    let done = if args.yes { "deleted" } else { "would delete" };
    let lines =
        requests.iter().map(|request| format!("{done}  {}  {}\n", queue::line(request), request.path));
    print(&lines.collect::<String>())?;
    if !args.yes {
        complain("nothing was changed; --yes deletes what is shown");
    }
    Ok(0)
}

/// The requests that were, or would be, deleted.
fn requests(session: &Session, args: &ReapArgs) -> Result<Vec<LockInfo>, Failure> {
    queue::read(session, &args.dir)?;
    let directory = LockDirectory::new(session, &args.dir)?;
    Ok(match args.yes {
        true => directory.reap_expired(args.older_than)?,
        false => directory.expired(args.older_than)?,
    })
}
