//! What a client's process needs to get Kerberos tickets through its own network.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use super::gate::Gate;
use crate::support::test_server::TestKdc;

/// The principal of all clients.
const USER: &str = "app";

#[derive(Debug)]
pub struct Tickets {
    /// The path to the KDC, if the client has a namespace.
    _gate: Option<Gate>,
    environment: Vec<String>,
}

impl Tickets {
    /// Writes a configuration into this directory. `outside` is the machine's address as the client sees it.
    pub fn new(client: usize, kdc: &TestKdc, outside: Option<IpAddr>, dir: &Path) -> Tickets {
        let text = fs::read_to_string(kdc.krb5_conf()).expect("the KDC has written it");
        let address = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("kdc = "))
            .expect("the configuration names the KDC");
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
        let gate = outside.map(|outside| Gate::open(outside, port));
        let seen = gate.as_ref().map_or_else(|| address.to_owned(), Gate::connect_string);
        // Gates forward only TCP.
        let text = text
            .replace(address, &seen)
            .replace("[libdefaults]", "[libdefaults]\n  udp_preference_limit = 1");
        let path = dir.join(format!("krb5-{client}.conf"));
        fs::write(&path, text).expect("the directory is ours");
        let keytab = kdc.keytab(USER).expect("the KDC creates the user");
        let environment = vec![
            format!("KRB5_CONFIG={}", path.display()),
            format!("KRB5_CLIENT_KTNAME={}", keytab.display()),
            "KRB5CCNAME=MEMORY:".to_owned(),
        ];
        Tickets { _gate: gate, environment }
    }

    /// Returns the command that runs a program in this environment.
    pub fn command(&self) -> Vec<String> {
        [vec!["env".to_owned()], self.environment.clone()].concat()
    }
}
