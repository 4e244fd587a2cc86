//! Starts the server and the contenders' processes, and kills one process after the other while its contenders
//! hold or wait.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use zookeeper_recipes_lock::{ProtocolSupport, Session};

use crate::contender;
use crate::pairs::{CONTENDERS, Expected, Library, Pair};
use crate::referee::Referee;
use crate::report;
use crate::revocation;
use crate::support::process::{Process, Supervisor, tail};
use crate::support::server::{Server, ServerOptions};
use crate::support::wait::scaled;

/// Long enough for processes that share two cores. When a holder is killed, the others wait for this long.
const SESSION_TIMEOUT: Duration = Duration::from_secs(4);

/// Makes the server look for empty containers all the time. Locks create their directories as containers.
const CONTAINER_CHECKS: &str = "-Dznode.container.checkIntervalMs=50";

/// The pause between phases, in which the server deletes directories that are containers.
const REST: Duration = Duration::from_millis(300);

/// How long our locks hold the directories, which they create, before the first round.
const FOUNDING: Duration = Duration::from_millis(500);

/// How long all processes may take to start, and all rounds of a phase to end.
const LIMIT: Duration = Duration::from_secs(120);

/// How many more phases may be run for holders with wrong names to overlap, which is a matter of chance.
const MORE_PHASES: usize = 20;

/// With fewer rounds than this, only every other process is killed.
const ROUNDS_FOR_ALL: usize = 100;

pub struct Plan {
    /// The number of rounds for each pair.
    pub rounds: usize,
    pub pairs: Vec<&'static Pair>,
    pub class_path: Option<String>,
    pub python: Option<String>,
    /// The release of every component, as `name=release`.
    pub releases: Vec<String>,
}

