//! [`Seen`]: what a connection shows, and how two of them are compared.

use std::collections::BTreeMap;

use crate::client::Stat;
use crate::connection::codec::{EventKind, Reply};
use crate::error::{ZkError, ZkResult};

/// What comes on a connection, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Reply(ZkResult<Reply>),
    /// A multi failed at this request. Servers put numbers into the places of the others.
    Failed(usize, ZkError),
    Event(EventKind, String),
    /// The server has ended the connection.
    End,
    /// The server says no more.
    Silence,
}

impl Seen {
    pub(super) fn reply(reply: ZkResult<Reply>) -> Seen {
        match reply {
            Ok(Reply::Children(names)) => {
                // In no order.
                let mut sorted: Vec<String> = names.iter().map(str::to_owned).collect();
                sorted.sort();
                Seen::Reply(Ok(Reply::Children(sorted.into())))
            }
            Ok(reply) => match reply.multi_failure() {
                Some((position, error)) => Seen::Failed(position, error),
                None => Seen::Reply(Ok(reply)),
            },
            Err(error) => Seen::Reply(Err(error)),
        }
    }

    /// The stats in it, taken out: they have numbers of transactions and sessions.
    fn take_stats(&mut self) -> Vec<Stat> {
        fn of_reply(reply: &mut Reply, stats: &mut Vec<Stat>) {
            match reply {
                Reply::Created { stat, .. } | Reply::Stat(stat) | Reply::Data { stat, .. } => {
                    stats.push(std::mem::take(stat));
                }
                Reply::Multi(results) => {
                    results.iter_mut().flatten().for_each(|reply| of_reply(reply, stats));
                }
                Reply::Empty | Reply::Children(_) | Reply::Path(_) => {}
            }
        }
        let mut stats = Vec::new();
        if let Seen::Reply(Ok(reply)) = self {
            of_reply(reply, &mut stats);
        }
        stats
    }
}

/// Which numbers of the real server stand for which of the model.
#[derive(Default)]
pub(super) struct Numbers {
    transactions: BTreeMap<i64, i64>,
    sessions: BTreeMap<i64, i64>,
}

impl Numbers {
    /// Notes that two sessions are the same.
    pub(super) fn session(&mut self, real: i64, model: i64) {
        self.sessions.insert(real, model);
    }

    /// Compares what the two have shown; the difference, if there is one.
    pub(super) fn compare(&mut self, real: &[Seen], model: &[Seen]) -> Result<(), String> {
        if real.len() != model.len() {
            return Err("one has shown more than the other".to_owned());
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

    /// Each transaction of one is one of the other, and their order is the same.
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
