//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

use crate::peer::{DROPPED, LIBRARIES, Library, Places};
use crate::rows::{ROWS, Row};

pub(crate) const HELP: &str = "
Compares our lock with those of other libraries, in turns on one server.

usage: scripts/compare [options]

  --rows ROW,...    of: one, sixteen, hand-over-8, hand-over-100, threads-8, threads-8-contended
  --peers NAME,...  of: ours, dropped (the same without waiting for the deletion), async (lock_async, and
                    then the same), cohort (CohortLock), curator, curator-home, apache,
                    zookeeper-client (futures, also without waiting for the deletion), kazoo,
                    floor (bare sockets); default: all but dropped. The first is what the others are
                    compared with
  --near, --far     only on a server nearby, or only with 5 ms added in each direction; default: both
  --rounds N        how often each library takes its turn in each row; default: 5
  --seconds S       the length of a turn; default: 1
  --quick           3 rounds of half a second
  --json FILE       write all numbers
  --svg FILE        write a bar chart
  --help            print this

CURATOR_HOME names a directory with the jars of another release of Curator and of its ZooKeeper client. It
gets a second column of Curator, curator-home. `scripts/compat --help` says where to get one. ZOOKEEPER_HOME
names the release of the server; all libraries from the system's packages use the client among these.";

/// What this process is asked to do.
pub(crate) enum Command {
    Compare(Box<Options>),
    /// Take the role of this library.
    Peer(String),
    Help,
}

pub(crate) struct Options {
    pub(crate) rows: Vec<Row>,
    pub(crate) libraries: Vec<Library>,
    pub(crate) near: bool,
    pub(crate) far: bool,
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
    pub(crate) json: Option<PathBuf>,
    pub(crate) svg: Option<PathBuf>,
    pub(crate) places: Places,
    /// The release of every component, by name.
    pub(crate) releases: Vec<(String, String)>,
}

impl Options {
    pub(crate) fn parse(mut parser: lexopt::Parser) -> Result<Command, lexopt::Error> {
        let mut options = Options {
            rows: ROWS.to_vec(),
            libraries: LIBRARIES.into_iter().filter(|library| library.name != DROPPED).collect(),
            near: false,
            far: false,
            rounds: 5,
            length: Duration::from_secs(1),
            json: None,
            svg: None,
            places: Places::default(),
            releases: Vec::new(),
        };
        while let Some(argument) = parser.next()? {
            match argument {
                // Cargo passes this to every benchmark.
                Long("bench") => {}
                Long("peer") => return Ok(Command::Peer(parser.value()?.string()?)),
                Long("rows") => options.rows = list(&parser.value()?.string()?, row)?,
                Long("peers") => options.libraries = list(&parser.value()?.string()?, library)?,
                Long("near") => options.near = true,
                Long("far") => options.far = true,
                Long("rounds") => options.rounds = parser.value()?.parse()?,
                Long("seconds") => options.length = parser.value()?.parse_with(seconds)?,
                Long("quick") => (options.rounds, options.length) = (3, Duration::from_millis(500)),
                Long("json") => options.json = Some(parser.value()?.into()),
                Long("svg") => options.svg = Some(parser.value()?.into()),
                Long("class-path") => options.places.class_path = Some(parser.value()?.string()?),
                Long("curator-home") => options.places.curator_home = Some(parser.value()?.string()?),
                Long("release") => options.releases.push(parser.value()?.parse_with(release)?),
                Long("zookeeper-client") => {
                    options.places.zookeeper_client = Some(parser.value()?.string()?);
                }
                Long("python") => options.places.python = Some(parser.value()?.string()?),
                Long("help") | Short('h') => return Ok(Command::Help),
                _ => return Err(argument.unexpected()),
            }
        }
        if !options.near && !options.far {
            (options.near, options.far) = (true, true);
        }
        options.rounds = options.rounds.max(1);
        options.leave_out_missing();
        options.add_releases_to_titles();
        Ok(Command::Compare(Box::new(options)))
    }

    fn leave_out_missing(&mut self) {
        let places = &self.places;
        self.libraries.retain(|library| {
            let is_available = library.is_available(places);
            if !is_available {
                eprintln!("compare: {} is skipped; see scripts/compare --help", library.name);
            }
            is_available
        });
    }

    fn add_releases_to_titles(&mut self) {
        for library in &mut self.libraries {
            if let Some((_, release)) = self.releases.iter().find(|(name, _)| name == library.name) {
                library.title = format!("{} {release}", library.title).into();
            }
        }
    }
}

/// Parses `name=release`.
fn release(text: &str) -> Result<(String, String), String> {
    let (name, release) = text.split_once('=').ok_or_else(|| format!("{text} has no ="))?;
    Ok((name.to_owned(), release.to_owned()))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| format!("{text} is not a number"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Parses a comma-separated list.
fn list<T>(text: &str, named: impl Fn(&str) -> Result<T, lexopt::Error>) -> Result<Vec<T>, lexopt::Error> {
    text.split(',').map(named).collect()
}

fn row(name: &str) -> Result<Row, lexopt::Error> {
    ROWS.into_iter().find(|row| row.name == name).ok_or_else(|| format!("no row {name}").into())
}

fn library(name: &str) -> Result<Library, lexopt::Error> {
    Library::named(name).ok_or_else(|| format!("no library {name}").into())
}
