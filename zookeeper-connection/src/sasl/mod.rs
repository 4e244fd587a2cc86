//! SASL: on each connection, a client authenticates before it sends anything but the connect request.
//!
//! A ZooKeeper server is configured with one mechanism, either GSSAPI, which means Kerberos (`gss`), or DIGEST-MD5
//! (`digest`). The server never names its mechanism. The [machine](crate::machine) carries tokens in both directions,
//! and limits their number, their length and the duration of the exchange. This module creates and interprets the
//! tokens.
//!
//! The first token of a connection is made before its transport is opened. A client that cannot authenticate must not
//! send a connect request, because the request would prolong the session, and thereby keep locks that the client may
//! no longer own.

mod authenticator;
mod calls;
#[cfg(feature = "sasl")]
mod digest;
#[cfg(feature = "sasl")]
mod directives;
#[cfg(feature = "kerberos")]
mod gss;
#[cfg(feature = "kerberos")]
mod kerberos;
#[cfg(all(feature = "sasl", any(test, zk_laws)))]
pub mod laws;

use std::sync::Arc;
#[cfg(feature = "kerberos")]
use std::sync::Weak;

pub(crate) use self::authenticator::{Answer, Authenticator};
use self::calls::Calls;
#[cfg(feature = "sasl")]
pub use self::digest::SaslDigest;
#[cfg(feature = "kerberos")]
pub use self::kerberos::{KerberosConfig, KerberosTicket};
use crate::machine::SaslStep;
#[cfg(feature = "kerberos")]
use crate::support::lock_order::{Mutex, rank::TICKETS};
#[cfg(feature = "kerberos")]
use crate::support::process::PerProcess;

/// The client's side of the SASL exchange on one connection.
pub(crate) trait Exchange: Send {
    /// Responds to a token of the server. Must not block.
    fn step(&mut self, token: &[u8]) -> SaslStep;
}

/// An exchange that is ready to begin.
pub(crate) struct Prepared {
    pub(crate) exchange: Box<dyn Exchange>,
    pub(crate) first_token: Vec<u8>,
}

/// Prepares an exchange with the server on a host, or returns the reason why it cannot.
type Prepare = dyn Fn(&str) -> Result<Prepared, String> + Send + Sync;

/// How a connection authenticates.
#[derive(Clone)]
#[cfg_attr(not(feature = "kerberos"), allow(dead_code, reason = "each belongs to a feature"))]
pub(crate) enum Mechanism {
    /// Preparing an exchange takes no time.
    WithoutTickets(Arc<Prepare>),
    /// Preparing an exchange may take any length of time, because it may need a ticket.
    WithTickets(Arc<Calls>),
}

/// The calls for each configuration. In a forked child, the threads that make the parent's calls do not exist.
#[cfg(feature = "kerberos")]
static CALLS: PerProcess<Mutex<TICKETS, CallsOf>> = PerProcess::new();

#[cfg(feature = "kerberos")]
type CallsOf = Vec<(KerberosConfig, Weak<Calls>)>;

#[cfg(feature = "kerberos")]
fn shared_calls() -> &'static Mutex<TICKETS, CallsOf> {
    CALLS.get_or_make(|| Mutex::new(Vec::new()))
}

impl Mechanism {
    #[cfg(feature = "sasl")]
    pub(crate) fn digest(login: SaslDigest) -> Mechanism {
        let prepare = move |_host: &str| {
            let random = || crate::support::new_guid().simple().to_string();
            let exchange = Box::new(digest::DigestMd5::new(login.clone(), random() + &random()));
            Ok(Prepared { exchange, first_token: Vec::new() })
        };
        Mechanism::WithoutTickets(Arc::new(prepare))
    }

    /// Returns the mechanism of Kerberos. Connections with the same configuration share its calls.
    #[cfg(feature = "kerberos")]
    pub(crate) fn kerberos(config: KerberosConfig) -> Mechanism {
        let mut shared = shared_calls().lock();
        shared.retain(|(_, calls)| calls.strong_count() > 0);
        let known = shared.iter().find(|(known, _)| *known == config);
        if let Some(calls) = known.and_then(|(_, calls)| calls.upgrade()) {
            return Mechanism::WithTickets(calls);
        }
        let of_calls = config.clone();
        let calls = Arc::new(Calls::new(move |host| {
            let (handshake, first_token) = gss::Handshake::begin(&of_calls, host)?;
            Ok(Prepared { exchange: Box::new(handshake), first_token })
        }));
        shared.push((config, Arc::downgrade(&calls)));
        Mechanism::WithTickets(calls)
    }

    #[cfg(test)]
    pub(crate) fn with_tickets(
        prepare: impl Fn(&str) -> Result<Prepared, String> + Send + Sync + 'static,
    ) -> Mechanism {
        Mechanism::WithTickets(Arc::new(Calls::new(prepare)))
    }
}

#[cfg(all(test, feature = "kerberos"))]
mod tests {
    use super::*;

    #[test]
    fn connections_with_the_same_configuration_share_their_calls() {
        let calls = |config: KerberosConfig| match Mechanism::kerberos(config) {
            Mechanism::WithTickets(calls) => calls,
            Mechanism::WithoutTickets(_) => panic!("Kerberos has tickets"),
        };
        let config = |service: &str| KerberosConfig::new().service(service);
        let [one, another] = ["a-service", "another-service"].map(|service| calls(config(service)));
        assert!(Arc::ptr_eq(&one, &calls(config("a-service"))));
        assert!(!Arc::ptr_eq(&one, &another));
        let is_kept =
            |service: &str| shared_calls().lock().iter().any(|(known, _)| *known == config(service));
        drop(one);
        drop(another);
        assert!(is_kept("a-service"));
        calls(config("a-third-service"));
        assert!(!is_kept("a-service"), "nothing is kept for a configuration that is no longer used");
    }
}
