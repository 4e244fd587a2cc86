//! Reads certificates and private keys from PEM files. Recognizes the formats that other clients use instead, so the
//! error can name them.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use pkcs8::{EncryptedPrivateKeyInfoRef, SecretDocument};
#[cfg(unix)]
use rustix::io::Errno;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::{Result, refused};
use crate::ConnectError;

/// The first bytes of a Java keystore of the type JKS.
const JKS: [u8; 4] = [0xfe, 0xed, 0xfe, 0xed];

/// A header of private keys in the legacy encryption format of OpenSSL.
const LEGACY_ENCRYPTION: &[u8] = b"Proc-Type: 4,ENCRYPTED";

const ENCRYPTED_BEGIN: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
const ENCRYPTED_END: &str = "-----END ENCRYPTED PRIVATE KEY-----";

/// The password of a private key. No output shows it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Password(String);

impl Password {
    pub(super) fn new(password: String) -> Password {
        Password(password)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Password").finish_non_exhaustive()
    }
}

/// What a file should contain.
#[derive(Clone, Copy)]
enum Wanted {
    Certificates,
    Key,
}

/// Returns the certificates in a file, at least one.
pub(super) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(file)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| not_pem(file, &bytes, Wanted::Certificates, "it is not in PEM format"))?;
    if certificates.is_empty() {
        return Err(not_pem(file, &bytes, Wanted::Certificates, "it has no certificate in PEM format"));
    }
    Ok(certificates)
}

/// Returns the first unencrypted private key in a file. If there is none, decrypts the first encrypted key with the
/// password.
pub(super) fn private_key(file: &Path, password: Option<&Password>) -> Result<PrivateKeyDer<'static>> {
    let bytes = read(file)?;
    let missing = match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(key) => return Ok(key),
        Err(pem::Error::NoItemsFound) => "it has no private key in PEM format",
        Err(_) => "it is not in PEM format",
    };
    match encrypted_key(&bytes) {
        None => Err(not_pem(file, &bytes, Wanted::Key, missing)),
        Some(encrypted) => decrypt(&encrypted, password).map_err(|rule| refused_file(file, rule)),
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).map_err(|error| unreadable(file, error))
}

/// Returns the error for a file that could not be read.
pub(super) fn unreadable(file: &Path, error: io::Error) -> ConnectError {
    match lacks_descriptors(&error) {
        true => ConnectError::thread(error),
        false => refused_file(file, error),
    }
}

/// Returns whether the process or the system has no file descriptor left. Such a shortage is temporary, and says
/// nothing about the file.
pub(super) fn lacks_descriptors(error: &io::Error) -> bool {
    #[cfg(unix)]
    return [Errno::MFILE, Errno::NFILE]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
    #[cfg(not(unix))]
    {
        let _ = error;
        false
    }
}

/// Returns the first encrypted PKCS #8 key, from its first line to its last. Other text may surround it.
fn encrypted_key(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let begun = text.get(text.find(ENCRYPTED_BEGIN)?..)?;
    let end = begun.find(ENCRYPTED_END)? + ENCRYPTED_END.len();
    begun.get(..end).map(str::to_owned)
}

/// Decrypts a private key. The error contains neither the contents of the file nor the password.
fn decrypt(
    encrypted: &str,
    password: Option<&Password>,
) -> std::result::Result<PrivateKeyDer<'static>, &'static str> {
    let unknown = "its private key is damaged, or encrypted with an algorithm that is not supported; encrypt it with \
                   AES: openssl pkcs8 -topk8 -v2 aes256 -in FILE -out NEW.key";
    let (_, document) = SecretDocument::from_pem(encrypted).map_err(|_| unknown)?;
    let key = EncryptedPrivateKeyInfoRef::try_from(document.as_bytes()).map_err(|_| unknown)?;
    let Password(password) = password.ok_or("its private key is encrypted, and no password is set")?;
    let key = key.decrypt(password).map_err(|error| match error {
        pkcs8::Error::EncryptedPrivateKey(error) if error != pkcs8::pkcs5::Error::DecryptFailed => unknown,
        // The decryption fails, or the result is not a key.
        _ => "the password of its private key is wrong",
    })?;
    Ok(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into())
}

/// Returns the error for a file that lacks what is wanted. If the file is in a known format, the error names the
/// format; otherwise, it says `otherwise`.
fn not_pem(file: &Path, bytes: &[u8], wanted: Wanted, otherwise: &'static str) -> ConnectError {
    refused_file(file, other_format(bytes, wanted).unwrap_or(otherwise))
}

/// Returns a message that names the format and the command that converts the file, if the format is known.
fn other_format(bytes: &[u8], wanted: Wanted) -> Option<&'static str> {
    if bytes.starts_with(&JKS) {
        return Some(match wanted {
            Wanted::Certificates => {
                "it is a Java keystore (JKS), not PEM; convert it: keytool -list -rfc -keystore FILE > NEW.pem"
            }
            Wanted::Key => {
                "it is a Java keystore (JKS), not PEM; convert it: keytool -importkeystore -srckeystore FILE \
                 -destkeystore NEW.p12 -deststoretype PKCS12, and then openssl pkcs12 -in NEW.p12 -nocerts -out NEW.key"
            }
        });
    }
    if is_pkcs12(bytes) {
        return Some(match wanted {
            Wanted::Certificates => {
                "it is a PKCS #12 keystore, not PEM; convert it: openssl pkcs12 -in FILE -nokeys -out NEW.pem"
            }
            Wanted::Key => {
                "it is a PKCS #12 keystore, not PEM; convert it: openssl pkcs12 -in FILE -nocerts -out NEW.key"
            }
        });
    }
    let is_legacy = bytes.windows(LEGACY_ENCRYPTION.len()).any(|window| window == LEGACY_ENCRYPTION);
    is_legacy.then_some(
        "it has a private key that is encrypted in the legacy format of OpenSSL (Proc-Type: 4,ENCRYPTED); convert it: \
         openssl pkcs8 -topk8 -v2 aes256 -in FILE -out NEW.key",
    )
}

/// Returns whether the first element is version 3, which is the version of PKCS #12. In DER format, certificates and
/// keys have no version there, or a lower one.
fn is_pkcs12(bytes: &[u8]) -> bool {
    let [0x30, length, rest @ ..] = bytes else { return false };
    // In the long form, this byte holds the number of length bytes that follow.
    let length_bytes = if *length >= 0x80 { usize::from(*length & 0x7f) } else { 0 };
    rest.get(length_bytes..).is_some_and(|content| content.starts_with(&[2, 1, 3]))
}

pub(super) fn refused_file(file: &Path, rule: impl fmt::Display) -> ConnectError {
    refused(format!("file {file:?}: {rule}"))
}
