//! Counts what the environment has done in the runs of this process. `scripts/coverage` compares the counts
//! with the catalogue in `tests/environment.md`.

use std::collections::BTreeMap;

use parking_lot::Mutex;

static SEEN: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Counts one occurrence. Call it where the effect happens, and not where it is only chosen.
pub(super) fn saw(what: &'static str) {
    *SEEN.lock().entry(what).or_insert(0) += 1;
}

/// Returns a line for each thing seen, in the form that `scripts/coverage` reads.
pub(super) fn report() -> String {
    let seen = SEEN.lock();
    seen.iter().map(|(what, count)| format!("exercised simulation/{what} {count}\n")).collect()
}
