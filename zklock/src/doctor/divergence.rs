//! Checks whether every server shows the same queue.
//!
//! A server that has diverged from the others may show the znode of a request that no longer exists, or lack one that
//! does. It goes on serving, so nothing else brings this to light.
//!
//! A difference between two servers is usually a change of the queue between the two looks, or one of the servers lags
//! behind. Only a contradiction counts: one server shows a znode, later another one does not, and still later the first
//! one shows it again. Before each of the later looks, a write has made the server catch up with the leader, which also
//! says which server is right.

use std::collections::{BTreeMap, BTreeSet};

use zookeeper_recipes_lock::client::{Acl, CreateMode, ZkError};
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::queue::{LockDirectory, LockInfo};
use zookeeper_recipes_lock::{ErrorReason, LockError, Session};

use super::comparison::needs_comparison;
use super::probe::Probe;
use super::{Findings, PROBE, retry};
use crate::connection::ConnectionArgs;
use crate::failure::describe;
use crate::output::one_line;

/// No data has this version, so a write that requires it changes nothing. -1 would mean any version.
const NO_VERSION: i32 = -2;

/// What to do about a server that has diverged.
const REMEDY: &str = "while all other servers serve, stop that server, delete 'version-2' from its dataDir and \
     dataLogDir, and start it again";

/// The znode of a request, as a server shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    path: String,
    czxid: Option<i64>,
    owner: Option<i64>,
}

/// A server, and the queue that it shows.
struct View {
    server: String,
    session: Session,
    queue: BTreeSet<Shown>,
}

impl Findings {
    /// Compares the queue in this directory on each server.
    pub(super) fn compare_queues(&mut self, connection: &ConnectionArgs, probes: &[Probe], dir: &str) {
        if !needs_comparison(probes) {
            return;
        }
        let whole_dir = format!("{}{dir}", connection.chroot().trim_end_matches('/'));
        let mut views = Vec::new();
        for probe in probes.iter().filter(|probe| probe.granted.is_some()) {
            let (server, session) = (probe.target.name(), probe.target.open_session(connection));
            let session = session.map_err(|failure| failure.message);
            match session.and_then(|session| View::read(server.clone(), session, &whole_dir)) {
                Ok(view) => views.push(view),
                Err(why) => self.unchecked(&same_queue(&server), &why),
            }
        }
        self.judge_queues(&views);
        views.iter().for_each(|view| view.session.close());
    }

    fn judge_queues(&mut self, views: &[View]) {
        // One difference shows that a server has diverged.
        let mut diverged = BTreeMap::new();
        for (shows, lacks) in views.iter().flat_map(|shows| views.iter().map(move |lacks| (shows, lacks))) {
            let contradiction = |shown| contradiction(shows, lacks, shown).transpose();
            match shows.queue.difference(&lacks.queue).find_map(contradiction) {
                Some(Ok((server, what))) => drop(diverged.entry(server).or_insert(what)),
                Some(Err(error)) => self.unchecked(&same_queue(&lacks.server), &describe(&error)),
                None => {}
            }
        }
        if views.len() > 1 {
            self.checked.push("the queue on each server");
        }
        for (server, what) in diverged {
            self.warn_of_divergence(server, &what);
        }
    }

    /// If there is no server to compare with, checks that the leader has the first request, for which all others wait.
    pub(super) fn check_first(&mut self, session: &Session, probes: &[Probe], queue: &[LockInfo]) {
        let Some(first) = queue.first().filter(|_| !needs_comparison(probes)) else { return };
        let server = session.server().unwrap_or_else(|| "the server".to_owned());
        match is_shown_in_vain(session, first) {
            Ok(true) => self.warn_of_divergence(&server, &still_shows(&first.path)),
            Ok(false) => {}
            Err(error) => self.unchecked("the first request", &describe(&error)),
        }
    }

    fn warn_of_divergence(&mut self, server: &str, what: &str) {
        self.warn(format!("{server} {what}: that server has diverged from the others; {REMEDY}"));
    }
}

