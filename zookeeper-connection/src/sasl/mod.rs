//! SASL: a client proves who it is, before anything else on each connection.
//!
//! ZooKeeper's servers have one mechanism each, by their configuration, and never name it: GSSAPI, which is Kerberos
//! ([`gss`]), or DIGEST-MD5 ([`digest`]). The [machine](crate::machine) carries tokens in both directions, and bounds
//! their number, their length and the time of the exchange. What is in them is known here.
//!
//! The first token of a connection is made [before](authenticator) its transport is opened. A client that cannot
//! authenticate must not send a connect request, because that renews a session whose locks it may no longer own.

// Without a mechanism there is no exchange, and its types have no values.
#![cfg_attr(not(feature = "sasl"), allow(dead_code, unused_variables, clippy::needless_pass_by_ref_mut))]

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

pub(crate) use self::authenticator::Authenticator;
#[cfg(feature = "sasl")]
pub use self::digest::SaslDigest;
#[cfg(feature = "kerberos")]
pub use self::kerberos::{KerberosConfig, KerberosTicket};
use crate::machine::SaslStep;

/// How a connection authenticates.
#[derive(Clone, Debug)]
pub(crate) enum Mechanism {
    #[cfg(feature = "sasl")]
    Digest(SaslDigest),
    #[cfg(feature = "kerberos")]
    Kerberos(KerberosConfig),
}

/// The client's side of the exchange on one connection.
pub(crate) enum Exchange {
    #[cfg(feature = "sasl")]
    Digest(digest::DigestMd5),
    #[cfg(feature = "kerberos")]
    Kerberos(gss::Handshake),
}

/// An exchange that can begin.
pub(crate) struct Prepared {
    pub(crate) exchange: Exchange,
    pub(crate) first_token: Vec<u8>,
}

impl Mechanism {
    /// Returns whether the first token may take any time, as it may need a ticket.
    fn may_block(&self) -> bool {
        match *self {
            #[cfg(feature = "sasl")]
            Mechanism::Digest(_) => false,
            #[cfg(feature = "kerberos")]
            Mechanism::Kerberos(_) => true,
        }
    }

    /// Makes the first token for a server.
    ///
    /// # Errors
    /// The reason why there is none.
    #[cfg_attr(not(feature = "kerberos"), allow(unused_variables))]
    fn prepare(&self, host: &str) -> Result<Prepared, String> {
        match *self {
            #[cfg(feature = "sasl")]
            Mechanism::Digest(ref login) => {
                let cnonce =
                    uuid::Uuid::new_v4().simple().to_string() + &uuid::Uuid::new_v4().simple().to_string();
                let exchange = Exchange::Digest(digest::DigestMd5::new(login.clone(), cnonce));
                Ok(Prepared { exchange, first_token: Vec::new() })
            }
            #[cfg(feature = "kerberos")]
            Mechanism::Kerberos(ref config) => {
                let (handshake, first_token) = gss::Handshake::begin(config, host)?;
                Ok(Prepared { exchange: Exchange::Kerberos(handshake), first_token })
            }
        }
    }
}

impl Exchange {
    /// Responds to a token of the server. Does not block.
    pub(crate) fn step(&mut self, token: &[u8]) -> SaslStep {
        match *self {
            #[cfg(feature = "sasl")]
            Exchange::Digest(ref mut digest) => digest.step(token),
            #[cfg(feature = "kerberos")]
            Exchange::Kerberos(ref mut handshake) => handshake.step(token),
        }
    }
}
