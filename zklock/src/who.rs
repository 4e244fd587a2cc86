//! `zklock who`.

use std::time::SystemTime;

use serde_json::json;
use zookeeper_recipes_lock::Wait;
use zookeeper_recipes_lock::queue::{LockDirectory, LockInfo};

use crate::args::WhoArgs;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::json;
use crate::output::print;
use crate::queue;
use crate::spans::show_time;
use crate::watching::follow;

pub(crate) fn who(connection: &ConnectionArgs, args: &WhoArgs) -> Result<u8, Failure> {
    if args.watch {
        return watch(connection, args);
    }
    let session = connection.session()?;
    let queue = queue::read(&session, &args.dir);
    let warning = match args.json {
        true => Ok(None),
        false => LockDirectory::new(&session, &args.dir).and_then(|dir| queue::mixed_names(&dir)),
    };
    session.close();
    print(&render(args, &queue?))?;
    if let Some(warning) = warning? {
        print(&format!("{warning}\n"))?;
    }
    Ok(0)
}

/// Shows the queue now and at each change. A directory that does not exist is an empty queue.
fn watch(connection: &ConnectionArgs, args: &WhoArgs) -> Result<u8, Failure> {
    let session = connection.lasting_session()?;
    let directory = LockDirectory::new(&session, &args.dir)?;
    let watch = directory.watch_queue(Wait::forever())?;
    let mut shown = None;
    let show = |queue: Vec<LockInfo>| {
        if shown.as_ref() != Some(&queue) {
            print(&render(args, &queue))?;
            shown = Some(queue);
        }
        Ok(())
    };
    follow(&session, watch.changes(), || directory.contenders(), show)
}

fn render(args: &WhoArgs, queue: &[LockInfo]) -> String {
    let now = show_time(SystemTime::now());
    if args.json {
        return json::line(&json!({ "dir": args.dir, "at": now, "queue": queue::json(queue) }));
    }
    let table = match queue {
        [] => format!("nobody holds {}, and nobody waits for it\n", args.dir),
        queue => queue
            .iter()
            .filter_map(queue::obstacle)
            .fold(queue::table(queue), |table, obstacle| format!("{table}{obstacle}\n")),
    };
    if args.watch { format!("{now} {}\n{table}\n", args.dir) } else { table }
}
