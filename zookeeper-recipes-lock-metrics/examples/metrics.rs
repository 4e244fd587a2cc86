//! Exposes the metrics of a session and its locks to Prometheus.
//!
//! Acquires and releases a lock in a loop, and serves the metrics on a loopback port. Start two processes with
//! the same server to see them wait for each other.
//!
//! ```text
//! cargo run -p zookeeper-recipes-lock-metrics --example metrics -- 127.0.0.1:2181 9184
//! curl 127.0.0.1:9184
//! ```

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;
use std::{env, thread};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use zookeeper_recipes_lock::{BlockingWriteLock, Session};
use zookeeper_recipes_lock_metrics::{LockMetrics, update_gauges};

const USAGE: &str = "usage: metrics CONNECT PORT";
const BUCKETS: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];
const HOLD: Duration = Duration::from_millis(200);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(connect), Some(port)) = (arguments.next(), arguments.next()) else {
        eprintln!("{USAGE}");
        std::process::exit(2);
    };
    // With buckets, histograms can be added up over several processes. Summaries cannot.
    let endpoint = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse()?))?;

    let builder = Session::builder(connect).replace_lost_sessions(true);
    let session = builder.event_hook(LockMetrics::new()).connect()?;
    let lock = BlockingWriteLock::new(&session, "/locks/metrics")?;
    thread::spawn(move || serve(&listener, &endpoint, &session));
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
fn serve(listener: &TcpListener, endpoint: &PrometheusHandle, session: &Session) {
    for client in listener.incoming() {
        update_gauges([session]);
        endpoint.run_upkeep();
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
