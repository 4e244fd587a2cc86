//! Revocations between our locks and Curator's mutex: we revoke theirs once, and they revoke ours under each of two
//! naming schemes.

use std::process::{Child, Command};
use std::time::Duration;

use zookeeper_recipes_lock::queue::{LockDirectory, Revocation, Revoker};
use zookeeper_recipes_lock::recipe::NamingScheme;
use zookeeper_recipes_lock::{BlockingWriteLock, LockOptions, Session};

use crate::support::wait::{deadline, eventually, eventually_some};

const DIR: &str = "/interop/revocation";

/// Far longer than Curator's holder takes to release.
const GRACE: Duration = Duration::from_secs(20);

/// A process of their program. It ends when this is dropped.
struct Peer(Child);

impl Peer {
    /// Starts their program, which either holds the lock of a directory until it is revoked, or revokes the
    /// lock of a znode.
    fn start(program: &[String], servers: &str, role: &str, path: &str) -> Peer {
        let (command, arguments) = program.split_first().expect("the command has a name");
        let child = Command::new(command).args(arguments).args([role, servers, path]).spawn();
        Peer(child.expect("the program starts"))
    }

    fn await_success(mut self) {
        let status = eventually_some("their program ends", || self.0.try_wait().expect("it is our child"));
        assert!(status.success(), "their program: {status}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Revokes a lock of theirs, and lets them revoke two of ours.
///
/// # Panics
/// If a holder does not get the message.
pub fn check(program: &[String], servers: &str, session: &Session) {
    let their_holder = Peer::start(program, servers, "hold", DIR);
    let directory = LockDirectory::new(session, DIR).expect("the path is valid");
    let owner = eventually_some("their holder owns the lock", || directory.current_owner().ok().flatten());
    let revoked = Revoker::new(session).force_revocation_after(&owner.path, GRACE);
    assert_eq!(revoked.expect("the holder is there"), Revocation::Complied, "theirs did not get our message");
    their_holder.await_success();

    for scheme in [NamingScheme::Curator, NamingScheme::Recipe] {
        let options = LockOptions::new().naming(scheme);
        let lock = BlockingWriteLock::with_options(session, DIR, options).expect("the path is valid");
        let guard = lock.lock().expect("the lock is free");
        Peer::start(program, servers, "revoke", guard.id()).await_success();
        let message = guard.revocation().recv_timeout(deadline());
        message.unwrap_or_else(|_| panic!("ours, named as {scheme:?}, did not get their message"));
    }
    eventually("the directory is empty", || directory.current_owner().is_ok_and(|owner| owner.is_none()));
    println!("revocation: Curator's holder got our message, and ours got Curator's");
}
