//! [`Verifier`]: decides whether to accept the certificate of a server.
//!
//! There are two ways to be accepted:
//! 1. A trusted authority has issued the certificate, directly or through intermediates that the server sends. webpki
//!    decides this.
//! 2. The certificate is, byte for byte, one of those in the application's files. webpki refuses such a certificate if
//!    it is also marked as an authority, as `openssl req -x509` does.
//!
//! The second way lets nobody in who would not get in without it. The client trusts every certificate in the files as
//! an authority, whether or not it is marked as one. So whoever has its key can issue a certificate for any name, and
//! be accepted the first way. (If an authority may only issue for some names, this does not limit its own certificate.)
//! In both ways, the certificate must be valid now and for the server's name, and rustls makes the server prove that it
//! has the key, by a signature over the handshake.
//!
//! A certificate in the files may have no subjectAltName, as `keytool` writes it by default. Its `CN` is then its name.
//! In certificates that others have issued, `CN` never counts, because an authority may not have checked it.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};

use super::outline::Outline;

type Result<T> = std::result::Result<T, Error>;

/// See the [module](self).
pub(super) struct Verifier {
    authorities: RootCertStore,
    /// The certificates of the application's files, which are also among the authorities.
    trusted: Vec<(CertificateDer<'static>, Outline)>,
    checks_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The certificate of the server has the format X.509 v1.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("X.509 version 1")]
pub(super) struct IsVersion1;

impl Verifier {
    /// Creates a verifier. `trusted` are the certificates that are accepted themselves.
    pub(super) fn new(
        authorities: RootCertStore,
        trusted: Vec<CertificateDer<'static>>,
        checks_name: bool,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Verifier {
        let outlined = |certificate: CertificateDer<'static>| {
            let outline = Outline::of(&certificate).ok()?;
            Some((certificate, outline))
        };
        let trusted = trusted.into_iter().filter_map(outlined).collect();
        Verifier { authorities, trusted, checks_name, algorithms }
    }

    fn verify(
        &self,
        presented: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<()> {
        let parsed = ParsedCertificate::try_from(presented)?;
        let common_name = match self.trusted.iter().find(|(trusted, _)| trusted == presented) {
            Some((_, outline)) => {
                outline.check_validity(now)?;
                outline.common_name.as_deref()
            }
            None => {
                let (authorities, algorithms) = (&self.authorities, self.algorithms.all);
                verify_server_cert_signed_by_trust_anchor(
                    &parsed,
                    authorities,
                    intermediates,
                    now,
                    algorithms,
                )?;
                None
            }
        };
        if self.checks_name { verify_name(&parsed, common_name, name) } else { Ok(()) }
    }
}

/// Checks whether a certificate is for this name. The `CN`, if there is one, counts unless there is a subjectAltName.
fn verify_name(
    parsed: &ParsedCertificate<'_>,
    common_name: Option<&str>,
    name: &ServerName<'_>,
) -> Result<()> {
    match verify_server_name(parsed, name) {
        Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }))
            if presented.is_empty()
                && common_name.is_some_and(|common| common.eq_ignore_ascii_case(&name.to_str())) =>
        {
            Ok(())
        }
        verdict => verdict,
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified> {
        match self.verify(end_entity, intermediates, server_name, now) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(_) if Outline::of(end_entity).is_ok_and(|outline| outline.is_v1) => {
                Err(CertificateError::Other(OtherError(Arc::new(IsVersion1))).into())
            }
            Err(error) => Err(error),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier")
    }
}
