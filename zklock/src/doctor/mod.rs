//! `zklock doctor`.

mod comparison;
mod divergence;
mod ensemble;
mod four_letter;
mod identity;
mod probe;
mod trial;

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use zookeeper_recipes_lock::client::Moment;
use zookeeper_recipes_lock::client::{Acl, CreateMode, ZkError};
use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::queue::{LockDirectory, LockInfo};
use zookeeper_recipes_lock::recipe::LockKind;
use zookeeper_recipes_lock::{ErrorReason, RetryPolicy, Session};

use self::probe::{Probe, Target};
use crate::args::DoctorArgs;
use crate::connection::{ConnectionArgs, servers_of};
use crate::failure::{DENIED, Failure, NO_DIRECTORY, NO_LOCK, SYSTEM, UNAVAILABLE, WARNINGS, describe};
use crate::json;
use crate::output::{Table, one_line, print};
use crate::queue;
use crate::spans::show_duration;

/// The beginning of the path of the temporary znode.
const PROBE: &str = "/zklock-doctor-";

/// No four letter word shows this property of the JVM. Only the admin server does.
const NOT_SHOWN: &str = "not checked: jute.maxbuffer, which servers do not show to clients; if it is set, set \
     SessionBuilder::jute_max_buffer to the smallest value of all servers";

/// The name of a check.
const CLOCK_OF_SERVERS: &str = "the clock of the servers";

/// With more children, each listing takes a client a while.
const MANY_CHILDREN: i32 = 100_000;

/// A larger difference between the clocks is worth a warning.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);

pub(crate) fn doctor(connection: &ConnectionArgs, args: &DoctorArgs) -> Result<u8, Failure> {
    let servers = servers_of(&connection.connect)?;
    // An argument or a file that cannot be used is reported once, not for each server.
    drop(connection.builder(&connection.connect)?);
    let probes = probe_all(connection, &servers)?;
    if !args.json {
        print(&table(&probes))?;
    }
    let mut findings = Findings::default();
    findings.check_servers(connection, &probes);
    findings.check_clock();
    findings.check_identity(connection, &servers)?;
    if probes.iter().all(|probe| probe.granted.is_none()) {
        findings.show(args, &probes)?;
        let code = if probes.iter().all(|probe| probe.is_denied) { DENIED } else { UNAVAILABLE };
        return Err(Failure::new(code, format!("no server serves this client: {}", connection.connect)));
    }
    let checked = connection.session().and_then(|session| {
        let checked = findings.check_session(&session, connection, &probes, args.dir.as_deref());
        session.close();
        checked
    });
    if let Err(failure) = &checked {
        findings.warn(format!("the checks have ended early: {}", failure.message));
    }
    findings.show(args, &probes)?;
    checked?;
    Ok(if findings.warnings.is_empty() { 0 } else { WARNINGS })
}

/// How calls are retried after a lost connection.
fn retry() -> RetryPolicy {
    RetryPolicy::constant(Duration::from_millis(100)).with_attempts(3)
}

/// Probes every address of every server.
fn probe_all(connection: &ConnectionArgs, servers: &[(String, u16)]) -> Result<Vec<Probe>, Failure> {
    let failed = |_| Failure::new(SYSTEM, "a thread has failed");
    thread::scope(|scope| {
        let resolve = |(host, port): &(String, u16)| probe::targets(host, *port);
        let resolving: Vec<_> = servers.iter().map(|server| scope.spawn(move || resolve(server))).collect();
        let mut probes = Vec::new();
        for targets in resolving {
            for target in targets.join().map_err(failed)? {
                probes.push(scope.spawn(move || target.probe(connection)));
            }
        }
        probes.into_iter().map(|probe| probe.join().map_err(failed)?).collect()
    })
}

fn json_of(probe: &Probe) -> Value {
    let millis = |time: Option<Duration>| time.and_then(|time| u64::try_from(time.as_millis()).ok());
    json!({
        "server": probe.target.server,
        "address": probe.target.address.map(|address| address.to_string()),
        "version": probe.version,
        "mode": probe.mode,
        "session_timeout_ms": millis(probe.granted),
        "tick_ms": millis(probe.tick),
        "failure": probe.failure,
    })
}

