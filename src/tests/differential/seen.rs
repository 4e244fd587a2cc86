//! [`Seen`]: what arrives on a connection, and how two connections are compared.

use std::collections::BTreeMap;

use crate::client::{OpOutcome, Reply, Stat, Transacted};
use crate::error::{ZkError, ZkResult};
use zookeeper_connection::codec::EventKind;

/// One thing that arrives on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Reply(ZkResult<Reply>),
    Event(EventKind, String),
    /// The server has closed the connection.
    End,
    /// The server is silent.
    Silence,
}

impl Seen {
    pub(super) fn reply(reply: ZkResult<Reply>) -> Seen {
        match reply {
            Ok(Reply::Children(names)) => {
                // The names come in no particular order.
                let mut sorted: Vec<String> = names.iter().map(str::to_owned).collect();
                sorted.sort();
                Seen::Reply(Ok(Reply::Children(sorted.into())))
            }
            reply => Seen::Reply(reply),
        }
    }

    /// Returns the name, in `tests/environment.md`, of what a server has done. A success has a name only if it commits
    /// a transaction.
    pub(super) fn name(&self) -> Option<&'static str> {
        Some(match self {
            Seen::Event(EventKind::Created, _) => "creation-notified",
            Seen::Event(EventKind::Deleted, _) => "deletion-notified",
            Seen::Event(EventKind::DataChanged, _) => "change-notified",
            Seen::Event(EventKind::ChildrenChanged, _) => "children-notified",
            Seen::Reply(Ok(Reply::Multi(Transacted::Committed(_)))) => "transaction-committed",
            Seen::Reply(Ok(Reply::Multi(_))) => "transaction-failed",
            Seen::Reply(Err(ZkError::NoAuth)) => "permission-denied",
            Seen::Reply(Err(ZkError::BadVersion)) => "version-refused",
            Seen::Reply(Err(ZkError::InvalidAcl)) => "acl-refused",
            Seen::Reply(Err(ZkError::NoNode | ZkError::NodeExists | ZkError::NotEmpty)) => "state-refused",
            Seen::Reply(Err(_)) => "other-refusal",
            Seen::End => "connection-ended",
            _ => return None,
        })
    }

    /// Takes out the stats, whose transaction ids and session ids differ between the servers.
    fn take_stats(&mut self) -> Vec<Stat> {
        match self {
            Seen::Reply(Ok(Reply::Created { stat, .. } | Reply::Found(stat))) => {
                stat.iter_mut().map(std::mem::take).collect()
            }
            Seen::Reply(Ok(Reply::Stat(stat) | Reply::Data(_, stat))) => vec![std::mem::take(stat)],
            Seen::Reply(Ok(Reply::Multi(Transacted::Committed(outcomes)))) => {
                let of_outcome = |outcome: &mut OpOutcome| match outcome {
                    OpOutcome::DataSet(stat) => Some(std::mem::take(stat)),
                    _ => None,
                };
                outcomes.iter_mut().filter_map(of_outcome).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Maps the ids on the real server to the corresponding ids on the model.
#[derive(Default)]
pub(super) struct Numbers {
    transactions: BTreeMap<i64, i64>,
    sessions: BTreeMap<i64, i64>,
}

impl Numbers {
    /// Records that two sessions correspond.
    pub(super) fn session(&mut self, real: i64, model: i64) {
        self.sessions.insert(real, model);
    }

    /// Compares what arrived from the two servers. Fails with a description of the difference.
    pub(super) fn compare(&mut self, real: &[Seen], model: &[Seen]) -> Result<(), String> {
        if real.len() != model.len() {
            return Err("more arrived from one server than from the other".to_owned());
        }
        for (real, model) in real.iter().zip(model) {
            let (mut real, mut model) = (real.clone(), model.clone());
            let (of_real, of_model) = (real.take_stats(), model.take_stats());
            if real != model || of_real.len() != of_model.len() {
                return Err(format!("{real:?} differs from {model:?}"));
            }
            for (of_real, of_model) in of_real.iter().zip(&of_model) {
                self.same_stat(of_real, of_model)
                    .map_err(|what| format!("{what}: {of_real:?} differs from {of_model:?}"))?;
            }
        }
        Ok(())
    }

    fn same_stat(&mut self, real: &Stat, model: &Stat) -> Result<(), &'static str> {
        let counts =
            |stat: &Stat| (stat.version, stat.cversion, stat.aversion, stat.data_length, stat.num_children);
        if counts(real) != counts(model) {
            return Err("a version or a number");
        }
        let owner = self.sessions.get(&real.ephemeral_owner).copied().unwrap_or(0);
        if owner != model.ephemeral_owner {
            return Err("the owner");
        }
        let transactions = |stat: &Stat| [stat.czxid, stat.mzxid, stat.pzxid];
        for (real, model) in transactions(real).into_iter().zip(transactions(model)) {
            self.same_transaction(real, model)?;
        }
        Ok(())
    }

    /// Checks that each transaction on one server corresponds to one on the other, in the same order.
    fn same_transaction(&mut self, real: i64, model: i64) -> Result<(), &'static str> {
        if let Some(known) = self.transactions.get(&real) {
            return if *known == model { Ok(()) } else { Err("a transaction") };
        }
        let before = self.transactions.range(..real).next_back().is_none_or(|(_, other)| *other < model);
        let after = self.transactions.range(real..).next().is_none_or(|(_, other)| model < *other);
        if !before || !after {
            return Err("the order of transactions");
        }
        self.transactions.insert(real, model);
        Ok(())
    }
}
