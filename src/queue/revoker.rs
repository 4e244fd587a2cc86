//! [`Revoker`]: asks the holder of a lock to release it, and takes the lock away if the holder does not.
//!
//! Origin: "Recoverable Shared Locks" (also called "Freaking Laser Beams") on ZooKeeper's recipe page, and Curator's
//! `Revoker`.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::client::Call;
use crate::error::{ErrorReason, LockError, Operation, Result, ZkError};
use crate::lock_options::LockOptions;
use crate::logging;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::recipe::revocation;
use crate::recipe::znode_name::generated_sequence;
use crate::session::{Core, Session};
use crate::tracking::DeletionWatch;

/// Asks the holders of locks to release them, and takes locks away by force.
///
/// A lock is identified by the path of the request that holds it.
/// [`LockDirectory::current_owner`](crate::queue::LockDirectory::current_owner) returns that request; the
/// holder itself gets the path from [`LockGuard::id`](crate::LockGuard::id).
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
///
/// # How the holder is asked
/// The message arrives at [`LockListener::revocation_requested`](crate::LockListener::revocation_requested) or on
/// [`LockGuard::revocation`](crate::LockGuard::revocation). A waiting request may be asked, too: it receives the
/// message once it has acquired the lock.
///
/// The message overwrites the data of the znode. It is the word `unlock`, or `__REVOKE__` if the request has one of
/// Curator's names, so holders that use other libraries understand it. A holder that uses Curator reacts to the message
/// if it has called `makeRevocable`.
///
/// # Calls
/// Each call blocks until the server has answered. After a loss of contact, the call is repeated as often as the [retry
/// policy](LockOptions::retry) allows.
#[doc(alias = "RevocationListener")]
#[doc(alias = "Revocable")]
#[derive(Debug)]
pub struct Revoker {
    support: ProtocolSupport,
}

/// The outcome of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Revocation {
    /// The request ended in time, and the connected server no longer shows it.
    ///
    /// The holder released the lock, or its session ended. A deletion by another client looks the same.
    Complied,
    /// The holder did not comply in time, so the znode was deleted.
    ///
    /// The holder loses the lock with [`NodeDeleted`](crate::LossReason::NodeDeleted) as soon as the servers can reach
    /// it, or with [`LeaseExpired`](crate::LossReason::LeaseExpired) if its lease ends first.
    Forced,
}

/// The outcome of asking a holder.
enum AskOutcome {
    /// The message is stored. `czxid`, the id of the transaction that created the znode, distinguishes this znode from
    /// a later one of the same name.
    Asked { czxid: i64 },
    /// The request no longer exists. If the reply to an earlier message was lost, the holder may have been asked.
    Gone,
    /// The znode is not a request.
    NoRequest,
}

impl Revoker {
    /// Creates a revoker with the default retry policy.
    ///
    /// Sends nothing to the servers.
    #[must_use]
    pub fn new(session: &Session) -> Revoker {
        Revoker { support: ProtocolSupport::new(session) }
    }

    /// Creates a revoker with the [retry policy](LockOptions::retry) of the options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the [`max_hold`](LockOptions::max_hold) of the options
    /// is zero.
    pub fn with_options(session: &Session, options: LockOptions) -> Result<Revoker> {
        Ok(Revoker { support: ProtocolSupport::with_options(session, options)? })
    }

    /// Asks the process whose request is at this path to release the lock.
    ///
    /// Returns when the server has stored the message. Asking again changes nothing.
    ///
    /// # Errors
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid.
    /// - [`NotALock`](crate::ErrorReason::NotALock): the znode at this path is not a request; it may be a
    ///   lock directory, for example. Nothing was written.
    /// - [`NoSuchRequest`](crate::ErrorReason::NoSuchRequest): the request no longer exists, so there is no
    ///   holder to ask.
    /// - [`ServerDiverged`](crate::ErrorReason::ServerDiverged): the request no longer exists, but the connected server
    ///   still shows it, and its clients wait for it.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): the znode's ACL does not grant this client WRITE or, on
    ///   servers since 3.8.4, READ.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss) after the last attempt,
    ///   [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed): the holder may or
    ///   may not have been asked.
    pub fn request_revocation(&self, path: &str) -> Result<()> {
        let znode = request_path(path)?;
        self.ask(&znode)?.map(drop).ok_or_else(|| no_such_request(&znode))
    }

