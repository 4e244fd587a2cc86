//! Metrics of a session and its locks, for Prometheus.
//!
//! Takes a lock again and again, and shows on a port of the loopback interface how long it waited
//! and held it. Start two of them on one server, and see the waits.
//!
//! ```text
//! cargo run --example metrics -- 127.0.0.1:2181 9184
//! curl 127.0.0.1:9184
//! ```

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;
use std::{env, thread};

use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use zookeeper_recipes_lock::events::{
    EventHook, LockAcquired, LockGivenUp, LockHandedOver, LockLost, LockReleased, SessionConnected,
};
use zookeeper_recipes_lock::{BlockingWriteLock, LossReason, Session};

const USAGE: &str = "usage: metrics CONNECT PORT";
const BUCKETS: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];
const HOLD: Duration = Duration::from_millis(200);

/// Passes the events on to the crate `metrics`.
struct Metrics;

impl EventHook for Metrics {
    fn connected(&self, event: &SessionConnected) {
        let server = event.server.clone().unwrap_or_default();
        counter!("zookeeper_connections_total", "server" => server).increment(1);
        gauge!("zookeeper_session_timeout_seconds").set(event.session_timeout.as_secs_f64());
        gauge!("zookeeper_connected").set(1.0);
    }

    fn suspended(&self) {
        gauge!("zookeeper_connected").set(0.0);
    }

    fn session_lost(&self, reason: LossReason) {
        counter!("zookeeper_sessions_lost_total", "reason" => reason.to_string()).increment(1);
        gauge!("zookeeper_connected").set(0.0);
    }

    fn acquired(&self, event: &LockAcquired) {
        histogram!("lock_wait_seconds", "lock" => event.lock.dir.clone()).record(event.waited);
        gauge!("locks_held").increment(1.0);
    }

    fn handed_over(&self, event: &LockHandedOver) {
        counter!("lock_hand_overs_total", "lock" => event.lock.dir.clone()).increment(1);
    }

    fn released(&self, event: &LockReleased) {
        histogram!("lock_hold_seconds", "lock" => event.lock.dir.clone()).record(event.held);
        gauge!("locks_held").decrement(1.0);
    }

    fn lost(&self, event: &LockLost) {
        let reason = event.reason.to_string();
        counter!("locks_lost_total", "lock" => event.lock.dir.clone(), "reason" => reason).increment(1);
        gauge!("locks_held").decrement(1.0);
    }

    fn gave_up(&self, event: &LockGivenUp) {
        counter!("lock_waits_given_up_total", "lock" => event.lock.dir.clone()).increment(1);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(connect), Some(port)) = (arguments.next(), arguments.next()) else {
        eprintln!("{USAGE}");
        std::process::exit(2);
    };
    // With buckets, as summaries of several processes cannot be added up.
    let builder = PrometheusBuilder::new().set_buckets(&BUCKETS)?;
    let endpoint = builder.install_recorder()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse()?))?;
    thread::spawn(move || serve(&listener, &endpoint));

    let session = Session::builder(connect).replace_lost_sessions(true).event_hook(Metrics).connect()?;
    let lock = BlockingWriteLock::new(&session, "/locks/metrics")?;
    loop {
        match lock.lock() {
            Ok(guard) => {
                thread::sleep(HOLD);
                drop(guard);
            }
            Err(error) => {
                eprintln!("metrics: {error}");
                thread::sleep(HOLD);
            }
        }
    }
}

/// Answers every request with the metrics.
fn serve(listener: &TcpListener, endpoint: &PrometheusHandle) {
    for client in listener.incoming() {
        if let Err(error) = client.and_then(|client| answer(&client, &endpoint.render())) {
            eprintln!("metrics: {error}");
        }
    }
}

fn answer(mut client: &TcpStream, metrics: &str) -> io::Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(1)))?;
    for line in BufReader::new(client).lines() {
        if line?.is_empty() {
            break;
        }
    }
    let length = metrics.len();
    write!(
        client,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: \
         close\r\n\r\n{metrics}"
    )
}
