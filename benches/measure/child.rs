//! Child processes: this program started again, in another role.

use std::io::{BufRead, BufReader, Lines, Write, stdin};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use rustix::time::{ClockId, clock_gettime};

use crate::survival::Requests;
use crate::{join_queue, session};

/// The arguments that give this program another role.
pub(crate) const HOLD: &str = "--hold";
pub(crate) const ATTEMPT: &str = "--attempt";

/// The traffic of a holder that makes requests all the time.
const BUSY: &str = "busy";

/// A child process. Dropping this value kills the process. If this process ends without dropping it, the child's input
/// ends, and then the child ends, too.
pub(crate) struct Child {
    process: std::process::Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Child {
    pub(crate) fn start(arguments: &[&str]) -> Child {
        let this_program = std::env::current_exe().expect("the system knows this program's path");
        let mut command = Command::new(this_program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("this program runs once more");
        let input = process.stdin.take().expect("it is piped");
        let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        Child { process, input, lines }
    }

    /// Starts a child that holds a lock, with waiters behind it on the same session. Returns once it holds the
    /// lock. A busy child makes requests all the time.
    pub(crate) fn holding(
        connect_string: &str,
        dir: &str,
        waiters: usize,
        timeout: Duration,
        is_busy: bool,
    ) -> Child {
        let (waiters, timeout) = (waiters.to_string(), timeout.as_millis().to_string());
        let traffic = if is_busy { BUSY } else { "idle" };
        let mut child = Child::start(&[HOLD, connect_string, dir, &waiters, &timeout, traffic]);
        child.numbers();
        child
    }

    /// Asks the child what it has used so far.
    pub(crate) fn usage(&mut self) -> Usage {
        self.input.write_all(b"\n").expect("the child reads its input");
        match self.numbers()[..] {
            [seconds, warnings, notes] => Usage { seconds, warnings, notes },
            ref other => panic!("the child printed {other:?}"),
        }
    }

    /// Returns the numbers in the child's next line.
    pub(crate) fn numbers(&mut self) -> Vec<f64> {
        let line = self.lines.next().expect("the child answers").expect("the pipe works");
        line.split_whitespace().map(|number| number.parse().expect("a number")).collect()
    }

    /// Kills the process (SIGKILL) and returns once it has ended.
    pub(crate) fn kill(&mut self) {
        // These calls fail only if the process was already waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a process has used since it started.
pub(crate) struct Usage {
    /// The processor time of all its threads.
    pub(crate) seconds: f64,
    /// The number of lines that it has logged at the levels `error` and `warn`.
    pub(crate) warnings: f64,
    /// The number of lines that it has logged at the level `info`.
    pub(crate) notes: f64,
}

/// Takes the role of a holder: prints a line when it holds the lock, and then its usage for each line of input.
pub(crate) fn hold(connect_string: &str, dir: &str, waiters: &str, timeout: &str, traffic: &str) {
    log::set_logger(&LineCount).expect("it is the only logger");
    log::set_max_level(LevelFilter::Info);
    let waiters: usize = waiters.parse().expect("a number");
    let timeout = Duration::from_millis(timeout.parse().expect("a number"));
    let session = session(connect_string, timeout);
    let locks: Vec<_> = (0..=waiters).map(|_| join_queue(&session, dir)).collect();
    assert!(locks[0].0.is_owner(), "the lock is uncontended");
    let _busy = (traffic == BUSY).then(|| Requests::start(&session));
    println!();
    for _ in stdin().lines() {
        let [warnings, notes] = [&WARNINGS, &NOTES].map(|lines| lines.load(Ordering::Relaxed));
        println!("{} {warnings} {notes}", processor_time());
    }
}

fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

static WARNINGS: AtomicU32 = AtomicU32::new(0);
static NOTES: AtomicU32 = AtomicU32::new(0);

/// A logger that counts lines.
struct LineCount;

impl Log for LineCount {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let lines = if record.level() <= Level::Warn { &WARNINGS } else { &NOTES };
        lines.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&self) {}
}