/// A process with contenders of one side.
struct Contenders {
    title: String,
    names: Vec<(&'static str, String)>,
    log: PathBuf,
    supervisor: Supervisor,
    process: Option<Process>,
}

/// How often contenders of a pair were killed, in total and during a round.
#[derive(Clone, Copy, Default)]
pub struct Killed {
    pub all: usize,
    pub in_round: usize,
}

pub fn run(plan: &Plan) -> ExitCode {
    let (pairs, left_out): (Vec<&'static Pair>, Vec<_>) =
        plan.pairs.iter().copied().partition(|pair| plan.is_available(pair.library));
    if pairs.is_empty() {
        eprintln!("interop: none of the other libraries is installed");
        return ExitCode::FAILURE;
    }
    println!("releases: {}", plan.releases.join(" "));
    let scratch = tempfile::Builder::new().prefix("interop.").tempdir().expect("a directory for the logs");
    let jvm_flags = vec![CONTAINER_CHECKS.to_owned()];
    let server = Server::with(ServerOptions { jvm_flags, ..ServerOptions::default() });
    let session =
        Session::connect(&server.connect_string(), SESSION_TIMEOUT).expect("a session can be opened");
    ProtocolSupport::new(&session).ensure_path_exists("/interop").expect("the directory can be created");
    if plan.is_available(Library::Java) {
        revocation::check(&plan.command(Some(Library::Java)), &server.connect_string(), &session);
    }
    let referee = Referee::open(&pairs);
    let mut all = start_all(plan, &pairs, &server, &referee, &scratch);
    let mut killed = BTreeMap::new();
    let founders = pairs.iter().map(|pair| contender::found(&session, pair).expect("nobody contends yet"));
    let founders: Vec<Box<dyn Any>> = founders.collect();
    let contended = contend(plan.rounds, &pairs, &referee, &mut all, &mut killed, founders);
    referee.end();
    let advised = |pair: &Pair| all.iter().any(|contenders| contenders.advises(pair));
    let rows: Vec<report::Row> = pairs
        .iter()
        .map(|pair| report::Row {
            pair,
            course: referee.course(pair),
            killed: killed.get(pair.name).copied().unwrap_or_default(),
            is_advised: advised(pair),
        })
        .collect();
    report::print(&rows, &left_out, contended.err().as_deref())
}

/// Runs the rounds of all pairs, in phases. In each of the first phases, a process is killed. The last phases, in which
/// no process is killed, go on until holders with wrong names have overlapped.
fn contend(
    rounds: usize,
    pairs: &[&'static Pair],
    referee: &Arc<Referee>,
    all: &mut [Contenders],
    killed: &mut BTreeMap<&'static str, Killed>,
    founders: Vec<Box<dyn Any>>,
) -> Result<(), String> {
    await_all(all, |limit| referee.await_contenders(limit))?;
    // The processes with one contender of each pair come first, then those with two.
    let mut victims: Vec<usize> = (0..all.len()).rev().step_by(2).collect();
    if rounds >= ROUNDS_FOR_ALL {
        victims.extend((0..all.len()).rev().skip(1).step_by(2));
        victims = victims.repeat((rounds / (2 * ROUNDS_FOR_ALL)).max(1));
    }
    let per_phase = rounds.div_ceil(victims.len() + 1);
    let mut founders = Some(founders);
    for victim in victims {
        referee.allow(per_phase);
        if let Some(founders) = founders.take() {
            // By then the other contenders have found the directories.
            thread::sleep(FOUNDING);
            drop(founders);
        }
        referee.await_middle(&all[victim].names, per_phase, LIMIT / 4);
        let names = all[victim].names.clone();
        all[victim].kill();
        for pair in pairs {
            let of_pair = names.iter().filter(|(of, _)| *of == pair.name).map(|(_, name)| name);
            let course = referee.course(pair);
            let killed = killed.entry(pair.name).or_default();
            for name in of_pair {
                killed.all += 1;
                killed.in_round += usize::from(course.was_cut_off(name));
            }
        }
        all[victim].start();
        await_all(all, |limit| referee.await_rounds(limit))?;
        await_all(all, |limit| referee.await_contenders(limit))?;
        thread::sleep(REST);
    }
    for _ in 0..=MORE_PHASES {
        referee.allow(per_phase);
        await_all(all, |limit| referee.await_rounds(limit))?;
        let may_overlap = |pair: &&&Pair| pair.expected == Expected::Overlaps;
        if pairs.iter().filter(may_overlap).all(|pair| referee.course(pair).overlaps > 0) {
            break;
        }
    }
    Ok(())
}

/// Waits as `wait` does, but fails as soon as a process has ended.
fn await_all(all: &[Contenders], wait: impl Fn(Duration) -> Result<(), String>) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let Err(complaint) = wait(Duration::from_secs(1)) else { return Ok(()) };
        if let Some(ended) = all.iter().find(|contenders| !contenders.is_running()) {
            return Err(format!("{} ended on its own:\n{}", ended.title, tail(&ended.log)));
        }
        if start.elapsed() > scaled(LIMIT) {
            let logs: Vec<String> = all
                .iter()
                .map(|contenders| format!("{}:\n{}", contenders.title, tail(&contenders.log)))
                .collect();
            return Err(format!("{complaint}, after {LIMIT:?}\n{}", logs.join("\n")));
        }
    }
}

/// Starts two processes of ours, and two for each library: one with two contenders of each pair, one with a single
/// contender.
fn start_all(
    plan: &Plan,
    pairs: &[&'static Pair],
    server: &Server,
    referee: &Referee,
    scratch: &TempDir,
) -> Vec<Contenders> {
    let timeout = SESSION_TIMEOUT.as_millis().to_string();
    let common = [server.connect_string(), referee.port().to_string(), timeout];
    let mut all = Vec::new();
    for library in [None, Some(Library::Java), Some(Library::Kazoo)] {
        let (title, side) = match library {
            None => ("ours", "ours"),
            Some(Library::Java) => ("java", "theirs"),
            Some(Library::Kazoo) => ("kazoo", "theirs"),
        };
        let of_library: Vec<&'static Pair> = pairs
            .iter()
            .copied()
            .filter(|pair| library.is_none_or(|library| library == pair.library))
            .collect();
        if of_library.is_empty() {
            continue;
        }
        for (part, indices) in [("a", 0..CONTENDERS - 1), ("b", CONTENDERS - 1..CONTENDERS)] {
            let names: Vec<(&'static str, String)> = of_library
                .iter()
                .flat_map(|pair| indices.clone().map(|index| (pair.name, format!("{side}-{index}"))))
                .collect();
            let mut command = plan.command(library);
            command.extend(common.clone());
            command.extend(names.iter().map(|(pair, name)| match library {
                None => format!("{pair}:{name}"),
                Some(_) => format!("{pair}:{name}:{}", Pair::named(pair).kind),
            }));
            all.push(Contenders::new(format!("{title}-{part}"), names, &command, scratch.path()));
        }
    }
    all
}

impl Plan {
    fn is_available(&self, library: Library) -> bool {
        match library {
            Library::Java => self.class_path.is_some(),
            Library::Kazoo => self.python.is_some(),
        }
    }

    /// Returns the command that runs a library's contenders, or ours without a library.
    fn command(&self, library: Option<Library>) -> Vec<String> {
        match library {
            None => {
                let program = std::env::current_exe().expect("this program has a path");
                vec![utf8(&program), "--contender".to_owned()]
            }
            Some(Library::Java) => {
                let java =
                    std::env::var("JAVA_HOME").map_or("java".to_owned(), |home| format!("{home}/bin/java"));
                let class_path = self.class_path.clone().expect("the class path is available");
                let log_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error";
                [
                    &java,
                    "-Xmx256m",
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    log_level,
                    "-cp",
                    &class_path,
                    "Contender",
                ]
                .map(str::to_owned)
                .into()
            }
            Some(Library::Kazoo) => {
                let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/peers/contender.py");
                vec![self.python.clone().expect("the interpreter is available"), program.to_owned()]
            }
        }
    }
}

impl Contenders {
    fn new(
        title: String,
        names: Vec<(&'static str, String)>,
        command: &[String],
        scratch: &Path,
    ) -> Contenders {
        let log = scratch.join(format!("{title}.log"));
        let dir = scratch.join(&title);
        fs::create_dir(&dir).expect("the directory is ours");
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let supervisor = Supervisor::new(&dir, &log, &command);
        let mut contenders = Contenders { title, names, log, supervisor, process: None };
        contenders.start();
        contenders
    }

    fn start(&mut self) {
        self.process = Some(self.supervisor.start());
    }

    fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.signal(Signal::KILL);
            process.wait();
        }
    }

    fn is_running(&self) -> bool {
        self.process.is_some_and(Process::is_running)
    }

    /// Returns whether the log advises another scheme for the directory of this pair.
    fn advises(&self, pair: &Pair) -> bool {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let place = format!("in {}, ", pair.dir());
        log.lines().any(|line| line.contains(&place) && line.contains("does not count"))
    }
}

fn utf8(path: &Path) -> String {
    path.to_str().expect("the path of this program is UTF-8").to_owned()
}
