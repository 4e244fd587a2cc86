//! `is_owner()` concurrent with the driver.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::ownership::Ownership;
use crate::time::Moment;

fn at(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

fn owning_until(nanos: u64) -> Arc<Ownership> {
    let ownership = Arc::new(Ownership::default());
    assert_eq!(ownership.set(Some(at(nanos))), None);
    ownership
}

#[test]
fn end_that_a_reader_has_seen_is_final_for_all() {
    loom::model(|| {
        let ownership = owning_until(100);
        let driver = Arc::clone(&ownership);
        let driver = thread::spawn(move || driver.set(Some(at(200))).is_none());
        let reader = Arc::clone(&ownership);
        let reader = thread::spawn(move || (reader.covers(at(100)), reader.covers(at(100))));
        let was_extended = driver.join().unwrap();
        let (first, second) = reader.join().unwrap();
        assert!(first || !second, "ownership must not come back");
        assert_eq!(first, was_extended, "the driver must know whether the end was seen");
        assert_eq!(ownership.covers(at(100)), first);
    });
}

#[test]
fn lock_that_is_released_in_time_has_not_outlasted_its_lease() {
    loom::model(|| {
        let ownership = owning_until(100);
        let driver = Arc::clone(&ownership);
        let driver = thread::spawn(move || driver.set(None));
        assert_eq!(ownership.ended_at(at(99)), None);
        assert_eq!(driver.join().unwrap(), None);
    });
}

#[test]
fn two_readers_see_the_same_end() {
    loom::model(|| {
        let ownership = owning_until(100);
        let readers = [100, 101].map(|now| {
            let ownership = Arc::clone(&ownership);
            thread::spawn(move || ownership.covers(at(now)))
        });
        let was_extended = ownership.set(Some(at(200))).is_none();
        let seen = readers.map(|reader| reader.join().unwrap());
        assert_eq!(ownership.covers(at(101)), was_extended);
        assert!(was_extended || seen.contains(&false), "somebody must have seen the end");
        assert!(!was_extended || seen == [true, true], "nobody may have seen an end");
    });
}

#[test]
fn owner_is_none_before_others_are_let_in() {
    loom::model(|| {
        let ownership = owning_until(100);
        let are_let_in = Arc::new(AtomicBool::new(false));
        let (releasing, sent) = (Arc::clone(&ownership), Arc::clone(&are_let_in));
        let driver = thread::spawn(move || {
            assert_eq!(releasing.set(None), None);
            sent.store(true, Ordering::Release);
        });
        let others_own = are_let_in.load(Ordering::Acquire);
        assert!(!others_own || !ownership.covers(at(50)));
        driver.join().unwrap();
    });
}

#[test]
fn release_does_not_hide_an_end_that_was_seen() {
    loom::model(|| {
        let ownership = owning_until(100);
        let reader = Arc::clone(&ownership);
        let reader = thread::spawn(move || reader.ended_at(at(150)));
        assert_eq!(ownership.set(None), None);
        let was_seen = reader.join().unwrap();
        assert_eq!(ownership.ended_at(at(150)), was_seen);
        assert!(!ownership.covers(at(99)));
    });
}
