//! SASL: a client proves who it is, before anything else on each connection.
//!
//! ZooKeeper's servers have one mechanism each, by their configuration, and never name it: GSSAPI, which is Kerberos
//! (`gss`), or DIGEST-MD5 (`digest`). The [machine](crate::machine) carries tokens in both directions, and bounds
//! their number, their length and the time of the exchange. What is in them is known here.
//!
//! The first token of a connection is made before its transport is opened. A client that cannot
//! authenticate must not send a connect request, because that renews a session whose locks it may no longer own.

mod authenticator;
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

pub(crate) use self::authenticator::Authenticator;
#[cfg(feature = "sasl")]
pub use self::digest::SaslDigest;
#[cfg(feature = "kerberos")]
pub use self::kerberos::{KerberosConfig, KerberosTicket};
use crate::machine::SaslStep;

/// The client's side of the exchange on one connection.
pub(crate) trait Exchange: Send {
    /// Responds to a token of the server. Must not block.
    fn step(&mut self, token: &[u8]) -> SaslStep;
}

/// An exchange that can begin.
pub(crate) struct Prepared {
    pub(crate) exchange: Box<dyn Exchange>,
    pub(crate) first_token: Vec<u8>,
}

/// Prepares an exchange with the server on a host, or returns why that is not possible.
type Prepare = dyn Fn(&str) -> Result<Prepared, String> + Send + Sync;

/// How a connection authenticates.
#[derive(Clone)]
pub(crate) struct Mechanism {
    prepare: Arc<Prepare>,
    /// Preparing an exchange may take any time, as it may need a ticket.
    needs_tickets: bool,
}

impl Mechanism {
    #[cfg(feature = "sasl")]
    pub(crate) fn digest(login: SaslDigest) -> Mechanism {
        let prepare = move |_host: &str| {
            let random = || uuid::Uuid::new_v4().simple().to_string();
            let exchange = Box::new(digest::DigestMd5::new(login.clone(), random() + &random()));
            Ok(Prepared { exchange, first_token: Vec::new() })
        };
        Mechanism { prepare: Arc::new(prepare), needs_tickets: false }
    }

    #[cfg(feature = "kerberos")]
    pub(crate) fn kerberos(config: KerberosConfig) -> Mechanism {
        Mechanism::with_tickets(move |host| {
            let (handshake, first_token) = gss::Handshake::begin(&config, host)?;
            Ok(Prepared { exchange: Box::new(handshake), first_token })
        })
    }

    #[cfg(any(test, feature = "kerberos"))]
    pub(crate) fn with_tickets(
        prepare: impl Fn(&str) -> Result<Prepared, String> + Send + Sync + 'static,
    ) -> Mechanism {
        Mechanism { prepare: Arc::new(prepare), needs_tickets: true }
    }
}
