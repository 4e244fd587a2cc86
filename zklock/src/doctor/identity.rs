//! The identity that SASL gives this client on the servers.

#[cfg(feature = "kerberos")]
use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

#[cfg(feature = "kerberos")]
use zookeeper_recipes_lock::client::{KerberosConfig, KerberosTicket};

use super::Findings;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
#[cfg(feature = "kerberos")]
use crate::spans::show_duration;

/// How long to wait for the tickets of all servers. The system's library waits longer for a silent KDC.
#[cfg(feature = "kerberos")]
const TICKET_TIMEOUT: Duration = Duration::from_secs(10);

/// A ticket with less time left is worth a warning.
#[cfg(feature = "kerberos")]
const SHORT_LIFE: Duration = Duration::from_secs(10 * 60);

impl Findings {
    /// Notes the identity of this client. For Kerberos, also checks the tickets for all servers.
    pub(super) fn check_identity(
        &mut self,
        connection: &ConnectionArgs,
        servers: &[(String, u16)],
    ) -> Result<(), Failure> {
        if let Some(user) = connection.sasl.user()? {
            self.checked.push("the identity");
            self.notes.push(format!("authenticates with SASL (DIGEST-MD5) as {user}"));
        }
        #[cfg(feature = "kerberos")]
        if let Some(config) = connection.sasl.kerberos_config()? {
            self.checked.extend(["the identity", "a Kerberos ticket for every server"]);
            self.check_tickets(&config, servers);
        }
        #[cfg(not(feature = "kerberos"))]
        let _ = servers;
        Ok(())
    }

    #[cfg(feature = "kerberos")]
    fn check_tickets(&mut self, config: &KerberosConfig, servers: &[(String, u16)]) {
        let mut hosts: Vec<&str> = servers.iter().map(|(host, _)| &**host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let fetched = hosts.into_iter().map(|host| (host, fetch_ticket(config, host))).collect();
        let client = self.await_tickets(fetched, TICKET_TIMEOUT);
        let Some(KerberosTicket { client, lifetime, .. }) = client else { return };
        let life = show_duration(lifetime);
        self.notes
            .push(format!("authenticates with SASL (Kerberos) as {client}, whose ticket lasts for {life}"));
        if lifetime < SHORT_LIFE {
            self.warn(format!(
                "the ticket of {client} expires in {life}, after which no connection can be made: renew it (kinit, k5start), or \
                 use a keytab (KRB5_CLIENT_KTNAME)"
            ));
        }
    }

    /// Waits for the tickets for these hosts, for `timeout` in all. Returns one of them, if there is any.
    #[cfg(feature = "kerberos")]
    fn await_tickets(&mut self, fetched: Vec<(&str, Ticket)>, timeout: Duration) -> Option<KerberosTicket> {
        let begun = Instant::now();
        let mut client = None;
        for (host, ticket) in fetched {
            match ticket.recv_timeout(timeout.saturating_sub(begun.elapsed())) {
                Ok(Ok(ticket)) => client = Some(ticket),
                Ok(Err(why)) => self.warn(format!("no ticket for {host}: {why}")),
                Err(_) => self.warn(format!(
                    "no ticket for {host} within {}: the KDC does not answer",
                    show_duration(timeout)
                )),
            }
        }
        client
    }
}

/// The answer of a KDC, which may never come.
#[cfg(feature = "kerberos")]
type Ticket = mpsc::Receiver<Result<KerberosTicket, String>>;

/// Fetches a ticket on another thread, because the KDC may not answer.
#[cfg(feature = "kerberos")]
fn fetch_ticket(config: &KerberosConfig, host: &str) -> Ticket {
    let (sender, ticket) = mpsc::channel();
    let (config, host) = (config.clone(), host.to_owned());
    let failed = sender.clone();
    let thread = thread::Builder::new().spawn(move || drop(sender.send(config.ticket(&host))));
    if let Err(error) = thread {
        let _ = failed.send(Err(error.to_string()));
    }
    ticket
}

#[cfg(all(test, feature = "kerberos"))]
mod tests {
    use super::*;

    #[test]
    fn silent_kdc_takes_the_time_once_and_not_for_each_server() {
        let (_silent, tickets): (Vec<_>, Vec<_>) =
            (0..50).map(|_| mpsc::channel()).map(|(sender, ticket)| (sender, ("zk", ticket))).unzip();
        let (mut findings, begun) = (Findings::default(), Instant::now());
        assert!(findings.await_tickets(tickets, Duration::from_millis(200)).is_none());
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(findings.warnings.len(), 50);
    }
}
