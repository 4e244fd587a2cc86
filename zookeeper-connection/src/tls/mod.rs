//! TLS, using rustls. The application sets a [`TlsConfig`], `pem` reads its files, `stream` encrypts a stream, `verifier`
//! accepts or refuses the certificate of a server, and `failure` says why.

mod failure;
mod outline;
mod pem;
mod stream;
mod verifier;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use log::Level;
use rustls::client::ClientConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ConfigBuilder, RootCertStore, WantsVerifier};
use rustls_native_certs::{CertificateResult, ErrorKind};

pub(crate) use self::failure::refuses_certificate;
use self::outline::Outline;
use self::pem::{Password, lacks_descriptors, refused_file};
pub(crate) use self::stream::{TlsStream, TlsTarget};
use self::verifier::Verifier;
use crate::ConnectError;
use crate::support::logging;

type Result<T> = std::result::Result<T, ConnectError>;

/// The encryption of a connection, and the authentication of the server and the client.
///
/// By default, the client trusts the platform's certificate authorities, requires each server's certificate to be valid
/// for the server's name in the connect string, and has no certificate of its own. It uses TLS 1.2 or 1.3.
///
/// If certificates are refused at every server, on either side, connecting fails at once, with an error that says for
/// each server what to do. A session that a server has served before keeps trying.
///
/// If the application has installed a process-wide default
/// [`CryptoProvider`](https://docs.rs/rustls/latest/rustls/crypto/struct.CryptoProvider.html) of rustls 0.23 before the
/// session connects (for example aws-lc-rs in FIPS mode), that provider does the cryptography. Otherwise, `ring` does.
///
/// All files are in PEM format. They are read when a session connects, so a slow file system delays the connect, and an
/// unusable file makes it fail, even if the session replaces another one. If the files have changed by the time of a
/// reconnect, another thread reads them again, and the new contents are used from
/// the next attempt on. A renewed certificate therefore needs no new session. If the new contents cannot be read or
/// used, the former contents stay in use, and a warning in the log names the file. Changes to the platform's
/// certificate authorities are not noticed.
///
/// ```
/// # use zookeeper_connection::TlsConfig;
/// let tls = TlsConfig::new()
///     .ca_file("/etc/zookeeper/ca.pem")
///     .client_certificate("/etc/zookeeper/client.pem", "/etc/zookeeper/client.key");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a configuration does nothing until it is given to a session"]
pub struct TlsConfig {
    ca_files: Vec<PathBuf>,
    identity: Option<Identity>,
    key_password: Option<Password>,
    name: NameCheck,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    certificate_file: PathBuf,
    key_file: PathBuf,
}

/// The name for which the certificate of a server must be valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum NameCheck {
    /// The host in the connect string.
    #[default]
    Host,
    Fixed(String),
    Off,
}

/// Returns the name of a file. Contents that somebody has given in place of the name are not kept, because errors, log
/// lines and `Debug` show names.
fn name_of(file: PathBuf) -> PathBuf {
    let is_name = !file.to_string_lossy().contains("-----BEGIN");
    if is_name { file } else { PathBuf::from("(the contents of a file, in place of its name)") }
}

impl TlsConfig {
    /// Returns the default configuration.
    pub fn new() -> TlsConfig {
        TlsConfig::default()
    }

    /// Trusts the certificates in this file instead of the authorities of the platform.
    ///
    /// Each is trusted as an authority, and may also be the certificate of a server itself, for example a self-signed
    /// one. The server must present exactly that certificate, and have its key. As always, the certificate must be valid
    /// now and for the server's name. If it has no subjectAltName, its common name (`CN`) is its name. In certificates
    /// that an authority has issued, the common name does not count.
    ///
    /// May be called for several files.
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> TlsConfig {
        self.ca_files.push(name_of(file.into()));
        self
    }

    /// Sets the certificate chain and the private key of this client.
    ///
    /// The certificate file starts with the client's certificate, followed by the certificates that link it to a
    /// certificate authority. The key is in PKCS #8, PKCS #1 or SEC 1 format. Only a PKCS #8 key may be encrypted with
    /// a [password](TlsConfig::key_password).
    pub fn client_certificate(
        mut self,
        certificate_file: impl Into<PathBuf>,
        key_file: impl Into<PathBuf>,
    ) -> TlsConfig {
        self.identity = Some(Identity {
            certificate_file: name_of(certificate_file.into()),
            key_file: name_of(key_file.into()),
        });
        self
    }

    /// Sets the password of the client's private key.
    ///
    /// The key must be in encrypted PKCS #8 format (`BEGIN ENCRYPTED PRIVATE KEY`), with AES and either SHA-2 or
    /// scrypt; `openssl pkcs8 -topk8 -v2 aes256` writes this format. If the key is not encrypted, the password is
    /// ignored. The key is decrypted without the `CryptoProvider`. No log line, error or `Debug` output contains the
    /// password.
    pub fn key_password(mut self, password: impl Into<String>) -> TlsConfig {
        self.key_password = Some(Password::new(password.into()));
        self
    }

