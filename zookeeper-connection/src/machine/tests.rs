//! Tests of the parts of the machine that decide which servers are tried, together with a session.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Action, Config, Failure, LinkId, Machine, Token, session};
use crate::codec::{ConnectAnswer, ConnectResponse, Password};
use crate::time::Moment;
use crate::{ClientEvent, ConnectionOptions};

const TIMEOUT: Duration = Duration::from_secs(30);

fn at(millis: u64) -> Moment {
    Moment::from_nanos(1_000_000_000).after(Duration::from_millis(millis))
}

fn machine(servers: &[String], options: &ConnectionOptions, sasl: bool) -> Machine<u32> {
    let session = session::Config::new(options, sasl, Default::default(), 1);
    Machine::new(Config::new(options, session, servers), at(0))
}

/// A machine that knows these servers, and what it has asked for.
struct Searching {
    machine: Machine<u32>,
    opens: Vec<(LinkId, SocketAddr)>,
    tokens: Vec<usize>,
    closes: Vec<LinkId>,
}

impl Searching {
    fn new(servers: usize, sasl: bool) -> Searching {
        let servers: Vec<String> = (1..=servers).map(|number| format!("127.0.0.1:{number}")).collect();
        Searching::on(&servers, &ConnectionOptions::new(TIMEOUT), sasl)
    }

    fn on(servers: &[String], options: &ConnectionOptions, sasl: bool) -> Searching {
        let machine = machine(servers, options, sasl);
        let mut searching = Searching { machine, opens: Vec::new(), tokens: Vec::new(), closes: Vec::new() };
        searching.look();
        searching
    }

    fn look(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            match action {
                Action::Open { link, address, .. } => self.opens.push((link, address)),
                Action::MakeToken { server, .. } => self.tokens.push(server),
                _ => {}
            }
        }
        self.closes.extend(std::iter::from_fn(|| self.machine.poll_close()));
    }

    fn time(&mut self, millis: u64) {
        self.machine.handle_time(at(millis));
        self.look();
    }

    fn token(&mut self, server: usize, token: Result<Token, String>) -> Option<LinkId> {
        let link = self.machine.handle_token(at(1), server, token);
        self.look();
        link
    }

    fn fail(&mut self, millis: u64, link: LinkId) {
        self.fail_because(at(millis), link, "refused", false);
    }

    fn fail_because(&mut self, now: Moment, link: LinkId, why: &str, refuses_certificate: bool) {
        let failure = Failure { why: why.to_owned(), refuses_certificate };
        self.machine.handle_failed(now, link, failure);
        self.look();
    }
}

#[test]
fn next_address_is_tried_beside_one_that_does_not_answer_and_none_is_tried_twice() {
    let mut searching = Searching::new(2, false);
    assert_eq!(searching.opens.len(), 1);
    searching.time(249);
    assert_eq!(searching.opens.len(), 1);
    searching.time(250);
    assert_eq!(searching.opens.len(), 2);
    assert_ne!(searching.opens[0].1, searching.opens[1].1);
    searching.time(1000);
    assert_eq!(searching.opens.len(), 2, "no second round beside the first");
}

/// Two connect requests at once would open two sessions, or make two servers serve one session.
#[test]
fn one_of_two_open_transports_is_greeted_and_the_other_closed() {
    let mut searching = Searching::new(2, false);
    searching.time(250);
    let [(first, _), (second, _)] = searching.opens[..] else { panic!("two addresses are tried") };
    searching.machine.handle_opened(at(260), second);
    searching.machine.handle_opened(at(260), first);
    searching.look();
    assert_eq!(searching.closes, [first]);
    assert_eq!(searching.machine.link_in_use(), Some(second));
    assert!(!searching.machine.is_wanted(first));
    assert!(searching.machine.poll_transmit(first).is_none());
    assert_eq!(searching.machine.poll_transmit(second).unwrap().len(), 4 + 45);
}

/// The machine may give an attempt up while its owner connects. A transport of that attempt could then serve the
/// session beside one of the next attempt.
#[test]
fn late_outcome_of_an_attempt_that_was_given_up_is_ignored() {
    let mut searching = Searching::new(1, false);
    let (late, _) = searching.opens[0];
    let gives_up = searching.machine.poll_deadline().unwrap();
    searching.machine.handle_time(gives_up);
    searching.look();
    assert_eq!(searching.closes, [late]);
    assert!(!searching.machine.is_wanted(late));
    searching.machine.handle_opened(gives_up, late);
    assert_eq!(searching.machine.link_in_use(), None);
    let failure = Failure { why: "too late".to_owned(), refuses_certificate: false };
    searching.machine.handle_failed(gives_up, late, failure);
    assert!(!searching.machine.outcomes().contains("too late"));
}