    /// Asks the holder to release the lock, and deletes its request if it does not comply.
    ///
    /// `grace` is how long the holder has to comply, counted from the server's confirmation of the message. A loss of
    /// contact does not interrupt the wait.
    ///
    /// **After the deletion, the former holder may still be working.** The next request in the queue acquires the lock
    /// immediately. A former holder that is paused or unreachable considers itself the owner until it notices
    /// the deletion or its lease ends. That takes at most the timeout of its session. Only the [fencing
    /// token](crate::LockGuard::fencing_token) protects a resource from such a holder.
    ///
    /// The request may also still be waiting for the lock. Its process may then notice the deletion only when the
    /// request ahead is gone or after a reconnect, but after half a minute at the latest (with a client of the crate
    /// `zookeeper`, up to a session timeout later).
    ///
    /// # Errors
    /// The same as [`request_revocation`](Revoker::request_revocation). DELETE permission on the lock's directory is
    /// needed, too. After an error that leaves the outcome open, the znode may or may not exist, and nothing is retried
    /// in the background. If the reply to the deletion is lost and the znode turns out to be gone, the result is
    /// [`Forced`](Revocation::Forced).
    pub fn force_revocation_after(&self, path: &str, grace: Duration) -> Result<Revocation> {
        let znode = request_path(path)?;
        let Some(czxid) = self.ask(&znode)? else { return Ok(Revocation::Complied) };
        let core = self.support.session().core();
        let deletion_watch = DeletionWatch::begin(&core, &znode);
        core.wait(&[deletion_watch.deleted(), core.ended()], Some(core.now().after(grace)));
        if deletion_watch.deleted().is_set() {
            return Ok(Revocation::Complied);
        }
        drop(deletion_watch);
        // If the session ended during the wait, the wait may have been shorter than `grace`. So nothing is deleted, not
        // even if a replacement session is already connected.
        core.check_open(Operation::REVOKE, &znode)?;
        self.delete(&znode, czxid)
    }

    /// Asks the holder, and returns the id of the transaction that created the znode. Returns `None` if the request has
    /// ended after a message that may have been sent.
    fn ask(&self, znode: &ZNodePath) -> Result<Option<i64>> {
        let mut reply_lost = false;
        let answer = self.support.retry(Operation::REVOKE, znode, || {
            ask(&self.support.session().core(), znode, &mut reply_lost)
        })?;
        match answer {
            AskOutcome::Asked { czxid } => {
                logging::info!("asked the holder of {znode} to release");
                Ok(Some(czxid))
            }
            AskOutcome::Gone if reply_lost => Ok(None),
            AskOutcome::Gone => Err(no_such_request(znode)),
            AskOutcome::NoRequest => Err(LockError::not_a_lock_request(znode, "it belongs to no session")),
        }
    }

    fn delete(&self, znode: &ZNodePath, czxid: i64) -> Result<Revocation> {
        let mut reply_lost = false;
        let was_deleted = self.support.retry(Operation::DELETE, znode, || {
            delete(&self.support.session().core(), znode, czxid, &mut reply_lost)
        })?;
        if !was_deleted && !reply_lost {
            return Ok(Revocation::Complied);
        }
        logging::warn!("deleted {znode}, whose process did not release it in time");
        Ok(Revocation::Forced)
    }
}

/// Checks that a caller's path can be that of a request.
fn request_path(path: &str) -> Result<ZNodePath> {
    let znode = ZNodePath::parse(path)?;
    match generated_sequence(znode.name()) {
        Some(_) => Ok(znode),
        None => Err(LockError::not_a_lock_request(&znode, "its name does not end in a sequence number")),
    }
}

fn no_such_request(znode: &ZNodePath) -> LockError {
    LockError::of(ErrorReason::NoSuchRequest, Operation::REVOKE, znode)
}

/// Sends the message. Sets `reply_lost` if that itself fails.
fn ask(core: &Arc<Core>, znode: &ZNodePath, reply_lost: &mut bool) -> Result<AskOutcome> {
    let failure = |error| core.failure(Operation::REVOKE, znode, error);
    // A lagging server may not know of the request yet. A write makes the server catch up.
    core.begin_to_write_nothing().wait(core).map_err(failure)?;
    let shown = match core.call(Operation::REVOKE, znode, Call::exists(znode, false))? {
        None => return Ok(AskOutcome::Gone),
        // Not ephemeral: for example a lock directory, which may be a container that Curator created.
        Some(stat) if stat.session().is_none() => return Ok(AskOutcome::NoRequest),
        Some(stat) => stat,
    };
    match core.ask(Call::set_data(znode, revocation::message_for(znode.name()), None)) {
        Ok(stat) => Ok(AskOutcome::Asked { czxid: stat.czxid }),
        Err(ZkError::NoNode) => {
            core.check_gone(Operation::REVOKE, znode, shown.czxid)?;
            Ok(AskOutcome::Gone)
        }
        Err(error) => {
            *reply_lost = true;
            Err(failure(error))
        }
    }
}

/// Deletes this znode, but not a later one of the same name. Returns `false` if it no longer exists. Sets `reply_lost`
/// if the deletion itself fails.
fn delete(core: &Arc<Core>, znode: &ZNodePath, czxid: i64, reply_lost: &mut bool) -> Result<bool> {
    loop {
        let stat = core.call(Operation::DELETE, znode, Call::exists(znode, false))?;
        let Some(stat) = stat.filter(|stat| stat.czxid == czxid) else { return Ok(false) };
        match core.ask(Call::delete(znode, Some(stat.version))) {
            Ok(()) => return Ok(true),
            Err(ZkError::NoNode) => {
                core.check_gone(Operation::DELETE, znode, czxid)?;
                return Ok(false);
            }
            // The data has been written in the meantime, or another znode now has this name.
            Err(ZkError::BadVersion) => {}
            Err(error) => {
                *reply_lost = true;
                return Err(core.failure(Operation::DELETE, znode, error));
            }
        }
    }
}
