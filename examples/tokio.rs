//! An async service. Each request holds the lock while it works, but no thread blocks while a request waits.
//!
//! ```text
//! cargo run --example tokio -- 127.0.0.1:2181
//! curl http://127.0.0.1:8080/
//! ```

use std::error::Error;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::{select, signal, time};
use zookeeper_recipes_lock::{BlockingWriteLock, Session};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

async fn answer(mut client: TcpStream, lock: BlockingWriteLock) -> Result<()> {
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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let connect = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2181".to_owned());
    let session = spawn_blocking(move || Session::connect(&connect, Duration::from_secs(20))).await??;
    let lock = BlockingWriteLock::new(&session, "/locks/async")?;
    let (service, mut requests) = (TcpListener::bind("127.0.0.1:8080").await?, JoinSet::new());
    loop {
        select! {
            client = service.accept() => drop(requests.spawn(answer(client?.0, lock.clone()))),
            _ = signal::ctrl_c() => break,
        }
    }
    // Finish the requests that hold the lock or wait for it. Then `close` waits until their znodes are
    // deleted.
    while requests.join_next().await.is_some() {}
    Ok(spawn_blocking(move || session.close()).await?)
}
