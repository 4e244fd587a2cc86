//! Counts what the environment has done in the runs of this process.

use crate::tests::counts::Counts;

static SEEN: Counts = Counts::new("simulation");

/// Counts one occurrence. Call it where the effect happens, and not where it is only chosen.
pub(super) fn saw(what: &'static str) {
    SEEN.add(what);
}

/// Returns a line for each thing seen.
pub(super) fn report() -> String {
    SEEN.report()
}
