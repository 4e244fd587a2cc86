//! The leader of the ensemble, which commits the writes that the servers propose, in order.
//!
//! What has been committed is recorded for the [checks](super::super::checks).

use std::sync::Arc;

use super::endpoint::Endpoint;
use super::ensemble::{Commit, Mode};
use super::faults;
use super::server::Front;
use crate::client::{Call, CreateMode, KEEP_ALIVE_PATH, Op, Reply, Transacted};
use crate::error::{ZkError, ZkResult};
use crate::fake::ServedConnection;
use crate::recipe::session_tag::SessionTag;
use crate::recipe::znode_name::generated_sequence;
use crate::tests::simulation::checks::has_number_in_doubt;
use crate::tests::simulation::seen::saw;
use crate::tests::simulation::world::{World, short};
use zookeeper_connection::codec::OpCode;

/// A write on its way to the leader.
pub(super) struct Proposal {
    pub(super) client: usize,
    /// The number of the connection that it came on.
    pub(super) number: i64,
    pub(super) server: usize,
    pub(super) connection: Arc<ServedConnection>,
    pub(super) xid: i32,
    pub(super) call: Call,
}

impl World {
    /// Makes the leader commit all proposals.
    pub(super) fn commit_all(&self) {
        faults::end_stall(self);
        while !self.state().ensemble.proposals.is_empty() {
            self.commit_next();
        }
    }

    /// Makes the leader commit the next proposal. The proposing server replies if the connection still
    /// exists.
    pub(super) fn commit_next(&self) {
        let now = self.now();
        let proposal = {
            let mut state = self.state();
            // Whoever commits everything does not wait for a narrow link.
            let next = state.ensemble.next_proposal(now).unwrap_or(0);
            if next > 0 {
                saw("proposals-overtake-each-other");
            }
            state.ensemble.proposals.remove(next)
        };
        let Some(proposal) = proposal else { return };
        let Proposal { client, number, server, xid, .. } = proposal;
        faults::occupy_link(self, server, client);
        let result = self.commit(&proposal);
        let is_proof = result.is_err();
        let keeps_alive = proposal.call.path() == Some(KEEP_ALIVE_PATH);
        let commit = Commit { client, number, xid, result };
        if self.state().ensemble.servers[server].mode == Mode::CutFromLeader {
            saw("commit-held-up-by-a-stall");
            return self.state().ensemble.servers[server].held_up.push_back(commit);
        }
        self.deliver_commit(commit);
        if keeps_alive {
            faults::perhaps_stall_link(self, client);
        }
        faults::perhaps_lose_server(self, server, is_proof);
    }

    /// Makes the proposing server handle a commit.
    pub(super) fn deliver_commit(&self, commit: Commit) {
        let Commit { client, number, xid, result } = commit;
        self.with_endpoint(client, |endpoint| {
            let Endpoint { transport, late, ledger, .. } = endpoint;
            let mut all = transport.iter_mut().chain(late.iter_mut());
            if let Some(transport) = all.find(|transport| transport.peer.number == number) {
                Front { world: self, client, transport, ledger }.handle_commit(xid, result);
            }
        });
    }

    fn commit(&self, proposal: &Proposal) -> ZkResult<Reply> {
        let Proposal { client, number, connection, call, .. } = proposal;
        let is_late = self.with_endpoint(*client, |endpoint| {
            endpoint.transport.as_ref().is_none_or(|transport| transport.peer.number != *number)
        });
        let is_denied = self.now() < self.state().clients[*client].denied_until;
        let is_denied = |path: &str| is_denied && self.zookeeper.exists(path);
        let result = match call {
            Call::Delete { path, .. } if is_denied(path) => {
                saw("permission-denied");
                Err(ZkError::NoAuth)
            }
            Call::Multi(operations) => {
                saw(if is_late == Some(true) { "transaction-executed-late" } else { "transaction-executed" });
                let is_refused = |operation: &Op| {
                    matches!(operation, Op::Check { .. } | Op::Delete { .. }) && is_denied(operation.path())
                };
                match operations.iter().position(is_refused) {
                    Some(position) => {
                        saw("transaction-denied");
                        Ok(Reply::Multi(Transacted::Failed { position, error: ZkError::NoAuth }))
                    }
                    None => self.transact(operations, || connection.write(call)),
                }
            }
            Call::Delete { path, .. } => {
                let owner = self.zookeeper.stat(path).map_or(0, |stat| stat.ephemeral_owner);
                let result = connection.write(call);
                if result.is_ok() {
                    self.record_deletion(*client, path, owner);
                }
                result
            }
            Call::Create { data, mode, .. } => {
                let result = connection.write(call);
                if let Ok(Reply::Created { path, .. }) = &result {
                    if is_late == Some(true) {
                        saw("create-takes-effect-late");
                        self.state().late.insert(path.clone());
                    }
                    self.record_creation(path, data, *mode);
                }
                result
            }
            _ => connection.write(call),
        };
        note_result(self, *client, call, &result);
        result
    }

    /// Records that a client has created a znode.
    fn record_creation(&self, path: &str, data: &[u8], mode: CreateMode) {
        let (dir, name) = path.rsplit_once('/').unwrap_or_default();
        if has_number_in_doubt(name) {
            // The other request may leave in the same step.
            self.record_end_of_counter(dir, &self.zookeeper.children(dir));
        }
        let mut state = self.state();
        if SessionTag::read(name).is_some() && !state.paths.insert(path.to_owned()) {
            drop(state);
            return self.fail(format!("{path} is created for a second time"));
        }
        *state.created.entry(data.to_vec()).or_default() += 1;
        // A downgrade chooses the name of its znode itself, and may not be completed.
        if mode == CreateMode::Ephemeral && generated_sequence(path).is_some() {
            state.tentative.insert(path.to_owned());
        }
    }

    /// Records that a client has deleted a znode that belonged to the session `owner`.
    fn record_deletion(&self, client: usize, path: &str, owner: i64) {
        let state = self.state();
        let is_revoked = state.revoked.contains(path);
        let is_of_another = owner != state.clients[client].session_id;
        drop(state);
        if is_revoked || (is_of_another && generated_sequence(path).is_some()) {
            self.record_deletion_by_another(path, owner);
        }
    }
}

/// Writes what a server has done to the trace.
pub(super) fn note_result(world: &World, client: usize, call: &Call, result: &ZkResult<Reply>) {
    let path = match call {
        Call::Multi(operations) => operations.last().map_or("", Op::path),
        call => call.path().unwrap_or_default(),
    };
    let outcome = match result {
        Ok(Reply::Created { path, .. }) => short(path),
        Ok(Reply::Children(names)) => {
            let names: Vec<String> = names.iter().map(short).collect();
            format!("[{}]", names.join(" "))
        }
        Ok(Reply::Found(None)) => "none".to_owned(),
        Ok(Reply::Multi(Transacted::Failed { position, error })) => format!("{error:?} at {position}"),
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{error:?}"),
    };
    let line = || format!("client {client}: {:?} {} -> {outcome}", OpCode::of_call(call), short(path));
    match path == KEEP_ALIVE_PATH {
        true => world.note_routine(line()),
        false => world.note(line()),
    }
}
