//! The clock that measures the life of a session. It is monotonic. On Linux and Android, it keeps running while the
//! machine is suspended.
//!
//! On these systems, [`std::time::Instant`] reads `CLOCK_MONOTONIC`, which stands still while the machine is suspended.
//! By that clock, a session would seem alive long after the server has ended it. So this clock reads `CLOCK_BOOTTIME`,
//! which counts suspended time.

use std::fmt;
use std::time::Duration;

/// The longest time for which a thread sleeps before it reads this clock again. A sleep does not count suspended time.
/// So if a deadline passes while the machine is suspended, a thread may notice it up to this long after the machine has
/// woken up. Waking up once a second costs next to nothing.
pub const MAX_SLEEP: Duration = Duration::from_secs(1);

/// A point in time on the clock that measures the life of a session.
///
/// The clock is monotonic. On Linux and Android, it counts the time during which the machine is suspended; elsewhere,
/// it may not. Moments from different processes cannot be compared.
// The value is in nanoseconds since an unspecified origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Returns the present moment.
    #[must_use]
    pub fn now() -> Moment {
        SystemClock.now()
    }

    /// Returns whether the clock counts the time during which the machine is suspended.
    ///
    /// If the clock does not, a program may believe for too long, after the machine has woken up, that it owns a lock.
    #[must_use]
    pub const fn counts_suspended_time() -> bool {
        cfg!(any(target_os = "linux", target_os = "android"))
    }

    /// Creates a moment this many nanoseconds after the origin.
    #[must_use]
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Returns the nanoseconds since the origin.
    #[must_use]
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the moment this much later, or the end of time.
    #[must_use]
    #[inline]
    pub fn after(self, duration: Duration) -> Moment {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(nanos))
    }

    /// Returns the moment this much earlier, or the origin.
    #[must_use]
    #[inline]
    pub fn before(self, duration: Duration) -> Moment {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_sub(nanos))
    }

    /// Rounds this moment down to a multiple of the step.
    #[must_use]
    pub fn rounded_down(self, step: Duration) -> Moment {
        let step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0 - self.0.checked_rem(step).unwrap_or(0))
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is later.
    #[must_use]
    #[inline]
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A source of time. Tests use a clock that they set themselves.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns the present moment.
    fn now(&self) -> Moment;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[inline]
    fn now(&self) -> Moment {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        Moment(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn now(&self) -> Moment {
        use std::sync::OnceLock;
        use std::time::Instant;
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        // One nanosecond after the origin, because the origin itself means "never" to a lease.
        Moment(1).after(ORIGIN.get_or_init(Instant::now).elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward() {
        let before = SystemClock.now();
        let after = SystemClock.now();
        assert!(after >= before);
        assert!(before > Moment::from_nanos(0));
    }

    #[test]
    fn arithmetic_saturates() {
        let early = Moment::from_nanos(5);
        assert_eq!(early.since(Moment::from_nanos(9)), Duration::ZERO);
        assert_eq!(early.after(Duration::MAX), Moment::from_nanos(u64::MAX));
        assert_eq!(Moment::from_nanos(9).since(early), Duration::from_nanos(4));
    }

    #[test]
    fn rounding_goes_down_to_a_multiple_of_the_step() {
        let step = Duration::from_nanos(10);
        let rounded = [0, 9, 10, 19].map(|nanos| Moment::from_nanos(nanos).rounded_down(step).as_nanos());
        assert_eq!(rounded, [0, 0, 10, 10]);
        assert_eq!(Moment::from_nanos(9).rounded_down(Duration::ZERO), Moment::from_nanos(9));
    }
}
