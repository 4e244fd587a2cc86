//! [`Failure`]: why a TLS connection failed, and what to do.

use std::fmt;
use std::io;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, Error, OtherError};

use super::verifier::IsVersion1;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Failure {
    error: Error,
    advice: Option<String>,
}

/// Returns whether one side has refused the certificate of the other, or the server wants one.
pub(crate) fn refuses_certificate(error: &io::Error) -> bool {
    let failure = error.get_ref().and_then(|error| error.downcast_ref::<Failure>());
    failure.is_some_and(|failure| match &failure.error {
        Error::InvalidCertificate(_) => true,
        Error::AlertReceived(alert) => is_about_certificate(*alert),
        _ => false,
    })
}

impl Failure {
    /// Explains an error of a connection to the server with this name. `has_certificate` says whether the client has a
    /// certificate.
    pub(super) fn new(error: Error, name: &ServerName<'_>, has_certificate: bool) -> Failure {
        let advice = match &error {
            Error::InvalidCertificate(error) => Some(about_servers_certificate(error, name)),
            Error::AlertReceived(alert) => about_alert(*alert, has_certificate).map(str::to_owned),
            Error::InvalidMessage(_) => Some("check that the port uses TLS".to_owned()),
            _ => None,
        };
        Failure { error, advice }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            // rustls shows the inner error with the names of its enums around it.
            Error::InvalidCertificate(CertificateError::Other(OtherError(error))) => {
                write!(f, "TLS: invalid peer certificate: {error}")?;
            }
            error => write!(f, "TLS: {error}")?,
        }
        self.advice.as_ref().map_or(Ok(()), |advice| write!(f, "; {advice}"))
    }
}

impl std::error::Error for Failure {}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, failure)
    }
}

/// Returns the advice for a certificate of a server that the client refuses.
fn about_servers_certificate(error: &CertificateError, name: &ServerName<'_>) -> String {
    match error {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => format!(
            "the subjectAltName of the server's certificate must have the name by which the client connects; connect by \
             a name that it has, state that name (TlsConfig::server_name), or {}",
            remedy(name)
        ),
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => {
            "renew the certificate on the server, or correct the clock of this machine".to_owned()
        }
        CertificateError::UnknownIssuer => {
            "TlsConfig::ca_file must have the authority that issued the server's certificate, or that very \
             certificate; the server must send the intermediates between the two"
                .to_owned()
        }
        CertificateError::Other(OtherError(error)) if error.is::<IsVersion1>() => {
            format!("the server's certificate is X.509 v1, which has no subjectAltName; {}", remedy(name))
        }
        _ => format!(
            "this client cannot use the server's certificate; if it is self-signed, TlsConfig::ca_file must have that \
             very certificate; otherwise {}",
            remedy(name)
        ),
    }
}

/// Tells how to make a certificate that a server with this name can use.
fn remedy(name: &ServerName<'_>) -> String {
    let kind = if matches!(name, ServerName::IpAddress(_)) { "IP" } else { "DNS" };
    let make = make_certificate(&name.to_str(), &format!(" -addext subjectAltName={kind}:{}", name.to_str()));
    format!("make another one ({make}), and give it to the server and to TlsConfig::ca_file")
}

/// Returns the command that makes a certificate with this name and these extensions.
pub(super) fn make_certificate(name: &str, extensions: &str) -> String {
    format!(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN={name}{extensions} -keyout new.key -out new.pem"
    )
}

/// Returns the advice for an alert of the server.
fn about_alert(alert: AlertDescription, has_certificate: bool) -> Option<&'static str> {
    match (is_about_certificate(alert), has_certificate) {
        (true, false) => {
            Some("the server wants a certificate of this client: set one (TlsConfig::client_certificate)")
        }
        (true, true) => Some(
            "the server refuses this client's certificate (TlsConfig::client_certificate): its truststore must have \
             the authority that issued the certificate, which must be valid now; the server's log says more",
        ),
        (false, _) if alert == AlertDescription::HandshakeFailure => Some(
            "the server and this client have no version, cipher suite or kind of key in common; DSA keys and RSA keys \
             of fewer than 2048 bits cannot be used; the server's log says more",
        ),
        (false, _) => None,
    }
}

/// Returns whether the server sends this alert if it refuses the client's certificate, or wants one.
fn is_about_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired
    )
}
