//! [`Servers`]: decides which address to try next, and remembers the outcomes of earlier attempts.
//!
//! The addresses of all names are tried in rounds, in an order that depends on what is known of them (see
//! `Servers::ordered`). Each round resolves the names again. The lookups have a short head start: the round begins when
//! the name service has answered, or a moment later with the addresses known before, which the
//! [memory](ServerMemory) may have from an earlier session. A lookup that is still unanswered in the next round delays
//! that round no more. When the name service answers, the rest of the round is adjusted. Only if no address is known at
//! all does a round wait for names without a limit.
//!
//! An address is *current* if it is in the connect string, or if the last answer for its name has it and is recent: the
//! name service has given that answer since the last connection was lost, and no earlier round has used it. All other
//! addresses are *former* ones. They may belong to somebody else by now.
//!
//! There is no I/O and no clock here: the owner of the machine resolves the names, and the search reports the outcomes.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use crate::memory::{ServerMemory, Trouble};
use crate::time::Moment;

/// The servers of a connect string.
#[derive(Debug)]
pub(super) struct Servers {
    hosts: Vec<Host>,
    /// The current round.
    round: Option<Round>,
    /// The address that served this session last or, at first, the one that served any session last.
    last: Option<SocketAddr>,
    memory: ServerMemory,
    /// How long a round waits for the names that it looks up, if any address is known.
    head_start: Duration,
    random: fastrand::Rng,
}

/// The outcome for a server that accepts sessions and does nothing else.
pub(super) const ANSWERS_NO_CALL: &str = "it accepted the session, but answered no call";

/// An address of one server of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// The position in the list.
    pub(super) server: usize,
    pub(super) address: SocketAddr,
}

/// A name to resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The position of the server in the list.
    pub server: usize,
    /// The name.
    pub host: String,
    /// The port of the server.
    pub port: u16,
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
    /// Whether the round still waits for names before its first attempt.
    is_gathering: bool,
    /// When the head start of the lookups ends.
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
    answer: NameAnswer,
    /// The addresses known now.
    addresses: Vec<SocketAddr>,
    attempt: Attempt,
}

/// How the last attempt at a host since a server last answered a call has gone.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Attempt {
    /// There was none.
    Never,
    /// It is the first one, and has not ended.
    Begun,
    /// The server has accepted the session. It has answered no call yet.
    Accepted,
    Failed(String),
}

/// The last answer of the name service for a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameAnswer {
    /// It came before the last connection was lost, or an earlier round has used it, or there was none.
    Old,
    /// It is recent, and no attempt has used it.
    Unused,
    /// It is recent, and the current round uses it.
    Used,
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
    /// The name is being resolved since an earlier round.
    Overdue,
}

