//! The queue of a lock, as it is shown.

use std::time::Duration;

use zookeeper_recipes_lock::{LockDirectory, LockInfo, RecoverableZooKeeper, RetryPolicy, Session};

use crate::failure::{Failure, NO_DIRECTORY, NO_LOCK};
use crate::json::Json;
use crate::output::{Table, printable};
use crate::spans::{age, show_duration, show_time};

/// The owner of a container, which is no session. Directories of locks are containers.
const CONTAINER: i64 = i64::MIN;

/// Reads the queue.
///
/// # Errors
/// The directory does not exist, or is no directory of a lock.
pub(crate) fn read(session: &Session, dir: &str) -> Result<Vec<LockInfo>, Failure> {
    let queue = LockDirectory::new(session, dir)?.contenders()?;
    if queue.is_empty() {
        check_directory(session, dir)?;
    }
    Ok(queue)
}

/// Checks a directory without a request.
fn check_directory(session: &Session, dir: &str) -> Result<(), Failure> {
    let zookeeper = RecoverableZooKeeper::new(
        session,
        RetryPolicy::constant(Duration::from_millis(100)).with_attempts(3),
    );
    let Some(stat) = zookeeper.exists(dir)? else {
        return Err(Failure::new(
            NO_DIRECTORY,
            format!("{dir} does not exist: nobody uses this lock, or the path is wrong"),
        ));
    };
    let why = match (stat.num_children, stat.data_length) {
        _ if ![0, CONTAINER].contains(&stat.ephemeral_owner) => "it belongs to a session".to_owned(),
        (0, 0) => return Ok(()),
        (0, bytes) => format!("it has {bytes} bytes of data and no children"),
        (1, _) => "its child is no request".to_owned(),
        (children, _) => format!("none of its {children} children is a request"),
    };
    Err(Failure::new(NO_LOCK, format!("{dir} is no lock: {why}")))
}

pub(crate) fn table(queue: &[LockInfo]) -> String {
    let mut table = Table::new(&["#", "STATE", "KIND", "WHO", "SESSION", "SINCE", "AGE", "ZNODE"]);
    let owners = LockInfo::owners(queue).len();
    for (position, request) in queue.iter().enumerate() {
        table.row(vec![
            (position + 1).to_string(),
            state(position < owners).to_owned(),
            request.kind.to_string(),
            who(request),
            session_of(request),
            request.created.map_or_else(unknown, show_time),
            request.created.map_or_else(unknown, |created| show_duration(age(created))),
            printable_name(request),
        ]);
    }
    table.render()
}

/// One request, in a line of text.
pub(crate) fn line(request: &LockInfo) -> String {
    let since = request.created.map_or_else(unknown, show_time);
    let session = session_of(request);
    format!("{} {}, session {session}, since {since}", request.kind, who(request))
}

pub(crate) fn json(queue: &[LockInfo]) -> Json {
    let owners = LockInfo::owners(queue).len();
    let request = |(position, request): (usize, &LockInfo)| {
        Json::Object(vec![
            ("position", Json::Number(i64::try_from(position + 1).unwrap_or(i64::MAX))),
            ("state", Json::text(state(position < owners))),
            ("kind", Json::text(request.kind.to_string())),
            ("who", Json::or_null(request.data.as_ref(), |_| Json::text(request.data_lossy()))),
            ("session", Json::or_null(request.ephemeral_owner, |id| Json::text(format!("{id:#x}")))),
            ("since", Json::or_null(request.created, |created| Json::text(show_time(created)))),
            ("persistent", Json::Bool(request.is_persistent)),
            ("fencing_token", Json::or_null(request.czxid, Json::Number)),
            ("path", Json::text(&*request.path)),
        ])
    };
    Json::List(queue.iter().enumerate().map(request).collect())
}

/// Who made a request: its data.
pub(crate) fn who(request: &LockInfo) -> String {
    match &request.data {
        None => "(READ denied)".to_owned(),
        Some(data) if data.is_empty() => "-".to_owned(),
        Some(_) => printable(&request.data_lossy()),
    }
}

fn session_of(request: &LockInfo) -> String {
    match request.ephemeral_owner {
        Some(session) => format!("{session:#x}"),
        None if request.is_persistent => "none (persistent)".to_owned(),
        None => unknown(),
    }
}

fn printable_name(request: &LockInfo) -> String {
    let name = request.path.rsplit('/').next().unwrap_or_default();
    name.chars().flat_map(char::escape_debug).collect()
}

fn state(is_owner: bool) -> &'static str {
    if is_owner { "owner" } else { "waiter" }
}

fn unknown() -> String {
    "?".to_owned()
}
