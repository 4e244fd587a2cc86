//! A holder's process is killed: the time until a waiter in another process has the lock. The second row is about an
//! ensemble whose leader dies as well, just before the holder's session would expire: a new leader gives every session
//! its whole timeout again.

use std::thread;
use std::time::{Duration, Instant};

use crate::child::Child;
use crate::support::ensemble::Ensemble;
use crate::support::server::Server;
use crate::support::wait::deadline;
use crate::table::{Aim, print_row};
use crate::{Plan, ROOT, join_queue, seconds, session};

const SESSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Allows for the server's detection time and the load of the machine.
const MARGIN: Duration = Duration::from_secs(1);

/// Each holder is killed at a different time after its last keep-alive.
const STEP: Duration = Duration::from_millis(400);

/// The time for the election of a leader, and for the waiter to move to another server.
const ELECTION: Duration = Duration::from_secs(2);

/// The leader is killed this long after the holder, when the holder's session is about to expire.
const TO_THE_LEADER: Duration = Duration::from_secs(4);

/// Each run takes longer than two session timeouts.
const MAX_RUNS_OF_LEADERS: u32 = 5;

pub(crate) fn run(plan: &Plan, server: &Server) {
    let times: Vec<f64> = (0..plan.runs).map(|run| time_takeover(run, server)).collect();
    let aim = Aim::AtMost((SESSION_TIMEOUT + MARGIN).as_secs_f64());
    let figure = format!("holder's process killed → a waiter owns (session timeout {SESSION_TIMEOUT:?})");
    print_row(&figure, "s", &times, &aim);

    let ensemble = Ensemble::start(3);
    let runs = 0..plan.runs.min(MAX_RUNS_OF_LEADERS);
    let times: Vec<f64> = runs.map(|run| time_takeover_without_the_leader(run, &ensemble)).collect();
    let aim = Aim::AtMost((2 * SESSION_TIMEOUT + ELECTION + MARGIN).as_secs_f64());
    let figure = format!("… and the leader of three servers {TO_THE_LEADER:?} later → a waiter owns");
    print_row(&figure, "s", &times, &aim);
}

fn time_takeover_without_the_leader(run: u32, ensemble: &Ensemble) -> f64 {
    let (connect_string, dir) = (ensemble.connect_string(), format!("{ROOT}/takeover-leader-{run}"));
    let mut holder = Child::holding(&connect_string, &dir, 0, SESSION_TIMEOUT, false);
    let session = session(&connect_string, 4 * SESSION_TIMEOUT);
    let (lock, acquired) = join_queue(&session, &dir);
    assert!(!lock.is_owner(), "the child holds the lock");
    let leader = ensemble.leader();
    let killed = Instant::now();
    holder.kill();
    thread::sleep(TO_THE_LEADER);
    assert!(acquired.is_empty(), "the session of the child has not expired yet");
    ensemble.kill(leader);
    let time = seconds(killed, acquired.recv_timeout(deadline()).expect("the lock becomes free"));
    ensemble.restart(leader);
    ensemble.await_quorum();
    time
}

fn time_takeover(run: u32, server: &Server) -> f64 {
    let (connect_string, dir) = (server.connect_string(), format!("{ROOT}/takeover-{run}"));
    let mut holder = Child::holding(&connect_string, &dir, 0, SESSION_TIMEOUT, false);
    let session = session(&connect_string, SESSION_TIMEOUT);
    let (lock, acquired) = join_queue(&session, &dir);
    assert!(!lock.is_owner(), "the child holds the lock");
    thread::sleep(run * STEP);
    let killed = Instant::now();
    holder.kill();
    seconds(killed, acquired.recv_timeout(deadline()).expect("the lock becomes free"))
}
