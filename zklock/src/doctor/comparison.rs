//! Checks whether the servers share their znodes, whatever they report about themselves.

use std::thread;

use zookeeper_recipes_lock::client::{Acl, CreateMode, ZkError};
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::{ErrorReason, Session};

use super::probe::Probe;
use super::{Findings, ensemble, retry};
use crate::connection::ConnectionArgs;
use crate::failure::describe;

/// Whether a server knows a znode, or the reason why it cannot be asked.
type Answer = Result<bool, String>;

impl Findings {
    /// Warns why the servers could not be compared.
    pub(super) fn warn_uncompared(&mut self, probes: &[Probe], why: &str) {
        if needs_comparison(probes) {
            self.unchecked("whether the servers are one ensemble", why);
        }
    }

    /// Asks every server for this temporary znode of the session.
    pub(super) fn compare(
        &mut self,
        session: &Session,
        path: &str,
        connection: &ConnectionArgs,
        probes: &[Probe],
    ) {
        if !needs_comparison(probes) {
            return;
        }
        let whole_path = format!("{}{path}", connection.chroot().trim_end_matches('/'));
        let answers = ask_all(connection, probes, &whole_path);
        // If the session has ended in the meantime, so has the znode.
        let own_answer = knows(session, path);
        self.judge(&session.server().unwrap_or_default(), answers, own_answer);
    }

    /// Judges the answers of the servers about a znode that was created through the server `creator`.
    fn judge(&mut self, creator: &str, answers: Vec<(String, Answer)>, own_answer: Answer) {
        let has_lasted = own_answer.and_then(|is_known| match is_known {
            true => Ok(()),
            false => Err("the temporary znode was gone too early".to_owned()),
        });
        let mut is_complete = true;
        for (name, answer) in answers {
            match has_lasted.clone().and(answer) {
                Ok(true) => {}
                Ok(false) => self.warn(format!(
                    "{name} does not know a znode that was created through {creator}: they are not one ensemble, so a \
                     lock can have two owners; connect clients to the servers of one ensemble"
                )),
                Err(why) => {
                    is_complete = false;
                    self.unchecked(&format!("whether {name} is in one ensemble with {creator}"), &why);
                }
            }
        }
        if is_complete {
            self.checked.push("one ensemble");
        }
    }
}

/// Returns whether several addresses serve, and their modes do not already show that they are not one ensemble.
pub(super) fn needs_comparison(probes: &[Probe]) -> bool {
    let serving = probes.iter().filter(|probe| probe.granted.is_some());
    serving.count() > 1 && ensemble::splits(probes).is_empty()
}

/// Asks each address that serves for a znode. `path` includes the chroot.
fn ask_all(connection: &ConnectionArgs, probes: &[Probe], path: &str) -> Vec<(String, Answer)> {
    let ask = |probe: &Probe| {
        let session = probe.target.open_session(connection).map_err(|failure| failure.message)?;
        let answer = knows(&session, path);
        session.close();
        answer
    };
    thread::scope(|scope| {
        let serving = probes.iter().filter(|probe| probe.granted.is_some());
        let asked: Vec<_> =
            serving.map(|probe| (probe.target.name(), scope.spawn(move || ask(probe)))).collect();
        let failed = |_| Err("a thread has failed".to_owned());
        asked.into_iter().map(|(name, answer)| (name, answer.join().unwrap_or_else(failed))).collect()
    })
}

/// Returns whether the server of this session knows a temporary znode.
///
/// A read could miss it, because a server may lag behind its leader. Therefore, this asks to create a child of the
/// znode: only the leader can answer such a request. The leader never creates the child, because a temporary znode
/// cannot have children.
fn knows(session: &Session, path: &str) -> Answer {
    let zookeeper = RecoverableZooKeeper::new(session, retry());
    let child = format!("{path}/child");
    match zookeeper.create(&child, b"", &Acl::open_unsafe(), CreateMode::Persistent) {
        Ok(_) => Ok(true),
        Err(error) => match error.reason() {
            ErrorReason::Server(ZkError::NoChildrenForEphemerals) => Ok(true),
            ErrorReason::Server(ZkError::NoNode) => Ok(false),
            _ => Err(describe(&error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use zookeeper_recipes_lock::fake::SimulatedZooKeeper;

    fn session_on(zookeeper: &SimulatedZooKeeper) -> Session {
        zookeeper.connect(Duration::from_secs(30)).open_session().unwrap()
    }

    #[test]
    fn znode_is_known_through_every_session_on_its_servers_until_its_own_session_ends() {
        let (zookeeper, other) = (SimulatedZooKeeper::new(), SimulatedZooKeeper::new());
        let [creator, neighbour, stranger] = [&zookeeper, &zookeeper, &other].map(session_on);
        let creating = RecoverableZooKeeper::new(&creator, retry());
        let path = creating.create("/a", b"", &Acl::open_unsafe(), CreateMode::Ephemeral).unwrap();
        let known = || [&creator, &neighbour, &stranger].map(|session| knows(session, &path));
        assert_eq!(known(), [Ok(true), Ok(true), Ok(false)]);
        creator.close();
        let [own, neighbour, _] = known();
        assert!(own.is_err());
        assert_eq!(neighbour, Ok(false));
    }

    fn judged(answers: [Answer; 2], own_answer: Answer) -> Findings {
        let mut findings = Findings::default();
        let names = ["zk1", "zk2"].map(str::to_owned);
        findings.judge("zk1", names.into_iter().zip(answers).collect(), own_answer);
        findings
    }

    #[test]
    fn only_what_all_servers_have_answered_is_checked() {
        let findings = judged([Ok(true), Ok(true)], Ok(true));
        assert_eq!(
            (findings.checked, findings.notes.len(), findings.warnings.len()),
            (vec!["one ensemble"], 0, 0)
        );

        let findings = judged([Ok(true), Ok(false)], Ok(true));
        assert_eq!((findings.checked, findings.notes.len()), (vec!["one ensemble"], 0));
        assert!(findings.warnings[0].starts_with("zk2 does not know a znode that was created through zk1"));

        let findings = judged([Ok(true), Err("no session".to_owned())], Ok(true));
        assert!(findings.checked.is_empty() && findings.notes.is_empty(), "{findings:?}");
        let warning = "not checked: whether zk2 is in one ensemble with zk1, because no session";
        assert_eq!(findings.warnings, [warning]);

        // If the znode has not lasted, its absence shows nothing.
        for own_answer in [Ok(false), Err("session lost".to_owned())] {
            let findings = judged([Ok(false), Ok(false)], own_answer);
            assert_eq!((findings.checked.len(), findings.notes.len(), findings.warnings.len()), (0, 0, 2));
        }
    }
}