impl Servers {
    /// Creates the list from servers in the form `host:port`, with what is known of them. If any address is known, a
    /// round waits for names for at most `head_start`.
    pub(super) fn new(servers: &[String], memory: ServerMemory, head_start: Duration, seed: u64) -> Servers {
        let hosts = servers.iter().map(|server| Host::new(server, &memory)).collect();
        let random = fastrand::Rng::with_seed(seed);
        Servers { hosts, round: None, last: memory.last(), memory, head_start, random }
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
        self.note_attempt(target);
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
        let may_wait = self.is_resolving(!knows_any) && (!knows_any || now < round.wait_until);
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
            self.note_attempt(target);
        }
        next
    }

    fn note_attempt(&mut self, target: Destination) {
        let Some(host) = self.hosts.get_mut(target.server) else { return };
        // An earlier failure says more than that the next attempt has not ended.
        if !matches!(host.attempt, Attempt::Failed(_)) {
            host.attempt = Attempt::Begun;
        }
        if host.answer == NameAnswer::Unused {
            host.answer = NameAnswer::Used;
        }
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
    pub(super) fn handle_resolved(&mut self, server: usize, answer: Result<Vec<SocketAddr>, String>) -> bool {
        let Some(host) = self.hosts.get_mut(server) else { return false };
        host.lookup = Resolving::Later;
        let mut addresses = match answer {
            Ok(addresses) if addresses.is_empty() => {
                host.fail("the name has no address".to_owned());
                return false;
            }
            Ok(addresses) => addresses,
            Err(why) => {
                host.fail(why);
                return false;
            }
        };
        addresses.sort_unstable();
        addresses.dedup();
        host.answer = NameAnswer::Unused;
        self.memory.set_addresses(&host.server, &addresses);
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

    /// Records that no server has served the session at this address.
    pub(super) fn record_trouble(&mut self, target: Destination, trouble: Trouble) {
        // What is known of an address that its name no longer has would stay in the memory for ever.
        if self.hosts.get(target.server).is_some_and(|host| host.addresses.contains(&target.address)) {
            self.memory.set_trouble(target.address, trouble);
        }
    }

    /// Records that the server at this former address does not know the session, so it may belong to another ensemble by
    /// now. Later connections do not learn the address from the memory: they would open a new session there.
    pub(super) fn record_stranger(&mut self, target: Destination) {
        if let Some(host) = self.hosts.get(target.server) {
            self.memory.forget_address(&host.server, target.address);
        }
    }

    /// Records the end of a connection that served the session. `was_silent` says whether the client left it, usually
    /// because the server fell silent. Such a server may keep accepting sessions without serving them. `was_refused`
    /// says whether a server has refused the session and none has answered a request since; if it is `false`, the round
    /// ends, too.
    pub(super) fn record_end(&mut self, target: Destination, was_silent: bool, was_refused: bool) {
        if !was_refused {
            self.round = None;
        }
        for host in &mut self.hosts {
            host.answer = NameAnswer::Old;
        }
        if was_silent {
            self.record_trouble(target, Trouble::Silent);
        }
    }

    /// Records that the server at this address has accepted the session.
    pub(super) fn record_success(&mut self, target: Destination) {
        self.last = Some(target.address);
        self.memory.set_last(target.address);
        for host in &mut self.hosts {
            host.attempt = Attempt::Never;
        }
        if let Some(host) = self.hosts.get_mut(target.server) {
            host.attempt = Attempt::Accepted;
        }
    }

    /// Records that the server at this address, which has accepted the session, answers calls.
    pub(super) fn record_answer(&mut self, target: Destination) {
        self.memory.forget_trouble(target.address);
        if let Some(host) = self.hosts.get_mut(target.server) {
            host.attempt = Attempt::Never;
        }
    }

    /// Returns whether this is a current address of its server, as opposed to a former one, which may belong to
    /// somebody else by now. See the [module](self).
    pub(super) fn is_current(&self, target: Destination) -> bool {
        let Some(host) = self.hosts.get(target.server) else { return false };
        let is_recent = host.lookup == Resolving::Never || host.answer != NameAnswer::Old;
        is_recent && host.addresses.contains(&target.address)
    }

    /// Returns the addresses known now.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &SocketAddr> {
        self.hosts.iter().flat_map(|host| &host.addresses)
    }

    /// Returns the number of addresses known now.
    pub(super) fn address_count(&self) -> usize {
        self.addresses().count()
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
        let mut looks_up = false;
        for host in &mut self.hosts {
            if host.answer == NameAnswer::Used {
                host.answer = NameAnswer::Old;
            }
            host.lookup = match host.lookup {
                Resolving::Never => Resolving::Never,
                Resolving::Later | Resolving::Due => Resolving::Due,
                Resolving::Pending | Resolving::Overdue => Resolving::Overdue,
            };
            looks_up |= host.lookup == Resolving::Due;
        }
        let wait = if looks_up { self.head_start } else { Duration::ZERO };
        Round { left: VecDeque::new(), is_gathering: true, wait_until: now.after(wait) }
    }

    /// Returns all known addresses in the order in which they are tried:
    /// - Addresses of which nothing bad is known come first, then those that refused the last attempt. Those that were
    ///   silent come last, because they cost the most time.
    /// - Among these, current addresses come before former ones. Otherwise, the order is random.
    /// - The address that most recently served the session comes second, or first if all others fell silent. So if its
    ///   server is gone, another server is tried first. If only the connection was lost, at most one dead address is
    ///   tried before this server. If an address has been in trouble since, it has no special place.
    fn ordered(&mut self) -> VecDeque<Destination> {
        let hosts = self.hosts.iter().enumerate();
        let mut targets: Vec<Destination> = hosts
            .flat_map(|(server, host)| {
                host.addresses.iter().map(move |&address| Destination { server, address })
            })
            .collect();
        self.random.shuffle(&mut targets);
        // Stable. Cached, because another connection may change the memory meanwhile.
        targets.sort_by_cached_key(|target| (self.trouble(target), !self.is_current(*target)));
        let mut targets = VecDeque::from(targets);
        let is_last =
            |target: &Destination| Some(target.address) == self.last && self.trouble(target).is_none();
        if let Some(last) = targets.iter().position(is_last).and_then(|position| targets.remove(position)) {
            let goes_on = targets.front().is_some_and(|first| self.trouble(first) != Some(Trouble::Silent));
            targets.insert(usize::from(goes_on), last);
        }
        targets
    }

    fn trouble(&self, target: &Destination) -> Option<Trouble> {
        self.memory.trouble(target.address)
    }

    /// Returns whether a name is being resolved: since this round began or, if `even_overdue`, since any time.
    fn is_resolving(&self, even_overdue: bool) -> bool {
        self.hosts.iter().any(|host| match host.lookup {
            Resolving::Never | Resolving::Later => false,
            Resolving::Due | Resolving::Pending => true,
            Resolving::Overdue => even_overdue,
        })
    }
}

