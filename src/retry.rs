//! How often and after which delays an operation is tried again: the recipe's linear backoff.

use std::time::Duration;

/// The recipe's number of attempts.
const ATTEMPTS: u32 = 10;

/// The recipe's unit of delay.
const DELAY: Duration = Duration::from_millis(500);

/// Linear backoff, as the Java class `ProtocolSupport` has it: ten attempts, and before the n-th repetition a delay of
/// n − 1 times 500 ms, so that the first repetition comes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryPolicy {
    attempts: u32,
    delay: Duration,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy { attempts: ATTEMPTS, delay: DELAY }
    }
}

impl RetryPolicy {
    pub(crate) fn new(attempts: u32, delay: Duration) -> RetryPolicy {
        RetryPolicy { attempts, delay }
    }

    pub(crate) fn attempts(self) -> u32 {
        self.attempts
    }

    pub(crate) fn delay(self) -> Duration {
        self.delay
    }

    /// The delay after so many failed attempts, or `None` to give up.
    pub(crate) fn delay_after(self, failures: u32) -> Option<Duration> {
        (failures < self.attempts).then(|| self.delay.saturating_mul(failures.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_linearly_and_ends_after_ten_attempts() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.delay_after(1), Some(Duration::ZERO));
        assert_eq!(policy.delay_after(2), Some(Duration::from_millis(500)));
        assert_eq!(policy.delay_after(9), Some(Duration::from_secs(4)));
        assert_eq!(policy.delay_after(10), None);
    }

    #[test]
    fn both_numbers_are_settings() {
        let policy = RetryPolicy::new(2, Duration::from_secs(1));
        assert_eq!(policy.delay_after(1), Some(Duration::ZERO));
        assert_eq!(policy.delay_after(2), None);
        assert_eq!(RetryPolicy::new(3, Duration::MAX).delay_after(2), Some(Duration::MAX));
    }
}
