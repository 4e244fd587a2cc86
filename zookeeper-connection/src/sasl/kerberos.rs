//! [`KerberosConfig`]: the Kerberos principals of the client and the servers.

use std::time::Duration;

use super::gss;

/// The default name of the servers' service.
const SERVICE: &str = "zookeeper";

/// How to authenticate with Kerberos (SASL mechanism GSSAPI).
///
/// The system's Kerberos library (MIT) does the work, with its own settings (`krb5.conf`). There are two
/// ways to provide the client's ticket:
/// - `kinit`, `k5start` or sssd puts the ticket into the default credential cache and renews it there.
/// - The library uses a keytab to fetch and renew the ticket. For that, set
///   `KRB5_CLIENT_KTNAME=FILE:/etc/app.keytab` and `KRB5CCNAME=MEMORY:` in the environment.
///
/// The tickets for all servers of the connect string are fetched in advance, so the client can move to another server
/// even while no KDC answers. With a keytab, that may take half a minute, if the KDCs do not even refuse connections:
/// the Kerberos library then first tries to renew a ticket that has passed half of its life.
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
    /// The remaining lifetime of the client's ticket-granting ticket.
    ///
    /// After that time, a new connection needs another ticket.
    pub lifetime: Duration,
}

impl KerberosConfig {
    /// Creates a configuration with default principals.
    ///
    /// The client uses its default principal. Each server is the service `zookeeper` on its host in the connect string.
    #[must_use]
    pub fn new() -> KerberosConfig {
        KerberosConfig::default()
    }

    /// Sets the client's principal, for example `app@EXAMPLE.COM`.
    ///
    /// This is needed if the credential cache (`KCM:`, `DIR:`) or the keytab has several principals.
    #[must_use]
    pub fn principal(self, principal: impl Into<String>) -> KerberosConfig {
        KerberosConfig { principal: Some(principal.into()), ..self }
    }

    /// Sets the name of the servers' service. `zookeeper` by default.
    ///
    /// Java's client calls this setting `zookeeper.sasl.client.username`. The principal of a server is `service/host`.
    /// The host is the one in the connect string, or the name that the library derives from it
    /// (`dns_canonicalize_hostname` and `rdns` in `krb5.conf`).
    #[must_use]
    pub fn service(self, service: impl Into<String>) -> KerberosConfig {
        KerberosConfig { service: Some(service.into()), ..self }
    }

    /// Sets one principal for all servers, whatever their hosts.
    ///
    /// An example is `zookeeper/zk@EXAMPLE.COM`. If the principal has no realm, the client's realm is assumed. Java's
    /// client calls this setting `zookeeper.server.principal`.
    #[must_use]
    pub fn server_principal(self, principal: impl Into<String>) -> KerberosConfig {
        KerberosConfig { server_principal: Some(principal.into()), ..self }
    }

    /// Sets the host in the servers' principal, for a connect string with addresses.
    #[doc(hidden)]
    #[must_use]
    pub fn host(self, host: impl Into<String>) -> KerberosConfig {
        KerberosConfig { host: Some(host.into()), ..self }
    }

    /// Returns the client's ticket, after fetching a ticket for the server on a host.
    ///
    /// Fetches nothing if the credential cache has the server's ticket. Blocks while a KDC does not answer.
    ///
    /// # Errors
    /// The message of the system's library if a ticket is missing.
    pub fn ticket(&self, host: &str) -> Result<KerberosTicket, String> {
        let ticket = gss::client_ticket(self)?;
        gss::Handshake::begin(self, host)?;
        Ok(ticket)
    }

    pub(super) fn client(&self) -> Option<&str> {
        self.principal.as_deref()
    }

    /// Returns the name of the server on a host.
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

/// The name of a server, in one of the forms of GSSAPI.
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
