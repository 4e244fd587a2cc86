//! Injects faults, several at a time, as chosen by one seed.

mod inject;
pub mod record;

use std::convert::Infallible;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use parking_lot::Mutex;

use self::inject::Injection;
use self::record::{Fault, Record, Target};
use crate::conductor::client::Client;
use crate::plan::LOCKS;
use crate::random::Random;
use crate::register::Register;
use crate::support::ensemble::Ensemble;
use crate::support::test_server::TestKdc;

/// The parts that can fail.
#[derive(Debug)]
pub struct World {
    pub ensemble: Ensemble,
    pub kdc: TestKdc,
    pub clients: Vec<Client>,
    pub register: Arc<Register>,
    pub records: Mutex<Vec<Record>>,
    busy: Mutex<Busy>,
    log: File,
}

/// What is failing now. Only a minority of the servers fails at a time, except for a few seconds without a
/// quorum.
#[derive(Debug)]
struct Busy {
    servers: bool,
    kdc: bool,
    processes: Vec<bool>,
    links: Vec<bool>,
}

impl World {
    pub fn new(
        ensemble: Ensemble,
        kdc: TestKdc,
        clients: Vec<Client>,
        register: Arc<Register>,
        log: File,
    ) -> World {
        let free = vec![false; clients.len()];
        let busy = Mutex::new(Busy { servers: false, kdc: false, processes: free.clone(), links: free });
        World { ensemble, kdc, clients, register, records: Mutex::default(), busy, log }
    }

    fn note(&self, record: &Record) {
        let Record { fault, target, began, ended } = record;
        writeln!(&self.log, "{began} {ended} {fault:?} {target}").expect("the history can be written");
        self.records.lock().push(record.clone());
    }
}

impl Busy {
    fn place(&mut self, fault: Fault, target: Target) -> &mut bool {
        match target {
            Target::Server(_) | Target::AllBut(_) => &mut self.servers,
            Target::Kdc => &mut self.kdc,
            Target::Client(client) if fault.is_of_a_process() => &mut self.processes[client],
            Target::Client(client) => &mut self.links[client],
        }
    }
}

pub struct Nemesis {
    world: Arc<World>,
    random: Random,
    pause: Range<u64>,
    /// The kinds of faults left; every kind occurs once before any repeats.
    deck: Vec<Fault>,
}

impl Nemesis {
    /// Creates a nemesis. `pause` is the pause between two faults in milliseconds; faults may last longer than
    /// that.
    pub fn new(world: &Arc<World>, seed: u64, pause: Range<u64>) -> Nemesis {
        Nemesis { world: Arc::clone(world), random: Random::new(seed), pause, deck: Vec::new() }
    }

    /// Injects faults for this long. When it returns, everything has been restored, but the servers may still
    /// have to elect a leader.
    pub fn run(&mut self, time: Duration, interrupted: &dyn Fn() -> bool) {
        let (stop, stopped) = bounded::<Infallible>(0);
        let mut injections = Vec::new();
        let end = Instant::now() + time;
        while Instant::now() < end && !interrupted() {
            if let Some(inject) = self.draw() {
                let (world, stopped) = (Arc::clone(&self.world), stopped.clone());
                injections.push(thread::spawn(move || {
                    let record = inject.run(&world, &stopped);
                    *world.busy.lock().place(record.fault, record.target) = false;
                    world.note(&record);
                }));
            }
            let pause = self.random.millis(self.pause.clone());
            thread::sleep(pause.min(end.saturating_duration_since(Instant::now())));
        }
        drop(stop);
        for inject in injections {
            if let Err(panic) = inject.join() {
                resume_unwind(panic);
            }
        }
    }

    /// Returns the next fault of the deck whose target is free.
    fn draw(&mut self) -> Option<Injection> {
        if self.deck.is_empty() {
            self.deck = Fault::ALL.to_vec();
            self.random.shuffle(&mut self.deck);
            // Long faults come first, because the end of a round ends all faults.
            self.deck.sort_by_key(|fault| fault.outlasts_the_session());
        }
        for place in (0..self.deck.len()).rev() {
            let fault = self.deck[place];
            let target = self.aim(fault);
            let mut busy = self.world.busy.lock();
            let busy = busy.place(fault, target);
            if !*busy {
                *busy = true;
                self.deck.remove(place);
                return Some(Injection::new(fault, target, &mut self.random));
            }
        }
        None
    }

    fn aim(&mut self, fault: Fault) -> Target {
        match fault {
            Fault::ServerKilled
            | Fault::HandoverKilled
            | Fault::TimeoutRaised
            | Fault::TickLowered
            | Fault::LinksStalled
            | Fault::ServerLeft
            | Fault::ServerStopped => Target::Server(self.a_server()),
            Fault::QuorumStopped => Target::AllBut(self.random.below(self.world.ensemble.size())),
            Fault::KdcStopped => Target::Kdc,
            _ => Target::Client(self.a_client()),
        }
    }

    /// Returns a server, which is the leader half of the time.
    fn a_server(&mut self) -> usize {
        let ensemble = &self.world.ensemble;
        let leads = |server: &usize| ensemble.mode(*server).as_deref() == Some("leader");
        let any = self.random.below(ensemble.size());
        if self.random.one_in(2) { (0..ensemble.size()).find(leads).unwrap_or(any) } else { any }
    }

    /// Returns a client, usually one that holds a lock now, if there is one.
    fn a_client(&mut self) -> usize {
        let any = self.random.below(self.world.clients.len());
        let (holder, wanted) = (self.random.below(LOCKS.len()), !self.random.one_in(4));
        let holders = self.world.register.holders();
        if wanted && !holders.is_empty() { holders[holder % holders.len()] } else { any }
    }
}
