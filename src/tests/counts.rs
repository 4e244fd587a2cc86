//! [`Counts`]: how often the environment has done each thing. `scripts/coverage` compares the counts with the
//! catalogue in `tests/environment.md`.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// The counts of one kind of test.
pub(crate) struct Counts {
    test: &'static str,
    seen: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counts {
    pub(crate) const fn new(test: &'static str) -> Counts {
        Counts { test, seen: Mutex::new(BTreeMap::new()) }
    }

    /// Counts one occurrence.
    pub(crate) fn add(&self, what: &'static str) {
        *self.seen.lock().entry(what).or_insert(0) += 1;
    }

    /// Returns a line for each thing seen, in the form that `scripts/coverage` reads.
    pub(crate) fn report(&self) -> String {
        let seen = self.seen.lock();
        seen.iter().map(|(what, count)| format!("exercised {}/{what} {count}\n", self.test)).collect()
    }
}
