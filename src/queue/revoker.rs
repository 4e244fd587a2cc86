//! [`Revoker`]: asks the holder of a lock to release it, and takes the lock away from one that does
//! not.
//!
//! Origin: "Recoverable Shared Locks" of ZooKeeper's recipe page, there also called "Freaking Laser
//! Beams"; Curator's class of the same name.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::client::Call;
use crate::error::{ErrorReason, LockError, Operation, Result, ZkError, ZkResult};
use crate::lock_options::LockOptions;
use crate::logging;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::recipe::revocation;
use crate::recipe::znode_name::generated_sequence;
use crate::session::{Core, Session};
use crate::tracking::DeletionWatch;

/// Asks the holders of locks to release them, and takes locks away from holders that do not.
///
/// A lock is named by the znode of the request that holds it. Its holder knows it as
/// [`id`](crate::LockGuard::id); other processes find it by
/// [`LockDirectory::current_owner`](crate::queue::LockDirectory::current_owner). A waiting request may be
/// asked, too; it receives the message when it has acquired. The message arrives at
/// [`LockListener::revocation_requested`](crate::LockListener::revocation_requested) or on
/// [`LockGuard::revocation`](crate::LockGuard::revocation). A holder in another language finds
/// `unlock` in the data of its znode, and one whose request is named as Curator's finds `__REVOKE__`, which
/// Curator's holders take up after `makeRevocable`. Holders of earlier builds of this crate do not know the latter: update
/// them before the processes that revoke. The message overwrites the data.
///
/// Each call blocks until the server has answered. It is repeated after a loss of contact, as often
/// as the [retry policy](LockOptions::retry) allows. `Send` and `Sync`.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::Session;
/// use zookeeper_recipes_lock::queue::{LockDirectory, Revocation, Revoker};
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// if let Some(holder) = LockDirectory::new(&session, "/locks/report")?.current_owner()? {
///     let revoker = Revoker::new(&session);
///     match revoker.force_revocation_after(&holder.path, Duration::from_secs(30))? {
///         Revocation::Complied => println!("the holder has released the lock"),
///         _ => println!("the lock was taken away"),
///     }
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[derive(Debug)]
pub struct Revoker {
    support: ProtocolSupport,
}

/// The outcome of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Revocation {
    /// The request ended before the time was over: its holder released it, or the holder's session
    /// ended. A deletion by another client in that time looks the same.
    Complied,
    /// The znode was deleted when the time was over. The holder gets
    /// [`NodeDeleted`](crate::LossReason::NodeDeleted) as soon as it can be reached.
    Forced,
}

/// The outcome of asking.
enum AskOutcome {
    /// Asked. The transaction that created the znode distinguishes it from a later one of the same
    /// name.
    Asked {
        czxid: i64,
    },
    Gone,
    NoRequest,
}

impl Revoker {
    /// Makes a revoker with the default retry policy. Sends nothing.
    #[must_use]
    pub fn new(session: &Session) -> Revoker {
        Revoker { support: ProtocolSupport::new(session) }
    }

    /// Makes a revoker with the [retry policy](LockOptions::retry) of the options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument) when the options hold more than about 1 MiB
    /// of data or a [`max_hold`](LockOptions::max_hold) of zero.
    pub fn with_options(session: &Session, options: LockOptions) -> Result<Revoker> {
        Ok(Revoker { support: ProtocolSupport::with_options(session, options)? })
    }

