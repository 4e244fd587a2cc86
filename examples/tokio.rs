//! An async service. Each request holds the lock while it works, but no thread blocks while a request waits.
//!
//! A lost session is replaced. SIGTERM and ctrl-c end the service once it has answered the requests that it has
//! accepted.
//!
//! ```text
//! cargo run --example tokio -- 127.0.0.1:2181
//! curl http://127.0.0.1:8080/
//! ```

use std::error::Error;
use std::time::Duration;

use env_logger::{Builder, Env};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::{select, time};
use zookeeper_recipes_lock::{BlockingWriteLock, Session};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

async fn answer(mut client: TcpStream, lock: BlockingWriteLock) -> Result<()> {
    // The system resets a connection that is closed before its request was read. A client that sends nothing must not
    // delay the end of the service.
    time::timeout(Duration::from_secs(5), client.read_buf(&mut Vec::with_capacity(8192))).await??;
    // On a timeout the future is dropped, which withdraws the request from the queue.
    let status = match time::timeout(Duration::from_secs(5), lock.lock_async()).await {
        Err(_) => "503 Service Unavailable".to_owned(),
        Ok(guard) => {
            let guard = guard?;
            select! {
                reason = guard.lost_async() => format!("500 {reason}"),
                () = time::sleep(Duration::from_millis(100)) => format!("200 Token-{}", guard.fencing_token()?),
            }
        }
    };
    Ok(client.write_all(format!("HTTP/1.0 {status}\r\n\r\n{status}\n").as_bytes()).await?)
}

fn report(answered: std::result::Result<Result<()>, JoinError>) {
    if let Err(error) = answered.unwrap_or_else(|panic| Err(panic.into())) {
        eprintln!("tokio: {error}");
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    Builder::from_env(Env::default().default_filter_or("warn")).init();
    let servers = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2181".to_owned());
    let builder = Session::builder(&*servers).replace_lost_sessions(true);
    let session = spawn_blocking(move || builder.connect()).await??;
    let lock = BlockingWriteLock::new(&session, "/locks/async")?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (service, mut requests) = (TcpListener::bind("127.0.0.1:8080").await?, JoinSet::new());
    loop {
        select! {
            client = service.accept() => match client {
                Ok((client, _)) => drop(requests.spawn(answer(client, lock.clone()))),
                // For example, there are too many open files. The next client may have more luck.
                Err(error) => {
                    eprintln!("tokio: {error}");
                    time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(answered) = requests.join_next() => report(answered),
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
        }
    }
    while let Some(answered) = requests.join_next().await {
        report(answered);
    }
    // Waits until the znodes of the requests are deleted.
    Ok(spawn_blocking(move || session.close()).await?)
}
