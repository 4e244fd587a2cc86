//! [`Ensemble`]: what the servers of a connect string grant a session, asked of all of them.
//!
//! The crate says neither which server it is connected to nor what that one grants. So the least that any of them grants
//! counts, and it is asked for again after every reconnect, since a server may have been restarted with another
//! configuration. A server that does not answer such a question counts with what it has said before.

use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;

use crate::client::Granted;
use crate::client::connect_string::ConnectString;
use crate::client::handshake::{Greeting, probe_all};

/// The part of the session timeout for which the other servers are waited for when one has answered, as a divisor.
const GRACE_DIVISOR: u32 = 16;

pub(super) struct Ensemble {
    servers: ConnectString,
    /// What the crate asks for.
    session_timeout: Duration,
    /// The least that was granted so far. The crate asks for no more on its later connections than it got before.
    granted: Mutex<Option<Granted>>,
}

impl Ensemble {
    pub(super) fn new(servers: ConnectString, session_timeout: Duration) -> Ensemble {
        Ensemble { servers, session_timeout, granted: Mutex::new(None) }
    }

    /// What counts as granted, after the last question.
    pub(super) fn granted(&self) -> Granted {
        let nothing = Granted::new(Duration::ZERO);
        self.granted.lock().unwrap_or(nothing)
    }

    /// Finds the servers that serve. Returns a connect string for the crate, which begins with one of them, and whether all
    /// have said what they grant.
    ///
    /// # Errors
    /// What became of each when none answered before `deadline`.
    pub(super) fn find(&self, deadline: Instant) -> Result<(String, bool), String> {
        let answers = self.ask(deadline)?;
        // Any of them, so that not all clients flock to one.
        let chosen = Uuid::new_v4().as_u128() % answers.len() as u128;
        let (chosen, greeting) = answers[chosen as usize];
        let mut addresses = vec![greeting.address.to_string()];
        for (position, server) in self.servers.servers().iter().enumerate() {
            let answer = answers.iter().find(|(answered, _)| *answered == position);
            let address = match answer {
                Some((_, greeting)) => Some(greeting.address.to_string()),
                None => resolve(server),
            };
            addresses.extend(address.filter(|_| position != chosen));
        }
        let all_answered = answers.len() == self.servers.servers().len();
        Ok((format!("{}{}", addresses.join(","), self.servers.chroot()), all_answered))
    }

    /// Asks all servers what they grant, and takes note of it. Returns the answers, with the positions of the servers.
    ///
    /// # Errors
    /// What became of each when none answered before `deadline`.
    pub(super) fn ask(&self, deadline: Instant) -> Result<Vec<(usize, Greeting)>, String> {
        let servers = self.servers.servers();
        let coming = probe_all(servers, self.session_timeout, deadline);
        let mut outcomes: Vec<String> =
            servers.iter().map(|server| format!("{server} (no answer)")).collect();
        let mut answers: Vec<(usize, Greeting)> = Vec::new();
        let mut until = deadline;
        for _ in servers {
            match coming.recv_deadline(until) {
                Ok((position, Ok(greeting))) => {
                    until = until.min(Instant::now() + greeting.session_timeout / GRACE_DIVISOR);
                    answers.push((position, greeting));
                }
                Ok((position, Err(error))) => outcomes[position] = format!("{} ({error})", servers[position]),
                Err(_) => break,
            }
        }
        self.learn(&answers);
        if answers.is_empty() { Err(outcomes.join(", ")) } else { Ok(answers) }
    }

    fn learn(&self, answers: &[(usize, Greeting)]) {
        let mut granted = self.granted.lock();
        for (_, greeting) in answers {
            // Two ticks are the shortest session timeout, unless a server is configured otherwise.
            let new = Granted::new(greeting.session_timeout).with_tick(greeting.shortest_timeout / 2);
            let least = granted.map_or(new, |known| Granted {
                session_timeout: known.session_timeout.min(new.session_timeout),
                report_delay: known.report_delay.max(new.report_delay),
            });
            *granted = Some(least);
        }
    }
}

/// The first address of a server, or `None` for one whose name cannot be resolved, which the crate would not bear.
fn resolve(server: &str) -> Option<String> {
    server.to_socket_addrs().ok()?.next().map(|address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(session_timeout: u64, shortest_timeout: u64) -> (usize, Greeting) {
        let greeting = Greeting {
            address: "127.0.0.1:1".parse().unwrap(),
            session_timeout: Duration::from_millis(session_timeout),
            shortest_timeout: Duration::from_millis(shortest_timeout),
        };
        (0, greeting)
    }

    #[test]
    fn the_least_session_timeout_and_the_longest_tick_of_all_answers_count() {
        let servers = ConnectString::parse("127.0.0.1:1").unwrap();
        let ensemble = Ensemble::new(servers, Duration::from_secs(20));
        ensemble.learn(&[answer(20_000, 4_000), answer(10_000, 1_000)]);
        let granted = ensemble.granted();
        assert_eq!(granted.session_timeout, Duration::from_secs(10));
        assert_eq!(granted.report_delay, Duration::from_millis(2_200), "a tick of 2 s, and a tenth");
        ensemble.learn(&[answer(15_000, 6_000)]);
        let granted = ensemble.granted();
        assert_eq!(granted.session_timeout, Duration::from_secs(10), "the crate asks for no more again");
        assert_eq!(granted.report_delay, Duration::from_millis(3_300));
    }
}
