//! [`Alarm`]: the next moment at which the engine must act.

use crate::time::Moment;

/// The next moment, if there is one. An earlier moment replaces it; a later one is ignored.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<Moment>);

impl Alarm {
    /// Sets the alarm. Returns whether the caller must start a timer for `at`.
    pub(super) fn set(&mut self, at: Moment) -> bool {
        let is_earlier = self.0.is_none_or(|set| at < set);
        if is_earlier {
            self.0 = Some(at);
        }
        is_earlier
    }

    /// Called by the timer that was started for `at`. Returns `false` if another moment has replaced `at`.
    pub(super) fn rings(&mut self, at: Moment) -> bool {
        self.0.take_if(|set| *set == at).is_some()
    }

    /// Removes a moment that has passed, so that its timer has nothing left to do.
    pub(super) fn clear_past(&mut self, now: Moment) {
        self.0.take_if(|set| *set <= now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    #[test]
    fn an_earlier_alarm_replaces_a_later_one() {
        let mut alarm = Alarm::default();
        assert!(alarm.set(moment(5)));
        assert!(!alarm.set(moment(5)));
        assert!(!alarm.set(moment(6)));
        assert!(alarm.set(moment(4)));
        assert!(!alarm.rings(moment(5)), "it was replaced");
        assert!(alarm.rings(moment(4)));
        assert!(!alarm.rings(moment(4)), "it rings once");
        assert!(alarm.set(moment(7)));
    }

    #[test]
    fn an_alarm_that_was_cleared_does_not_ring() {
        let mut alarm = Alarm::default();
        alarm.set(moment(5));
        alarm.clear_past(moment(4));
        assert!(!alarm.set(moment(6)));
        alarm.clear_past(moment(5));
        assert!(!alarm.rings(moment(5)));
        assert!(alarm.set(moment(6)));
    }
}
