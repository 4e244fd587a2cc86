//! Conducts a run from the first server to the verdict. Leaves nothing behind.

pub mod client;
mod leftovers;
mod place;
mod totals;

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use self::client::Client;
use self::leftovers::Leftovers;
use self::place::Place;
use crate::certificates;
use crate::clock::{now, seconds};
use crate::history::checker::{Findings, check, check_the_checker, list};
use crate::history::timeline::{self, Calm};
use crate::history::{History, Wait, figures, linear};
use crate::nemesis::{Nemesis, World};
use crate::network::{Link, Namespaces};
use crate::plan::{
    CHAOS, CLIENTS, PERMITS, Plan, SEMAPHORE, SERVERS, SESSION_TIMEOUT, SETTLING, THREADS, WITHOUT_TLS,
};
use crate::register::Register;
use crate::support::ensemble::Ensemble;
use crate::support::server::ServerOptions;
use crate::support::test_server::TestKdc;
use crate::support::wait::scaled;

/// The exit status of an interrupted program.
const INTERRUPTED: u8 = 130;

/// The maximum number of runs until one proves something.
const TRIES: u64 = 3;

/// What a run shows about the promises.
enum Verdict {
    /// All complaints; none if the promises were kept.
    Judged(Vec<String>),
    /// Nothing, because the servers have lost writes that they had confirmed.
    Void(Vec<String>),
}

pub fn run(plan: &Plan) -> ExitCode {
    check_the_checker();
    let interrupted = watch_interrupts();
    for seed in plan.seed..plan.seed + TRIES {
        let plan = Plan { seed, ..plan.clone() };
        if let Some(code) = run_once(&plan, &interrupted) {
            return code;
        }
    }
    println!("chaos: 0 passed, 1 failed: none of {TRIES} runs proves anything");
    ExitCode::FAILURE
}

/// Runs once. Returns `None` if the run proves nothing.
fn run_once(plan: &Plan, interrupted: &Arc<AtomicBool>) -> Option<ExitCode> {
    let place = Place::make(plan.keep.as_deref());
    println!(
        "chaos: seed {}, {} s of faults; history in {}",
        plan.seed,
        plan.chaos.as_secs(),
        place.path().display()
    );
    let outcome = catch_unwind(AssertUnwindSafe(|| perform(plan, place.path(), interrupted)));
    if interrupted.load(Ordering::SeqCst) {
        println!("chaos: interrupted");
        return Some(ExitCode::from(INTERRUPTED));
    }
    let passed = match outcome {
        Ok(Verdict::Void(undone)) => {
            println!(
                "\nVOID: the servers have lost writes that they had confirmed, as releases before 3.9.4 do, so no lock on them is safe:{}",
                list(&undone)
            );
            return None;
        }
        Ok(Verdict::Judged(complaints)) if complaints.is_empty() => true,
        Ok(Verdict::Judged(complaints)) => {
            println!("\nFAILED with seed {}:{}", plan.seed, list(&complaints));
            false
        }
        Err(_) => {
            println!("\nFAILED with seed {}: a panic, see above", plan.seed);
            false
        }
    };
    if !passed || plan.keep.is_some() {
        println!("the history is kept in {}", place.keep().display());
    }
    println!("chaos: {} passed, {} failed", u8::from(passed), u8::from(!passed));
    Some(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes the first interrupt end the run cleanly and a second one end it immediately. All processes end with
/// this one.
fn watch_interrupts() -> Arc<AtomicBool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let second = signal_hook::flag::register_conditional_shutdown(
            signal,
            INTERRUPTED.into(),
            Arc::clone(&interrupted),
        );
        second
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
            .expect("a handler");
    }
    interrupted
}

