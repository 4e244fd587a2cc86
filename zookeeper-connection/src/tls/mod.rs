//! TLS, by rustls with the provider `ring`: [`TlsConfig`] is what the application sets, `stream` an
//! encrypted stream.

mod stream;
mod unnamed;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use log::Level;
use rustls::client::ClientConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ConfigBuilder, RootCertStore, WantsVerifier};

pub(crate) use self::stream::{TlsStream, TlsTarget};
use self::unnamed::AnyName;
use crate::ConnectError;
use crate::support::logging;

type Result<T> = std::result::Result<T, ConnectError>;

/// The encryption of a connection, and the authentication of the server and the client.
///
/// By default the certificate authorities of the platform are trusted, the certificate of a server
/// must be valid for the server's name in the connect string, and the client has no certificate.
/// TLS 1.2 and 1.3 are used.
///
/// All files are in PEM format. They are read when a session connects, so a file that cannot be read at
/// once delays that. If they have changed at a reconnect, they are read again on another thread, and count from
/// the next attempt on: a renewed certificate needs no new session. While they cannot be read or
/// used, their former contents count, and the log names the file at `warn`.
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

impl TlsConfig {
    /// Returns the default configuration.
    pub fn new() -> TlsConfig {
        TlsConfig::default()
    }

    /// Trusts the certificate authorities in this file, and no longer those of the platform. May be
    /// called for several files.
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> TlsConfig {
        self.ca_files.push(file.into());
        self
    }

    /// Sets the certificate of this client, followed by those that link it to a certificate
    /// authority, and its private key (PKCS #8, PKCS #1 or SEC 1; not encrypted).
    pub fn client_certificate(
        mut self,
        certificate_file: impl Into<PathBuf>,
        key_file: impl Into<PathBuf>,
    ) -> TlsConfig {
        self.identity =
            Some(Identity { certificate_file: certificate_file.into(), key_file: key_file.into() });
        self
    }

    /// Sets the name, or IP address, for which the certificate of every server must be valid,
    /// instead of the server's name in the connect string. It is also the name that is sent to the
    /// server (SNI).
    pub fn server_name(mut self, name: impl Into<String>) -> TlsConfig {
        self.name = NameCheck::Fixed(name.into());
        self
    }

    /// Accepts a certificate that is valid for any other name, as long as a trusted authority
    /// issued it. Then anybody with such a certificate can pose as a server.
    pub fn danger_accept_any_server_name(mut self) -> TlsConfig {
        self.name = NameCheck::Off;
        self
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`InvalidTls`](ConnectError::InvalidTls), which names the file.
    pub(crate) fn load(&self, log_target: &'static str) -> Result<TlsClient> {
        // Before the contents: a file that changes meanwhile is read again.
        let versions = self.versions();
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(error.to_string()))?;
        let client = self.with_verifier(client)?;
        let client = match &self.identity {
            None => client.with_no_client_auth(),
            Some(identity) => {
                let (certificates, key) = identity.load()?;
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
    ) -> Result<ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>> {
        let roots = self.roots()?;
        Ok(match self.name {
            NameCheck::Off => {
                let verifier = AnyName::new(roots, provider().signature_verification_algorithms);
                client.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            NameCheck::Host | NameCheck::Fixed(_) => client.with_root_certificates(roots),
        })
    }

    fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for file in &self.ca_files {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| refused_file(file, error))?;
            }
        }
        if self.ca_files.is_empty() {
            let found = rustls_native_certs::load_native_certs();
            let (valid, _) = roots.add_parsable_certificates(found.certs);
            if valid == 0 {
                let errors = found.errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let none = "the platform has no certificate authorities; give a file with them";
                return Err(refused(format!("{none} ({errors})")));
            }
        }
        Ok(roots)
    }

    /// Those of all files.
    fn versions(&self) -> Vec<Version> {
        let identity =
            self.identity.iter().flat_map(|identity| [&identity.certificate_file, &identity.key_file]);
        let version =
            |file: &PathBuf| file.metadata().and_then(|file| Ok((file.modified()?, file.len()))).ok();
        self.ca_files.iter().chain(identity).map(version).collect()
    }
}

