//! Reads the queue of a lock and shows it.

use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::queue::{LockDirectory, LockInfo};
use zookeeper_recipes_lock::recipe::LockKind;
use zookeeper_recipes_lock::{LockError, RetryPolicy, Session};

use crate::args::Naming;
use crate::failure::{Failure, NO_DIRECTORY, NO_LOCK};
use crate::output::{Table, one_line, printable};
use crate::spans::{age, show_duration, show_time};

/// The `ephemeralOwner` of a container, which belongs to no session. Most directories of locks are containers.
const CONTAINER: i64 = i64::MIN;

/// Among more keys of `zklock once`, nobody looks for the requests for a lock.
const MANY_KEYS: i32 = 1000;

/// Reads the queue of a lock.
///
/// # Errors
/// The directory does not exist, is not the directory of a lock, or cannot be read.
pub(crate) fn read(session: &Session, dir: &str) -> Result<Vec<LockInfo>, Failure> {
    let queue = LockDirectory::new(session, dir)?.contenders()?;
    if queue.is_empty() {
        check_directory(session, dir)?;
    }
    Ok(queue)
}

/// Returns a warning if the directory has requests that do not count each other. The warning names options of `zklock`.
pub(crate) fn mixed_names(directory: &LockDirectory) -> Result<Option<String>, LockError> {
    let with_option = |text: String, naming: &Naming| {
        let (scheme, value) = (naming.scheme(), naming.to_possible_value());
        let option = value.map_or_else(String::new, |value| format!("--naming {}", value.get_name()));
        text.replace(&format!("NamingScheme::{scheme:?}"), &option)
    };
    // In reverse: `CuratorLatch` begins with `Curator`, so it must be replaced first.
    let namings = || Naming::value_variants().iter().rev();
    Ok(directory.mixed_names()?.map(|warning| namings().fold(warning, with_option)))
}

/// What a path is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A lock, with or without readers.
    Lock,
    Semaphore,
    /// The keys of `zklock once`, each of which is a lock in a directory of its own.
    Keys,
}

impl Use {
    fn of(kind: LockKind) -> Option<Use> {
        match kind {
            LockKind::Exclusive | LockKind::Read | LockKind::Write => Some(Use::Lock),
            LockKind::Permit => Some(Use::Semaphore),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Use::Lock => "a lock",
            Use::Semaphore => "a semaphore",
            Use::Keys => "the keys of 'zklock once'",
        }
    }
}

/// Returns a message if a request shows that this path is in use for anything else. Such a request and one for the own
/// use do not exclude each other, because they are in different directories.
pub(crate) fn other_use(session: &Session, dir: &str, own_use: Use) -> Result<Option<String>, LockError> {
    let leases = format!("{dir}/leases");
    let found = match own_use {
        Use::Lock => first_of(session, &leases, Use::Semaphore)?,
        Use::Semaphore => first_of(session, dir, Use::Lock)?,
        Use::Keys => match first_of(session, &leases, Use::Semaphore)? {
            None if has_few_children(session, dir)? => first_of(session, dir, Use::Lock)?,
            permit => permit,
        },
    };
    Ok(found.and_then(|request| {
        let (theirs, own) = (Use::of(request.kind)?.name(), own_use.name());
        let line = line(&request);
        Some(format!(
            "{dir} is in use as {theirs}: {line}; {theirs} and {own} do not exclude each other, so both may own at \
             once; use another path for one of them"
        ))
    }))
}

/// Returns whether it takes little time to find the first request among the keys of `zklock once`. A key may have the
/// name of a request, and is then read to see that it is a directory.
fn has_few_children(session: &Session, dir: &str) -> Result<bool, LockError> {
    let stat = zookeeper(session).exists(dir)?;
    Ok(stat.is_none_or(|stat| stat.num_children <= MANY_KEYS))
}

/// Returns the first request in a directory, if it is for this use.
fn first_of(session: &Session, dir: &str, wanted: Use) -> Result<Option<LockInfo>, LockError> {
    let first = LockDirectory::new(session, dir)?.current_owner()?;
    Ok(first.filter(|request| Use::of(request.kind) == Some(wanted)))
}

