//! Measures what `zklock run` adds to the start of a command, and the memory of its guardian, on a dedicated server.
//!
//! ```text
//! cargo bench -p zklock --bench start                 in half a minute
//! cargo bench -p zklock --bench start -- --quick      fewer rounds, in a few seconds
//! cargo bench -p zklock --bench start -- PROGRAM      also measures this program, such as an older zklock
//! ```
//!
//! The programs alternate within each round, so a busy machine slows all of them down equally. The results are measured,
//! not asserted.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark that fails says why"
)]

#[cfg(target_os = "linux")]
#[path = "../../tests/support/mod.rs"]
mod support;

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, ExitCode, Stdio};
    use std::time::{Duration, Instant};

    use crate::support::server::Server;

    const USAGE: &str = "usage: cargo bench -p zklock --bench start -- [--quick] [PROGRAM]";
    const OURS: &str = env!("CARGO_BIN_EXE_zklock");
    const ROUNDS: usize = 300;
    const QUICK_ROUNDS: usize = 30;

    /// The time until a lock's command has ended and the lock is released, and what that consists of.
    struct Row {
        name: String,
        command: Command,
        millis: Vec<f64>,
    }

    impl Row {
        fn new(name: impl Into<String>, command: Command) -> Row {
            Row { name: name.into(), command, millis: Vec::new() }
        }

        fn measure(&mut self) {
            let begun = Instant::now();
            let status = self.command.status().unwrap_or_else(|error| panic!("{}: {error}", self.name));
            self.millis.push(begun.elapsed().as_secs_f64() * 1e3);
            // `who` says by 1 or 66 that nobody holds the lock.
            assert!(matches!(status.code(), Some(0 | 1 | 66)), "{}: {status}", self.name);
        }
    }

    pub(crate) fn main() -> ExitCode {
        // Cargo passes `--bench` to every benchmark.
        let arguments: Vec<String> =
            std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
        let (options, programs): (Vec<_>, Vec<_>) =
            arguments.iter().partition(|argument| argument.starts_with('-'));
        if options.iter().any(|option| *option != "--quick") || programs.len() > 1 {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
        let server = Server::start();
        let other = programs.first().map(|program| program.as_str());
        measure_starts(&server, other, if options.is_empty() { ROUNDS } else { QUICK_ROUNDS });
        measure_memory(&server);
        ExitCode::SUCCESS
    }

    /// A program on the server. Its output is dropped.
    fn on(server: &Server, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        // Older programs know this option as well.
        command.args(["--max-tick", "500ms"]).args(arguments).env("ZK_CONNECT", server.connect_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn measure_starts(server: &Server, other: Option<&str>, rounds: usize) {
        let run = |program| on(server, program, &["run", "--quiet", "/bench", "--", "true"]);
        let mut rows = vec![
            Row::new("`true`", Command::new("true")),
            Row::new("`zklock who DIR`: a session without a lock", on(server, OURS, &["who", "/bench"])),
            Row::new("`zklock run DIR -- true`", run(OURS)),
        ];
        rows.extend(other.map(|other| Row::new(format!("`{other} run DIR -- true`"), run(other))));
        for _ in 0..rounds {
            rows.iter_mut().for_each(Row::measure);
        }
        println!("\n| {rounds} rounds | minimum | median |\n|---|---|---|");
        for Row { name, millis, .. } in &rows {
            let (minimum, median) = minimum_and_median(millis);
            println!("| {name} | {minimum:.2} ms | {median:.2} ms |");
        }
        if let [_, _, ours, other] = &rows[..] {
            let later: Vec<f64> =
                ours.millis.iter().zip(&other.millis).map(|(ours, other)| ours - other).collect();
            let (_, median) = minimum_and_median(&later);
            println!("| … longer than the other program in the same round | | {median:.2} ms |");
        }
    }

    fn minimum_and_median(numbers: &[f64]) -> (f64, f64) {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        (sorted[0], sorted[sorted.len() / 2])
    }

    /// A program that runs a command. It is ended when this is dropped.
    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            // Without it, the guardian ends the command.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn measure_memory(server: &Server) {
        let mut command = on(server, OURS, &["run", "/bench", "--", "sh", "-c", "echo; exec sleep 1000"]);
        let mut program = Running(command.stdout(Stdio::piped()).spawn().expect("the program starts"));
        let output = program.0.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut String::new()).expect("the command begins");
        std::thread::sleep(Duration::from_secs(1));
        let holder = program.0.id();
        let children =
            fs::read_to_string(format!("/proc/{holder}/task/{holder}/children")).expect("this is Linux");
        let guardian = children.trim().parse().expect("the program has one child");
        println!("\n| | private | proportional (PSS) |\n|---|---|---|");
        for (name, pid) in [("the guardian", guardian), ("the holder", holder)] {
            let [clean, dirty, pss] =
                ["Private_Clean:", "Private_Dirty:", "Pss:"].map(|field| kib(pid, field));
            println!("| {name} | {} KiB | {pss} KiB |", clean + dirty);
        }
    }

    /// Returns a figure of the memory of a process.
    fn kib(pid: u32, field: &str) -> u64 {
        let all = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process is running");
        let line = all.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).expect("a number of KiB")
    }
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {}
