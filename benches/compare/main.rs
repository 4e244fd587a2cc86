//! Compares our lock with those of other libraries, which take turns on one server. `scripts/compare` installs the
//! other libraries and runs this program. The report names the release of every component.
//!
//! ```text
//! scripts/compare                                 everything, in about twelve minutes
//! scripts/compare --quick                         fewer and shorter rounds, in five minutes
//! scripts/compare --rows one,hand-over-8 --near   only these rows, and only on a server nearby
//! scripts/compare --peers ours,curator            only these libraries
//! scripts/compare --svg FILE --json FILE          a chart, and all numbers
//! ```
//!
//! Each library runs in a separate process, which is kept for all rows, so its code is compiled and warm. In each round
//! of a row, the libraries take turns.

mod chart;
mod options;
mod peer;
mod report;
mod role;
mod rows;
mod tasks;

#[path = "../floor/mod.rs"]
mod floor;
#[path = "../../tests/support/mod.rs"]
mod support;
#[path = "../svg/mod.rs"]
mod svg;

use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use self::floor::FloorLock;
use self::options::{Command, Options};
use self::peer::{Library, Peer, Run};
use self::report::{Measured, Series};
use self::rows::Row;
use self::support::relay::Relay;
use self::support::server::{Server, ServerOptions};

/// Long enough for the bare sockets, which send no pings, to survive the turns of the others. The peers in
/// other languages use the same timeout.
const SESSION_TIMEOUT: Duration = Duration::from_secs(60);

/// The delay in each direction to a distant server.
const DELAY: Duration = Duration::from_millis(5);

/// The pause before each turn, so background work left by the previous turn does not affect it.
const SETTLE: Duration = Duration::from_millis(100);

/// The parent of the locks' directories.
const ROOT: &str = "/compare";

fn main() -> ExitCode {
    match Options::parse(lexopt::Parser::from_env()) {
        Ok(Command::Peer(name)) => role::obey(&name),
        Ok(Command::Help) => println!("{}", options::HELP),
        Ok(Command::Compare(options)) => {
            if let Err(error) = compare(&options) {
                eprintln!("compare: {error}");
                return ExitCode::FAILURE;
            }
        }
        Err(error) => {
            eprintln!("compare: {error}\n{}", options::HELP);
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn compare(options: &Options) -> std::io::Result<()> {
    let server = Server::with(ServerOptions {
        tick_time_ms: 2_000,
        min_session_timeout_ms: 4_000,
        max_session_timeout_ms: 60_000,
        ..ServerOptions::default()
    });
    let relay = Relay::with_delay(server.connect_string(), DELAY);
    // The constructor of the lock creates the directory.
    FloorLock::new(&server.connect_string(), SESSION_TIMEOUT, ROOT, &[]);
    report::print_head(options);

    let mut peers: Vec<Contestant> = options.libraries.iter().cloned().map(Contestant::new).collect();
    let mut measured = Vec::new();
    for is_far in [false, true] {
        if !if is_far { options.far } else { options.near } {
            continue;
        }
        let connect_string = if is_far { relay.connect_string() } else { server.connect_string() };
        report::print_title(options, is_far);
        for row in &options.rows {
            let of_row = measure(options, *row, is_far, &connect_string, &mut peers);
            of_row.iter().for_each(report::print_row);
            measured.extend(of_row);
        }
    }
    report::print_notes(&measured);
    if let Some(path) = &options.json {
        fs::write(path, report::json(options, &measured))?;
    }
    if let Some(path) = &options.svg {
        fs::write(path, chart::svg(&measured))?;
    }
    Ok(())
}

/// A library, and its processes while they are running.
struct Contestant {
    library: Library,
    peer: Option<Peer>,
    /// The second process, which contends in some rows.
    other: Option<Peer>,
}

/// Measures a row. A row with a second process yields a second result: how long that process waits.
fn measure(
    options: &Options,
    row: Row,
    is_far: bool,
    connect_string: &str,
    peers: &mut [Contestant],
) -> Vec<Measured> {
    let distance = if is_far { "far" } else { "near" };
    let mut series = vec![Series::default(); peers.len()];
    for peer in peers.iter_mut() {
        let dir = format!("{ROOT}/{}-{distance}-{}", row.name, peer.library.name);
        peer.prepare(options, row, connect_string, &dir);
    }
    for round in 0..options.rounds + 1 {
        for (peer, series) in peers.iter_mut().zip(&mut series) {
            thread::sleep(SETTLE);
            let Some((run, other)) = peer.run(row, options.length) else {
                series.has_failed = true;
                continue;
            };
            // The first round is for warming up.
            if round > 0 {
                series.add(run, other);
            }
        }
    }
    for peer in peers.iter_mut() {
        peer.end();
    }
    let libraries: Vec<Library> = peers.iter().map(|peer| peer.library.clone()).collect();
    report::measured(row, is_far, &libraries, series)
}

impl Contestant {
    fn new(library: Library) -> Contestant {
        Contestant { library, peer: None, other: None }
    }

    /// Prepares the processes, starting those that are not running.
    fn prepare(&mut self, options: &Options, row: Row, connect_string: &str, dir: &str) {
        let library = &self.library;
        let peer = self.peer.get_or_insert_with(|| library.start(&options.places));
        let mut prepared = peer.prepare(row.layout, row.threads, connect_string, dir);
        if row.is_contended {
            let other = self.other.get_or_insert_with(|| library.start(&options.places));
            prepared = prepared.and_then(|()| other.prepare(row.layout, 1, connect_string, dir));
        }
        if prepared.is_none() {
            self.give_up("does not get ready");
        }
    }

    /// Takes one turn, with both processes at the same time.
    fn run(&mut self, row: Row, length: Duration) -> Option<(Run, Option<Run>)> {
        let other = if row.is_contended { self.other.as_mut() } else { None };
        let turn = self.peer.as_mut().and_then(|peer| {
            peer.start_run(length);
            let Some(other) = other else { return Some((peer.await_run()?, None)) };
            other.start_run(length);
            let run = peer.await_run();
            let other = other.await_run();
            Some((run?, Some(other?)))
        });
        if turn.is_none() && self.peer.is_some() {
            self.give_up("fails");
        }
        turn
    }

    fn end(&mut self) {
        let ended = [&mut self.peer, &mut self.other]
            .map(|peer| peer.as_mut().is_none_or(|peer| peer.end().is_some()));
        if ended.contains(&false) {
            self.give_up("does not end its sessions");
        }
    }

    /// Ends the processes. The next row starts new ones.
    fn give_up(&mut self, why: &str) {
        eprintln!("compare: {} {why}", self.library.title);
        (self.peer, self.other) = (None, None);
    }
}
