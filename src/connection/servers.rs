//! [`Servers`]: which address is tried next, and the outcome of the attempts before.
//!
//! The addresses of all names are tried in laps, in random order. A lap begins with the addresses
//! known before, while the names are resolved again: an answer of the name service changes what is
//! left of the lap. Only the first lap waits for the names, as it knows no address.
//!
//! No I/O and no clock: the driver resolves the names and reports the outcomes.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use super::random::SplitMix64;
use crate::session::Moment;

/// The servers of a connect string.
#[derive(Debug)]
pub(super) struct Servers {
    hosts: Vec<Host>,
    /// The present lap.
    lap: Option<Lap>,
    /// The address of the last session. The next lap ends with it.
    last: Option<Target>,
    /// How long a lap waits for names.
    max_wait: Duration,
    random: SplitMix64,
}

/// An address of one server of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The position in the list.
    pub(super) server: usize,
    pub(super) address: SocketAddr,
}

/// A name to be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lookup {
    /// The position in the list.
    pub(super) server: usize,
    pub(super) host: String,
    pub(super) port: u16,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Try(Target),
    /// Wait for a name to be resolved, up to this moment if there is one, then ask again.
    Wait(Option<Moment>),
    /// No address is known.
    Nothing,
}

#[derive(Debug)]
struct Lap {
    /// The addresses that have not been tried.
    left: VecDeque<Target>,
    /// The lap waits for all names before its first attempt.
    is_gathering: bool,
    /// When the lap stops waiting for names.
    wait_until: Moment,
}

#[derive(Debug)]
struct Host {
    /// As `host:port`.
    server: String,
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
    lookup: Resolving,
    /// As known at present.
    addresses: Vec<SocketAddr>,
    /// The last failure since there was a session.
    failure: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolving {
    /// The host is an address.
    Never,
    /// To be resolved again in the next lap.
    Later,
    /// To be resolved now.
    Due,
    Pending,
}

impl Servers {
    /// `servers` are given as `host:port`. A lap waits for names no longer than `max_wait` if it
    /// has other addresses.
    pub(super) fn new(servers: &[String], max_wait: Duration, seed: u64) -> Servers {
        let hosts = servers.iter().map(|server| Host::new(server)).collect();
        Servers { hosts, lap: None, last: None, max_wait, random: SplitMix64::new(seed) }
    }

    /// Returns what to do next. Begins a new lap if the last one is over.
    pub(super) fn next(&mut self, now: Moment) -> Next {
        let next = match self.lap.take() {
            Some(lap) => self.continue_lap(lap, now),
            None => Next::Nothing,
        };
        if next != Next::Nothing {
            return next;
        }
        let lap = self.begin_lap(now);
        self.continue_lap(lap, now)
    }

    fn continue_lap(&mut self, mut lap: Lap, now: Moment) -> Next {
        let knows_any = self.address_count() > 0;
        let may_wait = self.is_resolving() && (!knows_any || now < lap.wait_until);
        if lap.is_gathering && !may_wait {
            lap.is_gathering = false;
            lap.left = self.shuffled();
        }
        let next = match lap.left.pop_front() {
            Some(target) => Next::Try(target),
            None if may_wait => Next::Wait(knows_any.then_some(lap.wait_until)),
            None => return Next::Nothing,
        };
        self.lap = Some(lap);
        next
    }

    /// Takes a name that is to be resolved now.
    pub(super) fn next_lookup(&mut self) -> Option<Lookup> {
        let (server, host) =
            self.hosts.iter_mut().enumerate().find(|(_, host)| host.lookup == Resolving::Due)?;
        host.lookup = Resolving::Pending;
        Some(Lookup { server, host: host.host.clone(), port: host.port })
    }

    /// Takes the answer of the name service. After an error the former addresses remain.
    pub(super) fn resolved(&mut self, server: usize, answer: io::Result<Vec<SocketAddr>>) {
        let Some(host) = self.hosts.get_mut(server) else { return };
        host.lookup = Resolving::Later;
        let mut addresses = match answer {
            Ok(addresses) if addresses.is_empty() => {
                return host.fail("the name has no address".to_owned());
            }
            Ok(addresses) => addresses,
            Err(error) => return host.fail(error.to_string()),
        };
        addresses.sort_unstable();
        addresses.dedup();
        let former = std::mem::replace(&mut host.addresses, addresses);
        let added = host.addresses.iter().filter(|address| !former.contains(address));
        let Some(lap) = self.lap.as_mut().filter(|lap| !lap.is_gathering) else { return };
        lap.left.retain(|target| target.server != server || host.addresses.contains(&target.address));
        for address in added {
            let position = self.random.below(lap.left.len() + 1);
            lap.left.insert(position, Target { server, address: *address });
        }
    }