impl Identity {
    fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let key = PrivateKeyDer::from_pem_file(&self.key_file).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                refused_file(&self.key_file, "it has no private key in PEM format; decrypt an encrypted one")
            }
            error => refused_file(&self.key_file, describe(error)),
        })?;
        Ok((certificates(&self.certificate_file)?, key))
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<std::result::Result<_, _>>);
    let certificates: Vec<_> = certificates.map_err(|error| refused_file(file, describe(error)))?;
    if certificates.is_empty() {
        return Err(refused_file(file, "it has no certificate in PEM format"));
    }
    Ok(certificates)
}

/// Without the bytes of the file, which may be a key.
fn describe(error: pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        _ => "it is not in PEM format".to_owned(),
    }
}

fn refused_file(file: &Path, rule: impl std::fmt::Display) -> ConnectError {
    refused(format!("file {file:?}: {rule}"))
}

fn refused(rule: String) -> ConnectError {
    ConnectError::InvalidTls { rule }
}

fn server_name(name: &str) -> Result<ServerName<'static>> {
    let parsed = ServerName::try_from(name.to_owned());
    parsed.map_err(|_| refused(format!("'{}' is not a valid server name", name.escape_debug())))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The time of the last change of a file, and its length. `None` if the file cannot be found.
type Version = Option<(SystemTime, u64)>;

/// The configuration with the files' contents.
#[derive(Debug)]
pub(crate) struct TlsClient {
    config: TlsConfig,
    files: Files,
    /// A look at the files, which is under way on another thread: a file system may hang.
    look: Option<Receiver<Files>>,
    log_target: &'static str,
}

/// The files as they were read last.
#[derive(Clone, Debug)]
struct Files {
    client: Arc<ClientConfig>,
    versions: Vec<Version>,
    /// Why their present contents are not usable, as the log has it.
    refusal: Option<String>,
}

impl TlsClient {
    /// Returns what encrypts a stream to this host. Does not read the files, but has another thread look
    /// whether they have changed, for the attempts that follow.
    ///
    /// # Errors
    /// [`InvalidTls`](ConnectError::InvalidTls) if a certificate cannot have this name.
    pub(crate) fn target(&mut self, host: &str) -> Result<TlsTarget> {
        self.renew();
        let name = match &self.config.name {
            NameCheck::Fixed(name) => server_name(name)?,
            // Without the zone of an IPv6 address, which a certificate cannot have.
            NameCheck::Host | NameCheck::Off => server_name(host.split('%').next().unwrap_or(host))?,
        };
        Ok(TlsTarget { client: Arc::clone(&self.files.client), name })
    }

    /// Takes up the outcome of the last look, and has the next begin.
    fn renew(&mut self) {
        match self.look.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return,
            Some(Ok(files)) => self.files = files,
            // The thread could not be started.
            Some(Err(TryRecvError::Disconnected)) | None => {}
        }
        let (sender, look) = bounded(1);
        let (config, files, log_target) = (self.config.clone(), self.files.clone(), self.log_target);
        let thread = thread::Builder::new().name("zk-tls".to_owned());
        // Otherwise the next attempt tries again.
        let _ = thread.spawn(move || look_at_files(&config, files, log_target, &sender));
        self.look = Some(look);
    }
}

#[cfg(test)]
impl TlsClient {
    /// Looks at the files on this thread.
    pub(crate) fn look_now(&mut self) {
        let (sender, look) = bounded(1);
        look_at_files(&self.config, self.files.clone(), self.log_target, &sender);
        self.files = look.recv().expect("the look is over");
    }
}

/// Reads the files if they have changed.
fn look_at_files(config: &TlsConfig, mut files: Files, log_target: &'static str, outcome: &Sender<Files>) {
    let is_changed = config.versions() != files.versions;
    match is_changed.then(|| config.load(log_target)) {
        None => files.refusal = None,
        Some(Ok(renewed)) => files = renewed.files,
        Some(Err(error)) => {
            let refusal = Some(error.to_string());
            if files.refusal != refusal {
                logging::log!(
                    log_target,
                    Level::Warn,
                    "TLS files have changed, their former contents stay in use: {error}"
                );
            }
            files.refusal = refusal;
        }
    }
    // The connection may have ended.
    let _ = outcome.send(files);
}
