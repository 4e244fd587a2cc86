//! A single fault: its start, its length and its end.

use std::convert::Infallible;
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::World;
use super::record::{Fault, Record, Target};
use crate::clock;
use crate::network::Direction;
use crate::plan::{CLIENTS, LOWERED_TICK, RAISED_TIMEOUT, SESSION_TIMEOUT, TICK, has_tickets};
use crate::random::Random;
use crate::support::ensemble::Ensemble;

/// How long to wait for a client to hold a lock. After that, the fault is injected anyway.
const PROLONG_LIMIT: Duration = Duration::from_millis(1_500);

/// The pause between two cuts of all connections while a server is stopped. In this time a client tries each of
/// the other servers, and may try the stopped one.
const BETWEEN_CUTS: Duration = Duration::from_millis(300);

/// A fault to inject. It is chosen in advance, so the choices do not depend on the speed of the machine.
pub struct Injection {
    fault: Fault,
    target: Target,
    length: Duration,
    /// The index of a server or a direction.
    detail: usize,
}

impl Injection {
    pub fn new(fault: Fault, target: Target, random: &mut Random) -> Injection {
        let range = match fault {
            Fault::ServerKilled | Fault::HandoverKilled => 300..3_000,
            Fault::TimeoutRaised | Fault::TickLowered => 1_000..5_000,
            Fault::ServerStopped | Fault::LinksStalled | Fault::KdcStopped => 500..7_000,
            // Shorter than the time for which the leader waits for a server, so the server still passes on what
            // it has not read.
            Fault::ServerLeft => 900..2_300,
            Fault::QuorumStopped => 500..2_500,
            Fault::ClientKilled => 100..1_500,
            Fault::ClientStopped | Fault::Partition => 100..2_500,
            Fault::ClientStoppedLong | Fault::PartitionLong => 4_000..7_000,
            Fault::DescriptorsExhausted | Fault::PartitionOneWay | Fault::Silence | Fault::Refused => {
                300..5_000
            }
            Fault::RepliesLost => 20..400,
            Fault::Cut => 0..1,
        };
        Injection { fault, target, length: random.millis(range), detail: random.below(4) }
    }

    /// Injects the fault. The fault ends early if the round ends.
    pub fn run(&self, world: &World, stopped: &Receiver<Infallible>) -> Record {
        let pause = |time: Duration| {
            let _ = stopped.recv_timeout(time); // no message is ever sent
        };
        let wait = || pause(self.length);
        let any_of = |clients: Vec<usize>| clients[self.detail % clients.len()];
        let owner = match self.target {
            Target::Client(client) => client,
            Target::Kdc => any_of(clients_with_tickets()),
            // Any client will do, because it may be connected to this server.
            _ => any_of((0..CLIENTS).collect()),
        };
        if self.fault.wants_an_owner() {
            world.register.prolong(owner, PROLONG_LIMIT);
        }
        let began = clock::now();
        match self.target {
            Target::Server(server) if self.fault == Fault::ServerLeft => {
                self.leave_server(world, server, pause)
            }
            Target::Server(server) => self.inject_into_server(world, server, owner, wait),
            Target::AllBut(server) => {
                let others: Vec<_> = (0..world.ensemble.size()).filter(|other| *other != server).collect();
                others.iter().for_each(|other| world.ensemble.pause(*other));
                wait();
                others.iter().for_each(|other| world.ensemble.resume(*other));
            }
            Target::Kdc => self.stop_kdc(world, pause),
            Target::Client(client) => self.inject_into_client(world, client, wait),
        }
        if self.fault.wants_an_owner() {
            world.register.end_prolonging(owner);
        }
        Record { fault: self.fault, target: self.target, began, ended: clock::now() }
    }

    fn inject_into_server(&self, world: &World, server: usize, owner: usize, wait: impl FnOnce()) {
        let ensemble = &world.ensemble;
        match self.fault {
            Fault::ServerKilled => {
                ensemble.kill(server);
                wait();
                ensemble.restart(server);
            }
            Fault::HandoverKilled => {
                self.kill_at_a_handover(world, server, owner);
                wait();
                ensemble.restart(server);
            }
            Fault::TimeoutRaised => {
                restart_under(ensemble, server, "maxSessionTimeout", [SESSION_TIMEOUT, RAISED_TIMEOUT]);
                wait();
                restart_under(ensemble, server, "maxSessionTimeout", [RAISED_TIMEOUT, SESSION_TIMEOUT]);
            }
            Fault::TickLowered => {
                restart_under(ensemble, server, "tickTime", [TICK, LOWERED_TICK]);
                wait();
                restart_under(ensemble, server, "tickTime", [LOWERED_TICK, TICK]);
            }
            Fault::LinksStalled => self.stall_links(ensemble, server, wait),
            _ => {
                ensemble.pause(server);
                wait();
                ensemble.resume(server);
            }
        }
    }

