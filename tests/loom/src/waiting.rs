//! Threads and tasks that wait for latches, and threads that set the latches.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc as StdArc;
use std::task::{Context, Poll, Waker};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::latch::{Latch, Setter, park_until_set};
use crate::parking;
use crate::process::Process;
use crate::tasks::until;

fn park() -> bool {
    parking::park();
    true
}

/// Checks a model of three threads under every interleaving with at most `preemptions` involuntary switches.
/// Without this limit, the check would take hours.
fn within_preemptions(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A lost wake-up is a deadlock here, which loom reports.
#[test]
fn set_latch_wakes_the_thread_that_waits() {
    loom::model(|| {
        let setter = Setter::new();
        let latch = setter.latch().clone();
        let is_written = Arc::new(AtomicBool::new(false));
        let written = Arc::clone(&is_written);
        let waiter = thread::spawn(move || {
            assert!(park_until_set(&[&Latch::never(), &latch], park));
            assert!(written.load(Ordering::Relaxed), "the waiter must see what was written before the latch was set");
            latch
        });
        is_written.store(true, Ordering::Relaxed);
        setter.set();
        assert_eq!(waiter.join().unwrap().waiting(), 0);
    });
}

#[test]
fn setter_that_is_dropped_wakes_the_thread_that_waits() {
    loom::model(|| {
        let setter = Setter::new();
        let latch = setter.latch().clone();
        let waiter = thread::spawn(move || assert!(park_until_set(&[&latch], park)));
        drop(setter);
        waiter.join().unwrap();
    });
}

#[test]
fn two_latches_that_are_set_at_once_wake_the_thread_and_keep_no_registration() {
    within_preemptions(3, || {
        let setters = [Setter::new(), Setter::new()];
        let latches = setters.each_ref().map(|setter| setter.latch().clone());
        let threads = setters.map(|setter| thread::spawn(move || setter.set()));
        assert!(park_until_set(&latches.each_ref(), park));
        for latch in &latches {
            assert_eq!(latch.waiting(), 0);
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn latch_wakes_both_threads_that_wait() {
    within_preemptions(3, || {
        let setter = Setter::new();
        let waiters = [(); 2].map(|()| {
            let latch = setter.latch().clone();
            thread::spawn(move || assert!(park_until_set(&[&latch], park)))
        });
        setter.set();
        for waiter in waiters {
            waiter.join().unwrap();
        }
        assert_eq!(setter.latch().waiting(), 0);
    });
}

/// The deadline may pass at any moment.
#[test]
fn wait_that_is_given_up_reports_a_latch_that_was_set_before() {
    loom::model(|| {
        let setter = Setter::new();
        let latch = setter.latch().clone();
        let was_set = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&was_set);
        let driver = thread::spawn(move || {
            setter.set();
            set.store(true, Ordering::Release);
        });
        let mut is_known = false;
        let is_set = park_until_set(&[&latch], || {
            is_known = was_set.load(Ordering::Acquire);
            false
        });
        assert!(is_set || !is_known);
        assert_eq!(latch.waiting(), 0);
        driver.join().unwrap();
    });
}

/// Runs a task on the calling thread, which polls it whenever it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(StdArc::new(parking::current()));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        parking::park();
    }
}

fn wait_for(latches: [&Latch; 2]) {
    let is_one_set = || latches.iter().any(|latch| latch.is_set()).then_some(());
    block_on(until(Process, latches, is_one_set));
}

/// Does what the driver does: asks under its mutex whether a task must be woken, and wakes it from another
/// thread.
fn set_and_wake(setter: Setter) {
    setter.set();
    if setter.latch().has_tasks_to_wake() {
        setter.latch().take_wakers().into_iter().for_each(Waker::wake);
    }
}

#[test]
fn set_latch_wakes_the_task_that_waits() {
    loom::model(|| {
        let setter = Setter::new();
        let latch = setter.latch().clone();
        let is_written = Arc::new(AtomicBool::new(false));
        let written = Arc::clone(&is_written);
        let waiter = thread::spawn(move || {
            wait_for([&Latch::never(), &latch]);
            assert!(written.load(Ordering::Relaxed), "the task must see what was written before the latch was set");
            latch
        });
        is_written.store(true, Ordering::Relaxed);
        set_and_wake(setter);
        assert_eq!(waiter.join().unwrap().waiting(), 0);
    });
}

#[test]
fn two_latches_that_are_set_at_once_wake_the_task_and_keep_no_waker() {
    within_preemptions(3, || {
        let setters = [Setter::new(), Setter::new()];
        let latches = setters.each_ref().map(|setter| setter.latch().clone());
        let threads = setters.map(|setter| thread::spawn(move || set_and_wake(setter)));
        wait_for(latches.each_ref());
        for latch in &latches {
            assert_eq!(latch.waiting(), 0);
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// The task may be dropped at any moment.
#[test]
fn task_that_is_dropped_leaves_no_waker() {
    loom::model(|| {
        let setter = Setter::new();
        let latch = setter.latch().clone();
        let driver = thread::spawn(move || set_and_wake(setter));
        {
            let waker = Waker::from(StdArc::new(parking::current()));
            let mut waiting = pin!(until(Process, [&latch], || latch.is_set().then_some(())));
            let _ = waiting.as_mut().poll(&mut Context::from_waker(&waker));
        }
        driver.join().unwrap();
        assert_eq!(latch.waiting(), 0);
    });
}
