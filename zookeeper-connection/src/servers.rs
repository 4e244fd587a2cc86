//! [`Servers`]: decides which address to try next, and remembers the outcomes of earlier attempts.
//!
//! The addresses of all names are tried in rounds, in random order with two exceptions (see `Servers::ordered`). A
//! round begins with the addresses that are already known, while the names are resolved again. When the name service
//! answers, the rest of the round is adjusted. Only if no name has been resolved yet does a round wait for names before
//! its first attempt. When a round has used up the known addresses, it waits for the names that are still being
//! resolved: for a limited time if any address is known, and without a limit otherwise.
//!
//! There is no I/O and no clock here: the I/O thread resolves the names and reports the outcomes.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use crate::time::Moment;

/// The servers of a connect string.
#[derive(Debug)]
pub(super) struct Servers {
    hosts: Vec<Host>,
    /// The current round.
    round: Option<Round>,
    /// The address that served the session last.
    last: Option<Destination>,
    /// The addresses whose last connection the client left, usually because the server fell silent. Such a server may
    /// keep accepting sessions without serving them.
    silent: Vec<SocketAddr>,
    /// The longest time for which a round waits for names if any address is known.
    max_wait: Duration,
    random: fastrand::Rng,
}

/// An address of one server of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// The position in the list.
    pub(super) server: usize,
    pub(super) address: SocketAddr,
}

/// A name to resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lookup {
    /// The position in the list.
    pub(super) server: usize,
    pub(super) host: String,
    pub(super) port: u16,
}

/// The next step of the search for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextServer {
    Try(Destination),
    /// Wait until a name is resolved, or until this moment if there is one. Then ask again.
    Wait(Option<Moment>),
    /// No address is known, or all addresses of the round are already being tried.
    Nothing,
}

#[derive(Debug)]
struct Round {
    /// The addresses that have not been tried yet.
    left: VecDeque<Destination>,
    /// Whether the round still waits for all names before its first attempt.
    is_gathering: bool,
    /// When the round stops waiting for names.
    wait_until: Moment,
}

