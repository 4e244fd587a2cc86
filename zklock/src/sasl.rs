//! The options for SASL authentication.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use zookeeper_recipes_lock::SessionBuilder;
#[cfg(feature = "kerberos")]
use zookeeper_recipes_lock::client::KerberosConfig;

use crate::connection::{Secret, variable};
use crate::failure::{CONFIG, Failure, USAGE};

/// The variable with a mechanism. Other users can see a program's arguments, but not its variables.
const SASL_VARIABLE: &str = "ZK_SASL";

#[derive(Args, Debug)]
#[command(next_help_heading = "Connection")]
pub(crate) struct SaslArgs {
    /// Authenticates with SASL: digest-md5:USER:PASSWORD or kerberos. Other users can see arguments,
    /// so prefer ZK_SASL [env: ZK_SASL=]
    #[arg(long, global = true, hide_short_help = true, value_name = "MECHANISM[:USER:PASSWORD]")]
    sasl: Option<Secret>,
    /// A file whose first line is a value of --sasl
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE", conflicts_with = "sasl")]
    sasl_file: Option<PathBuf>,
    /// The principal of this client, if the credential caches have several (Kerberos)
    #[arg(long, global = true, hide_short_help = true, value_name = "NAME")]
    principal: Option<String>,
    /// The principal of all servers, instead of zookeeper/HOST for each (Kerberos)
    #[arg(long, global = true, hide_short_help = true, value_name = "NAME", env = "ZK_SERVER_PRINCIPAL")]
    server_principal: Option<String>,
}

/// How to authenticate. It has no `Debug`, because of the password.
#[derive(Clone, PartialEq, Eq)]
enum Mechanism {
    Digest { user: String, password: String },
    Kerberos,
}

impl FromStr for Mechanism {
    type Err = &'static str;

    /// The error does not show the text, which may be a password.
    fn from_str(text: &str) -> Result<Mechanism, &'static str> {
        let (mechanism, login) = match text.split_once(':') {
            Some((mechanism, login)) => (mechanism, login.split_once(':')),
            None => (text, None),
        };
        match (&*mechanism.to_ascii_lowercase(), login) {
            ("digest-md5", Some((user, password))) if !user.is_empty() => {
                Ok(Mechanism::Digest { user: user.to_owned(), password: password.to_owned() })
            }
            ("kerberos", None) if mechanism == text => Ok(Mechanism::Kerberos),
            _ => Err("write digest-md5:USER:PASSWORD or kerberos"),
        }
    }
}

impl SaslArgs {
    /// Sets the authentication of a session. `host` is the host in the servers' principal, for a connect string that
    /// contains an address instead of a name.
    pub(crate) fn apply(
        &self,
        builder: SessionBuilder,
        host: Option<&str>,
    ) -> Result<SessionBuilder, Failure> {
        let mechanism = self.mechanism()?;
        if self.principal.is_some() && mechanism != Some(Mechanism::Kerberos) {
            return Err(Failure::new(USAGE, "--principal needs --sasl kerberos"));
        }
        match mechanism {
            None => Ok(builder),
            Some(Mechanism::Digest { user, password }) => Ok(builder.sasl_digest(user, password)),
            Some(Mechanism::Kerberos) => self.with_kerberos(builder, host),
        }
    }

    #[cfg(feature = "kerberos")]
    fn with_kerberos(&self, builder: SessionBuilder, host: Option<&str>) -> Result<SessionBuilder, Failure> {
        let config = self.kerberos();
        Ok(builder.kerberos(match host {
            Some(host) => config.host(host),
            None => config,
        }))
    }

    #[cfg(not(feature = "kerberos"))]
    fn with_kerberos(&self, _: SessionBuilder, _: Option<&str>) -> Result<SessionBuilder, Failure> {
        let _ = &self.server_principal;
        let message = "this zklock was built without Kerberos: cargo install zklock --features kerberos";
        Err(Failure::new(USAGE, message))
    }

    #[cfg(feature = "kerberos")]
    fn kerberos(&self) -> KerberosConfig {
        let mut config = KerberosConfig::new();
        if let Some(principal) = &self.principal {
            config = config.principal(principal);
        }
        if let Some(principal) = &self.server_principal {
            config = config.server_principal(principal);
        }
        config
    }

    /// The user name of DIGEST-MD5. Kerberos has the client's name in its ticket.
    pub(crate) fn user(&self) -> Result<Option<String>, Failure> {
        Ok(match self.mechanism()? {
            Some(Mechanism::Digest { user, .. }) => Some(user),
            Some(Mechanism::Kerberos) | None => None,
        })
    }

    /// The configuration of Kerberos, if Kerberos is the mechanism.
    #[cfg(feature = "kerberos")]
    pub(crate) fn kerberos_config(&self) -> Result<Option<KerberosConfig>, Failure> {
        Ok((self.mechanism()? == Some(Mechanism::Kerberos)).then(|| self.kerberos()))
    }

    fn mechanism(&self) -> Result<Option<Mechanism>, Failure> {
        if let Some(Secret(text)) = &self.sasl {
            return parse(text, USAGE, "--sasl").map(Some);
        }
        if let Some(file) = &self.sasl_file {
            return parse(&first_line(file)?, CONFIG, &file.display().to_string()).map(Some);
        }
        variable(SASL_VARIABLE)?.map(|text| parse(&text, USAGE, SASL_VARIABLE)).transpose()
    }
}

fn parse(text: &str, code: u8, place: &str) -> Result<Mechanism, Failure> {
    text.parse().map_err(|error| Failure::new(code, format!("{place}: {error}")))
}

fn first_line(file: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(CONFIG, format!("{}: {error}", file.display())))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(user: &str, password: &str) -> Result<Mechanism, &'static str> {
        Ok(Mechanism::Digest { user: user.to_owned(), password: password.to_owned() })
    }

    fn parsed(text: &str) -> Result<Mechanism, &'static str> {
        text.parse()
    }

    #[test]
    fn mechanisms_are_parsed() {
        assert!(parsed("kerberos") == Ok(Mechanism::Kerberos));
        assert!(parsed("digest-md5:app:pass:word ") == digest("app", "pass:word "));
        assert!(parsed("DIGEST-MD5:app:") == digest("app", ""));
        for wrong in
            ["", "kerberos:", "kerberos:a:b", "digest-md5", "digest-md5:secret", "digest-md5::b", "plain:a:b"]
        {
            let error = parsed(wrong).err().unwrap();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