fn table(probes: &[Probe]) -> String {
    let mut table = Table::new(&["SERVER", "ADDRESS", "VERSION", "MODE", "TIMEOUT", "TICK"]);
    let unknown = || "?".to_owned();
    for Probe { target, version, mode, granted, tick, .. } in probes {
        let Target { server, address, .. } = target;
        table.row(vec![
            server.clone(),
            address.map_or_else(|| "-".to_owned(), |address| address.to_string()),
            version.clone().unwrap_or_else(unknown),
            mode.clone(),
            granted.map_or_else(|| "-".to_owned(), show_duration),
            tick.map_or_else(unknown, show_duration),
        ]);
    }
    table.render()
}

/// The results of all checks.
#[derive(Debug, Default)]
struct Findings {
    /// What was checked, whatever the result.
    checked: Vec<&'static str>,
    notes: Vec<String>,
    warnings: Vec<String>,
}

impl Findings {
    fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Warns that something could not be checked.
    fn unchecked(&mut self, what: &str, why: &str) {
        self.warn(format!("not checked: {what}, because {why}"));
    }

    fn check_servers(&mut self, connection: &ConnectionArgs, probes: &[Probe]) {
        for probe in probes {
            let name = probe.target.name();
            if probe.mode == "read-only" {
                self.warn(format!("{name} is read-only: no lock can be taken there"));
            } else if let Some(failure) = &probe.failure {
                match probe.is_only_of_the_wrong_family(probes) {
                    true => self
                        .notes
                        .push(format!("{name}: {failure}; sessions use the other addresses of this name")),
                    false => self.warn(format!("{name}: {failure}")),
                }
            }
        }
        self.checked.push("the addresses");
        if probes.iter().all(|probe| probe.granted.is_none()) {
            return;
        }
        self.checked.extend(["session timeouts and ticks", "a second connection"]);
        if !ensemble::splits(probes).is_empty() {
            self.checked.push("one ensemble");
        }
        // A single server cannot lose what another one has confirmed.
        let hidden = ensemble::hidden_releases(probes);
        if !hidden.is_empty() {
            let hidden = hidden.join(" and ");
            self.notes
                .push(format!("not checked: the release of {hidden}, which only 'srvr' shows, without TLS"));
        } else if probes.iter().any(ensemble::is_member) {
            self.checked.push("releases");
        } else if probes.len() == 1 && probes[0].mode == "standalone" {
            self.notes.push("a single server: while it is down, no lock can be taken".to_owned());
        }
        self.notes.push(NOT_SHOWN.to_owned());
        let stated = connection.stated_tick();
        self.notes.extend(probes.iter().filter_map(|probe| ensemble::harmless_refusal(probe, stated)));
        self.notes.extend(probes.iter().filter_map(ensemble::unmeasured));
        let asked = connection.session_timeout;
        self.warnings.extend(ensemble::findings(probes, stated, asked));
        self.differences("session timeouts", probes.iter().filter_map(|probe| probe.granted));
        self.differences("ticks", probes.iter().filter_map(|probe| probe.tick));
        if let Some(granted) =
            probes.iter().filter_map(|probe| probe.granted).find(|granted| *granted != asked)
        {
            let (asked, granted) = (show_duration(asked), show_duration(granted));
            self.warn(format!("the servers grant a session timeout of {granted}, not the {asked} asked for"));
        }
    }

    fn differences(&mut self, what: &str, values: impl Iterator<Item = Duration>) {
        let values: BTreeSet<Duration> = values.collect();
        if values.len() > 1 {
            let values: Vec<String> = values.into_iter().map(show_duration).collect();
            self.warn(format!("the servers have different {what}: {}", values.join(", ")));
        }
    }

    fn check_clock(&mut self) {
        self.checked.push("the clock of leases");
        if Moment::counts_suspended_time() {
            self.notes
                .push("the clock of leases counts the time in which this machine is suspended".to_owned());
        } else {
            self.warn(
                "the clock of leases does not count the time in which this machine is suspended, so after a resume a \
                 program may believe for too long that it owns a lock"
                    .to_owned(),
            );
        }
    }