impl View {
    fn read(server: String, session: Session, dir: &str) -> Result<View, String> {
        let queue = catch_up(&session).and_then(|()| LockDirectory::new(&session, dir)?.contenders());
        let queue = queue.map_err(|error| describe(&error))?.into_iter().map(|request| Shown {
            path: request.path,
            czxid: request.czxid,
            owner: request.ephemeral_owner,
        });
        Ok(View { server, session, queue: queue.collect() })
    }
}

fn same_queue(server: &str) -> String {
    format!("whether {server} shows the same queue as the others")
}

/// Looks again for a znode that one of two servers has shown. Returns the server that has diverged, and how. Returns
/// `None` if the servers do not contradict each other.
fn contradiction<'a>(
    shows: &'a View,
    lacks: &'a View,
    shown: &Shown,
) -> Result<Option<(&'a str, String)>, LockError> {
    let Shown { path, czxid: Some(czxid), .. } = shown else { return Ok(None) };
    let is_shown = |session| is_shown(session, path, *czxid);
    // The server without the znode is asked to ask, because a server that has it may deny the write by itself.
    let leader_has_it = || leader_has(&lacks.session, path);
    let has_it = leader_has_it()?;
    if is_shown(&lacks.session)? {
        return Ok(None);
    }
    catch_up(&shows.session)?;
    if !is_shown(&shows.session)? {
        return Ok(None);
    }
    Ok(match has_it {
        false => Some((&shows.server, still_shows(path))),
        true if leader_has_it()? => {
            let path = one_line(path);
            Some((&lacks.server, format!("does not show {path} as {} and the leader have it", shows.server)))
        }
        true => None,
    })
}

/// Returns whether the server of this session shows a request that the leader does not have. The leader's answer to the
/// write has made the server catch up.
fn is_shown_in_vain(session: &Session, request: &LockInfo) -> Result<bool, LockError> {
    let Some(czxid) = request.czxid else { return Ok(false) };
    Ok(!leader_has(session, &request.path)? && is_shown(session, &request.path, czxid)?)
}

/// Returns whether the server of this session shows the znode that this transaction has created.
fn is_shown(session: &Session, path: &str, czxid: i64) -> Result<bool, LockError> {
    let stat = RecoverableZooKeeper::new(session, retry()).exists(path)?;
    Ok(stat.is_some_and(|stat| stat.czxid == czxid))
}

fn still_shows(path: &str) -> String {
    format!("still shows {}, which the leader does not have", one_line(path))
}

/// Makes the server of this session catch up with the leader: it answers a write only then. The write changes nothing.
fn catch_up(session: &Session) -> Result<(), LockError> {
    let child = format!("{PROBE}none/child");
    let created = RecoverableZooKeeper::new(session, retry()).with_plain_data().create(
        &child,
        b"",
        &Acl::open_unsafe(),
        CreateMode::Persistent,
    );
    match created {
        Err(error) if error.reason() == ErrorReason::Server(ZkError::NoNode) => Ok(()),
        created => created.map(drop),
    }
}

