//! Limits how often the log mentions something: [`Outage`] for a long outage, and [`Repetition`] for a frequent event.

use std::time::Duration;

use crate::time::Moment;

/// An outage is logged after these times, then at intervals that double up to an hour.
const MENTIONED_AFTER: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];
const MAX_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// A period without a connection, or without a session.
#[derive(Debug, Default)]
pub struct Outage {
    /// When the outage began. `None` if there is no outage.
    since: Option<Moment>,
    mentions: u32,
}

impl Outage {
    pub fn begin(&mut self, now: Moment) {
        *self = Outage { since: Some(now), mentions: 0 };
    }

    /// Ends the outage. Returns how long the outage lasted, if the log has mentioned it.
    pub fn end(&mut self, now: Moment) -> Option<Duration> {
        let ended = std::mem::take(self);
        ended.since.filter(|_| ended.mentions > 0).map(|since| now.since(since))
    }

    /// Returns when [`mention`](Outage::mention) is due next.
    pub fn deadline(&self) -> Option<Moment> {
        Some(self.since?.after(mentioned_after(self.mentions)))
    }

    /// If the log should mention the outage now, returns how long the outage has lasted.
    pub fn mention(&mut self, now: Moment) -> Option<Duration> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        // While the machine was suspended, several mentions may have become due.
        while self.deadline().is_some_and(|deadline| deadline <= now) {
            self.mentions += 1;
        }
        self.since.map(|since| now.since(since))
    }
}

/// Returns how long after its beginning an outage is mentioned, if it has been mentioned this many times before.
fn mentioned_after(mentions: u32) -> Duration {
    let [.., last] = MENTIONED_AFTER;
    if let Some(after) = MENTIONED_AFTER.get(mentions as usize) {
        return *after;
    }
    let (mut after, mut interval) = (last, last);
    for _ in MENTIONED_AFTER.len() as u32..=mentions {
        after += interval;
        interval = (2 * interval).min(MAX_INTERVAL);
    }
    after
}

/// A frequent event, and the moment at which the log last mentioned it.
#[derive(Debug, Default)]
pub struct Repetition {
    mentioned: Option<Moment>,
}

impl Repetition {
    /// Returns whether the event was mentioned within the last `pause`. If not, notes that it is mentioned now.
    pub fn is_repeated(&mut self, now: Moment, pause: Duration) -> bool {
        let is_repeated = self.mentioned.is_some_and(|mentioned| now.since(mentioned) < pause);
        if !is_repeated {
            self.mentioned = Some(now);
        }
        is_repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_frequent_is_mentioned_once_in_each_pause() {
        let mut repetition = Repetition::default();
        let pause = Duration::from_secs(10);
        let mentioned: Vec<u64> =
            (0..=35).filter(|second| !repetition.is_repeated(at(*second), pause)).collect();
        assert_eq!(mentioned, [0, 10, 20, 30]);
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_secs(1000 + seconds))
    }

    #[test]
    fn outage_is_mentioned_at_1_10_and_60_seconds_and_then_at_growing_intervals() {
        let mut outage = Outage::default();
        assert_eq!(outage.deadline(), None);
        outage.begin(at(0));
        let day = 24 * 60 * 60;
        let mentioned: Vec<u64> = (0..=day).filter(|second| outage.mention(at(*second)).is_some()).collect();
        assert_eq!(mentioned[..10], [1, 10, 60, 120, 240, 480, 960, 1920, 3840, 7440]);
        assert_eq!(mentioned.len(), 9 + 22);
        assert_eq!(outage.end(at(day)), Some(Duration::from_secs(day)));
        assert_eq!(outage.deadline(), None);
    }

    #[test]
    fn short_outage_is_not_mentioned() {
        let mut outage = Outage::default();
        outage.begin(at(0));
        assert_eq!(outage.mention(at(0)), None);
        assert_eq!(outage.end(at(1)), None);
    }

    #[test]
    fn missed_mentions_are_merged_into_one() {
        let mut outage = Outage::default();
        outage.begin(at(0));
        assert_eq!(outage.mention(at(3600)), Some(Duration::from_secs(3600)));
        assert_eq!(outage.mention(at(3601)), None);
        assert_eq!(outage.deadline(), Some(at(3840)));
    }
}