    /// Sets the name for which the certificate of every server must be valid.
    ///
    /// Use it if the servers' certificates lack the names in the connect string. The name replaces the server's name from
    /// the connect string, and is also sent to the server (SNI). It may be an IP address, which is not sent.
    pub fn server_name(mut self, name: impl Into<String>) -> TlsConfig {
        self.name = NameCheck::Fixed(name.into());
        self
    }

    /// Accepts certificates that were issued for other names.
    ///
    /// The certificate must still come from a trusted authority, or be one of those in the files. But anybody with such a
    /// certificate can pose as a server.
    pub fn danger_accept_any_server_name(mut self) -> TlsConfig {
        self.name = NameCheck::Off;
        self
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`InvalidTls`](ConnectError::InvalidTls), which names the file or the server name at fault, and
    /// [`Thread`](ConnectError::Thread) if no file descriptor is left.
    pub(crate) fn load(&self, log_target: &'static str) -> Result<TlsClient> {
        // Read the versions before the contents, so a file that changes in between is read again.
        let versions = self.versions();
        let provider = provider();
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(error.to_string()))?;
        let client = self.with_verifier(client, &provider)?;
        let client = match &self.identity {
            None => client.with_no_client_auth(),
            Some(identity) => {
                let (certificates, key) = identity.load(self.key_password.as_ref())?;
                client.with_client_auth_cert(certificates, key).map_err(|error| {
                    let Identity { certificate_file, key_file } = identity;
                    refused(format!("{certificate_file:?} and {key_file:?} cannot be used together: {error}"))
                })?
            }
        };
        if let NameCheck::Fixed(name) = &self.name {
            server_name(name)?;
        }
        Ok(TlsClient {
            config: self.clone(),
            files: Files { client: Arc::new(client), versions, refusal: None },
            look: None,
            log_target,
        })
    }

    fn with_verifier(
        &self,
        client: ConfigBuilder<ClientConfig, WantsVerifier>,
        provider: &CryptoProvider,
    ) -> Result<ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>> {
        let (roots, trusted) = self.roots()?;
        let checks_name = self.name != NameCheck::Off;
        let verifier = Verifier::new(roots, trusted, checks_name, provider.signature_verification_algorithms);
        Ok(client.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
    }

    /// Returns the authorities to trust, and the certificates of the files.
    fn roots(&self) -> Result<(RootCertStore, Vec<CertificateDer<'static>>)> {
        let (mut roots, mut trusted) = (RootCertStore::empty(), Vec::new());
        for file in &self.ca_files {
            for certificate in pem::certificates(file)? {
                roots.add(certificate.clone()).map_err(|error| refused_file(file, error))?;
                trusted.push(certificate);
            }
        }
        if self.ca_files.is_empty() {
            add_platform_roots(&mut roots, rustls_native_certs::load_native_certs())?;
        }
        Ok((roots, trusted))
    }

    /// Returns the versions of all files.
    fn versions(&self) -> Vec<Version> {
        let identity =
            self.identity.iter().flat_map(|identity| [&identity.certificate_file, &identity.key_file]);
        let version =
            |file: &PathBuf| file.metadata().and_then(|file| Ok((file.modified()?, file.len()))).ok();
        self.ca_files.iter().chain(identity).map(version).collect()
    }
}

fn add_platform_roots(roots: &mut RootCertStore, found: CertificateResult) -> Result<()> {
    let is_lack = |kind: &ErrorKind| matches!(kind, ErrorKind::Io { inner, .. } if lacks_descriptors(inner));
    // The files that were not opened may contain the authority that is needed.
    if let Some(lack) = found.errors.iter().find(|error| is_lack(&error.kind)) {
        return Err(ConnectError::thread(io::Error::other(lack.to_string())));
    }
    let (valid, _) = roots.add_parsable_certificates(found.certs);
    if valid == 0 {
        let errors = found.errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let none = "the platform has no certificate authorities; name a file that contains some";
        return Err(refused(format!("{none} ({errors})")));
    }
    Ok(())
}

impl Identity {
    fn load(
        &self,
        key_password: Option<&Password>,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let key = pem::private_key(&self.key_file, key_password)?;
        let certificates = pem::certificates(&self.certificate_file)?;
        let is_v1 =
            |certificate: &CertificateDer<'_>| Outline::of(certificate).is_ok_and(|outline| outline.is_v1);
        if certificates.first().is_some_and(is_v1) {
            let make = failure::make_certificate("client", "");
            let rule = format!(
                "its certificate is X.509 v1, which TLS 1.3 does not allow; make another one: {make}"
            );
            return Err(refused_file(&self.certificate_file, rule));
        }
        Ok((certificates, key))
    }
}

fn refused(rule: String) -> ConnectError {
    ConnectError::InvalidTls { rule }
}

/// Returns the name that a certificate must have. A certificate cannot have the zone of an IPv6 address.
fn server_name(name: &str) -> Result<ServerName<'static>> {
    let without_zone = name.split('%').next().unwrap_or(name);
    let parsed = ServerName::try_from(without_zone.to_owned());
    parsed.map_err(|_| refused(format!("'{}' is not a valid server name", name.escape_debug())))
}

