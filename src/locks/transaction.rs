//! [`Transaction`]: changes that take effect only while a lock is held.

use std::sync::Arc;

use crate::client::{Acl, Call, CreateMode, Op, OpOutcome, Transacted};
use crate::error::{Checked, LockError, Operation, Result, ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::recipe::revocation::is_requested;
use crate::request::Request;
use crate::session::Session;

const EMPTY: &str = "it is empty";

/// Two checks that cannot both succeed, because no znode has two versions.
const REFUSAL: [i32; 2] = [i32::MIN, i32::MIN + 1];

/// Changes to znodes that take effect together or not at all.
///
/// [`LockGuard::commit`](crate::LockGuard::commit) passes an empty transaction to a closure, which adds the
/// changes and returns the transaction. [`dry_run`](Transaction::dry_run) only asks whether they would take effect.
///
/// ```no_run
/// # use zookeeper_recipes_lock::{LockError, LockGuard};
/// # fn publish(guard: &LockGuard, version: i32) -> Result<(), LockError> {
/// guard.commit(|changes| {
///     changes.set_data("/report/latest", "2026-07").if_version(version).delete("/report/draft")
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// Paths are relative to the chroot of the session, if there is one. Versions refer to the data of a znode
/// ([`Stat::version`](crate::client::Stat)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a transaction changes nothing before it is returned from the closure of `commit`"]
pub struct Transaction {
    operations: Vec<Op>,
    /// The rule that a call of [`if_version`](Transaction::if_version) has broken.
    broken_rule: Option<&'static str>,
}

impl Transaction {
    /// Adds the creation of a persistent znode that everybody may change.
    ///
    /// The commit fails if the znode exists.
    pub fn create(self, path: &str, data: impl Into<Vec<u8>>) -> Transaction {
        self.create_with(path, data, &Acl::open_unsafe(), CreateMode::Persistent)
    }

    /// Adds the creation of a znode.
    ///
    /// The commit fails if the znode exists.
    pub fn create_with(
        self,
        path: &str,
        data: impl Into<Vec<u8>>,
        acl: &[Acl],
        mode: CreateMode,
    ) -> Transaction {
        self.then(Op::Create { path: path.to_owned(), data: data.into(), acl: acl.to_vec(), mode })
    }

    /// Adds the replacement of a znode's data.
    ///
    /// The commit fails if the znode does not exist.
    pub fn set_data(self, path: &str, data: impl Into<Vec<u8>>) -> Transaction {
        self.then(Op::SetData { path: path.to_owned(), data: data.into(), version: None })
    }

    /// Adds the deletion of a znode.
    ///
    /// The commit fails if the znode does not exist or has children.
    pub fn delete(self, path: &str) -> Transaction {
        self.then(Op::Delete { path: path.to_owned(), version: None })
    }

    /// Adds a check that a znode exists.
    ///
    /// The commit fails if the znode does not exist.
    pub fn check(self, path: &str) -> Transaction {
        self.then(Op::Check { path: path.to_owned(), version: None })
    }

    /// Makes the most recently added change conditional on a version.
    ///
    /// The commit fails if the data of the znode does not have this version. A creation cannot be conditional, and no
    /// znode has the version -1, which means any version to a server. So after a creation, and with -1, `if_version`
    /// makes the commit fail with [`InvalidArgument`](crate::ErrorReason::InvalidArgument).
    pub fn if_version(mut self, expected: i32) -> Transaction {
        match self.operations.last_mut() {
            _ if expected == -1 => self.broken_rule = Some("if_version takes the version of a znode, not -1"),
            Some(Op::SetData { version, .. } | Op::Delete { version, .. } | Op::Check { version, .. }) => {
                *version = Some(expected);
            }
            Some(Op::Create { .. }) | None => {
                self.broken_rule = Some("if_version must follow set_data, delete or check");
            }
        }
        self
    }

    /// Asks the servers whether the transaction would take effect now, without making its changes.
    ///
    /// Use this to find out about missing permissions, znodes or quota before the changes are needed. Begin with
    /// [`Transaction::default`]. No lock is needed.
    ///
    /// The call adds a check that always fails to the end of the transaction. So the leader checks each change, and then
    /// refuses them all: nothing is created, no sequence number is used, and no watch fires. The call blocks until it is
    /// answered or contact is lost. It may be repeated.
    ///
    /// The servers check a quota as if each creation were the only one.
    ///
    /// ```no_run
    /// # use zookeeper_recipes_lock::{LockError, Session};
    /// use zookeeper_recipes_lock::data::Transaction;
    ///
    /// # fn may_lock(session: &Session) -> Result<(), LockError> {
    /// Transaction::default().create("/locks/a", "").delete("/locks/a").dry_run(session)
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of the first change that would fail, such as [`AccessDenied`](crate::ErrorReason::AccessDenied),
    /// [`Refused`](crate::ErrorReason::Refused) if a quota is used up, or [`Server`](crate::ErrorReason::Server) with
    /// the server's answer. All others are those of [`LockGuard::commit`](crate::LockGuard::commit) that are not about a
    /// lock.
    pub fn dry_run(&self, session: &Session) -> Result<()> {
        self.validate(None)?;
        let first = self.operations.first().ok_or_else(|| invalid(EMPTY))?;
        let (operation, path) = (operation_of(first), first.path());
        session.check_process(operation, path)?;
        let refusal = REFUSAL.map(|version| Op::Check { path: "/".to_owned(), version: Some(version) });
        let operations = [&*self.operations, &refusal].concat();
        let core = session.core();
        match core.ask(Call::multi(&*operations)) {
            Ok(Transacted::Failed { position, error }) => match self.operations.get(position) {
                Some(failed) => Err(LockError::client(operation_of(failed), failed.path(), error)),
                // All changes have passed.
                None => Ok(()),
            },
            // Cannot happen, as `REFUSAL` says.
            Ok(Transacted::Committed(_)) => Ok(()),
            Err(error) => Err(core.failure(operation, path, error)),
        }
    }

    fn then(mut self, operation: Op) -> Transaction {
        self.operations.push(operation);
        self
    }

    /// Checks the transaction. `own` is the znode of the lock, if there is one.
    fn validate(&self, own: Option<&ZNodePath>) -> Result<()> {
        if self.operations.is_empty() {
            return Err(invalid(EMPTY));
        }
        if let Some(rule) = self.broken_rule {
            return Err(invalid(rule));
        }
        for operation in &self.operations {
            let path = ZNodePath::parse(operation.path())?;
            if Some(&path) == own {
                return Err(invalid("it names the lock's own znode; to delete that znode, unlock"));
            }
        }
        Ok(())
    }
}

fn invalid(rule: &str) -> LockError {
    LockError::invalid_argument("transaction", rule)
}

/// Makes the changes in a transaction that also checks the znode of a lock.
pub(crate) fn commit(
    request: &Arc<Request>,
    znode: &ZNodePath,
    is_owner: bool,
    transaction: Transaction,
) -> Result<Vec<OpOutcome>> {
    transaction.validate(Some(znode))?;
    request.check_process(Operation::COMMIT)?;
    if !is_owner {
        return Err(request.not_owner(Operation::COMMIT));
    }
    loop {
        let version = rule_out_lost(request, znode, Operation::COMMIT)?;
        // The znode has a GUID in its name, so it is created only once, and nobody can get ahead of an owner.
        // Therefore the lock is held for as long as the znode exists. The version rules out earlier
        // transactions whose replies were lost.
        let mut operations = vec![Op::Check { path: znode.to_string(), version: Some(version) }];
        operations.extend(transaction.operations.iter().cloned());
        let outcome = request.core().ask(Call::multi(&*operations));
        if let Ok(Transacted::Failed { position: 0, error: ZkError::BadVersion }) = outcome {
            // Another client has written to the znode to ask for the release of the lock.
            let present = present_version(request, znode)?;
            // A lower version belongs to another znode, which somebody has created at the same path.
            if present < version {
                return Err(gone(request, Operation::COMMIT));
            }
            request.commit_fence().advance_to(present);
            continue;
        }
        let committed = match outcome {
            Err(error @ ZkError::SessionExpired) => {
                Err(request.core().failure(Operation::COMMIT, znode, error))
            }
            Ok(Transacted::Failed { position: 0, error: ZkError::NoNode }) => {
                Err(gone(request, Operation::COMMIT))
            }
            outcome => committed(znode, &operations, outcome),
        };
        if committed.as_ref().is_err_and(LockError::is_connection_loss) {
            request.commit_fence().close(version);
        }
        return committed;
    }
}

/// Ensures that no transaction of this request whose reply was lost can still take effect. Asks no server if no reply
/// was lost. Returns the version that the next transaction checks.
pub(crate) fn rule_out_lost(request: &Request, znode: &ZNodePath, operation: Operation) -> Result<i32> {
    loop {
        match request.commit_fence().version() {
            Ok(version) => return Ok(version),
            Err(version) => raise_version(request, znode, version, operation)?,
        }
    }
}

/// Ensures that the next transaction checks a higher version of the znode than any that the znode has had until now.
pub(crate) fn outdate(request: &Request, znode: &ZNodePath) -> Result<()> {
    let present = present_version(request, znode)?;
    request.commit_fence().advance_to(present);
    request.commit_fence().close(present);
    Ok(())
}

fn present_version(request: &Request, znode: &ZNodePath) -> Result<i32> {
    let found = request.core().ask(Call::exists(znode, false));
    let found = found.map_err(|error| request.core().failure(Operation::COMMIT, znode, error))?;
    Ok(found.ok_or_else(|| gone(request, Operation::COMMIT))?.version)
}

/// Raises the version of the znode by writing the same data again. From then on, any transaction that checks the old
/// version fails.
fn raise_version(request: &Request, znode: &ZNodePath, version: i32, operation: Operation) -> Result<()> {
    let core = request.core();
    let raised = || -> ZkResult<i32> {
        let (mut data, stat) = core.ask(Call::get_data(znode, false))?;
        if stat.version > version {
            return Ok(stat.version);
        }
        // The owner's own data is not a request for revocation, and the new version must not turn it into one.
        if !is_requested(&data, stat.version) && is_requested(&data, stat.version.saturating_add(1)) {
            data.clear();
        }
        match core.ask(Call::set_data(znode, data, Some(stat.version))) {
            // Another client or thread was faster. The next attempt reads the version that it wrote.
            Err(ZkError::BadVersion) => Ok(version),
            written => written.map(|stat| stat.version),
        }
    };
    match raised() {
        Ok(reached) => {
            request.commit_fence().advance_to(reached);
            Ok(())
        }
        Err(ZkError::NoNode) => Err(gone(request, operation)),
        Err(error) => {
            let operation = Operation { permission: "READ and WRITE", checked: Checked::Itself, ..operation };
            Err(core.failure(operation, znode, error))
        }
    }
}

fn committed(znode: &ZNodePath, operations: &[Op], outcome: ZkResult<Transacted>) -> Result<Vec<OpOutcome>> {
    match outcome {
        Ok(Transacted::Committed(mut outcomes)) => {
            // The first outcome belongs to the check of the lock's own znode.
            outcomes.drain(..outcomes.len().min(1));
            Ok(outcomes)
        }
        Ok(Transacted::Failed { position, error }) => {
            let failed = operations.get(position);
            let path = failed.map_or(znode.as_str(), Op::path);
            Err(LockError::client(failed.map_or(Operation::COMMIT, operation_of), path, error))
        }
        Err(source @ ZkError::MarshallingError) => {
            Err(LockError::outcome_unknown(Operation::COMMIT, znode, source))
        }
        Err(error) => Err(LockError::client(Operation::COMMIT, znode, error)),
    }
}

/// Notes that the znode is gone, so that the owner knows before the event arrives. Returns the error.
fn gone(request: &Request, operation: Operation) -> LockError {
    request.znode_is_gone();
    request.not_owner(operation)
}

fn operation_of(operation: &Op) -> Operation {
    match operation {
        Op::Create { .. } => Operation::CREATE,
        Op::Delete { .. } => Operation::DELETE,
        Op::SetData { .. } => Operation::SET_DATA,
        Op::Check { .. } => Operation::CHECK,
    }
}

#[cfg(test)]
mod tests;