fn perform(plan: &Plan, dir: &Path, interrupted: &AtomicBool) -> Verdict {
    let scratch = tempfile::Builder::new().prefix("zookeeper-chaos.").tempdir().expect("a directory");
    // The checker and the register rely on the numbers of the requests, which would restart in a new directory
    // if the servers deleted an empty one.
    let jvm_flags = vec![format!("-Dznode.container.checkIntervalMs={}", i32::MAX)];
    let max_session_timeout_ms = SESSION_TIMEOUT.as_millis() as u64;
    let (certificates, tls) = certificates::issue(scratch.path());
    let options =
        ServerOptions { jvm_flags, max_session_timeout_ms, tls: Some(tls), ..ServerOptions::default() };
    let kdc = TestKdc::start().unwrap_or_else(|error| panic!("{error}"));
    let ensemble = Ensemble::with_links(SERVERS, &options.published().kerberos(&kdc));
    remove_tls(&ensemble, WITHOUT_TLS);
    leftovers::create_states(&ensemble);
    let namespaces = plan.namespaces.then(|| Namespaces::make(CLIENTS)).flatten();
    println!(
        "{SERVERS} servers of ZooKeeper {}, {CLIENTS} clients of {THREADS} threads, half of them with Kerberos, half by TLS, {} locks, a semaphore of {PERMITS} permits, session timeout {SESSION_TIMEOUT:?}; partitions: {}",
        release_of(&ensemble),
        SEMAPHORE,
        match &namespaces {
            Some(_) => "packets dropped between network namespaces",
            None => "bytes held back by relays",
        }
    );
    let register = Register::open(&scratch.path().join("socket"));
    let clients = (0..CLIENTS).map(|index| {
        let link = Link::new(index, &ensemble, &kdc, namespaces.clone(), scratch.path());
        Client::new(index, link, plan.seed, dir, scratch.path(), certificates.dir.path())
    });
    let clients: Vec<_> = clients.collect();
    let log = File::create(dir.join("faults.log")).expect("the history can be written");
    let mut run = Run {
        world: Arc::new(World::new(ensemble, kdc, clients, register, log)),
        begin: now(),
        calms: Vec::new(),
        complaints: Vec::new(),
    };
    let starved = run.contend(plan, interrupted);
    if interrupted.load(Ordering::SeqCst) {
        return Verdict::Judged(Vec::new());
    }
    let leftovers = run.end(dir, starved);
    let (history, undone) = run.judge(dir, starved, &leftovers);
    if !undone.is_empty() {
        return Verdict::Void(undone);
    }
    if let Some(file) = &plan.totals {
        let run = totals::Run {
            seconds: plan.chaos.as_secs(),
            acquisitions: history.acquisitions().count(),
            by_futures: history.acquired(Wait::is_of_a_future),
            by_tls: history.acquired(Wait::uses_tls),
            with_kerberos: history.acquired(Wait::has_tickets),
            faults: run.world.records.lock().len(),
            complaints: run.complaints.len(),
        };
        println!("{}", totals::add(file, run).expect("the sums can be written"));
    }
    Verdict::Judged(run.complaints)
}

/// Restarts a server without TLS.
fn remove_tls(ensemble: &Ensemble, server: usize) {
    let node = ensemble.node(server);
    ensemble.kill(server);
    node.reconfigure("serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory", "");
    node.reconfigure("secureClientPortAddress=127.0.0.1", "");
    node.reconfigure(&format!("secureClientPort={}", node.tls_port()), "");
    ensemble.restart(server);
}

/// Returns the release of the servers.
fn release_of(ensemble: &Ensemble) -> String {
    let answer = ensemble.node(0).four_letter("srvr");
    let release = answer.strip_prefix("Zookeeper version: ").and_then(|rest| rest.split(['-', ',']).next());
    release.expect("the first line has it").to_owned()
}

struct Run {
    world: Arc<World>,
    begin: u64,
    calms: Vec<Calm>,
    complaints: Vec<String>,
}

impl Run {
    /// Alternates between chaos and calm. Returns how many threads did not acquire every lock in the last calm.
    fn contend(&mut self, plan: &Plan, interrupted: &AtomicBool) -> usize {
        self.world.clients.iter().for_each(Client::start);
        let mut nemesis = Nemesis::new(&self.world, plan.seed, plan.pause());
        let start = Instant::now();
        let mut starved = 0;
        for round in 1.. {
            let left = plan.chaos.saturating_sub(start.elapsed());
            // Avoids a short last round.
            let time = if left < CHAOS + CHAOS / 4 { left } else { CHAOS };
            nemesis.run(time, &|| interrupted.load(Ordering::SeqCst));
            if interrupted.load(Ordering::SeqCst) {
                return 0;
            }
            starved = self.settle(round);
            if starved > 0 || start.elapsed() + CHAOS / 4 >= plan.chaos {
                break;
            }
            self.world.register.order("contend");
        }
        starved
    }

