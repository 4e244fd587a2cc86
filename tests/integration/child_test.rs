//! [`ChildTest`]: runs the current test again in another process, which the test may kill or stop.

use std::env;
use std::io::{self, BufRead, BufReader, Lines};
use std::process::{self, Child, ChildStdout, Command, Stdio};
use std::thread;

use crate::support::process::Process;
use crate::support::server;

const VARIABLE: &str = "ZK_TEST_CHILD";
const PREFIX: &str = "child: ";

/// Ends the process when its standard input, a pipe, closes. A child process calls this to end with its
/// parent.
pub fn end_with_the_input() {
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        process::exit(1);
    });
}

/// The child process. It is killed when this is dropped, even if the test fails.
pub struct ChildTest {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl ChildTest {
    /// In the child, returns the connect string and the directory that the parent passed, and makes the child
    /// end with its parent. In the parent, returns `None`.
    pub fn arguments() -> Option<(String, String)> {
        let arguments = env::var(VARIABLE).ok()?;
        end_with_the_input();
        let (connect_string, dir) = arguments.split_once(' ').expect("written by a test");
        Some((connect_string.to_owned(), dir.to_owned()))
    }

    /// Sends a line from the child to the parent.
    pub fn send(line: &str) {
        // Begin a new line, because the test runner may have printed an unfinished one.
        println!("\n{PREFIX}{line}");
    }

    /// Starts the test with this name in a child process, which uses the shared server.
    pub fn start(test: &str, dir: &str) -> ChildTest {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(VARIABLE, format!("{} {dir}", server::shared().connect_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        ChildTest { child, lines }
    }

    /// Returns the next line that the child sends.
    pub fn receive(&mut self) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        lines.find_map(|line| line.strip_prefix(PREFIX).map(str::to_owned)).expect("the child has ended")
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

impl Drop for ChildTest {
    fn drop(&mut self) {
        self.end();
    }
}
