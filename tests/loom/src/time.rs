//! Moments, to the extent that the files need them.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    pub(crate) fn as_nanos(self) -> u64 {
        self.0
    }

    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