/// Returns the provider that the application has installed for the process, or else `ring`.
fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()))
}

/// The modification time of a file and its length. `None` if they cannot be read.
type Version = Option<(SystemTime, u64)>;

/// The configuration, with the contents of its files.
#[derive(Debug)]
pub(crate) struct TlsClient {
    config: TlsConfig,
    files: Files,
    /// The outcome of a check of the files, which runs on another thread because a file system may hang.
    look: Option<Receiver<Files>>,
    log_target: &'static str,
}

/// The files, as last read.
#[derive(Clone, Debug)]
struct Files {
    client: Arc<ClientConfig>,
    versions: Vec<Version>,
    /// The versions of files that could not be used, and the error that was logged for them.
    refusal: Option<(Vec<Version>, String)>,
}

impl TlsClient {
    /// Returns what is needed to encrypt a stream to this host. Does not read the files: another thread checks whether
    /// they have changed. Changes take effect on a later attempt.
    ///
    /// # Errors
    /// [`InvalidTls`](ConnectError::InvalidTls) if a certificate cannot have this name.
    pub(crate) fn target(&mut self, host: &str) -> Result<TlsTarget> {
        self.renew();
        let name = match &self.config.name {
            NameCheck::Fixed(name) => server_name(name)?,
            NameCheck::Host | NameCheck::Off => server_name(host)?,
        };
        Ok(TlsTarget { client: Arc::clone(&self.files.client), name })
    }

    /// Returns the length of the names in the client's certificate in bytes, if it has one.
    pub(crate) fn names_length(&self) -> Option<usize> {
        let presented = self.files.client.client_auth_cert_resolver.resolve(&[], &[])?;
        presented.cert.first().map(|certificate| {
            Outline::of(certificate).map_or(certificate.len(), |outline| outline.names_length)
        })
    }

    /// Applies the outcome of the last check of the files, and starts the next check.
    fn renew(&mut self) {
        match self.look.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return,
            Some(Ok(files)) => self.files = files,
            // The thread could not be started, or there has been no check yet.
            Some(Err(TryRecvError::Disconnected)) | None => {}
        }
        let (sender, look) = bounded(1);
        let (config, files, log_target) = (self.config.clone(), self.files.clone(), self.log_target);
        let thread = thread::Builder::new().name("zk-tls".to_owned());
        // If this fails, the next attempt tries again.
        let _ = thread.spawn(move || look_at_files(&config, files, log_target, &sender));
        self.look = Some(look);
    }
}

/// Reads the key in a file.
#[cfg(test)]
pub(crate) fn private_key(file: &std::path::Path, password: Option<&str>) -> Result<PrivateKeyDer<'static>> {
    pem::private_key(file, password.map(|password| Password::new(password.to_owned())).as_ref())
}

#[cfg(test)]
impl TlsClient {
    /// Checks the files on this thread.
    pub(crate) fn look_now(&mut self) {
        let (sender, look) = bounded(1);
        look_at_files(&self.config, self.files.clone(), self.log_target, &sender);
        self.files = look.recv().expect("the check is complete");
    }
}

/// Reads the files again if they have changed.
fn look_at_files(config: &TlsConfig, mut files: Files, log_target: &'static str, outcome: &Sender<Files>) {
    let versions = config.versions();
    let is_changed = versions != files.versions;
    match is_changed.then(|| config.load(log_target)) {
        None => files.refusal = None,
        Some(Ok(renewed)) => files = renewed.files,
        Some(Err(error)) => {
            // Log each change once, not on every attempt.
            let refusal = Some((versions, error.to_string()));
            if files.refusal != refusal {
                logging::log!(
                    log_target,
                    Level::Warn,
                    "TLS files have changed, but their former contents stay in use: {error}"
                );
            }
            files.refusal = refusal;
        }
    }
    // The connection may have ended.
    let _ = outcome.send(files);
}

#[cfg(all(test, unix))]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn platform_roots(errno: Errno) -> Result<()> {
        let kind =
            ErrorKind::Io { inner: io::Error::from(errno), path: PathBuf::from("/etc/ssl/certs/a.pem") };
        let mut found = CertificateResult::default();
        found.errors.push(rustls_native_certs::Error { context: "failed to open", kind });
        add_platform_roots(&mut RootCertStore::empty(), found)
    }

    fn file(errno: Errno) -> ConnectError {
        pem::unreadable("a.pem".as_ref(), io::Error::from(errno))
    }

    #[test]
    fn lack_of_descriptors_is_no_fault_of_a_file() {
        for errno in [Errno::MFILE, Errno::NFILE] {
            assert!(matches!(file(errno), ConnectError::Thread { .. }), "{errno:?}");
            assert!(matches!(platform_roots(errno), Err(ConnectError::Thread { .. })), "{errno:?}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::IO] {
            assert!(matches!(file(errno), ConnectError::InvalidTls { .. }), "{errno:?}");
            assert!(matches!(platform_roots(errno), Err(ConnectError::InvalidTls { .. })), "{errno:?}");
        }
    }
}
