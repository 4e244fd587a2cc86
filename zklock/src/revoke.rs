//! `zklock revoke`.

use std::thread;
use std::time::Duration;

use zookeeper_recipes_lock::queue::{LockInfo, Revocation, Revoker};
use zookeeper_recipes_lock::{ErrorReason, LockError, Session};

use crate::args::RevokeArgs;
use crate::connection::ConnectionArgs;
use crate::failure::{Failure, NO_LOCK, SYSTEM};
use crate::output::print;
use crate::queue;
use crate::spans::show_duration;
use crate::stderr::complain;

pub(crate) fn revoke(connection: &ConnectionArgs, args: &RevokeArgs) -> Result<u8, Failure> {
    let session = connection.session()?;
    let revoked = revoke_on(&session, args);
    session.close();
    revoked
}

fn revoke_on(session: &Session, args: &RevokeArgs) -> Result<u8, Failure> {
    let queue = queue::read(session, &args.dir)?;
    let holders = LockInfo::owners(&queue);
    if holders.is_empty() {
        print(&format!("nobody holds {}\n", args.dir))?;
        return Ok(0);
    }
    if let Some(time) = args.force_after {
        let count = holders.len();
        let holders = if count == 1 { "the holder".to_owned() } else { format!("the {count} holders") };
        complain(&format!("asking {holders} to release {} within {}", args.dir, show_duration(time)));
    }
    let revoker = &Revoker::new(session);
    let outcomes = thread::scope(|scope| {
        let ask = |holder| scope.spawn(move || (holder, ask(revoker, holder, args.force_after)));
        let threads: Vec<_> = holders.iter().map(ask).collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    let mut failure = None;
    for outcome in outcomes {
        let (holder, outcome) = outcome.map_err(|_| Failure::new(SYSTEM, "a thread has failed"))?;
        match outcome {
            Ok(done) => print(&format!("{done:<8}  {}\n", queue::line(holder)))?,
            Err(error) if error.reason() == ErrorReason::NotALock && holder.is_persistent => {
                let obstacle = queue::obstacle(holder).unwrap_or_default();
                complain(&format!("no client can be asked to release the lock: {obstacle}"));
                failure = Some(NO_LOCK);
            }
            Err(error) => {
                let error = Failure::from(error);
                error.report();
                failure = Some(error.code);
            }
        }
    }
    Ok(failure.unwrap_or(0))
}

/// Asks a holder to release the lock. Returns the outcome.
fn ask(
    revoker: &Revoker,
    holder: &LockInfo,
    force_after: Option<Duration>,
) -> Result<&'static str, LockError> {
    let outcome = match force_after {
        None => revoker.request_revocation(&holder.path).map(|()| "asked"),
        Some(time) => revoker.force_revocation_after(&holder.path, time).map(|outcome| match outcome {
            Revocation::Complied => "released",
            _ => "deleted",
        }),
    };
    match outcome {
        // The holder has released the lock since the queue was read.
        Err(error) if error.reason() == ErrorReason::NoSuchRequest => Ok("released"),
        outcome => outcome,
    }
}