    /// Waits until every thread has ended its wait and then acquired each lock once. Returns how many threads have not
    /// done so in time.
    fn settle(&mut self, round: u64) -> usize {
        let began = now();
        for (index, client) in self.world.clients.iter().enumerate() {
            if !client.is_running() {
                self.complaints.push(format!("client {index} ended unexpectedly"));
            }
        }
        self.world.ensemble.await_quorum();
        self.world.register.order(&format!("settle {round}"));
        let starved = self.world.register.await_settled(round, CLIENTS, THREADS, scaled(SETTLING));
        let ended = now();
        self.calms.push(Calm { began, ended });
        println!(
            "{:6.1} s: {} faults so far; in the calm, each thread acquired each lock within {:.1} s{}",
            seconds(ended - self.begin),
            self.world.records.lock().len(),
            seconds(ended - began),
            if starved.is_empty() { String::new() } else { format!(", except (client, thread) {starved:?}") }
        );
        starved.len()
    }

    /// Ends the clients and checks what they leave behind.
    fn end(&mut self, history: &Path, starved: usize) -> Leftovers {
        if starved > 0 {
            leftovers::note_queues(&self.world.ensemble, &history.join("queues.txt"));
        }
        self.world.register.order("end");
        // Threads that starve will not end either.
        let time_limit = if starved > 0 { Duration::from_secs(10) } else { SETTLING };
        let threads = self.world.register.await_left(CLIENTS, scaled(time_limit));
        let leftovers = Leftovers::look(&self.world.ensemble, threads);
        for server in 0..SERVERS {
            let log = self.world.ensemble.node(server).dir().join("log");
            // The log is part of the history but not of the verdict.
            let _ = std::fs::copy(log, history.join(format!("server-{server}.log")));
        }
        leftovers
    }

    /// Returns the history, and the writes that the servers have lost.
    fn judge(&mut self, dir: &Path, starved: usize, leftovers: &Leftovers) -> (History, Vec<String>) {
        let history = History::read(dir).expect("the history can be read");
        let records = self.world.records.lock().clone();
        let findings = check(&history, self.begin);
        let opinion = linear::ask(&history, self.begin);
        let accounts = self.world.register.accounts();
        let report = figures::report(&history, &records, self.world.register.starts())
            + &verdicts(&history, &findings, &accounts, starved, leftovers)
            + &format!(
                "\nlinearizability, by stateright: {} of {} pieces without a possible order, {} too long",
                opinion.wrong.len(),
                opinion.pieces,
                opinion.undecided
            );
        println!("{report}");
        std::fs::write(dir.join("report.txt"), report).expect("the history can be written");
        timeline::draw_all(dir, &history, &records, &self.calms, self.begin)
            .expect("the history can be written");

        let mut complain = |what: &str, findings: &[String]| {
            if !findings.is_empty() {
                self.complaints.push(format!("{} {what}:{}", findings.len(), list(findings)));
            }
        };
        complain("overlaps", &findings.overlaps);
        complain("permits beyond the last", &findings.crowds);
        complain("owners that read a state from before their predecessor's last write", &findings.stale);
        complain("owners out of order", &findings.disorders);
        complain("pieces of the history that no order explains", &opinion.wrong);
        complain("refused writes of threads that reported ownership", &history.believing);
        complain("writes on which sequence number and fencing token disagree", &accounts.2);
        complain("late returns", &findings.late_returns);
        complain("violations seen by clients", &history.violations);
        complain("panics", &history.panics);
        complain("leftovers", &leftovers.list());
        if starved > 0 {
            self.complaints.push(format!("{starved} threads starved"));
        }
        let missing = history.kinds().into_iter().filter(|(_, count)| *count == 0);
        self.complaints.extend(missing.map(|(kind, _)| format!("no acquisition of the kind: {kind}")));
        (history, findings.undone)
    }
}

fn verdicts(
    history: &History,
    findings: &Findings,
    (written, refused, contradictions): &(usize, usize, Vec<String>),
    starved: usize,
    leftovers: &Leftovers,
) -> String {
    let believing = history.believing.len();
    format!(
        "promises\n  \
         overlaps                       {}\n  \
         permits beyond the last        {}\n  \
         stale reads of owners          {}\n  \
         owners out of order            {}\n  \
         refused writes of owners       {believing}\n  \
         sequence against token         {}\n  \
         starved threads                {starved}\n  \
         late returns                   {} (latest {:.3} s after its deadline)\n  \
         listener or owner violations   {}\n  \
         panics                         {} (contained in the client library's threads: {})\n  \
         left                           {leftovers}\n\
         register: {written} writes accepted; {refused} refused, of these {} late ones of former owners",
        findings.overlaps.len(),
        findings.crowds.len(),
        findings.stale.len(),
        findings.disorders.len(),
        contradictions.len(),
        findings.late_returns.len(),
        findings.latest,
        history.violations.len(),
        history.panics.len(),
        history.client_library_panics.len(),
        history.late,
    )
}