    /// Asks the holder of the request at this path to release the lock, and returns when the server
    /// has stored the message. Asking again changes nothing.
    ///
    /// # Errors
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument), and
    ///   [`NotALock`](crate::ErrorReason::NotALock) for the path of something else, such as a
    ///   lock directory; nothing was written.
    /// - [`NoSuchRequest`](crate::ErrorReason::NoSuchRequest): the request no longer exists, so there is no
    ///   holder to ask.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): the znode's ACL grants this client no WRITE
    ///   permission, or no READ permission, which servers since 3.8.4 require to report whether the
    ///   znode exists.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss) after the last attempt,
    ///   [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed): the holder may have been
    ///   asked or not.
    pub fn request_revocation(&self, path: &str) -> Result<()> {
        self.ask(&request_path(path)?).map(drop)
    }

    /// Asks the holder of the request at this path to release the lock, waits up to `grace` until
    /// the request is gone, and then deletes its znode.
    ///
    /// **The holder may still be working then.** The next request in the queue acquires at once. A
    /// holder that is paused or unreachable considers itself the owner until it notices the
    /// deletion or its lease ends, for at most one session timeout of the holder's session. Only
    /// the [fencing token](crate::LockGuard::fencing_token) protects a resource from it.
    ///
    /// The request may also be a waiting one. It notices its end at its next look: when the request
    /// ahead of it is gone, after a reconnect, or after half a minute.
    ///
    /// `grace` counts from the moment at which the holder was asked. A loss of contact does not
    /// interrupt the wait.
    ///
    /// # Errors
    /// As [`request_revocation`](Revoker::request_revocation); DELETE permission on the lock's
    /// directory is needed, too. After an error that leaves the outcome open, the znode may exist or not;
    /// no retry goes on in the background. If the reply to the deletion is lost and the znode is then gone,
    /// the result is [`Forced`](Revocation::Forced).
    pub fn force_revocation_after(&self, path: &str, grace: Duration) -> Result<Revocation> {
        let znode = request_path(path)?;
        let czxid = self.ask(&znode)?;
        let core = self.support.session().core();
        let deletion_watch = DeletionWatch::begin(&core, &znode);
        core.wait(&[deletion_watch.deleted(), core.ended()], Some(core.now().after(grace)));
        if deletion_watch.deleted().is_set() {
            return Ok(Revocation::Complied);
        }
        drop(deletion_watch);
        // The next session may be there already, and the time of the holder is not over.
        core.check_open(Operation::REVOKE, &znode)?;
        self.delete(&znode, czxid)
    }

    /// Asks, and returns the id of the transaction that created the znode.
    fn ask(&self, znode: &ZNodePath) -> Result<i64> {
        let ask = || self.call(Operation::REVOKE, znode, |core| ask(core, znode));
        let answer = self.support.retry(Operation::REVOKE, znode, ask)?;
        match answer {
            AskOutcome::Asked { czxid } => {
                logging::info!("asked the holder of {znode} to release");
                Ok(czxid)
            }
            AskOutcome::Gone => Err(LockError::of(ErrorReason::NoSuchRequest, Operation::REVOKE, znode)),
            AskOutcome::NoRequest => Err(LockError::not_a_lock_request(znode, "it belongs to no session")),
        }
    }

    fn delete(&self, znode: &ZNodePath, czxid: i64) -> Result<Revocation> {
        let mut reply_lost = false;
        let was_deleted = self.support.retry(Operation::DELETE, znode, || {
            let outcome = self.call(Operation::DELETE, znode, |core| delete(core, znode, czxid));
            reply_lost |= outcome.is_err();
            outcome
        })?;
        if !was_deleted && !reply_lost {
            return Ok(Revocation::Complied);
        }
        logging::warn!("took the lock away from {znode}, whose holder did not release it in time");
        Ok(Revocation::Forced)
    }

    /// Makes calls to the client.
    fn call<T>(
        &self,
        operation: Operation,
        znode: &ZNodePath,
        calls: impl FnOnce(&Arc<Core>) -> ZkResult<T>,
    ) -> Result<T> {
        let core = self.support.session().core();
        calls(&core).map_err(|error| core.failure(operation, znode, error))
    }
}

/// Checks that a caller's path can be that of a request.
fn request_path(path: &str) -> Result<ZNodePath> {
    let znode = ZNodePath::parse(path)?;
    match generated_sequence(znode.name()) {
        Some(_) => Ok(znode),
        None => Err(LockError::not_a_lock_request(&znode, "its name ends in no sequence number")),
    }
}

fn ask(core: &Arc<Core>, znode: &ZNodePath) -> ZkResult<AskOutcome> {
    // A server that lags behind may not know yet of a request that exists. A write makes it catch up.
    core.begin_to_write_nothing().wait(core)?;
    match core.ask(Call::exists(znode, false))? {
        None => return Ok(AskOutcome::Gone),
        // A directory, which may be a container: Curator makes those.
        Some(stat) if stat.session().is_none() => return Ok(AskOutcome::NoRequest),
        Some(_) => {}
    }
    match core.ask(Call::set_data(znode, revocation::message_for(znode.name()), None)) {
        Ok(stat) => Ok(AskOutcome::Asked { czxid: stat.czxid }),
        Err(ZkError::NoNode) => Ok(AskOutcome::Gone),
        Err(error) => Err(error),
    }
}

/// Deletes this znode, but not a later one of the same name; `false` if it no longer exists.
fn delete(core: &Arc<Core>, znode: &ZNodePath, czxid: i64) -> ZkResult<bool> {
    loop {
        let stat = core.ask(Call::exists(znode, false))?;
        let Some(stat) = stat.filter(|stat| stat.czxid == czxid) else { return Ok(false) };
        match core.ask(Call::delete(znode, Some(stat.version))) {
            Ok(()) => return Ok(true),
            Err(ZkError::NoNode) => return Ok(false),
            // The data was written meanwhile, or this is a later znode.
            Err(ZkError::BadVersion) => {}
            Err(error) => return Err(error),
        }
    }
}
