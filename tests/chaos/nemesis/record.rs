//! The kinds of faults, and the record of each one.

use std::fmt;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    ServerKilled,
    HandoverKilled,
    TimeoutRaised,
    TickLowered,
    ServerStopped,
    ServerLeft,
    QuorumStopped,
    LinksStalled,
    KdcStopped,
    ClientKilled,
    ClientStopped,
    ClientStoppedLong,
    DescriptorsExhausted,
    Partition,
    PartitionLong,
    PartitionOneWay,
    Silence,
    RepliesLost,
    Cut,
    Refused,
}

impl Fault {
    pub const ALL: [Fault; 20] = [
        Fault::ServerKilled,
        Fault::HandoverKilled,
        Fault::TimeoutRaised,
        Fault::TickLowered,
        Fault::ServerStopped,
        Fault::ServerLeft,
        Fault::QuorumStopped,
        Fault::LinksStalled,
        Fault::KdcStopped,
        Fault::ClientKilled,
        Fault::ClientStopped,
        Fault::ClientStoppedLong,
        Fault::DescriptorsExhausted,
        Fault::Partition,
        Fault::PartitionLong,
        Fault::PartitionOneWay,
        Fault::Silence,
        Fault::RepliesLost,
        Fault::Cut,
        Fault::Refused,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Fault::ServerKilled => "server killed (SIGKILL), restarted",
            Fault::HandoverKilled => "server killed at a hand-over",
            Fault::TimeoutRaised => "server restarted, longer timeouts",
            Fault::TickLowered => "server restarted, shorter tick",
            Fault::ServerStopped => "server stopped (SIGSTOP)",
            Fault::ServerLeft => "server stopped, clients leave and return",
            Fault::QuorumStopped => "two servers stopped: no quorum",
            Fault::LinksStalled => "links between servers stalled",
            Fault::KdcStopped => "KDC stopped, its clients' connections cut",
            Fault::ClientKilled => "client killed (SIGKILL), restarted",
            Fault::ClientStopped => "client stopped (SIGSTOP)",
            Fault::ClientStoppedLong => "client stopped beyond its session",
            Fault::DescriptorsExhausted => "no descriptors, connections cut",
            Fault::Partition => "client partitioned",
            Fault::PartitionLong => "client partitioned beyond its session",
            Fault::PartitionOneWay => "client partitioned in one direction",
            Fault::Silence => "relay silent, one server or all",
            Fault::RepliesLost => "replies lost, then connections cut",
            Fault::Cut => "connections cut",
            Fault::Refused => "connections refused",
        }
    }

    /// Returns the name of the fault in `tests/environment.md`.
    pub fn token(self) -> String {
        let mut token = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !token.is_empty() {
                token.push('-');
            }
            token.push(letter.to_ascii_lowercase());
        }
        token
    }

    /// Returns a label for the picture.
    pub fn label(self) -> &'static str {
        match self {
            Fault::ServerKilled | Fault::HandoverKilled | Fault::ClientKilled => "kill -9",
            Fault::TimeoutRaised => "timeout",
            Fault::TickLowered => "tick",
            Fault::ServerStopped | Fault::KdcStopped | Fault::ClientStopped | Fault::ClientStoppedLong => {
                "stop"
            }
            Fault::ServerLeft => "leave",
            Fault::QuorumStopped => "no quorum",
            Fault::LinksStalled => "stall",
            Fault::DescriptorsExhausted => "descriptors",
            Fault::Partition | Fault::PartitionLong => "partition",
            Fault::PartitionOneWay => "one way",
            Fault::Silence => "silence",
            Fault::RepliesLost => "replies lost",
            Fault::Cut => "cut",
            Fault::Refused => "refuse",
        }
    }

    /// Returns whether the fault affects a process rather than the network.
    pub fn is_of_a_process(self) -> bool {
        matches!(
            self,
            Fault::ServerKilled
                | Fault::HandoverKilled
                | Fault::TimeoutRaised
                | Fault::TickLowered
                | Fault::ServerStopped
                | Fault::ServerLeft
                | Fault::QuorumStopped
                | Fault::ClientKilled
                | Fault::ClientStopped
                | Fault::ClientStoppedLong
                | Fault::DescriptorsExhausted
        )
    }

    /// Returns whether the fault should hit an owner, because it may outlast the session or ends the process.
    pub fn wants_an_owner(self) -> bool {
        matches!(
            self,
            Fault::ServerStopped
                | Fault::HandoverKilled
                | Fault::LinksStalled
                | Fault::KdcStopped
                | Fault::ClientKilled
                | Fault::ClientStoppedLong
                | Fault::PartitionLong
                | Fault::PartitionOneWay
        )
    }

    pub fn outlasts_the_session(self) -> bool {
        matches!(self, Fault::ClientStoppedLong | Fault::PartitionLong)
    }

    pub fn is_a_kill(self) -> bool {
        matches!(
            self,
            Fault::ServerKilled
                | Fault::HandoverKilled
                | Fault::TimeoutRaised
                | Fault::TickLowered
                | Fault::ClientKilled
        )
    }
}

/// The target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Server(usize),
    /// All servers except this one.
    AllBut(usize),
    Kdc,
    Client(usize),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Server(server) => write!(f, "server-{server}"),
            Target::AllBut(server) => write!(f, "all-but-server-{server}"),
            Target::Kdc => write!(f, "kdc"),
            Target::Client(client) => write!(f, "client-{client}"),
        }
    }
}

/// One fault, from its first to its last moment.
#[derive(Clone, Debug)]
pub struct Record {
    pub fault: Fault,
    pub target: Target,
    pub began: u64,
    pub ended: u64,
}
