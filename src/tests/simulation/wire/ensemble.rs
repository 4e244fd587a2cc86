//! [`Ensemble`]: the servers in front of the simulated ZooKeeper, and the writes under way to its
//! leader.

use std::collections::VecDeque;
use std::sync::Arc;

use super::leader::Proposal;
use crate::fake::View;
use crate::time::Moment;

/// What is wrong with a server, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Serving,
    /// No process listens.
    Down,
    /// Connections are accepted, and nothing is read from them.
    Silent,
    /// It takes part in an election: connections are accepted, and closed at the first request.
    Electing,
    /// All packets to it and from it are lost for now.
    Unreachable,
    ReadOnly,
    /// It is no ZooKeeper server, or a broken one.
    Garbled,
    /// It does not apply what the leader commits, until a write passes through it.
    Lagging,
    /// A leader that the others have deposed and that does not know it. It takes up sessions and
    /// answers reads, and the ensemble learns nothing of that.
    Deposed,
    /// It answers pings, and no other request any more.
    PingsOnly,
    /// It takes sessions up, and demands an authentication of another kind with the first request.
    Demanding,
    /// It refuses clients that authenticate by SASL.
    Refusing,
    /// It does not use SASL.
    WithoutSasl,
    /// It leaves the exchange by SASL in its midst.
    Mute,
}

pub(super) struct Server {
    pub(super) mode: Mode,
    /// What it has applied, if that is not everything.
    pub(super) view: Option<Arc<View>>,
    /// Since when it has served without a fault; `None` while it does not.
    pub(super) well_since: Option<Moment>,
}

impl Server {
    pub(super) fn is_reachable(&self) -> bool {
        self.mode != Mode::Unreachable
    }

    /// Returns whether it reads what arrives.
    pub(super) fn reads(&self) -> bool {
        !matches!(self.mode, Mode::Unreachable | Mode::Silent | Mode::Down)
    }

    pub(super) fn recover(&mut self, now: Moment) {
        self.mode = Mode::Serving;
        self.view = None;
        self.well_since = Some(now);
    }
}

/// See the [module](self).
#[derive(Default)]
pub(in crate::tests::simulation) struct Ensemble {
    pub(super) servers: Vec<Server>,
    /// The leader commits them in order.
    pub(super) proposals: VecDeque<Proposal>,
    /// The leader commits nothing for now.
    pub(super) is_stalled: bool,
    /// The number of the last connection.
    pub(super) last_number: i64,
}

impl Ensemble {
    pub(in crate::tests::simulation) fn new(servers: usize, now: Moment) -> Ensemble {
        let server = || Server { mode: Mode::Serving, view: None, well_since: Some(now) };
        let servers = std::iter::repeat_with(server).take(servers).collect();
        Ensemble { servers, ..Ensemble::default() }
    }

    pub(super) fn all_servers(&self) -> Vec<usize> {
        (0..self.servers.len()).collect()
    }

    /// The servers that serve.
    pub(super) fn well_servers(&self) -> Vec<usize> {
        let is_well = |server: &usize| self.servers[*server].well_since.is_some();
        (0..self.servers.len()).filter(is_well).collect()
    }

    pub(super) fn next_number(&mut self) -> i64 {
        self.last_number += 1;
        self.last_number
    }
}
