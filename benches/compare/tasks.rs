//! Tasks of tokio that lock and unlock. The program that uses another library's futures includes this file.

use std::future::Future;
use std::time::{Duration, Instant};

/// Makes a task repeat each of these cycles for this long. Returns the number of cycles, and the time until the
/// last one ended.
pub(crate) async fn run<F, C>(cycles: impl IntoIterator<Item = F>, length: Duration) -> (u32, Duration)
where
    F: Fn() -> C + Send + 'static,
    C: Future<Output = ()> + Send,
{
    let start = Instant::now();
    let repeat = |cycle: F| async move {
        let mut done = 0;
        while start.elapsed() < length {
            cycle().await;
            done += 1;
        }
        done
    };
    let tasks: Vec<_> = cycles.into_iter().map(|cycle| tokio::spawn(repeat(cycle))).collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.expect("no cycle panics");
    }
    (done, start.elapsed())
}