    fn check_session(
        &mut self,
        session: &Session,
        connection: &ConnectionArgs,
        probes: &[Probe],
        dir: Option<&str>,
    ) -> Result<(), Failure> {
        let chroot = connection.chroot();
        let has_chroot = !chroot.trim_matches('/').is_empty();
        let zookeeper = RecoverableZooKeeper::new(session, retry());
        let is_missing = has_chroot
            && match zookeeper.exists("/") {
                // A chroot whose existence may not be asked for does exist.
                Err(error) if error.reason() == ErrorReason::AccessDenied => false,
                stat => stat?.is_none(),
            };
        if is_missing {
            self.warn(format!(
                "the chroot {chroot} does not exist, so no lock can be taken: create it (--create-chroot)"
            ));
            self.warn_uncompared(probes, "the chroot does not exist");
            return Ok(());
        }
        self.check_znode(session, connection, probes);
        let Some(dir) = dir else { return Ok(()) };
        self.try_lock(session, &zookeeper, dir);
        let stat = zookeeper.exists(dir)?;
        if let Some(stat) = &stat {
            self.check_counter(dir, stat);
        }
        let children = stat.map_or(0, |stat| stat.num_children);
        if children >= MANY_CHILDREN {
            self.warn(format!(
                "{dir} has {children} children, and each client that joins lists them all: check that it is the directory of \
                 a lock, and delete the children that are not requests"
            ));
            return Ok(());
        }
        self.compare_queues(connection, probes, dir);
        let queue = match queue::read(session, dir) {
            // The servers delete the directory of an idle lock.
            Err(failure) if failure.code == NO_DIRECTORY => {
                self.notes.push(failure.message);
                return Ok(());
            }
            Err(failure) if failure.code == NO_LOCK => {
                self.warn(failure.message);
                return Ok(());
            }
            queue => queue?,
        };
        self.checked.push("the queue");
        self.check_first(session, probes, &queue);
        let owners = LockInfo::owners(&queue).len();
        self.notes.push(match queue.first().map(|first| first.kind) {
            Some(LockKind::Permit) => format!("{dir}: permits held or waited for {}", queue.len()),
            _ => format!("{dir}: owners {owners}, waiters {}", queue.len() - owners),
        });
        for obstacle in queue.iter().filter_map(queue::obstacle) {
            self.warn(obstacle);
        }
        if let Some(warning) = queue::mixed_names(&LockDirectory::new(session, dir)?)? {
            self.warn(format!("{dir}: {warning}"));
        }
        let is_unknown = |request: &&LockInfo| request.kind == LockKind::Other && !request.is_persistent;
        for request in queue.iter().filter(is_unknown) {
            let path = one_line(&request.path);
            self.warn(format!("{path} counts as a request, but no known library uses such a name"));
        }
        Ok(())
    }

    /// Creates a temporary znode of this session, as a lock does. Uses the znode to compare the servers and to check
    /// their clock.
    fn check_znode(&mut self, session: &Session, connection: &ConnectionArgs, probes: &[Probe]) {
        let zookeeper = RecoverableZooKeeper::new(session, retry()).with_plain_data();
        let before = SystemTime::now();
        let path = match zookeeper.create(PROBE, b"", &Acl::open_unsafe(), CreateMode::EphemeralSequential) {
            Ok(path) => path,
            Err(error) if error.reason() == ErrorReason::Server(ZkError::EphemeralOnLocalSession) => {
                self.checked.push("sessions may own znodes");
                self.warn(
                    "the servers open local sessions, which cannot own a znode, so no lock can be taken: set \
                     localSessionsUpgradingEnabled=true"
                        .to_owned(),
                );
                return self.warn_uncompared(probes, "a local session cannot create a temporary znode");
            }
            Err(error) => {
                let why = format!("no znode can be created: {}", describe(&error));
                self.unchecked(CLOCK_OF_SERVERS, &why);
                return self.warn_uncompared(probes, &why);
            }
        };
        self.checked.push("sessions may own znodes");
        let made = zookeeper.exists(&path).ok().flatten();
        let after = SystemTime::now();
        self.compare(session, &path, connection, probes);
        // If this fails, the server deletes the znode with the session.
        let _ = zookeeper.delete(&path, None);
        match made.and_then(|stat| u64::try_from(stat.ctime).ok()) {
            Some(made) => {
                let made = SystemTime::UNIX_EPOCH + Duration::from_millis(made);
                self.check_clock_of_servers(before, made, after);
            }
            None => self.unchecked(CLOCK_OF_SERVERS, "no znode can be read"),
        }
    }

