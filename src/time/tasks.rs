//! [`until`]: the wait of a task, which is a future that an executor polls.
//!
//! A task waits for latches, as a thread does: it registers its waker with them, and then checks once more for an
//! answer. Two things differ from a thread. The executor may drop the future at any moment, which removes the waker.
//! And a forked child may have a copy of the future, with latches whose mutexes may stay held forever.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use super::latch::Latch;
use crate::process::Process;

/// Waits until there is an answer. Checks for one whenever one of the latches is set. Returns `None` in a forked child
/// of this process, where no answer comes.
pub(crate) async fn until<T, const N: usize>(
    process: Process,
    latches: [&Latch; N],
    answer: impl Fn() -> Option<T>,
) -> Option<T> {
    let waiting = Waiting::new(process, latches);
    poll_fn(|context| {
        if !process.is_current() {
            return Poll::Ready(None);
        }
        if let Some(answer) = answer() {
            return Poll::Ready(Some(answer));
        }
        waiting.register(context.waker());
        // A latch that is set from here on wakes the task. A latch may also have been set before the waker was
        // registered.
        answer().map_or(Poll::Pending, |answer| Poll::Ready(Some(answer)))
    })
    .await
}

/// The wait of a task. Dropping it removes the task's waker from the latches.
struct Waiting<'a, const N: usize> {
    process: Process,
    latches: [&'a Latch; N],
    /// A number that is unique to this wait, because one task may have several waits with the same waker.
    number: u64,
}

impl<'a, const N: usize> Waiting<'a, N> {
    fn new(process: Process, latches: [&'a Latch; N]) -> Waiting<'a, N> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Waiting { process, latches, number: LAST.fetch_add(1, Ordering::Relaxed) }
    }

    fn register(&self, waker: &Waker) {
        for latch in self.latches {
            latch.register(self.number, waker);
        }
    }
}

impl<const N: usize> Drop for Waiting<'_, N> {
    fn drop(&mut self) {
        if self.process.is_current() {
            for latch in self.latches {
                latch.deregister(self.number);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Wake};

    use super::*;
    use crate::time::Setter;

    struct Ignores;

    impl Wake for Ignores {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn task_looks_before_its_waker_is_registered_and_after_that_and_leaves_none_behind() {
        let (one, other) = (Setter::new(), Setter::new());
        let registered = || (one.latch().waiting(), other.latch().waiting());
        let seen = RefCell::new(Vec::new());
        let look = || {
            seen.borrow_mut().push(registered());
            None::<()>
        };
        let waker = Waker::from(Arc::new(Ignores));
        {
            let latches = [one.latch(), &Latch::never(), other.latch()];
            let mut future = pin!(until(Process::current(), latches, look));
            for before in [(0, 0), (1, 1)] {
                assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                assert_eq!(seen.take(), [before, (1, 1)]);
            }
            // These two steps wake a task: setting the latch, and taking the wakers.
            one.set();
            assert_eq!((one.latch().take_wakers().len(), other.latch().take_wakers().len()), (1, 0));
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(seen.take(), [(0, 1), (1, 1)]);
        }
        assert_eq!(registered(), (0, 0));
    }

    #[test]
    fn answer_that_comes_while_the_waker_is_registered_is_not_missed() {
        let setter = Setter::new();
        let answer = || (setter.latch().waiting() > 0).then_some(7);
        let mut future = pin!(until(Process::current(), [setter.latch()], answer));
        let waker = Waker::from(Arc::new(Ignores));
        assert_eq!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Some(7)));
    }

    #[test]
    fn waits_of_one_task_do_not_displace_each_other() {
        let setter = Setter::new();
        let wait = || until(Process::current(), [setter.latch()], || setter.latch().is_set().then_some(()));
        let waker = Waker::from(Arc::new(Ignores));
        let (mut one, mut other) = (Box::pin(wait()), pin!(wait()));
        assert!(one.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(other.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(setter.latch().waiting(), 2);
        drop(one);
        assert_eq!(setter.latch().waiting(), 1);
    }
}