impl Host {
    fn new(server: &str, memory: &ServerMemory) -> Host {
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
            answer: NameAnswer::Old,
            addresses: literal.map_or_else(|| memory.addresses(server), |address| vec![address]),
            attempt: Attempt::Never,
        }
    }

    fn fail(&mut self, why: String) {
        self.attempt = Attempt::Failed(why);
    }

    fn outcome(&self) -> &str {
        match &self.attempt {
            Attempt::Failed(why) => why,
            Attempt::Accepted => ANSWERS_NO_CALL,
            _ if self.addresses.is_empty() => "its name was not resolved in time",
            Attempt::Begun => "no answer",
            Attempt::Never => "not tried",
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

    const HEAD_START: Duration = Duration::from_millis(250);

    fn servers(list: &[&str], seed: u64) -> Servers {
        servers_known(list, &ServerMemory::new(), seed)
    }

    fn servers_known(list: &[&str], memory: &ServerMemory, seed: u64) -> Servers {
        let list: Vec<String> = list.iter().map(|&server| server.to_owned()).collect();
        Servers::new(&list, memory.clone(), HEAD_START, seed)
    }

    /// Answers the lookups of a round that begins now, and returns its first address.
    fn first_of_round(
        servers: &mut Servers,
        now: Moment,
        answer: Result<Vec<SocketAddr>, String>,
    ) -> Destination {
        assert!(matches!(servers.next(now), NextServer::Wait(_)));
        assert_eq!(lookups(servers), ["zk"]);
        servers.handle_resolved(0, answer);
        let NextServer::Try(target) = servers.next(now) else { panic!("an address is known") };
        target
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

    fn no_such_name() -> String {
        "no such name".to_owned()
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
    fn failure_is_the_outcome_until_the_next_attempt_has_ended() {
        let mut servers = servers(&["10.0.0.1:2181"], 1);
        let NextServer::Try(target) = servers.next(at(0)) else { panic!("an address is known") };
        assert_eq!(servers.outcomes(), "10.0.0.1:2181 (no answer)");
        servers.record_failure(target, "refused".to_owned());
        assert!(matches!(servers.next(at(1)), NextServer::Try(_)));
        assert_eq!(servers.outcomes(), "10.0.0.1:2181 (refused)");
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
    fn round_waits_for_all_names_and_one_that_knows_addresses_only_for_a_moment() {
        let mut servers = servers(&["zk1:2181", "zk2:2181"], 1);
        assert_eq!(servers.next(at(0)), NextServer::Wait(None));
        assert_eq!(lookups(&mut servers), ["zk1", "zk2"]);
        servers.handle_resolved(0, Ok(vec![address(1)]));
        assert_eq!(servers.next(at(1)), NextServer::Wait(Some(at(250))));
        servers.handle_resolved(1, Ok(vec![address(2)]));
        let first = [tried(servers.next(at(2))), tried(servers.next(at(2)))];
        assert_eq!(HashSet::from(first), HashSet::from([address(1), address(2)]));
        // The second round.
        assert_eq!(servers.next(at(1000)), NextServer::Wait(Some(at(1250))));
        assert_eq!(lookups(&mut servers), ["zk1", "zk2"]);
        assert_eq!(servers.next(at(1249)), NextServer::Wait(Some(at(1250))));
        tried(servers.next(at(1250)));
    }

    /// A former address may belong to another ensemble by now.
    #[test]
    fn new_address_of_a_name_is_tried_before_the_former_one() {
        let mut servers = servers(&["zk:2181"], 1);
        let former = first_of_round(&mut servers, at(0), Ok(vec![address(1)]));
        servers.record_success(former);
        servers.record_end(former, false, false);
        let next = first_of_round(&mut servers, at(1000), Ok(vec![address(2)]));
        assert_eq!((next.address, servers.has_more()), (address(2), false));
    }

    #[test]
    fn lookup_that_hangs_delays_one_round() {
        let mut servers = servers(&["zk:2181"], 1);
        first_of_round(&mut servers, at(0), Ok(vec![address(1)]));
        assert_eq!(servers.next(at(1000)), NextServer::Wait(Some(at(1250))));
        assert_eq!(lookups(&mut servers), ["zk"]);
        for millis in [1250, 1251, 1252] {
            assert_eq!(tried(servers.next(at(millis))), address(1));
        }
        servers.handle_resolved(0, Ok(vec![address(1)]));
        assert_eq!(servers.next(at(1253)), NextServer::Wait(Some(at(1503))), "another lookup");
    }

    #[test]
    fn address_is_current_while_a_recent_answer_has_it() {
        let literal = Destination { server: 0, address: address(1) };
        assert!(servers(&["10.0.0.1:2181"], 1).is_current(literal));
        let mut servers = servers(&["zk:2181"], 1);
        let target = first_of_round(&mut servers, at(0), Ok(vec![address(1)]));
        assert!(servers.is_current(target));
        servers.record_success(target);
        servers.record_end(target, false, false);
        assert!(!servers.is_current(target), "the answer is older than the loss of the connection");
        first_of_round(&mut servers, at(1000), Err(no_such_name()));
        assert!(!servers.is_current(target));
        first_of_round(&mut servers, at(2000), Ok(vec![address(1)]));
        assert!(servers.is_current(target));
        servers.next(at(3000));
        lookups(&mut servers);
        assert!(!servers.is_current(target), "an earlier round has used the answer");
        assert_eq!(tried(servers.next(at(3250))), target.address);
        servers.handle_resolved(0, Ok(vec![address(1), address(2)]));
        assert!(servers.is_current(target), "a late answer confirms it");
        servers.handle_resolved(0, Ok(vec![address(2)]));
        assert!(!servers.is_current(target));
    }

    /// With a slow name service, each answer comes after the head start, perhaps in a later round.
    #[test]
    fn answer_that_no_attempt_has_used_stays_recent() {
        let mut servers = servers(&["zk:2181"], 1);
        first_of_round(&mut servers, at(0), Ok(vec![address(1)]));
        servers.next(at(1000));
        lookups(&mut servers);
        let NextServer::Try(target) = servers.next(at(1250)) else { panic!("an address is known") };
        assert!(!servers.is_current(target));
        assert_eq!(tried(servers.next(at(1251))), target.address, "a round later");
        servers.handle_resolved(0, Ok(vec![address(1)]));
        servers.next(at(1300));
        assert_eq!(tried(servers.next(at(1550))), target.address);
        assert!(servers.is_current(target));
    }

    #[test]
    fn next_list_knows_the_addresses_of_names_and_who_was_silent_or_refusing() {
        let memory = ServerMemory::new();
        let mut first = servers_known(&["zk:2181"], &memory, 1);
        let all = vec![address(1), address(2), address(3), address(4)];
        first_of_round(&mut first, at(0), Ok(all));
        let of = |number| Destination { server: 0, address: address(number) };
        first.record_success(of(1));
        first.record_end(of(1), true, false);
        first.record_trouble(of(2), Trouble::Refusing);
        first.record_success(of(3));
        for seed in 0..20 {
            let mut next = servers_known(&["other:2181", "zk:2181"], &memory, seed);
            assert_eq!(next.next(at(0)), NextServer::Wait(Some(at(250))));
            assert_eq!(lookups(&mut next), ["other", "zk"]);
            let order = [(); 4].map(|()| tried(next.next(at(250))));
            assert_eq!(order, [4, 3, 2, 1].map(address), "the server of the last session is the second");
        }
        first.record_answer(of(1));
        first.handle_resolved(0, Ok(vec![address(1), address(4)]));
        first.record_trouble(of(2), Trouble::Silent);
        assert_eq!([1, 2].map(|number| memory.trouble(address(number))), [None; 2]);
        assert!(memory.addresses("another:2181").is_empty());
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
            assert!(matches!(servers.next(at(round * 1000)), NextServer::Wait(_)));
            assert_eq!(lookups(&mut servers), ["zk2"], "one at a time");
            servers.handle_resolved(1, Ok(vec![address(2)]));
            assert_eq!(tried(servers.next(at(round * 1000))), address(2));
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
        assert_eq!(servers.outcomes(), "bad:2181 (no such name), zk2:2181 (no answer)");
        servers.next(at(1));
        assert_eq!(tried(servers.next(at(251))), address(2));
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
        servers.next(at(0));
        lookups(&mut servers);
        let second = tried(servers.next(at(250)));
        assert!(
            servers.handle_resolved(0, Ok(vec![second, address(3)])),
            "as many addresses, but different ones"
        );
        assert_eq!(tried(servers.next(at(250))), address(3));
        assert_eq!(servers.address_count(), 2);
    }

    #[test]
    fn addresses_known_before_remain_while_the_name_service_fails() {
        let mut servers = servers(&["zk:2181"], 1);
        first_of_round(&mut servers, at(0), Ok(vec![address(1)]));
        for round in 1..4 {
            let next = first_of_round(&mut servers, at(round * 1000), Err(no_such_name()));
            assert_eq!(next.address, address(1));
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
    fn server_that_fell_silent_is_tried_last_until_it_answers_a_call() {
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
            assert_eq!(round(&mut servers, 3)[2], silent, "it has accepted the session and answered nothing");
            servers.record_success(silent);
            servers.record_answer(silent);
            servers.record_end(silent, false, false);
            assert_eq!(round(&mut servers, 3)[1], silent);
        }
    }

    #[test]
    fn server_that_refuses_is_tried_after_the_others_and_before_a_silent_one() {
        for seed in 0..50 {
            let mut servers = servers(&THREE, seed);
            let [first, second, third] = round(&mut servers, 3)[..] else { panic!("three addresses") };
            servers.record_trouble(first, Trouble::Silent);
            servers.record_trouble(second, Trouble::Refusing);
            assert_eq!(round(&mut servers, 3), [third, second, first]);
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
        assert_eq!(servers.outcomes(), format!("10.0.0.1:1 ({ANSWERS_NO_CALL})"));
        servers.record_answer(target);
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