    /// Stops a server and makes its clients leave it while it has unread requests from them. They move to the other
    /// servers, and some try the stopped one in between.
    fn leave_server(&self, world: &World, server: usize, pause: impl Fn(Duration)) {
        world.ensemble.pause(server);
        for _ in 0..self.length.as_millis() / BETWEEN_CUTS.as_millis() {
            pause(BETWEEN_CUTS);
            world.clients.iter().for_each(|client| client.link().cut());
        }
        world.ensemble.resume(server);
    }

    /// Stops the KDC and makes its clients reconnect with the tickets that they have.
    fn stop_kdc(&self, world: &World, pause: impl Fn(Duration)) {
        world.kdc.pause().expect("the KDC is suspended");
        pause(self.length / 2);
        clients_with_tickets().iter().for_each(|client| world.clients[*client].link().cut());
        pause(self.length / 2);
        world.kdc.resume();
    }

    /// Stalls all links of a server to the others, or only the link to the next one. Later the links resume or
    /// break.
    fn stall_links(&self, ensemble: &Ensemble, server: usize, wait: impl FnOnce()) {
        let others = 1 + self.detail % (ensemble.size() - 1);
        let others: Vec<_> = (1..=others).map(|ahead| (server + ahead) % ensemble.size()).collect();
        others.iter().for_each(|other| ensemble.stall_link(server, *other));
        wait();
        for other in others {
            match self.detail / 2 {
                0 => ensemble.restore_link(server, other),
                _ => ensemble.cut_link(server, other),
            }
        }
    }

    /// Makes an owner release, and kills a server while its clients learn of that. Another server, to which these
    /// clients then move, has not applied the release yet.
    fn kill_at_a_handover(&self, world: &World, server: usize, owner: usize) {
        let ensemble = &world.ensemble;
        let mut others = (0..ensemble.size()).filter(|other| *other != server);
        let late = others.find(|other| ensemble.mode(*other).as_deref() != Some("leader"));
        late.inspect(|late| ensemble.pause(*late));
        world.register.end_prolonging(owner);
        thread::sleep(self.length / 100);
        ensemble.kill(server);
        late.inspect(|late| ensemble.resume(*late));
    }

    fn inject_into_client(&self, world: &World, client: usize, wait: impl FnOnce()) {
        let client = &world.clients[client];
        let link = client.link();
        match self.fault {
            Fault::ClientKilled => {
                client.kill();
                wait();
                return client.start();
            }
            Fault::ClientStopped | Fault::ClientStoppedLong => {
                client.stop();
                wait();
                return client.resume();
            }
            Fault::DescriptorsExhausted => {
                client.exhaust_descriptors();
                link.cut();
                wait();
                return client.restore_descriptors();
            }
            Fault::PartitionOneWay if self.detail % 2 == 0 => link.drop_packets(Direction::Requests),
            Fault::PartitionOneWay => link.drop_packets(Direction::Replies),
            Fault::Silence => link.silence((self.detail < world.ensemble.size()).then_some(self.detail)),
            Fault::RepliesLost => link.hold_replies(),
            Fault::Cut => link.cut(),
            Fault::Refused => link.refuse(),
            _ => link.drop_packets(Direction::Both),
        }
        wait();
        if self.fault == Fault::RepliesLost {
            link.cut();
        }
        link.restore();
    }
}

fn clients_with_tickets() -> Vec<usize> {
    (0..CLIENTS).filter(|client| has_tickets(*client)).collect()
}

/// Restarts a server with another value for a setting.
fn restart_under(ensemble: &Ensemble, server: usize, setting: &str, values: [Duration; 2]) {
    let [former, next] = values.map(|value| format!("{setting}={}", value.as_millis()));
    ensemble.kill(server);
    ensemble.node(server).reconfigure(&former, &next);
    ensemble.restart(server);
}