/// The name service answers late, and the only address that is tried by then is a former one.
#[test]
fn no_address_is_tried_while_the_session_pauses() {
    let address = |number: u16| SocketAddr::from(([127, 0, 0, 1], number));
    let options = ConnectionOptions::new(TIMEOUT);
    options.memory.set_addresses("zk:1", &[address(1), address(2), address(3)]);
    let mut searching = Searching::on(&["zk:1".to_owned()], &options, false);
    searching.time(250);
    assert_eq!(searching.opens.len(), 1);
    searching.machine.handle_resolved(at(260), 0, Ok(vec![address(4)]));
    // Just before the next address would have been tried.
    searching.fail(499, searching.opens[0].0);
    let pause_ends = searching.machine.session.deadline().unwrap();
    while let Some(deadline) = searching.machine.poll_deadline().filter(|deadline| *deadline < pause_ends) {
        searching.machine.handle_time(deadline);
    }
    searching.look();
    assert_eq!(searching.opens.len(), 1);
    searching.machine.handle_time(pause_ends);
    searching.machine.handle_time(pause_ends.after(Duration::from_millis(250)));
    searching.look();
    assert_eq!(searching.opens[1].1, address(4));
}

/// A KDC that does not answer must not hold up the servers whose tickets are known.
#[test]
fn next_address_is_tried_beside_one_whose_token_is_missing() {
    let mut searching = Searching::new(2, true);
    assert_eq!((searching.tokens.len(), searching.opens.len()), (1, 0));
    searching.time(250);
    let [first, second] = searching.tokens[..] else { panic!("two tokens are asked for") };
    assert_eq!(searching.token(first, Err("no ticket".to_owned())), None);
    assert_eq!(searching.machine.search.deadline(), None, "no third address");
    let link = searching.token(second, Ok(Token(vec![7]))).unwrap();
    assert_eq!(searching.opens.iter().map(|(link, _)| *link).collect::<Vec<_>>(), [link]);
    searching.fail(251, link);
    assert!(searching.machine.outcomes().contains("(no ticket)"));
    assert!(searching.machine.outcomes().contains("(refused)"));
}

#[test]
fn later_search_does_not_wait_for_a_token_of_an_earlier_one() {
    let mut searching = Searching::new(2, true);
    searching.time(250);
    let [first, second] = searching.tokens[..] else { panic!("two tokens are asked for") };
    assert_eq!(searching.token(second, Err("no ticket".to_owned())), None);
    // The session gives the attempt up, and searches again.
    let deadline = searching.machine.poll_deadline().unwrap();
    searching.machine.handle_time(deadline);
    searching.look();
    while searching.tokens.len() == 2 {
        let deadline = searching.machine.poll_deadline().unwrap();
        searching.machine.handle_time(deadline);
        searching.look();
    }
    assert_eq!(searching.tokens[2], second, "the KDC is silent about the other");
    assert_eq!(searching.machine.search.asked.len(), 2);
    let _ = searching.token(first, Ok(Token(vec![7])));
    assert!(!searching.machine.search.asked.contains_key(&first));
}

#[test]
fn last_server_whose_certificate_is_refused_hides_no_other_outcome() {
    let mut searching = Searching::new(2, false);
    let (first, address) = searching.opens[0];
    searching.fail_because(at(1), first, "its certificate", true);
    let (second, _) = searching.opens[1];
    searching.fail(1, second);
    while searching.machine.loss().is_none() {
        let now = searching.machine.poll_deadline().unwrap();
        searching.machine.handle_time(now);
        searching.look();
        let Some((link, tried)) = searching.opens.drain(2..).next() else { continue };
        let why = if tried == address { "its certificate" } else { "another certificate" };
        searching.fail_because(now, link, why, true);
    }
    assert_eq!(searching.opens.len(), 2, "nothing is tried after the end");
    let outcomes = searching.machine.outcomes();
    assert!(
        outcomes.contains("(its certificate)") && outcomes.contains("(another certificate)"),
        "{outcomes}"
    );
}

/// The application may be told of a connection after it has been lost.
#[test]
fn server_of_a_connection_is_known_although_it_is_lost_at_once() {
    let mut searching = Searching::new(1, false);
    let (link, address) = searching.opens[0];
    searching.machine.handle_opened(at(1), link);
    searching.machine.handle_bytes(at(1), link, &accepted(TIMEOUT));
    searching.machine.handle_closed(at(1), link);
    assert_eq!(searching.machine.link_in_use(), None);
    let mut tells = searching.machine.actions().filter_map(|action| match action {
        Action::Tell(event) => Some(event),
        _ => None,
    });
    assert!(matches!(tells.next(), Some(ClientEvent::Connected(_))));
    assert_eq!(tells.next(), Some(&ClientEvent::Disconnected));
    assert_eq!(searching.machine.status().server, address.to_string());
}

