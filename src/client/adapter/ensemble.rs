//! [`Ensemble`]: the session timeouts that the servers of a connect string grant. All of them are
//! asked.
//!
//! The crate exposes neither which server it is connected to nor that server's grant. So the
//! smallest grant of all servers counts. They are asked again after every reconnect, because a
//! server may have been restarted with another configuration. If a server does not answer, its last
//! answer counts.

use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;

use crate::client::Granted;
use crate::client::connect_string::ConnectString;
use crate::client::handshake::{Greeting, probe_all};

/// After the first answer, the other servers are awaited for the session timeout divided by this.
const GRACE_DIVISOR: u32 = 16;

pub(super) struct Ensemble {
    servers: ConnectString,
    /// The session timeout that the crate requests.
    session_timeout: Duration,
    /// The smallest grant so far. On later connections the crate requests no more than it was
    /// granted before.
    granted: Mutex<Option<Granted>>,
}

impl Ensemble {
    pub(super) fn new(servers: ConnectString, session_timeout: Duration) -> Ensemble {
        Ensemble { servers, session_timeout, granted: Mutex::new(None) }
    }

    /// The grant that counts, after the last round of questions.
    pub(super) fn granted(&self) -> Granted {
        let nothing = Granted::new(Duration::ZERO);
        self.granted.lock().unwrap_or(nothing)
    }

    /// Finds a serving server. Returns a connect string for the crate that starts with one, and
    /// whether all servers have answered.
    ///
    /// # Errors
    /// The outcome of each server, if none answered before `deadline`.
    pub(super) fn find(&self, deadline: Instant) -> Result<(String, bool), String> {
        let answers = self.ask(deadline)?;
        // A random one, so that clients spread over the servers.
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

    /// Asks all servers for their grants and records them. Returns the answers with the positions
    /// of the servers.
    ///
    /// # Errors
    /// The outcome of each server, if none answered before `deadline`.
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
            // Two ticks are the minimum session timeout, unless a server is configured otherwise.
            let new = Granted::new(greeting.session_timeout).with_tick(greeting.shortest_timeout / 2);
            let least = granted.map_or(new, |known| Granted {
                session_timeout: known.session_timeout.min(new.session_timeout),
                report_delay: known.report_delay.max(new.report_delay),
            });
            *granted = Some(least);
        }
    }
}

/// The first address of a server, or `None` if its name cannot be resolved. The crate would panic
/// on such a name.
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
    fn smallest_session_timeout_and_longest_tick_count() {
        let servers = ConnectString::parse("127.0.0.1:1").unwrap();
        let ensemble = Ensemble::new(servers, Duration::from_secs(20));
        ensemble.learn(&[answer(20_000, 4_000), answer(10_000, 1_000)]);
        let granted = ensemble.granted();
        assert_eq!(granted.session_timeout, Duration::from_secs(10));
        assert_eq!(granted.report_delay, Duration::from_millis(2_200), "a tick of 2 s plus a tenth");
        ensemble.learn(&[answer(15_000, 6_000)]);
        let granted = ensemble.granted();
        assert_eq!(granted.session_timeout, Duration::from_secs(10), "the crate never requests more again");
        assert_eq!(granted.report_delay, Duration::from_millis(3_300));
    }
}
