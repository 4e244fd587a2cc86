//! Other processes: this program once more, in another role.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write, stdin};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::{join_queue, session};

/// The arguments that give this program another role.
pub(crate) const HOLD: &str = "--hold";
pub(crate) const ATTEMPT: &str = "--attempt";

/// The threads of the crate under test.
const CRATE_THREADS: &str = "zk-lock-";

/// The unit in which Linux reports thread times.
const TICKS_PER_SECOND: f64 = 100.0;

/// Dropping it kills the child. If this process ends in another way, the child's input ends, and so
/// does the child.
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

    /// Starts a child that holds a lock, with waiters behind it on the same session, and returns
    /// once it does.
    pub(crate) fn holding(connect_string: &str, dir: &str, waiters: usize, timeout: Duration) -> Child {
        let (waiters, timeout) = (waiters.to_string(), timeout.as_millis().to_string());
        let mut child = Child::start(&[HOLD, connect_string, dir, &waiters, &timeout]);
        child.numbers();
        child
    }

    /// Requests the processor time that the child has used.
    pub(crate) fn processor_time(&mut self) -> ProcessorTime {
        self.input.write_all(b"\n").expect("the child reads its input");
        match self.numbers()[..] {
            [whole, ours] => ProcessorTime { whole, ours },
            ref other => panic!("the child printed {other:?}"),
        }
    }

    /// The numbers of its next line.
    pub(crate) fn numbers(&mut self) -> Vec<f64> {
        let line = self.lines.next().expect("the child answers").expect("the pipe works");
        line.split_whitespace().map(|number| number.parse().expect("a number")).collect()
    }

    /// Kills the process (SIGKILL) and returns once it has ended.
    pub(crate) fn kill(&mut self) {
        // These fail only if the process was already waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Processor time in seconds, of all threads and of the threads of the crate under test.
pub(crate) struct ProcessorTime {
    pub(crate) whole: f64,
    pub(crate) ours: f64,
}

/// The role of a holder: prints a line when it holds, and then the processor time used for each
/// line of input.
pub(crate) fn hold(connect_string: &str, dir: &str, waiters: &str, timeout: &str) {
    let waiters: usize = waiters.parse().expect("a number");
    let timeout = Duration::from_millis(timeout.parse().expect("a number"));
    let session = session(connect_string, timeout);
    let locks: Vec<_> = (0..=waiters).map(|_| join_queue(&session, dir)).collect();
    assert!(locks[0].0.is_owner(), "the lock is uncontended");
    println!();
    for _ in stdin().lines() {
        println!("{} {}", processor_time(), processor_time_of(CRATE_THREADS));
    }
}

fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The processor time of this process's threads with this name prefix, in seconds.
fn processor_time_of(prefix: &str) -> f64 {
    let tasks = fs::read_dir("/proc/self/task").expect("this is Linux");
    let stats: Vec<String> =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok()).collect();
    // The name is in parentheses. After it, two of the fields count ticks in user and in kernel
    // mode.
    let ours = stats.iter().filter_map(|stat| stat.split_once('(')?.1.strip_prefix(prefix)?.rsplit_once(')'));
    let ticks: Vec<f64> = ours
        .flat_map(|(_, fields)| fields.split_whitespace().skip(11).take(2))
        .map(|ticks| ticks.parse().expect("a number"))
        .collect();
    assert!(!ticks.is_empty(), "no thread is named {prefix}");
    ticks.iter().sum::<f64>() / TICKS_PER_SECOND
}
