//! [`Ensemble`]: the servers in front of the simulated ZooKeeper, and the writes on their way to its leader.

use std::collections::VecDeque;
use std::sync::Arc;

use super::leader::Proposal;
use crate::client::Reply;
use crate::error::ZkResult;
use crate::fake::View;
use crate::time::Moment;

/// What is wrong with a server, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Serving,
    /// No process is listening.
    Down,
    /// It accepts connections but reads nothing from them.
    Silent,
    /// It takes part in an election: it accepts connections and closes them at the first request.
    Electing,
    /// All packets to and from it are lost for now.
    Unreachable,
    ReadOnly,
    /// It is not a ZooKeeper server, or it is broken.
    Garbled,
    /// It does not apply what the leader commits until a write passes through it.
    Lagging,
    /// It is a leader that the others have deposed without its knowledge. It takes up sessions and answers
    /// reads, and the ensemble learns nothing of that.
    Deposed,
    /// Its link to the leader stalls. What it has proposed is committed, but it does not learn that: it answers
    /// what was sent before a write, from the state before the stall, and nothing else. It serves no further
    /// session, and the leader gets no report from it.
    CutFromLeader,
    /// It still answers pings, but no other requests.
    PingsOnly,
    /// It takes sessions up and then closes the connection, so the client learns nothing but the grant.
    Unserving,
    /// It takes sessions up, but answers the first request by demanding another kind of authentication.
    Demanding,
    /// It refuses clients that authenticate by SASL.
    Refusing,
    /// It does not use SASL.
    WithoutSasl,
    /// It stops in the middle of the SASL exchange.
    Mute,
}

impl Mode {
    /// Returns the name under which the fault is counted.
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Serving => "server-serves",
            Mode::Down => "server-down",
            Mode::Silent => "server-silent",
            Mode::Electing => "server-electing",
            Mode::Unreachable => "server-unreachable",
            Mode::ReadOnly => "server-read-only",
            Mode::Garbled => "server-garbled",
            Mode::Lagging => "server-lags",
            Mode::Deposed => "server-deposed",
            Mode::CutFromLeader => "server-link-stalls",
            Mode::PingsOnly => "server-answers-pings-only",
            Mode::Unserving => "server-takes-up-and-closes",
            Mode::Demanding => "server-demands-authentication",
            Mode::Refusing => "server-refuses-sasl",
            Mode::WithoutSasl => "server-without-sasl",
            Mode::Mute => "server-stops-in-sasl",
        }
    }
}

pub(super) struct Server {
    pub(super) mode: Mode,
    /// The state that it has applied; `None` if it has applied everything.
    pub(super) view: Option<Arc<View>>,
    /// When it began to serve without a fault; `None` if it does not serve.
    pub(super) well_since: Option<Moment>,
    /// The moment before which it does not recover while faults occur.
    pub(super) paused_until: Moment,
    /// The commits that a stalled link to the leader holds up.
    pub(super) held_up: VecDeque<Commit>,
    /// The moment until which its narrow link to the leader is transmitting.
    pub(super) transmits_until: Option<Moment>,
}

/// A proposal that the leader has committed.
pub(super) struct Commit {
    pub(super) client: usize,
    /// The number of the connection that it came on.
    pub(super) number: i64,
    pub(super) xid: i32,
    pub(super) result: ZkResult<Reply>,
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
    /// The writes on their way to the leader, which commits them in order.
    pub(super) proposals: VecDeque<Proposal>,
    /// Whether the leader is stalled and commits nothing for now.
    pub(super) is_stalled: bool,
    /// The number of the last connection.
    pub(super) last_number: i64,
}

impl Ensemble {
    pub(in crate::tests::simulation) fn new(servers: usize, now: Moment) -> Ensemble {
        let server = || Server {
            mode: Mode::Serving,
            view: None,
            well_since: Some(now),
            paused_until: now,
            held_up: VecDeque::new(),
            transmits_until: None,
        };
        let servers = std::iter::repeat_with(server).take(servers).collect();
        Ensemble { servers, ..Ensemble::default() }
    }

    pub(super) fn all_servers(&self) -> Vec<usize> {
        (0..self.servers.len()).collect()
    }

    /// Returns the servers that serve.
    pub(super) fn well_servers(&self) -> Vec<usize> {
        let is_well = |server: &usize| self.servers[*server].well_since.is_some();
        (0..self.servers.len()).filter(is_well).collect()
    }

    /// Returns the position of the proposal that the leader commits next. Proposals of one server stay in order.
    pub(super) fn next_proposal(&self, now: Moment) -> Option<usize> {
        let is_free = |server: usize| self.servers[server].transmits_until.is_none_or(|until| until <= now);
        self.proposals.iter().position(|proposal| is_free(proposal.server)).filter(|_| !self.is_stalled)
    }

    pub(super) fn next_number(&mut self) -> i64 {
        self.last_number += 1;
        self.last_number
    }
}