#[derive(Debug)]
struct Host {
    /// The server as `host:port`.
    server: String,
    /// The host, without the brackets of an IPv6 address.
    host: String,
    port: u16,
    lookup: Resolving,
    /// The addresses known now.
    addresses: Vec<SocketAddr>,
    /// Whether an attempt has been made since a server last served the session.
    is_tried: bool,
    /// The last failure since a server last served the session.
    failure: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolving {
    /// There is nothing to resolve: the host is an address.
    Never,
    /// The name is to be resolved in the next round.
    Later,
    /// The name is to be resolved now.
    Due,
    /// The name is being resolved.
    Pending,
}

impl Servers {
    /// Creates the list from servers in the form `host:port`. If any address is known, a round waits for names for at
    /// most `max_wait`.
    pub(super) fn new(servers: &[String], max_wait: Duration, seed: u64) -> Servers {
        let hosts = servers.iter().map(|server| Host::new(server)).collect();
        Servers {
            hosts,
            round: None,
            last: None,
            silent: Vec::new(),
            max_wait,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Returns what to do next. Begins a new round if the last one is over. If no name had an address in the last
    /// round, first returns `Nothing`. This counts as a failed attempt, after which the machine may pause, so the names
    /// are not looked up in a busy loop.
    pub(super) fn next(&mut self, now: Moment) -> NextServer {
        if let Some(round) = self.round.take() {
            let was_gathering = round.is_gathering;
            let next = self.continue_round(round, now);
            if next != NextServer::Nothing || was_gathering {
                return next;
            }
        }
        let round = self.begin_round(now);
        self.continue_round(round, now)
    }

    /// Returns the next address of the current round, to be tried in parallel with an address that has not answered
    /// yet.
    pub(super) fn next_beside(&mut self) -> Option<Destination> {
        let target = self.round.as_mut()?.left.pop_front()?;
        self.hosts[target.server].is_tried = true; // in bounds: a target has the position of a host
        Some(target)
    }

    /// Takes back an address whose attempt was given up in favor of another one. The address becomes the last of the
    /// current round, unless its name no longer resolves to it.
    pub(super) fn put_back(&mut self, target: Destination) {
        let is_known =
            self.hosts.get(target.server).is_some_and(|host| host.addresses.contains(&target.address));
        if let Some(round) = self.round.as_mut().filter(|_| is_known) {
            round.left.push_back(target);
        }
    }

    /// Returns whether the current round has addresses that have not been tried yet.
    pub(super) fn has_more(&self) -> bool {
        self.round.as_ref().is_some_and(|round| !round.left.is_empty())
    }

    fn continue_round(&mut self, mut round: Round, now: Moment) -> NextServer {
        let knows_any = self.address_count() > 0;
        let may_wait = self.is_resolving() && (!knows_any || now < round.wait_until);
        if round.is_gathering && !may_wait {
            round.is_gathering = false;
            round.left = self.ordered();
        }
        let next = match round.left.pop_front() {
            Some(target) => NextServer::Try(target),
            None if may_wait => NextServer::Wait(knows_any.then_some(round.wait_until)),
            None => return NextServer::Nothing,
        };
        self.round = Some(round);
        if let NextServer::Try(target) = next {
            self.hosts[target.server].is_tried = true; // in bounds: a target has the position of a host
        }
        next
    }

    /// Returns the next name to resolve now.
    pub(super) fn next_lookup(&mut self) -> Option<Lookup> {
        let (server, host) =
            self.hosts.iter_mut().enumerate().find(|(_, host)| host.lookup == Resolving::Due)?;
        host.lookup = Resolving::Pending;
        Some(Lookup { server, host: host.host.clone(), port: host.port })
    }

    /// Handles the answer of the name service. After an error or an empty answer, the former addresses remain. Returns
    /// whether the addresses have changed.
    pub(super) fn handle_resolved(&mut self, server: usize, answer: io::Result<Vec<SocketAddr>>) -> bool {
        let Some(host) = self.hosts.get_mut(server) else { return false };
        host.lookup = Resolving::Later;
        let mut addresses = match answer {
            Ok(addresses) if addresses.is_empty() => {
                host.fail("the name has no address".to_owned());
                return false;
            }
            Ok(addresses) => addresses,
            Err(error) => {
                host.fail(error.to_string());
                return false;
            }
        };
        addresses.sort_unstable();
        addresses.dedup();
        let former = std::mem::replace(&mut host.addresses, addresses);
        let has_changed = host.addresses != former;
        let added = host.addresses.iter().filter(|address| !former.contains(address));
        let Some(round) = self.round.as_mut().filter(|round| !round.is_gathering) else { return has_changed };
        round.left.retain(|target| target.server != server || host.addresses.contains(&target.address));
        for address in added {
            let position = self.random.usize(..=round.left.len());
            round.left.insert(position, Destination { server, address: *address });
        }
        has_changed
    }

    /// Records why an attempt failed, or why a connection was lost.
    pub(super) fn record_failure(&mut self, target: Destination, why: String) {
        if let Some(host) = self.hosts.get_mut(target.server) {
            host.fail(why);
        }
    }

    /// Records the end of a connection that served the session. `was_silent` says whether the client left it, usually
    /// because the server fell silent. `was_refused` says whether a server has refused the session and none has
    /// answered a request since; if it is `false`, the round ends, too.
    pub(super) fn record_end(&mut self, target: Destination, was_silent: bool, was_refused: bool) {
        if !was_refused {
            self.round = None;
        }
        self.silent.retain(|silent| *silent != target.address);
        if was_silent {
            self.silent.push(target.address);
        }
    }

    /// Records that the server at this address serves the session.
    pub(super) fn record_success(&mut self, target: Destination) {
        self.last = Some(target);
        for host in &mut self.hosts {
            host.is_tried = false;
            host.failure = None;
        }
    }

    /// Returns the number of addresses known now.
    pub(super) fn address_count(&self) -> usize {
        self.hosts.iter().map(|host| host.addresses.len()).sum()
    }

    /// Returns whether a name has no known address.
    pub(super) fn misses_addresses(&self) -> bool {
        self.hosts.iter().any(|host| host.addresses.is_empty())
    }

    /// Returns the hosts in the order of the list, without ports.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().map(|host| &*host.host)
    }

    /// Returns the host of the server at this position, without the port.
    pub(super) fn host(&self, server: usize) -> &str {
        self.hosts.get(server).map_or("", |host| &host.host)
    }

    /// Describes an address for the log: the server, followed by the address if the server is given by name.
    pub(super) fn describe(&self, target: Destination) -> String {
        match self.hosts.get(target.server) {
            Some(host) if host.lookup != Resolving::Never => format!("{} ({})", host.server, target.address),
            _ => target.address.to_string(),
        }
    }

    /// Lists the servers, each with its last failure since a server last served the session, or with its state.
    pub(super) fn outcomes(&self) -> String {
        let outcomes = self.hosts.iter().map(|host| format!("{} ({})", host.server, host.outcome()));
        outcomes.collect::<Vec<_>>().join(", ")
    }

    fn begin_round(&mut self, now: Moment) -> Round {
        let mut names = self.hosts.iter().filter(|host| host.lookup != Resolving::Never).peekable();
        let is_gathering = names.peek().is_some() && names.all(|host| host.addresses.is_empty());
        for host in &mut self.hosts {
            if host.lookup == Resolving::Later {
                host.lookup = Resolving::Due;
            }
        }
        let left = if is_gathering { VecDeque::new() } else { self.ordered() };
        Round { left, is_gathering, wait_until: now.after(self.max_wait) }
    }

    /// Returns all known addresses in random order, with two exceptions:
    /// - The address that most recently served the session comes second, or first if all others fell silent. So if its
    ///   server is gone, another server is tried first. If only the connection was lost, at most one dead address is
    ///   tried before this server.
    /// - The servers that fell silent come last, even the one that most recently served the session.
    fn ordered(&mut self) -> VecDeque<Destination> {
        let hosts = self.hosts.iter().enumerate();
        let mut targets: Vec<Destination> = hosts
            .flat_map(|(server, host)| {
                host.addresses.iter().map(move |&address| Destination { server, address })
            })
            .collect();
        self.random.shuffle(&mut targets);
        targets.sort_by_key(|target| self.is_silent(target)); // stable
        let mut targets = VecDeque::from(targets);
        let is_last = |target: &Destination| Some(*target) == self.last && !self.is_silent(target);
        if let Some(last) = targets.iter().position(is_last).and_then(|position| targets.remove(position)) {
            let goes_on = targets.front().is_some_and(|first| !self.is_silent(first));
            targets.insert(usize::from(goes_on), last);
        }
        targets
    }

    fn is_silent(&self, target: &Destination) -> bool {
        self.silent.contains(&target.address)
    }

    fn is_resolving(&self) -> bool {
        self.hosts.iter().any(|host| matches!(host.lookup, Resolving::Due | Resolving::Pending))
    }
}

impl Host {
    fn new(server: &str) -> Host {
        // The connect string has been parsed, so the port exists and is valid.
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
            is_tried: false,
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
            None if self.is_tried => "no answer",
            None => "not tried",
        }
    }
}

fn literal(host: &str, port: u16) -> Option<SocketAddr> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Some(SocketAddr::new(address, port));
    }
    // A zone that is a number is part of the literal. The system resolves a zone that is a name.
    let (address, zone) = host.split_once('%')?;
    let (address, zone) = (address.parse::<Ipv6Addr>().ok()?, zone.parse().ok()?);
    Some(SocketAddrV6::new(address, port, 0, zone).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const MAX_WAIT: Duration = Duration::from_millis(250);

    fn servers(list: &[&str], seed: u64) -> Servers {
        let list: Vec<String> = list.iter().map(|&server| server.to_owned()).collect();
        Servers::new(&list, MAX_WAIT, seed)
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000_000).after(Duration::from_millis(millis))
    }

    fn address(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 2181))
    }

    fn tried(next: NextServer) -> SocketAddr {
        match next {
            NextServer::Try(target) => target.address,
            other => panic!("{other:?}"),
        }
    }

    fn lookups(servers: &mut Servers) -> Vec<String> {
        std::iter::from_fn(|| servers.next_lookup()).map(|lookup| lookup.host).collect()
    }

    fn no_such_name() -> io::Error {
        io::Error::other("no such name")
    }

    #[test]
    fn round_tries_every_address_once_in_an_order_that_the_seed_decides() {
        let all: Vec<String> = (1..=5).map(|number| address(number).to_string()).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let mut orders = HashSet::new();
        for seed in 0..50 {
            let mut servers = servers(&all, seed);
            for _ in 0..3 {
                let round: Vec<_> = (0..5).map(|_| tried(servers.next(at(0)))).collect();
                assert_eq!(round.iter().collect::<HashSet<_>>().len(), 5, "{round:?}");
                orders.insert(round);
            }
        }
        assert!(orders.len() > 50, "{}", orders.len());
    }

    #[test]
    fn literals_are_not_resolved() {
        let expected = ["10.0.0.1:1", "[::1]:2", "[fe80::1%7]:3"];
        let mut literals = servers(&expected, 1);
        let round: HashSet<_> = (0..3).map(|_| tried(literals.next(at(0))).to_string()).collect();
        assert_eq!(round, expected.into_iter().map(str::to_owned).collect());
        assert!(lookups(&mut literals).is_empty());
        let mut names = servers(&["[fe80::1%eth0]:4"], 1);
        assert_eq!(names.next(at(0)), NextServer::Wait(None));
        assert_eq!(lookups(&mut names), ["fe80::1%eth0"], "the system knows the zone's number");
    }

    #[test]
    fn first_round_waits_for_all_names_and_later_ones_do_not() {
        let mut servers = servers(&["zk1:2181", "zk2:2181"], 1);
        assert_eq!(servers.next(at(0)), NextServer::Wait(None));
        assert_eq!(lookups(&mut servers), ["zk1", "zk2"]);
        servers.handle_resolved(0, Ok(vec![address(1)]));
        assert_eq!(servers.next(at(1)), NextServer::Wait(Some(at(250))));
        servers.handle_resolved(1, Ok(vec![address(2)]));
        let first = [tried(servers.next(at(2))), tried(servers.next(at(2)))];
        assert_eq!(HashSet::from(first), HashSet::from([address(1), address(2)]));
        // The second round.
        tried(servers.next(at(1000)));
        assert_eq!(lookups(&mut servers), ["zk1", "zk2"]);
    }

    #[test]
    fn name_without_an_answer_delays_the_others_by_no_more_than_the_maximum() {
        let mut servers = servers(&["zk1:2181", "zk2:2181"], 1);
        servers.next(at(0));
        lookups(&mut servers);
        servers.handle_resolved(1, Ok(vec![address(2)]));
        assert_eq!(servers.next(at(249)), NextServer::Wait(Some(at(250))));
        assert_eq!(tried(servers.next(at(250))), address(2));
        for round in 1..5 {
            assert_eq!(tried(servers.next(at(round * 1000))), address(2));
            assert_eq!(lookups(&mut servers), if round == 1 { vec!["zk2"] } else { vec![] }, "one at a time");
        }
        servers.handle_resolved(0, Ok(vec![address(1)]));
        assert_eq!(tried(servers.next(at(5000))), address(1), "the new address joins the round");
    }

    #[test]
    fn name_that_cannot_be_resolved_does_not_affect_others() {
        let mut servers = servers(&["bad:2181", "zk2:2181"], 1);
        servers.next(at(0));
        lookups(&mut servers);
        servers.handle_resolved(0, Err(no_such_name()));
        servers.handle_resolved(1, Ok(vec![address(2)]));
        assert_eq!(tried(servers.next(at(0))), address(2));
        assert_eq!(tried(servers.next(at(1))), address(2));
        assert_eq!(servers.outcomes(), "bad:2181 (no such name), zk2:2181 (no answer)");
    }

    #[test]
    fn without_any_address_the_round_ends_when_the_names_are_answered() {
        let mut servers = servers(&["zk1:2181"], 1);
        assert_eq!(servers.next(at(0)), NextServer::Wait(None));
        assert_eq!(servers.next(at(60_000)), NextServer::Wait(None), "nothing else can be tried");
        lookups(&mut servers);
        servers.handle_resolved(0, Ok(vec![]));
        assert_eq!(servers.outcomes(), "zk1:2181 (the name has no address)");
        assert_eq!(servers.next(at(60_000)), NextServer::Nothing, "a failed attempt");
        assert_eq!(servers.next(at(60_000)), NextServer::Wait(None), "a new round");
        assert_eq!(lookups(&mut servers), ["zk1"]);
    }

    #[test]
    fn changed_addresses_take_the_place_of_the_former_ones_within_the_round() {
        let mut servers = servers(&["zk:2181"], 1);
        servers.next(at(0));
        lookups(&mut servers);
        assert!(servers.misses_addresses());
        assert!(servers.handle_resolved(0, Ok(vec![address(1), address(2), address(1)])));
        assert!(!servers.handle_resolved(0, Ok(vec![address(2), address(1)])), "the addresses are the same");
        assert!(!servers.misses_addresses());
        assert_eq!(servers.address_count(), 2);
        let first = [tried(servers.next(at(0))), tried(servers.next(at(0)))];
        assert_eq!(HashSet::from(first), HashSet::from([address(1), address(2)]));
        let second = tried(servers.next(at(0)));
        lookups(&mut servers);
        assert!(
            servers.handle_resolved(0, Ok(vec![second, address(3)])),
            "as many addresses, but different ones"
        );
        assert_eq!(tried(servers.next(at(0))), address(3));
        assert_eq!(servers.address_count(), 2);
    }

    #[test]
    fn addresses_known_before_remain_while_the_name_service_fails() {
        let mut servers = servers(&["zk:2181"], 1);
        servers.next(at(0));
        lookups(&mut servers);
        servers.handle_resolved(0, Ok(vec![address(1)]));
        for round in 0..3 {
            assert_eq!(tried(servers.next(at(round * 1000))), address(1));
            lookups(&mut servers);
            servers.handle_resolved(0, Err(no_such_name()));
        }
    }

    /// Returns the next addresses, in the order in which they are tried.
    fn round(servers: &mut Servers, count: usize) -> Vec<Destination> {
        let target = |next| match next {
            NextServer::Try(target) => target,
            other => panic!("{other:?}"),
        };
        (0..count).map(|_| target(servers.next(at(0)))).collect()
    }

    const THREE: [&str; 3] = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"];

    #[test]
    fn server_of_the_last_session_is_the_second_to_be_tried() {
        let mut first = HashSet::new();
        for seed in 0..50 {
            let mut servers = servers(&THREE, seed);
            let NextServer::Try(target) = servers.next(at(0)) else { panic!("an address is known") };
            servers.record_success(target);
            servers.record_end(target, false, false);
            servers.record_failure(target, "gone".to_owned());
            let round = round(&mut servers, 3);
            assert_eq!(round[1], target, "{round:?}");
            first.extend([round[0].address, round[2].address]);
        }
        assert_eq!(first.len(), 3, "the order of the others is random");
        let mut alone = servers(&THREE[..1], 1);
        let target = round(&mut alone, 1)[0];
        alone.record_success(target);
        alone.record_end(target, false, false);
        assert_eq!(round(&mut alone, 1), [target]);
    }

    /// The refusing servers had served the session before. No address may be tried twice before all have been tried.
    #[test]
    fn server_that_refuses_this_client_does_not_end_the_round() {
        for seed in 0..50 {
            let mut servers = servers(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1"], seed);
            let mut tried = HashSet::new();
            for position in 0..4 {
                let target = round(&mut servers, 1)[0];
                tried.insert(target.address);
                if position % 2 == 0 {
                    servers.record_success(target);
                    servers.record_end(target, true, true);
                }
                servers.record_failure(target, "refused".to_owned());
            }
            assert_eq!(tried.len(), 4);
        }
    }

    #[test]
    fn server_that_fell_silent_is_tried_last_until_a_connection_to_it_ends_otherwise() {
        for seed in 0..50 {
            let mut servers = servers(&THREE, seed);
            let silent = round(&mut servers, 3)[0];
            servers.record_success(silent);
            servers.record_end(silent, true, false);
            for _ in 0..3 {
                assert_eq!(round(&mut servers, 3)[2], silent);
            }
            servers.record_success(silent);
            servers.record_end(silent, false, false);
            assert_eq!(round(&mut servers, 3)[1], silent);
        }
    }

    #[test]
    fn address_tried_in_parallel_is_the_next_of_the_same_round() {
        let mut servers = servers(&THREE, 3);
        let first = round(&mut servers, 1)[0];
        let others: Vec<_> = std::iter::from_fn(|| servers.next_beside()).collect();
        assert_eq!(others.len(), 2);
        assert!(!others.contains(&first) && !servers.has_more());
        servers.put_back(first);
        assert!(servers.has_more());
        assert_eq!(servers.next_beside(), Some(first));
    }

    #[test]
    fn address_that_its_name_no_longer_has_is_not_put_back() {
        let mut servers = servers(&["zk:2181"], 1);
        servers.next(at(0));
        lookups(&mut servers);
        servers.handle_resolved(0, Ok(vec![address(1)]));
        let NextServer::Try(first) = servers.next(at(0)) else { panic!("an address is known") };
        servers.handle_resolved(0, Ok(vec![address(2)]));
        servers.put_back(first);
        assert_eq!(tried(servers.next(at(0))), address(2));
        assert!(!servers.has_more());
    }

    #[test]
    fn outcome_is_the_last_failure_since_the_last_session() {
        let mut servers = servers(&["10.0.0.1:1"], 1);
        assert_eq!(servers.outcomes(), "10.0.0.1:1 (not tried)");
        let NextServer::Try(target) = servers.next(at(0)) else { panic!("an address is known") };
        assert_eq!(servers.outcomes(), "10.0.0.1:1 (no answer)");
        servers.record_failure(target, "first".to_owned());
        servers.record_failure(target, "second".to_owned());
        assert_eq!(servers.outcomes(), "10.0.0.1:1 (second)");
        servers.record_success(target);
        assert_eq!(servers.outcomes(), "10.0.0.1:1 (not tried)");
    }

    #[test]
    fn description_has_the_name_and_the_address() {
        let servers = servers(&["zk:2181", "10.0.0.2:2181"], 1);
        assert_eq!(
            servers.describe(Destination { server: 0, address: address(1) }),
            "zk:2181 (10.0.0.1:2181)"
        );
        assert_eq!(servers.describe(Destination { server: 1, address: address(2) }), "10.0.0.2:2181");
        assert_eq!(servers.host(0), "zk");
    }
}