    /// Records why an attempt failed, or why a connection was lost.
    pub(super) fn failed(&mut self, target: Target, why: String) {
        if let Some(host) = self.hosts.get_mut(target.server) {
            host.fail(why);
        }
    }

    /// Records that a session was opened, or taken up again, at this address. Ends the lap.
    pub(super) fn succeeded(&mut self, target: Target) {
        self.lap = None;
        self.last = Some(target);
        for host in &mut self.hosts {
            host.failure = None;
        }
    }

    /// The number of addresses known at present.
    pub(super) fn address_count(&self) -> usize {
        self.hosts.iter().map(|host| host.addresses.len()).sum()
    }

    /// The host of the server at this position, without the port.
    pub(super) fn host(&self, target: Target) -> &str {
        self.hosts.get(target.server).map_or("", |host| &host.host)
    }

    /// Describes an address for the log: the server's name, and the address if that is another.
    pub(super) fn describe(&self, target: Target) -> String {
        match self.hosts.get(target.server) {
            Some(host) if host.lookup != Resolving::Never => format!("{} ({})", host.server, target.address),
            _ => target.address.to_string(),
        }
    }

    /// Lists the servers with the outcome of the last attempt at each.
    pub(super) fn outcomes(&self) -> String {
        let outcomes = self.hosts.iter().map(|host| format!("{} ({})", host.server, host.outcome()));
        outcomes.collect::<Vec<_>>().join(", ")
    }

    fn begin_lap(&mut self, now: Moment) -> Lap {
        let mut names = self.hosts.iter().filter(|host| host.lookup != Resolving::Never).peekable();
        let is_gathering = names.peek().is_some() && names.all(|host| host.addresses.is_empty());
        for host in &mut self.hosts {
            if host.lookup == Resolving::Later {
                host.lookup = Resolving::Due;
            }
        }
        let left = if is_gathering { VecDeque::new() } else { self.shuffled() };
        Lap { left, is_gathering, wait_until: now.after(self.max_wait) }
    }

    /// All known addresses in random order, that of the last session at the end.
    fn shuffled(&mut self) -> VecDeque<Target> {
        let hosts = self.hosts.iter().enumerate();
        let mut targets: Vec<Target> = hosts
            .flat_map(|(server, host)| host.addresses.iter().map(move |&address| Target { server, address }))
            .collect();
        for end in (1..targets.len()).rev() {
            targets.swap(end, self.random.below(end + 1));
        }
        targets.sort_by_key(|target| Some(*target) == self.last); // stable
        targets.into()
    }

    fn is_resolving(&self) -> bool {
        self.hosts.iter().any(|host| matches!(host.lookup, Resolving::Due | Resolving::Pending))
    }
}

impl Host {
    fn new(server: &str) -> Host {
        // The connect string was parsed before, so the port exists and is valid.
        let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
        let port = port.parse().unwrap_or(0);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let literal = literal(host, port);
        Host {
            server: server.to_owned(),
            host: host.to_owned(),
            port,
            lookup: if literal.is_some() { Resolving::Never } else { Resolving::Later },
            addresses: literal.into_iter().collect(),
            failure: None,
        }
    }

    fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }

    fn outcome(&self) -> &str {
        match &self.failure {
            Some(failure) => failure,
            None if self.addresses.is_empty() => "its name was not resolved in time",
            None => "no answer",
        }
    }
}

fn literal(host: &str, port: u16) -> Option<SocketAddr> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Some(SocketAddr::new(address, port));
    }
    // With a number as its zone. The system resolves one with a name.
    let (address, zone) = host.split_once('%')?;
    let (address, zone) = (address.parse::<Ipv6Addr>().ok()?, zone.parse().ok()?);
    Some(SocketAddrV6::new(address, port, 0, zone).into())
}
