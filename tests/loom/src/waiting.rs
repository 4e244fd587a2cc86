//! Threads that wait for latches, beside those that set them.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::latch::{Latch, Setter, park_until_set};
use crate::parking;

fn park() -> bool {
    parking::park();
    true
}

/// Runs a model of three threads in every order with at most so many switches that no thread has to make.
/// Without a limit they would take hours.
fn within_preemptions(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A wake-up that is lost is a deadlock here, which loom reports.
#[test]
fn set_latch_wakes_the_thread_that_waits() {
    loom::model(|| {
        let setter = Setter::new();
        let latch = setter.latch().clone();
        let is_written = Arc::new(AtomicBool::new(false));
        let written = Arc::clone(&is_written);
        let waiter = thread::spawn(move || {
            assert!(park_until_set(&[&Latch::never(), &latch], park));
            assert!(written.load(Ordering::Relaxed), "what came before it is seen");
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

/// The deadline passes at any moment.
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
