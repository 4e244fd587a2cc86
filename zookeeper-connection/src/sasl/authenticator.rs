//! [`Authenticator`]: prepares the SASL exchanges of one connection.

use std::sync::Arc;

use crossbeam_channel::{Receiver, unbounded};
use mio::Waker;

use super::calls::Caller;
use super::{Mechanism, Prepared};

/// The outcome of a call for an exchange or a ticket.
pub(crate) enum Answer {
    /// The exchange with the server at this position, or the reason why there is none.
    Prepared(usize, Result<Prepared, String>),
    /// The reason why no ticket for the server at this position could be fetched in advance.
    NoTicket(usize, String),
}

pub(crate) struct Authenticator {
    mechanism: Mechanism,
    caller: Caller,
    answers: Receiver<Answer>,
}

impl Authenticator {
    /// Creates an authenticator that calls `waker` on each answer.
    pub(crate) fn new(mechanism: Mechanism, waker: &Arc<Waker>) -> Authenticator {
        let (sender, answers) = unbounded();
        let caller = Caller { answers: sender, waker: Arc::downgrade(waker) };
        Authenticator { mechanism, caller, answers }
    }

    /// Returns whether an exchange needs a ticket, which should be fetched in advance.
    pub(crate) fn needs_tickets(&self) -> bool {
        matches!(self.mechanism, Mechanism::WithTickets(_))
    }

    /// Prepares an exchange with a server.
    pub(crate) fn prepare(&self, server: usize, host: String) {
        match &self.mechanism {
            Mechanism::WithoutTickets(prepare) => self.caller.reply(Answer::Prepared(server, prepare(&host))),
            Mechanism::WithTickets(calls) => calls.prepare(host, server, self.caller.clone()),
        }
    }

    /// Fetches a ticket for a server, if the mechanism has tickets.
    pub(crate) fn fetch_ahead(&self, server: usize, host: String) {
        if let Mechanism::WithTickets(calls) = &self.mechanism {
            calls.fetch_ahead(host, server, self.caller.clone());
        }
    }

    pub(crate) fn next_answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{deadline, eventually, next};
    use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
    use mio::{Poll, Token};

    /// A mechanism that hangs, and never prepares an exchange.
    struct Hanging {
        mechanism: Mechanism,
        /// Receives the host at the beginning of each call.
        begun: Receiver<String>,
        /// Each message ends a call.
        end: Sender<()>,
    }

    fn hanging() -> Hanging {
        let (begin, begun) = unbounded();
        let (end, ended) = bounded(0);
        let prepare = move |host: &str| {
            let _ = begin.send(host.to_owned());
            let _ = ended.recv();
            Err(format!("no ticket for {host}"))
        };
        Hanging { mechanism: Mechanism::with_tickets(prepare), begun, end }
    }

    fn waker() -> Arc<Waker> {
        let poll = Poll::new().unwrap();
        Arc::new(Waker::new(poll.registry(), Token(0)).unwrap())
    }

    fn next_answer(authenticator: &Authenticator) -> (usize, String) {
        let mut answer = None;
        eventually("there is an answer", || {
            answer = authenticator.next_answer();
            answer.is_some()
        });
        match answer {
            Some(Answer::Prepared(server, Err(why)) | Answer::NoTicket(server, why)) => (server, why),
            _ => panic!("nothing can be prepared"),
        }
    }

    #[test]
    fn calls_of_all_connections_for_a_host_are_made_one_after_the_other_and_delay_no_other_host() {
        let (hanging, waker) = (hanging(), waker());
        let connections = [0; 3].map(|_| Authenticator::new(hanging.mechanism.clone(), &waker));
        for connection in &connections {
            connection.prepare(7, "silent".to_owned());
        }
        assert_eq!(next(&hanging.begun), "silent");
        connections[2].prepare(1, "other".to_owned());
        assert_eq!(next(&hanging.begun), "other");
        assert!(hanging.begun.is_empty(), "one at a time for each host");
        drop(hanging.end);
        assert_eq!(next_answer(&connections[0]), (7, "no ticket for silent".to_owned()));
        assert_eq!(next_answer(&connections[1]), (7, "no ticket for silent".to_owned()));
        let mut both = [0; 2].map(|_| next_answer(&connections[2]).0);
        both.sort_unstable();
        assert_eq!(both, [1, 7]);
    }

    #[test]
    fn calls_keep_nothing_of_a_connection_that_has_ended_and_none_is_made_for_it() {
        let (hanging, waker) = (hanging(), waker());
        let waiting = {
            let ended = Authenticator::new(hanging.mechanism.clone(), &waker);
            ended.prepare(0, "silent".to_owned());
            ended.fetch_ahead(1, "ahead".to_owned());
            let mut calls = [next(&hanging.begun), next(&hanging.begun)];
            calls.sort_unstable();
            assert_eq!(calls, ["ahead", "silent"]);
            let waker = self::waker();
            let waits = Authenticator::new(hanging.mechanism.clone(), &waker);
            waits.prepare(0, "silent".to_owned());
            Arc::downgrade(&waker)
        };
        assert_eq!(waiting.strong_count(), 0);
        let of_ended = Arc::downgrade(&waker);
        drop(waker);
        assert_eq!(of_ended.strong_count(), 0);
        // The threads end.
        drop((hanging.end, hanging.mechanism));
        assert_eq!(hanging.begun.recv_timeout(deadline()), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn tickets_are_fetched_ahead_host_after_host_for_all_connections() {
        let (hanging, waker) = (hanging(), waker());
        let connections = [0; 2].map(|_| Authenticator::new(hanging.mechanism.clone(), &waker));
        let fetch = |connection: &Authenticator| {
            for (server, host) in ["zk1", "zk2", "zk3"].into_iter().enumerate() {
                connection.fetch_ahead(server, host.to_owned());
            }
        };
        fetch(&connections[0]);
        assert_eq!(next(&hanging.begun), "zk1");
        fetch(&connections[1]);
        for host in ["zk2", "zk3", "zk1"] {
            assert!(hanging.begun.is_empty(), "one at a time");
            hanging.end.send(()).unwrap();
            assert_eq!(next(&hanging.begun), host);
        }
        drop(hanging.end);
        // The call for zk1 was already under way when the second connection made its own, so the second call is made
        // as well.
        assert_eq!(next_answer(&connections[1]).0, 0);
        assert!(hanging.begun.is_empty(), "no host is asked for twice");
        let failed = [0; 3].map(|_| next_answer(&connections[0]));
        assert_eq!(failed.map(|(server, _)| server), [0, 1, 2]);
    }

    #[test]
    fn ticket_is_fetched_ahead_for_a_connection_although_another_that_was_to_fetch_it_ends_before() {
        let (hanging, waker, of_ended) = (hanging(), waker(), self::waker());
        let ended = Authenticator::new(hanging.mechanism.clone(), &of_ended);
        let connection = Authenticator::new(hanging.mechanism.clone(), &waker);
        connection.fetch_ahead(0, "zk1".to_owned());
        assert_eq!(next(&hanging.begun), "zk1");
        ended.fetch_ahead(1, "zk2".to_owned());
        connection.fetch_ahead(1, "zk2".to_owned());
        drop((ended, of_ended, hanging.end));
        assert_eq!([0; 2].map(|_| next_answer(&connection).0), [0, 1]);
    }
}
