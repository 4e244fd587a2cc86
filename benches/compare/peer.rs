//! The compared programs: processes that lock and unlock on command.
//!
//! - `prepare LAYOUT COUNT CONNECT DIR`: answers `ready` once that many threads have their locks and sessions
//! - `run SECONDS`: answers with the number of cycles of all threads, the seconds from the first start to the last end, and how
//!   often a lost wake-up had to be repaired
//! - `end`: answers `ended` once the sessions are closed
//!
//! A process ends when its input ends.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::rows::Layout;

/// An answer that has not arrived after this time never will. This is shorter than the session timeout, so the sessions
/// of the other libraries survive the wait.
const TIMEOUT: Duration = Duration::from_secs(45);

/// The roles that this program takes itself.
pub(crate) const OURS: &str = "ours";
pub(crate) const DROPPED: &str = "dropped";
pub(crate) const ASYNC: &str = "async";
pub(crate) const COHORT: &str = "cohort";
pub(crate) const FLOOR: &str = "floor";

/// The Curator in the directory `CURATOR_HOME`.
const CURATOR_HOME: &str = "curator-home";

/// A compared library.
#[derive(Debug, Clone)]
pub(crate) struct Library {
    pub(crate) name: &'static str,
    /// The title of its column.
    pub(crate) title: Cow<'static, str>,
    language: Language,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Rust,
    /// Rust, in a separate program.
    OtherRust,
    Java,
    Python,
}

/// All libraries. The floor sends no pings, so it is prepared last.
pub(crate) const LIBRARIES: [Library; 10] = [
    library(OURS, "ours", Language::Rust),
    library(DROPPED, "ours, guard dropped", Language::Rust),
    library(ASYNC, "ours, lock_async", Language::Rust),
    library(COHORT, "ours, CohortLock", Language::Rust),
    library("curator", "Curator", Language::Java),
    library(CURATOR_HOME, "Curator", Language::Java),
    library("apache", "Apache WriteLock", Language::Java),
    library("zookeeper-client", "zookeeper-client", Language::OtherRust),
    library("kazoo", "kazoo", Language::Python),
    library(FLOOR, "bare socket", Language::Rust),
];

const fn library(name: &'static str, title: &'static str, language: Language) -> Library {
    Library { name, title: Cow::Borrowed(title), language }
}

/// Where the other programs are found.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The Java class path, with the compiled `Peer`.
    pub(crate) class_path: Option<String>,
    /// The same with the other release of Curator.
    pub(crate) curator_home: Option<String>,
    /// The program that uses the crate `zookeeper-client`.
    pub(crate) zookeeper_client: Option<String>,
    /// A Python interpreter with kazoo.
    pub(crate) python: Option<String>,
}

/// The result of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) cycles: f64,
    pub(crate) seconds: f64,
    pub(crate) stalls: f64,
}

/// A running process. It is killed when this value is dropped.
pub(crate) struct Peer {
    process: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Library {
    pub(crate) fn named(name: &str) -> Option<Library> {
        LIBRARIES.into_iter().find(|library| library.name == name)
    }

    /// Returns whether the library's program can run.
    pub(crate) fn is_available(&self, places: &Places) -> bool {
        match self.language {
            Language::Rust => true,
            Language::OtherRust => places.zookeeper_client.is_some(),
            Language::Java => places.class_path_of(self.name).is_some(),
            Language::Python => places.python.is_some(),
        }
    }

    pub(crate) fn start(&self, places: &Places) -> Peer {
        let command = match self.language {
            Language::Rust => {
                let mut command =
                    Command::new(std::env::current_exe().expect("the system knows this program's path"));
                command.args(["--peer", self.name]);
                command
            }
            Language::OtherRust => {
                Command::new(places.zookeeper_client.as_deref().expect("the program is available"))
            }
            Language::Java => {
                let class_path = places.class_path_of(self.name).expect("the class path is available");
                let mut command = Command::new(java());
                command.args(["-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", class_path]);
                command.args(["Peer", self.name]);
                command
            }
            Language::Python => {
                let mut command =
                    Command::new(places.python.as_deref().expect("the interpreter is available"));
                command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/kazoo_peer.py"));
                command
            }
        };
        Peer::start(command)
    }
}

impl Places {
    fn class_path_of(&self, name: &str) -> Option<&str> {
        if name == CURATOR_HOME { self.curator_home.as_deref() } else { self.class_path.as_deref() }
    }
}

fn java() -> String {
    std::env::var("JAVA_HOME").map_or("java".to_owned(), |home| format!("{home}/bin/java"))
}

impl Peer {
    fn start(mut command: Command) -> Peer {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} does not run: {error}"));
        let input = process.stdin.take().expect("it is piped");
        let output = process.stdout.take().expect("it is piped");
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Peer { process, input, answers }
    }

    /// Prepares the process. Returns `None` if it fails.
    pub(crate) fn prepare(
        &mut self,
        layout: Layout,
        count: usize,
        connect_string: &str,
        dir: &str,
    ) -> Option<()> {
        self.command(&format!("prepare {} {count} {connect_string} {dir}", layout.name()));
        (self.answer()? == "ready").then_some(())
    }

    /// Starts a run. Its result must be awaited.
    pub(crate) fn start_run(&mut self, length: Duration) {
        self.command(&format!("run {}", length.as_secs_f64()));
    }

    /// Waits for the result of a run. Returns `None` if the process fails.
    pub(crate) fn await_run(&mut self) -> Option<Run> {
        let answer = self.answer()?;
        let numbers: Vec<f64> = answer.split(' ').filter_map(|number| number.parse().ok()).collect();
        match numbers[..] {
            [cycles, seconds, stalls] => Some(Run { cycles, seconds, stalls }),
            _ => None,
        }
    }

    /// Ends the sessions. Returns `None` if the process fails.
    pub(crate) fn end(&mut self) -> Option<()> {
        self.command("end");
        (self.answer()? == "ended").then_some(())
    }

    fn command(&mut self, line: &str) {
        // Fails if the process has ended, which the missing answer then shows.
        let _ = writeln!(self.input, "{line}");
    }

    fn answer(&mut self) -> Option<String> {
        let answer = self.answers.recv_timeout(TIMEOUT);
        if answer == Err(RecvTimeoutError::Timeout) {
            // Fails only if the process was already waited for.
            let _ = self.process.kill();
        }
        answer.ok()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // These calls fail only if the process was already waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
