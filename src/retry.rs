//! [`RetryPolicy`]: how often, for how long and after which delays an operation is retried.
//!
//! Origin: the linear retries of the Java class `ProtocolSupport`, and HBase's `BackoffPolicy` and `RetryCounter`.

use std::time::Duration;

use crate::error::LockError;
use crate::time::Moment;

/// The number of attempts in the Java recipe.
const ATTEMPTS: u32 = 10;

/// The unit of delay in the Java recipe.
const DELAY: Duration = Duration::from_millis(500);

/// How often, for how long and after which delays an operation is retried.
///
/// The policy applies to operations that have failed because the connection was lost. A lock that joins its queue also
/// tries again if the server [refuses](crate::ErrorReason::Refused) the request for now, or if a reply cannot be read.
///
/// | policy | delay before the second, third, fourth … attempt |
/// |---|---|
/// | [`linear`](RetryPolicy::linear), the default, as in the Java recipe | 0, d, 2 d, 3 d … |
/// | [`constant`](RetryPolicy::constant) | d, d, d … |
/// | [`exponential`](RetryPolicy::exponential) | d, 2 d, 4 d, 8 d …, up to a maximum |
///
/// By default, each policy makes ten attempts in total, without a time limit. From the third attempt on, a lock waits
/// for at least a millisecond before each attempt.
///
/// ```
/// use std::time::Duration;
/// use zookeeper_recipes_lock::RetryPolicy;
///
/// let delay = Duration::from_millis(100);
/// let persistent = RetryPolicy::exponential(delay, Duration::from_secs(5))
///     .with_attempts(u32::MAX)
///     .with_total_time(Duration::from_secs(60))
///     .with_jitter();
/// assert_ne!(persistent, RetryPolicy::default());
/// ```
///
/// [`LockOptions::retry`](crate::LockOptions::retry) sets a lock's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RetryPolicy {
    backoff: Backoff,
    delay: Duration,
    attempts: u32,
    total_time: Option<Duration>,
    jitter: bool,
}

/// The growth of the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Backoff {
    Linear,
    Constant,
    Exponential { longest: Duration },
}

impl RetryPolicy {
    /// Makes the second attempt immediately, and waits `delay` longer before each later one.
    ///
    /// This is what the Java recipe does.
    #[must_use]
    pub fn linear(delay: Duration) -> RetryPolicy {
        RetryPolicy::new(Backoff::Linear, delay)
    }

    /// Waits the same amount of time before every attempt except the first.
    #[must_use]
    pub fn constant(delay: Duration) -> RetryPolicy {
        RetryPolicy::new(Backoff::Constant, delay)
    }

    /// Waits for `delay` before the second attempt, and doubles the delay before each later one.
    ///
    /// The delay never exceeds `longest`.
    #[must_use]
    pub fn exponential(delay: Duration, longest: Duration) -> RetryPolicy {
        RetryPolicy::new(Backoff::Exponential { longest }, delay)
    }

    fn new(backoff: Backoff, delay: Duration) -> RetryPolicy {
        RetryPolicy { backoff, delay, attempts: ATTEMPTS, total_time: None, jitter: false }
    }

    /// Sets the total number of attempts, including the first (10 by default). Zero counts as one.
    #[must_use]
    pub fn with_attempts(self, attempts: u32) -> RetryPolicy {
        RetryPolicy { attempts: attempts.max(1), ..self }
    }

    /// Sets how long an operation is retried (without a limit by default).
    ///
    /// The time counts from the failure of the first attempt. No attempt starts once the time has passed.
    #[must_use]
    pub fn with_total_time(self, total_time: Duration) -> RetryPolicy {
        RetryPolicy { total_time: Some(total_time), ..self }
    }

    /// Draws each delay at random between half and all of the policy's delay.
    ///
    /// Clients that fail together then do not retry together.
    #[must_use]
    pub fn with_jitter(self) -> RetryPolicy {
        RetryPolicy { jitter: true, ..self }
    }

    /// Returns the base delay.
    #[must_use]
    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns the delay after this many failed attempts, the first of which failed `elapsed` ago, or `None` to give
    /// up.
    fn delay_after(
        &self,
        failures: u32,
        elapsed: Duration,
        chance: impl FnOnce() -> f64,
    ) -> Option<Duration> {
        let full = self.full_delay_after(failures);
        let half = full / 2;
        let delay = if self.jitter { half.saturating_add(half.mul_f64(chance())) } else { full };
        let in_time = self.total_time.is_none_or(|total_time| elapsed.saturating_add(delay) <= total_time);
        (failures < self.attempts && in_time).then_some(delay)
    }

    fn full_delay_after(&self, failures: u32) -> Duration {
        let repetitions = failures.saturating_sub(1);
        match self.backoff {
            Backoff::Linear => self.delay.saturating_mul(repetitions),
            Backoff::Constant => self.delay,
            Backoff::Exponential { longest } => {
                self.delay.saturating_mul(2_u32.saturating_pow(repetitions)).min(longest)
            }
        }
    }
}

impl Default for RetryPolicy {
    /// Returns the policy of the Java recipe: linear, with a delay of 500 ms and ten attempts.
    fn default() -> RetryPolicy {
        RetryPolicy::linear(DELAY)
    }
}

/// The failed attempts of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RetryCounter<E = LockError> {
    failures: u32,
    first: Option<(Moment, E)>,
}

impl<E> Default for RetryCounter<E> {
    fn default() -> RetryCounter<E> {
        RetryCounter { failures: 0, first: None }
    }
}

