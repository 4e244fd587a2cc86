//! What is left after all clients have ended cleanly. Nothing should be.

use std::fmt;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use zookeeper_recipes_lock::client::{Acl, CreateMode, ZkError};
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::{ErrorReason, RetryPolicy, Session, ZNodeName};

use crate::plan::{LOCKS, SEMAPHORE, SERVERS, state_of};
use crate::support::ensemble::Ensemble;
use crate::support::wait::{deadline, holds_within};

#[derive(Debug)]
pub struct Leftovers {
    znodes: Vec<String>,
    watches: usize,
    sessions: usize,
    /// The number and the names of the crate's threads in each client at its end; `None` if the client never
    /// ended.
    threads: Vec<Option<String>>,
}

impl Leftovers {
    /// Polls for a limited time until nothing is left. The sessions of killed clients expire in that time.
    pub fn look(ensemble: &Ensemble, threads: Vec<Option<String>>) -> Leftovers {
        let observer = connect(ensemble);
        let mut znodes = Vec::new();
        holds_within(deadline(), || {
            znodes = queues(&observer);
            znodes.is_empty()
        });
        drop(observer);
        let (mut watches, mut sessions) = (0, 0);
        holds_within(deadline(), || {
            let nodes = || (0..SERVERS).map(|server| ensemble.node(server));
            watches = nodes().map(|node| node.watch_count()).sum();
            sessions = nodes().map(|node| node.session_count()).max().unwrap_or_default();
            watches == 0 && sessions == 0
        });
        Leftovers { znodes, watches, sessions, threads }
    }

    pub fn list(&self) -> Vec<String> {
        let mut all: Vec<_> = self.znodes.iter().map(|znode| format!("znode {znode}")).collect();
        if self.watches > 0 {
            all.push(format!("{} watches", self.watches));
        }
        if self.sessions > 0 {
            all.push(format!("{} sessions", self.sessions));
        }
        for (client, said) in self.threads.iter().enumerate() {
            match said {
                None => all.push(format!("client {client}, which did not end")),
                Some(said) if said.trim() != "0" => all.push(format!("threads of client {client}: {said}")),
                Some(_) => {}
            }
        }
        all
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said =
            self.threads.iter().flatten().filter_map(|said| said.split(' ').next()?.parse::<usize>().ok());
        write!(
            f,
            "{} znodes, {} watches, {} sessions, {} threads",
            self.znodes.len(),
            self.watches,
            self.sessions,
            said.sum::<usize>()
        )
    }
}

/// Creates the znodes that the owners read and replace.
pub fn create_states(ensemble: &Ensemble) {
    let observer = connect(ensemble);
    for lock in 0..SEMAPHORE {
        let created = observer.create(&state_of(lock), b"", &Acl::open_unsafe(), CreateMode::Persistent);
        created.expect("the servers are up");
    }
}

/// Writes the requests in the queues to a file, as evidence.
pub fn note_queues(ensemble: &Ensemble, file: &Path) {
    let observer = connect(ensemble);
    let mut text = String::new();
    for znode in queues(&observer) {
        let what = observer.get_data(&znode);
        let what = what.map(|(data, stat)| {
            format!(
                "{} session {:x} czxid {:x}",
                String::from_utf8_lossy(&data),
                stat.ephemeral_owner,
                stat.czxid
            )
        });
        let _ = writeln!(text, "{znode} {what:?}");
    }
    fs::write(file, text).expect("the history can be written");
}

/// Opens a client whose session ends with it.
fn connect(ensemble: &Ensemble) -> RecoverableZooKeeper {
    let session = Session::connect(&ensemble.connect_string(), Duration::from_secs(30));
    RecoverableZooKeeper::new(&session.expect("the servers are up"), RetryPolicy::default()).with_plain_data()
}

/// Returns the paths of all requests, in the order of the queues.
fn queues(observer: &RecoverableZooKeeper) -> Vec<String> {
    let mut all = Vec::new();
    let semaphore = ["locks", "leases"].map(|dir| format!("{}/{dir}", LOCKS[SEMAPHORE]));
    for dir in LOCKS[..SEMAPHORE].iter().map(ToString::to_string).chain(semaphore) {
        match observer.get_children(&dir) {
            Ok(mut names) => {
                names.sort_by_key(|name| ZNodeName::new(name.as_str()));
                all.extend(names.into_iter().map(|name| format!("{dir}/{name}")));
            }
            // This lock was never requested.
            Err(error) if error.reason() == ErrorReason::Server(ZkError::NoNode) => {}
            Err(error) => all.push(format!("{dir} cannot be listed: {error:?}")),
        }
    }
    all
}
