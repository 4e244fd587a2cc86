//! Acquires by futures on an executor. Many futures are dropped, at any moment: on the contender's thread or, with a
//! multi-threaded runtime, on another one.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use zookeeper_recipes_lock::LockError;

use super::contender::Contender;
use crate::plan::OF_FUTURES;

/// The executor of a contender. It needs no descriptor, because clients sometimes have none left.
pub struct Tasks(Runtime);

impl Tasks {
    /// Creates an executor. Consecutive threads of a client get different flavours of runtime.
    pub fn new(thread: usize) -> Tasks {
        let mut runtime = match thread % 2 {
            0 => Builder::new_current_thread(),
            _ => Builder::new_multi_thread(),
        };
        let runtime = runtime.worker_threads(1).thread_name("chaos-task").enable_time().build();
        Tasks(runtime.expect("a thread can be started"))
    }

    /// Runs a task that drops the future when the time limit is reached, perhaps just when the future would
    /// complete.
    pub fn run<G: Send + 'static>(
        &self,
        acquiring: impl Future<Output = Result<G, LockError>> + Send + 'static,
        time_limit: Option<Duration>,
    ) -> Result<Option<G>, LockError> {
        let time_limit = time_limit.unwrap_or(Duration::MAX);
        let task = self.0.spawn(async move { timeout(time_limit, acquiring).await });
        self.0.block_on(task).expect("the future does not panic").ok().transpose()
    }
}

impl Contender {
    /// Chooses between a blocking call and a future, and records the choice. Returns whether it is the future.
    pub(super) fn note_call_or_future(
        &mut self,
        call: &str,
        lock: usize,
        time_limit: Option<Duration>,
    ) -> bool {
        let is_future = self.random.one_in(2);
        match is_future {
            true => self.note_wait(&format!("{call}{OF_FUTURES}"), lock, time_limit),
            false => self.note_call(call, lock, time_limit),
        }
        is_future
    }
}
