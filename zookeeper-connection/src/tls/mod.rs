//! TLS, by rustls: [`TlsConfig`] is what the application sets, `pem` reads its files, and `stream` is an encrypted
//! stream.

mod pem;
mod stream;
mod unnamed;

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

use self::pem::{Password, refused_file};
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
/// The cryptography is that of the process's default
/// [`CryptoProvider`](https://docs.rs/rustls/latest/rustls/crypto/struct.CryptoProvider.html) of rustls 0.23, if the
/// application has installed one before the session connects: one of aws-lc-rs in FIPS mode, for example. Otherwise it is `ring`.
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
    /// authority, and its private key (PKCS #8, PKCS #1 or SEC 1). Only a PKCS #8 key may be encrypted, with a
    /// [password](TlsConfig::key_password).
    pub fn client_certificate(
        mut self,
        certificate_file: impl Into<PathBuf>,
        key_file: impl Into<PathBuf>,
    ) -> TlsConfig {
        self.identity =
            Some(Identity { certificate_file: certificate_file.into(), key_file: key_file.into() });
        self
    }

    /// Sets the password of the client's private key. A key that is not encrypted is used as it is.
    ///
    /// The key must be an encrypted PKCS #8 one (`BEGIN ENCRYPTED PRIVATE KEY`) with AES and SHA-2 or scrypt, as `openssl
    /// pkcs8 -topk8 -v2 aes256` makes it. The `CryptoProvider` has no part in the decryption. No log line, error or
    /// `Debug` output has the password.
    pub fn key_password(mut self, password: impl Into<String>) -> TlsConfig {
        self.key_password = Some(Password::new(password.into()));
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
        let roots = self.roots()?;
        Ok(match self.name {
            NameCheck::Off => {
                let verifier = AnyName::new(roots, provider.signature_verification_algorithms);
                client.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            NameCheck::Host | NameCheck::Fixed(_) => client.with_root_certificates(roots),
        })
    }

    fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for file in &self.ca_files {
            for certificate in pem::certificates(file)? {
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
    fn load(
        &self,
        key_password: Option<&Password>,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let key = pem::private_key(&self.key_file, key_password)?;
        Ok((pem::certificates(&self.certificate_file)?, key))
    }
}

fn refused(rule: String) -> ConnectError {
    ConnectError::InvalidTls { rule }
}

fn server_name(name: &str) -> Result<ServerName<'static>> {
    let parsed = ServerName::try_from(name.to_owned());
    parsed.map_err(|_| refused(format!("'{}' is not a valid server name", name.escape_debug())))
}

/// The application's, if it has installed one for the process.
fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()))
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
    /// The contents that are not usable, and why, as the log has them.
    refusal: Option<(Vec<Version>, String)>,
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

/// Reads the key in a file.
#[cfg(test)]
pub(crate) fn private_key(file: &std::path::Path, password: Option<&str>) -> Result<PrivateKeyDer<'static>> {
    pem::private_key(file, password.map(|password| Password::new(password.to_owned())).as_ref())
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
    let versions = config.versions();
    let is_changed = versions != files.versions;
    match is_changed.then(|| config.load(log_target)) {
        None => files.refusal = None,
        Some(Ok(renewed)) => files = renewed.files,
        Some(Err(error)) => {
            // Once for each change, and not for each attempt.
            let refusal = Some((versions, error.to_string()));
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