/// Checks that a directory without requests exists, and may be the directory of a lock.
fn check_directory(session: &Session, dir: &str) -> Result<(), Failure> {
    let zookeeper = zookeeper(session);
    let Some(stat) = zookeeper.exists(dir)? else {
        return Err(Failure::new(
            NO_DIRECTORY,
            format!("{dir} does not exist: nobody uses this lock, or the path is wrong"),
        ));
    };
    let children = match stat.num_children {
        0 => Vec::new(),
        _ => zookeeper.get_children(dir)?,
    };
    let why = match (stat.num_children, stat.data_length) {
        _ if ![0, CONTAINER].contains(&stat.ephemeral_owner) => "it belongs to a session".to_owned(),
        (0, 0) => return Ok(()),
        (0, bytes) => format!("it has {bytes} bytes of data and no children"),
        _ if is_semaphore(&children) => format!("it is a semaphore: see {dir}/leases"),
        (1, _) if children == ["done"] => "it is a key of 'zklock once', and marked".to_owned(),
        (1, _) => "its child is not a request".to_owned(),
        (children, _) => format!("none of its {children} children is a request"),
    };
    Err(Failure::new(NO_LOCK, format!("{dir} is not a lock: {why}")))
}

fn zookeeper(session: &Session) -> RecoverableZooKeeper {
    RecoverableZooKeeper::new(session, RetryPolicy::constant(Duration::from_millis(100)).with_attempts(3))
}

/// Returns whether these are the children of a semaphore, either of this library or of Curator.
fn is_semaphore(children: &[String]) -> bool {
    ["leases", "locks"].iter().all(|name| children.iter().any(|child| child == name))
}

pub(crate) fn table(queue: &[LockInfo]) -> String {
    let mut table = Table::new(&["#", "STATE", "KIND", "WHO", "SESSION", "SINCE", "AGE", "ZNODE"]);
    let owners = LockInfo::owners(queue).len();
    for (position, request) in queue.iter().enumerate() {
        table.row(vec![
            (position + 1).to_string(),
            state(request, position < owners).to_owned(),
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

/// A request in one line of text.
pub(crate) fn line(request: &LockInfo) -> String {
    let since = request.created.map_or_else(unknown, show_time);
    let session = session_of(request);
    format!("{} {}, session {session}, since {since}", request.kind, who(request))
}

pub(crate) fn json(queue: &[LockInfo]) -> Value {
    let owners = LockInfo::owners(queue).len();
    let in_queue = |(position, request): (usize, &LockInfo)| {
        let mut object = json_of(request);
        object["position"] = json!(position + 1);
        object["state"] = json!(state(request, position < owners));
        object
    };
    queue.iter().enumerate().map(in_queue).collect()
}

/// A request as a JSON object.
pub(crate) fn json_of(request: &LockInfo) -> Value {
    json!({
        "kind": request.kind.to_string(),
        "who": known_data(request).map(|_| request.data_lossy()),
        "revocation_requested": request.is_revocation_requested(),
        "session": request.ephemeral_owner.map(|id| format!("{id:#x}")),
        "since": request.created.map(show_time),
        "persistent": request.is_persistent,
        "fencing_token": request.czxid,
        "path": request.path,
    })
}

/// Returns why a persistent request is in the way, and what to do about it. Returns `None` for any other request.
pub(crate) fn obstacle(request: &LockInfo) -> Option<String> {
    let path = one_line(&request.path);
    let remedy = match request.kind {
        LockKind::Other => {
            format!(
                "no known library uses such a name; check the znode and delete it by hand \
                 (zkCli.sh -server HOST:PORT[/CHROOT] delete {path})"
            )
        }
        _ => "'zklock reap' deletes it".to_owned(),
    };
    let is_in_the_way = request.is_persistent;
    is_in_the_way.then(|| format!("{path} is persistent and blocks the queue behind it: {remedy}"))
}

/// The data of a request, which says who made it, as a table shows it.
pub(crate) fn who(request: &LockInfo) -> String {
    match &request.data {
        None => "(READ denied)".to_owned(),
        Some(_) if request.is_revocation_requested() => "(asked to release)".to_owned(),
        Some(data) if data.is_empty() => "-".to_owned(),
        Some(_) => printable(&request.data_lossy()),
    }
}

/// The data that the maker of a request has written, or `None` if it is not readable or was overwritten to ask for the
/// release of the lock.
pub(crate) fn known_data(request: &LockInfo) -> Option<&[u8]> {
    request.data.as_deref().filter(|_| !request.is_revocation_requested())
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
    one_line(name)
}

/// Returns the state of a request. The number of permits of a semaphore is not stored, so it is not known which
/// requests hold one. A persistent znode of an unknown kind may not be a request at all.
fn state(request: &LockInfo, is_owner: bool) -> &'static str {
    match request.kind {
        LockKind::Other if request.is_persistent => "unknown",
        _ if is_owner => "owner",
        LockKind::Permit => "unknown",
        _ => "waiter",
    }
}

fn unknown() -> String {
    "?".to_owned()
}