/// Inputs at random, from an owner that follows the rules.
struct AtRandom {
    machine: Machine<u32>,
    random: fastrand::Rng,
    now: Moment,
    /// The transports that are being opened or are open.
    links: Vec<LinkId>,
    opened: Vec<LinkId>,
    has_ended: bool,
}

impl AtRandom {
    fn new(seed: u64) -> AtRandom {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut options = ConnectionOptions::new(Duration::from_secs(random.u64(1..30)));
        options.tick = random.bool().then_some(Duration::from_secs(1));
        let servers: Vec<String> = (1..=random.usize(1..4)).map(|number| format!("zk{number}:1")).collect();
        let machine = machine(&servers, &options, random.bool());
        AtRandom { machine, random, now: at(0), links: Vec::new(), opened: Vec::new(), has_ended: false }
    }

    /// Carries out the actions.
    fn act(&mut self) {
        let machine = &mut self.machine;
        while let Some(link) = machine.poll_close() {
            self.links.retain(|known| *known != link);
            self.opened.retain(|known| *known != link);
        }
        for link in &self.links {
            assert!(machine.is_wanted(*link), "{link:?} is neither wanted nor closed");
        }
        while let Some(action) = machine.poll_action() {
            assert!(!self.has_ended, "nothing follows the end: {action:?}");
            match action {
                Action::Open { link, .. } if machine.is_wanted(link) => self.links.push(link),
                Action::Resolve(lookup) if self.random.bool() => {
                    let address = SocketAddr::from(([10, 0, 0, self.random.u8(1..9)], 1));
                    let answer = if self.random.bool() { Ok(vec![address]) } else { Err("none".to_owned()) };
                    machine.handle_resolved(self.now, lookup.server, answer);
                }
                Action::MakeToken { server, .. } if self.random.bool() => {
                    let token = if self.random.bool() { Ok(Token(vec![7])) } else { Err("none".to_owned()) };
                    machine.handle_token(self.now, server, token);
                }
                Action::Ended => self.has_ended = true,
                _ => {}
            }
        }
    }

    fn some_link(&mut self) -> Option<LinkId> {
        let position = self.random.usize(..self.links.len().max(1));
        self.links.get(position).copied()
    }

    fn step(&mut self) {
        let kind = self.random.u8(..8);
        let (now, link) = (self.now, self.some_link());
        let is_open = link.is_some_and(|link| self.opened.contains(&link));
        let machine = &mut self.machine;
        match (kind, link) {
            (0, Some(link)) if !is_open => {
                self.opened.push(link);
                machine.handle_opened(now, link);
            }
            (1, Some(link)) if is_open => {
                self.links.retain(|known| *known != link);
                machine.handle_closed(now, link);
            }
            (2, Some(link)) => {
                self.links.retain(|known| *known != link);
                let failure = Failure { why: String::new(), refuses_certificate: self.random.bool() };
                machine.handle_failed(now, link, failure);
            }
            (3 | 4, Some(link)) if is_open => {
                let timeout = self.random.u64(1..30);
                machine.handle_bytes(now, link, &accepted(Duration::from_secs(timeout)));
            }
            (5, _) if self.random.u8(..8) == 0 => machine.handle_close(now),
            _ => self.pass(),
        }
        self.act();
    }

    fn pass(&mut self) {
        let Some(deadline) = self.machine.poll_deadline() else { return };
        self.now = self.now.max(deadline);
        let is_due = |machine: &Machine<u32>, now| machine.poll_deadline().is_some_and(|at| at <= now);
        // An address that fails at once is followed by the next one at once.
        for _ in 0..10 {
            if !is_due(&self.machine, self.now) {
                return;
            }
            self.machine.handle_time(self.now);
        }
        assert!(!is_due(&self.machine, self.now), "the timer is called for ever at {:?}", self.now);
    }
}

fn accepted(timeout: Duration) -> Vec<u8> {
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap();
    let response =
        ConnectResponse { timeout_ms, session_id: 7, password: Password::new([1; 16]), read_only: false };
    let mut answer = Vec::new();
    ConnectAnswer::Accepted(response).encode(&mut answer);
    answer
}

#[test]
fn time_always_goes_on_and_each_transport_is_wanted_or_closed() {
    for seed in 0..3000 {
        let mut at_random = AtRandom::new(seed);
        at_random.act();
        for _ in 0..60 {
            at_random.step();
        }
    }
}