/// Returns whether the leader has a znode.
fn leader_has(session: &Session, path: &str) -> Result<bool, LockError> {
    let written =
        RecoverableZooKeeper::new(session, retry()).with_plain_data().set_data(path, b"", Some(NO_VERSION));
    match written.map_err(|error| (error.reason(), error)) {
        Err((ErrorReason::Server(ZkError::NoNode), _)) => Ok(false),
        Ok(_) | Err((ErrorReason::Server(_) | ErrorReason::AccessDenied, _)) => Ok(true),
        Err((_, error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    use zookeeper_recipes_lock::fake::{SimOperation, SimulatedClient, SimulatedZooKeeper};

    const DIR: &str = "/app/lock";

    /// An ensemble of three servers, with a client of each.
    struct Fixture {
        zookeeper: SimulatedZooKeeper,
        clients: [Arc<SimulatedClient>; 3],
    }

    impl Fixture {
        fn new() -> Fixture {
            let zookeeper = SimulatedZooKeeper::new();
            let clients = [(); 3].map(|()| zookeeper.connect(Duration::from_secs(30)));
            Fixture { zookeeper, clients }
        }

        fn request(&self) -> String {
            self.zookeeper.create_sequential(DIR, "x-a-lock-", Some(7))
        }

        /// Lists the queue on each server, then does this, and then judges.
        fn judged_after(&self, change: impl FnOnce()) -> Findings {
            let views = (1..).zip(&self.clients).map(|(number, client)| {
                let session = client.open_session().unwrap();
                View::read(format!("zk{number}"), session, DIR).unwrap()
            });
            let views: Vec<View> = views.collect();
            change();
            let mut findings = Findings::default();
            findings.judge_queues(&views);
            assert_eq!(findings.checked, ["the queue on each server"]);
            findings
        }
    }

    #[test]
    fn server_that_shows_a_znode_that_is_gone_has_diverged() {
        let fixture = Fixture::new();
        let (gone, _) = (fixture.request(), fixture.request());
        fixture.clients[1].keep_showing(&gone);
        fixture.zookeeper.delete(&gone);
        let findings = fixture.judged_after(|| {});
        assert_eq!((findings.warnings.len(), findings.notes.len()), (1, 0), "{findings:?}");
        let expected =
            format!("zk2 still shows {gone}, which the leader does not have: that server has diverged");
        assert!(findings.warnings[0].starts_with(&expected), "{findings:?}");
    }

    #[test]
    fn first_request_is_checked_without_another_server() {
        let fixture = Fixture::new();
        let gone = fixture.request();
        fixture.clients[1].keep_showing(&gone);
        let [sound, diverged] = [0, 1].map(|index| fixture.clients[index].open_session().unwrap());
        let warnings = |session: &Session| {
            let queue = LockDirectory::new(session, DIR).unwrap().contenders().unwrap();
            let mut findings = Findings::default();
            findings.check_first(session, &[], &queue);
            findings.warnings
        };
        assert_eq!(warnings(&diverged), [""; 0]);
        fixture.zookeeper.delete(&gone);
        let found = warnings(&diverged);
        assert!(found.len() == 1 && found[0].contains(&format!("still shows {gone}")), "{found:?}");
        assert_eq!(warnings(&sound), [""; 0]);
    }

    #[test]
    fn server_that_lacks_a_znode_has_diverged() {
        let fixture = Fixture::new();
        let path = fixture.request();
        fixture.clients[2].never_show(&path);
        let findings = fixture.judged_after(|| {});
        assert_eq!((findings.warnings.len(), findings.notes.len()), (1, 0), "{findings:?}");
        let expected = format!("zk3 does not show {path} as zk1 and the leader have it");
        assert!(findings.warnings[0].starts_with(&expected), "{findings:?}");
    }

    #[test]
    fn queue_that_changes_between_the_looks_is_no_difference() {
        let fixture = Fixture::new();
        let (gone, zookeeper) = (fixture.request(), fixture.zookeeper.clone());
        // The first server has shown its queue. Now a request goes, and two others come.
        fixture.clients[1].before_next(SimOperation::GetChildren, move || {
            zookeeper.delete(&gone);
            for _ in 0..2 {
                zookeeper.create_sequential(DIR, "x-b-lock-", Some(7));
            }
        });
        let findings = fixture.judged_after(|| {
            // One of them goes after the leader has said that it exists.
            let (client, zookeeper) = (&fixture.clients[0], fixture.zookeeper.clone());
            let path = format!("{DIR}/x-b-lock-0000000001");
            client.after_next(SimOperation::SetData, move || zookeeper.delete(&path));
        });
        assert!(findings.warnings.is_empty() && findings.notes.is_empty(), "{findings:?}");
        assert!(fixture.clients.iter().all(|client| client.pending_faults() == 0));
    }
    /// The request goes when the leader has just said that it exists, and one server misses that.
    #[test]
    fn server_that_diverges_during_the_comparison_makes_no_other_one_suspect() {
        let fixture = Fixture::new();
        let zookeeper = fixture.zookeeper.clone();
        fixture.clients[1].before_next(SimOperation::GetChildren, move || {
            zookeeper.create_sequential(DIR, "x-b-lock-", Some(7));
        });
        let findings = fixture.judged_after(|| {
            let path = format!("{DIR}/x-b-lock-0000000000");
            fixture.clients[1].keep_showing(&path);
            let zookeeper = fixture.zookeeper.clone();
            fixture.clients[0].after_next(SimOperation::SetData, move || zookeeper.delete(&path));
        });
        assert!(findings.warnings.is_empty() && findings.notes.is_empty(), "{findings:?}");
    }
}
