//! [`Utc`]: prints a time.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Prints a time in Coordinated Universal Time, to the second, in the format of RFC 3339:
/// `2026-11-21T09:51:03Z`.
pub(super) struct Utc(pub(super) SystemTime);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (year, month, day) = date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// The Gregorian date of a day, counted from 1970-01-01. Years begin in March here, so that a leap
/// day is the last day of a year.
fn date(day: u64) -> (u64, u64, u64) {
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let day = day + 719_468; // since 0000-03-01
    let (era, day) = (day / DAYS_IN_400_YEARS, day % DAYS_IN_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (400 * era + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn utc(seconds: u64) -> String {
        Utc(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
    }

    #[test]
    fn times_are_printed_as_in_rfc_3339() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_795_254_663), "2026-11-21T09:51:03Z");
        assert_eq!(Utc(UNIX_EPOCH - Duration::from_secs(1)).to_string(), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn dates_of_five_centuries_are_consecutive() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for number in 0..500 * 366 {
            assert_eq!(date(number), (year, month, day));
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 if is_leap => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            (year, month, day) = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (_, last) if last == length => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
        }
    }
}
