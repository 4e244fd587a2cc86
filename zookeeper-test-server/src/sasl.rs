//! The SASL mechanism of a server, as a section of a JAAS file and JVM flags.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::options::utf8;

/// The SASL mechanism. A server's JAAS file chooses one of the two that ZooKeeper supports.
#[derive(Debug, Clone)]
pub(super) enum Sasl {
    /// DIGEST-MD5, with pairs of user and password.
    Users(Vec<(String, String)>),
    Kerberos {
        krb5_conf: PathBuf,
        principal: String,
        keytab: PathBuf,
    },
}

impl Sasl {
    /// Writes the JAAS file. Returns the JVM flags that name it.
    pub(super) fn write(&self, dir: &Path) -> io::Result<Vec<String>> {
        let path = dir.join("jaas.conf");
        let (login_module, mechanism_flag) = match self {
            // Newer servers refuse DIGEST-MD5 in FIPS mode, which is on by default.
            Sasl::Users(users) => (digest_module(users), "-Dzookeeper.fips-mode=false".to_owned()),
            Sasl::Kerberos { krb5_conf, principal, keytab } => (
                kerberos_module(principal, utf8(keytab)?),
                format!("-Djava.security.krb5.conf={}", utf8(krb5_conf)?),
            ),
        };
        fs::write(&path, format!("Server {{\n  {login_module};\n}};\n"))?;
        Ok(vec![format!("-Djava.security.auth.login.config={}", utf8(&path)?), mechanism_flag])
    }
}

fn digest_module(users: &[(String, String)]) -> String {
    let mut module = "org.apache.zookeeper.server.auth.DigestLoginModule required".to_owned();
    for (user, password) in users {
        module += &format!("\n  {}={}", quoted(&format!("user_{user}")), quoted(password));
    }
    module
}

/// Returns the login module for Kerberos. With `isInitiator=false`, the server needs no ticket, so it starts
/// without a KDC.
fn kerberos_module(principal: &str, keytab: &str) -> String {
    format!(
        "com.sun.security.auth.module.Krb5LoginModule required isInitiator=false\n  \
         useKeyTab=true storeKey=true keyTab={} principal={}",
        quoted(keytab),
        quoted(principal)
    )
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
