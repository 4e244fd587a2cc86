//! Certificates for TLS tests, created on the fly.

use std::fs;
use std::path::PathBuf;

use pkcs8::pkcs5::pbes2;
use pkcs8::{LineEnding, PrivateKeyInfoRef};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    pub issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key.
#[derive(Debug)]
pub struct Identity {
    pub certificate: rcgen::Certificate,
    pub key: KeyPair,
}

impl Authority {
    /// Creates an authority with a unique name.
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, uuid::Uuid::new_v4().to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    /// Issues a certificate for these names, which may be addresses.
    pub fn issue(&self, names: &[&str]) -> Identity {
        self.issue_with(names, |_| {})
    }

    /// Issues a certificate that expired long ago.
    pub fn issue_expired(&self, names: &[&str]) -> Identity {
        self.issue_with(names, |params| {
            (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
        })
    }

    fn issue_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Identity { certificate: params.signed_by(&key, &self.issuer).unwrap(), key }
    }
}

/// A directory of files. The directory is removed when this is dropped.
#[derive(Debug)]
pub struct Files {
    pub dir: TempDir,
}

impl Files {
    /// Creates an empty directory.
    pub fn new() -> Files {
        Files { dir: tempfile::tempdir().unwrap() }
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Writes the certificate of an authority.
    pub fn write_authority(&self, authority: &Authority) -> PathBuf {
        self.write("ca.pem", &authority.issuer.pem())
    }

    /// Writes a certificate and its key to two files.
    pub fn write_identity(&self, identity: &Identity) -> (PathBuf, PathBuf) {
        let certificate = self.write("client.pem", &identity.certificate.pem());
        (certificate, self.write("client.key", &identity.key.serialize_pem()))
    }

    /// Writes a certificate and its key, encrypted with this password, to two files.
    pub fn write_encrypted_identity(&self, identity: &Identity, password: &str) -> (PathBuf, PathBuf) {
        let der = identity.key.serialize_der();
        // Use few iterations, because key derivation is slow in unoptimized builds.
        let encryption = pbes2::Parameters::generate_pbkdf2_sha256_aes256cbc(1000, &[1; 8], [2; 16]).unwrap();
        let encrypted = PrivateKeyInfoRef::try_from(der.as_slice())
            .unwrap()
            .encrypt_with_params(encryption, password)
            .unwrap();
        let pem = encrypted.to_pem("ENCRYPTED PRIVATE KEY", LineEnding::LF).unwrap();
        let (certificate, key) = self.write_identity(identity);
        fs::write(&key, pem.as_bytes()).unwrap();
        (certificate, key)
    }

    /// Writes a certificate and its key to one file.
    pub fn write_server_identity(&self, identity: &Identity) -> PathBuf {
        self.write("server.pem", &(identity.key.serialize_pem() + &identity.certificate.pem()))
    }
}
