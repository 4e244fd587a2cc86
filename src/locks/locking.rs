//! What all locks have in common: the terms of their requests, and how they are downgraded and released.

use std::sync::{Arc, OnceLock};

use crate::client::ZkError;
use crossbeam_channel::{bounded, select};

use crate::error::{LockError, Operation, Result};
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::request::{Downgrade, Observer, Request, RequestSpec};

/// The terms of a new request.
pub(crate) fn spec(
    dir: &ZNodePath,
    support: &ProtocolSupport,
    data: Arc<[u8]>,
    access: Access,
) -> RequestSpec {
    RequestSpec {
        dir: dir.clone(),
        prefix: access.prefix(support.session().core().new_guid()),
        data,
        acl: support.shared_acl(),
        retry: support.retry_policy(),
        access,
    }
}

/// Who waits, for an operator who looks at the directory: `host/pid`.
pub(crate) fn default_data() -> Arc<[u8]> {
    static DATA: OnceLock<Arc<[u8]>> = OnceLock::new();
    let data = DATA.get_or_init(|| format!("{}/{}", host_name(), std::process::id()).into_bytes().into());
    Arc::clone(data)
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Without a call to the system, which would take a dependency for this alone.
#[cfg(not(unix))]
fn host_name() -> String {
    host_of(|name| std::env::var(name).ok())
}

/// Windows sets the first of these, shells elsewhere the second.
#[cfg(any(not(unix), test))]
fn host_of(variable: impl Fn(&str) -> Option<String>) -> String {
    let mut named = ["COMPUTERNAME", "HOSTNAME"].into_iter().filter_map(variable);
    named.find(|name| !name.is_empty()).unwrap_or_else(|| "unknown-host".to_owned())
}

/// Has an owner's place in the queue taken by a request of its own that asks for less, and returns that one with its
/// znode. Then the owner is to be withdrawn; after an error it is as it was.
pub(crate) fn downgrade(
    owner: &Arc<Request>,
    access: Access,
    support: &ProtocolSupport,
    observer: Arc<dyn Observer>,
) -> Result<(Arc<Request>, ZNodePath)> {
    let downgrade = Downgrade::begin(owner, access)?;
    let prepared = support.retry(Operation::DOWNGRADE.name, downgrade.znode(), || {
        let of_worker = Arc::clone(&downgrade);
        owner.core().call(Operation::DOWNGRADE, downgrade.znode(), move |_| of_worker.prepare())?
    });
    let request = downgrade.complete(prepared?, observer)?;
    Ok((request, downgrade.znode().clone()))
}

/// Ends a request and waits until its znode is deleted.
pub(crate) fn release(request: &Arc<Request>) -> Result<()> {
    let (first, outcome) = bounded(1);
    request.withdraw(Some(first));
    request.deliver();
    let outcome = select! {
        recv(outcome) -> outcome => outcome,
        // The znode goes with the session.
        recv(request.core().ended()) -> _ => return Ok(()),
    };
    match outcome {
        Ok(Err(ZkError::NoNode)) => {
            let path = request.znode().map(|znode| znode.to_string()).unwrap_or_default();
            Err(LockError::RequestDeleted { path })
        }
        Ok(Err(error)) => {
            let path = request.znode().map(|znode| znode.to_string()).unwrap_or_default();
            match LockError::client(Operation::UNLOCK, &path, error) {
                LockError::ConnectionLoss { .. } => Err(LockError::DeletePending { path }),
                LockError::SessionLost { .. } => Ok(()),
                error => Err(error),
            }
        }
        // Deleted, or there was nothing to delete and nobody to say so.
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_named_by_the_environment_where_the_system_is_not_asked() {
        let of = |set: &'static [(&str, &str)]| {
            host_of(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[("COMPUTERNAME", "WEB-1"), ("HOSTNAME", "other")]), "WEB-1");
        assert_eq!(of(&[("COMPUTERNAME", ""), ("HOSTNAME", "web-1")]), "web-1");
        assert_eq!(of(&[]), "unknown-host");
    }

    #[cfg(unix)]
    #[test]
    fn the_default_data_name_host_and_process() {
        let data = String::from_utf8(default_data().to_vec()).unwrap();
        let (host, pid) = data.rsplit_once('/').unwrap();
        assert!(!host.is_empty());
        assert_eq!(pid, std::process::id().to_string());
    }
}
