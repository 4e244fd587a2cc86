//! [`Twin`]: the same test again, in a process of its own, which the test may kill or stop.

use std::env;
use std::io::{self, BufRead, BufReader, Lines};
use std::process::{self, Child, ChildStdout, Command, Stdio};
use std::thread;

use crate::support::process::Process;
use crate::support::server;

const PLACE: &str = "ZK_TEST_TWIN";
const SAYS: &str = "twin: ";

/// The process; it is killed at the end, also when the test fails.
pub struct Twin {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Twin {
    /// In the twin: the connect string and the directory that it was given. The twin ends with the test's process.
    pub fn place() -> Option<(String, String)> {
        let place = env::var(PLACE).ok()?;
        thread::spawn(|| {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            process::exit(1);
        });
        let (connect_string, dir) = place.split_once(' ').expect("a test made it");
        Some((connect_string.to_owned(), dir.to_owned()))
    }

    /// In the twin: says something to the test.
    pub fn say(what: &str) {
        // The test runner's own line may stand there, unended.
        println!("\n{SAYS}{what}");
    }

    /// Starts the twin of the test with this name, on the shared server.
    pub fn start(test: &str, dir: &str) -> Twin {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(PLACE, format!("{} {dir}", server::shared().connect_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Twin { child, lines }
    }

    /// The next thing that the twin says.
    pub fn hear(&mut self) -> String {
        let mut said = self.lines.by_ref().map_while(Result::ok);
        said.find_map(|line| line.strip_prefix(SAYS).map(str::to_owned)).expect("the twin has ended")
    }

    pub fn process(&self) -> Process {
        Process::of(&self.child)
    }

    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        self.end();
    }
}