    /// Checks the time at which the servers say that they created a znode. `before` and `after` are times on the clock
    /// of this machine, just before and after the creation.
    fn check_clock_of_servers(&mut self, before: SystemTime, made: SystemTime, after: SystemTime) {
        self.checked.push(CLOCK_OF_SERVERS);
        let ahead = made.duration_since(after).or_else(|_| before.duration_since(made)).unwrap_or_default();
        if ahead > MAX_CLOCK_DIFFERENCE {
            self.warn(format!(
                "the clocks of this machine and of the leading server differ by {}, so the ages of requests and keys are \
                 wrong: synchronize the clocks (NTP)",
                show_duration(ahead)
            ));
        }
    }

    fn show(&self, args: &DoctorArgs, probes: &[Probe]) -> Result<(), Failure> {
        if args.json {
            return print(&json::line(&json!({
                "servers": probes.iter().map(json_of).collect::<Vec<_>>(),
                "checked": self.checked,
                "notes": self.notes,
                "warnings": self.warnings,
            })));
        }
        let mut text = String::from("\n");
        text += &format!("checked: {}\n", self.checked.join(", "));
        for note in &self.notes {
            text += &format!("{note}\n");
        }
        for warning in &self.warnings {
            text += &format!("WARN: {warning}\n");
        }
        text += &match self.warnings.len() {
            0 => "all is well\n".to_owned(),
            1 => "1 warning\n".to_owned(),
            count => format!("{count} warnings\n"),
        };
        print(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;

    use clap::Parser;
    use zookeeper_recipes_lock::fake::{Effect, SimOperation, SimulatedZooKeeper};

    #[test]
    fn clock_of_the_servers_that_differs_is_found() {
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let away = Duration::from_secs(60);
        for (clock, differs) in [(clock, false), (clock + away, true), (clock - away, true)] {
            let zookeeper = SimulatedZooKeeper::new();
            zookeeper.advance_clock(clock);
            let session = zookeeper.connect(Duration::from_secs(30)).open_session().unwrap();
            let mut findings = Findings::default();
            let Cli { connection, .. } = Cli::try_parse_from(["zklock", "doctor"]).unwrap();
            findings.check_znode(&session, &connection, &[]);
            let found: Vec<_> = findings.warnings.iter().map(|warning| warning.as_str()).collect();
            match differs {
                true => {
                    assert!(found.len() == 1 && found[0].contains("the clocks of this machine"), "{found:?}")
                }
                false => assert_eq!(found, [""; 0]),
            }
            assert!(findings.checked.contains(&"the clock of the servers"));
        }
    }

    #[test]
    fn clock_that_could_not_be_checked_is_a_warning() {
        for refusal in [ZkError::QuotaExceeded, ZkError::NoAuth] {
            let client = SimulatedZooKeeper::new().connect(Duration::from_secs(30));
            let session = client.open_session().unwrap();
            (0..10).for_each(|_| client.fail_next(SimOperation::Create, Effect::Before, refusal));
            let mut findings = Findings::default();
            let Cli { connection, .. } = Cli::try_parse_from(["zklock", "doctor"]).unwrap();
            findings.check_znode(&session, &connection, &[]);
            assert_eq!((findings.warnings.len(), findings.notes.len()), (1, 0), "{findings:?}");
            let expected = "not checked: the clock of the servers, because no znode can be created: ";
            assert!(findings.warnings[0].starts_with(expected), "{findings:?}");
        }
    }
}
