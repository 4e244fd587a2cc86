//! [`KerberosConfig`]: who a client is to Kerberos, and who the servers are.

use std::time::Duration;

use super::gss;

/// The name of the servers' service, unless another one is set.
const SERVICE: &str = "zookeeper";

/// An authentication by SASL with Kerberos (GSSAPI).
///
/// The system's library does it, MIT's or Heimdal's, with its own settings (`krb5.conf`). The client's ticket is in the
/// default credential cache, where `kinit`, `k5start` or sssd put it and renew it. Or the library fetches it, and renews it,
/// with a keytab: the environment then has `KRB5_CLIENT_KTNAME=FILE:/etc/app.keytab` and `KRB5CCNAME=MEMORY:`.
///
/// The tickets for all servers of the connect string are fetched ahead, so another server is reached although no KDC
/// answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KerberosConfig {
    principal: Option<String>,
    service: Option<String>,
    server_principal: Option<String>,
    host: Option<String>,
}

/// A ticket with which a client can authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KerberosTicket {
    /// The client's principal.
    pub client: String,
    /// The remaining life of the client's own ticket, with which it gets those for servers. After it, a new connection needs
    /// another one.
    pub lifetime: Duration,
}

impl KerberosConfig {
    /// Creates a configuration for the default principal, of the service `zookeeper` on each host of the connect string.
    #[must_use]
    pub fn new() -> KerberosConfig {
        KerberosConfig::default()
    }

    /// Sets the client's principal, `app@EXAMPLE.COM`, where the credential caches (`KCM:`, `DIR:`) or the keytab have
    /// several.
    #[must_use]
    pub fn principal(self, principal: impl Into<String>) -> KerberosConfig {
        KerberosConfig { principal: Some(principal.into()), ..self }
    }

    /// Sets the name of the servers' service, `zookeeper` by default: Java's `zookeeper.sasl.client.username`. The
    /// principal of a server is this, a slash, and its host as the connect string has it, or as the library canonicalizes it
    /// (`dns_canonicalize_hostname`, `rdns` in `krb5.conf`).
    #[must_use]
    pub fn service(self, service: impl Into<String>) -> KerberosConfig {
        KerberosConfig { service: Some(service.into()), ..self }
    }

    /// Sets the principal of all servers, `zookeeper/zk@EXAMPLE.COM`, whatever their hosts: Java's
    /// `zookeeper.server.principal`. Without a realm, it has the client's.
    #[must_use]
    pub fn server_principal(self, principal: impl Into<String>) -> KerberosConfig {
        KerberosConfig { server_principal: Some(principal.into()), ..self }
    }

    /// Sets the host of the servers' principal, where the connect string has addresses.
    #[doc(hidden)]
    #[must_use]
    pub fn host(self, host: impl Into<String>) -> KerberosConfig {
        KerberosConfig { host: Some(host.into()), ..self }
    }

    /// Fetches a ticket for the server on a host, unless the credential cache has one, and returns the client's. Blocks while
    /// a KDC does not answer, perhaps for a minute.
    ///
    /// # Errors
    /// The reason of the system's library why there is none.
    pub fn ticket(&self, host: &str) -> Result<KerberosTicket, String> {
        let ticket = gss::client_ticket(self)?;
        gss::Handshake::begin(self, host)?;
        Ok(ticket)
    }

    pub(super) fn client(&self) -> Option<&str> {
        self.principal.as_deref()
    }

    /// The name of the server on a host.
    pub(super) fn server(&self, host: &str) -> ServerName {
        match &self.server_principal {
            Some(principal) => ServerName::Principal(principal.clone()),
            None => {
                let service = self.service.as_deref().unwrap_or(SERVICE);
                let host = self.host.as_deref().unwrap_or(host);
                ServerName::OnHost(format!("{service}@{host}"))
            }
        }
    }
}

/// A name in one of the forms of GSSAPI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerName {
    Principal(String),
    /// `service@host`
    OnHost(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_a_service_on_its_host_unless_it_has_a_principal() {
        let on_host = |name: &str| ServerName::OnHost(name.to_owned());
        let config = KerberosConfig::new();
        assert_eq!(config.server("zk1"), on_host("zookeeper@zk1"));
        assert_eq!(config.clone().service("zk").server("zk1"), on_host("zk@zk1"));
        assert_eq!(config.clone().host("zk1").server("127.0.0.1"), on_host("zookeeper@zk1"));
        let principal = "zookeeper/zk@EXAMPLE.COM";
        let named = config.service("zk").server_principal(principal).server("zk1");
        assert_eq!(named, ServerName::Principal(principal.to_owned()));
    }
}