impl<E> RetryCounter<E> {
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Counts an attempt that has just failed, and returns the delay before the next one. `chance` returns a random
    /// number between 0 and 1.
    ///
    /// # Errors
    /// The error of the first attempt, if no further attempt follows.
    pub(crate) fn failed(
        &mut self,
        error: E,
        policy: &RetryPolicy,
        now: Moment,
        chance: impl FnOnce() -> f64,
    ) -> std::result::Result<Duration, E> {
        self.failures = self.failures.saturating_add(1);
        let (begun, first_error) = self.first.take().unwrap_or((now, error));
        match policy.delay_after(self.failures, now.since(begun), chance) {
            Some(delay) => {
                self.first = Some((begun, first_error));
                Ok(delay)
            }
            None => Err(first_error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn no_randomness() -> f64 {
        panic!("randomness is for jitter only")
    }

    fn delays(policy: RetryPolicy) -> Vec<Duration> {
        (1..).map_while(|failures| policy.delay_after(failures, Duration::ZERO, no_randomness)).collect()
    }

    #[test]
    fn default_is_the_java_recipes_policy() {
        let policy = RetryPolicy::default();
        assert_eq!((policy.attempts, policy.delay, policy.total_time), (10, DELAY, None));
        let expected: Vec<_> = (0..9).map(|times| Duration::from_millis(500) * times).collect();
        assert_eq!(delays(policy), expected);
    }

    #[test]
    fn each_policy_has_its_delays() {
        let seconds = |all: &[u64]| all.iter().copied().map(Duration::from_secs).collect::<Vec<_>>();
        let cases = [
            (RetryPolicy::linear(SECOND), [0, 1, 2, 3, 4]),
            (RetryPolicy::constant(SECOND), [1, 1, 1, 1, 1]),
            (RetryPolicy::exponential(SECOND, Duration::MAX), [1, 2, 4, 8, 16]),
            (RetryPolicy::exponential(SECOND, 5 * SECOND), [1, 2, 4, 5, 5]),
        ];
        for (policy, expected) in cases {
            assert_eq!(delays(policy.with_attempts(6)), seconds(&expected), "{policy:?}");
        }
    }

    #[test]
    fn minimum_is_a_single_attempt() {
        for attempts in [0, 1] {
            assert!(delays(RetryPolicy::default().with_attempts(attempts)).is_empty());
        }
    }

    #[test]
    fn no_attempt_starts_after_the_total_time() {
        let policy = RetryPolicy::constant(SECOND).with_total_time(5 * SECOND);
        assert_eq!(policy.delay_after(1, 4 * SECOND, no_randomness), Some(SECOND));
        assert_eq!(policy.delay_after(1, 4 * SECOND + Duration::from_nanos(1), no_randomness), None);
        let at_once = RetryPolicy::linear(SECOND).with_total_time(Duration::ZERO);
        assert_eq!(at_once.delay_after(1, Duration::ZERO, no_randomness), Some(Duration::ZERO));
        assert_eq!(at_once.delay_after(2, Duration::ZERO, no_randomness), None);
    }

    #[test]
    fn jitter_draws_between_half_and_full_delay() {
        let policy = RetryPolicy::constant(SECOND).with_jitter();
        for (chance, delay) in [(0.0, SECOND / 2), (0.5, SECOND * 3 / 4), (1.0, SECOND)] {
            assert_eq!(policy.delay_after(1, Duration::ZERO, || chance), Some(delay));
        }
    }

    fn any_policy() -> impl Strategy<Value = RetryPolicy> {
        let delay = prop_oneof![0..10_000_u64, Just(u64::MAX)].prop_map(Duration::from_millis);
        let longest = delay.clone();
        (delay, longest, 0..4).prop_map(|(delay, longest, kind)| match kind {
            0 => RetryPolicy::linear(delay),
            1 => RetryPolicy::constant(delay),
            2 => RetryPolicy::exponential(delay, Duration::MAX),
            _ => RetryPolicy::exponential(delay, longest),
        })
    }

    proptest! {
        #[test]
        fn delays_never_shrink(policy in any_policy(), failures in 1..u32::MAX - 1) {
            let policy = policy.with_attempts(u32::MAX);
            let [before, after] =
                [failures, failures + 1].map(|failures| policy.delay_after(failures, Duration::ZERO, no_randomness));
            prop_assert!(after.is_none() || before <= after, "{before:?} {after:?}");
        }

        #[test]
        fn jittered_delay_is_between_half_and_full_delay(
            policy in any_policy(),
            failures in 1..60_u32,
            chance in 0.0..1.0_f64,
        ) {
            let policy = policy.with_attempts(100);
            let whole = policy.delay_after(failures, Duration::ZERO, no_randomness).unwrap();
            let delay = policy.with_jitter().delay_after(failures, Duration::ZERO, || chance).unwrap();
            prop_assert!((whole / 2..=whole).contains(&delay), "{delay:?} of {whole:?}");
        }

        #[test]
        fn delays_add_up_to_no_more_than_the_total_time(policy in any_policy(), total in 0..100_000_u64) {
            let total = Duration::from_millis(total);
            let policy = policy.with_total_time(total).with_attempts(50);
            let mut elapsed = Duration::ZERO;
            for failures in 1..=50 {
                let Some(delay) = policy.delay_after(failures, elapsed, no_randomness) else { break };
                elapsed += delay;
            }
            prop_assert!(elapsed <= total);
        }
    }
}
