//! Times and durations as text.

use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_seconds;

/// The longest text of a time, and the longest number in it. What is longer could exceed what [`Duration`] represents.
const MAX_LENGTH: usize = 64;
const MAX_DIGITS: usize = 12;

/// The units of a time. Full spellings such as `seconds` are refused.
const UNITS: [&str; 6] = ["ms", "s", "m", "h", "d", "w"];

/// Parses a number of seconds, such as `90`, or a time with units, such as `1m 30s`. Months and years are refused,
/// because their length varies.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    // Whitespace may stand within a number.
    let mut numbers = text.split(|character: char| !character.is_ascii_digit() && !character.is_whitespace());
    let is_long = |number: &str| number.chars().filter(char::is_ascii_digit).count() > MAX_DIGITS;
    if text.len() > MAX_LENGTH || numbers.any(is_long) {
        return Err("this time is too long".to_owned());
    }
    let units = text.split(|character: char| !character.is_alphabetic()).filter(|unit| !unit.is_empty());
    if let Some(unit) = units.into_iter().find(|unit| !UNITS.contains(unit)) {
        return Err(format!("'{unit}' is not a unit of time: use {}, as in '1m 30s'", UNITS.join(", ")));
    }
    humantime::parse_duration(text).map_err(|_| {
        format!("write a number of seconds, or a time with units ({}), as in '1m 30s'", UNITS.join(", "))
    })
}

/// Parses a time as [`parse_duration`] does, but refuses zero.
pub(crate) fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("must be more than zero".to_owned()),
        duration => Ok(duration),
    }
}

/// A duration in at most two units: `1.5s`, `12m 3s`, `2d 5h`.
pub(crate) fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let pair = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit} {small}{small_unit}"),
    };
    match seconds {
        0..60 => format!("{}s", (duration.as_secs_f64() * 1000.0).round() / 1000.0),
        60..3600 => pair(seconds / 60, "m", seconds % 60, "s"),
        3600..86_400 => pair(seconds / 3600, "h", seconds / 60 % 60, "m"),
        _ => pair(seconds / 86_400, "d", seconds / 3600 % 24, "h"),
    }
}

/// Returns how long ago a time was, in whole seconds. A time in the future counts as now.
pub(crate) fn age(since: SystemTime) -> Duration {
    let age = SystemTime::now().duration_since(since).unwrap_or_default();
    Duration::from_secs(age.as_secs())
}

/// A time in UTC, as in RFC 3339, to the second.
pub(crate) fn show_time(time: SystemTime) -> String {
    // Later times cannot be formatted. Only a broken server reports such times.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    format_rfc3339_seconds(time.clamp(SystemTime::UNIX_EPOCH, last)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let shown = |millis| show_duration(Duration::from_millis(millis));
        assert_eq!(shown(0), "0s");
        assert_eq!(shown(1500), "1.5s");
        assert_eq!(shown(59_999), "59.999s");
        assert_eq!(shown(60_000), "1m");
        assert_eq!(shown(3_725_000), "1h 2m");
        assert_eq!(shown(180_000_000), "2d 2h");
    }

    #[test]
    fn help_names_the_units() {
        let help = crate::args::tests::help_of("run");
        let units = UNITS.map(|unit| format!("{unit}, ")).concat();
        assert!(help.contains(&format!("has the units {}", units.trim_end_matches(", "))), "{help}");
    }

    #[test]
    fn shown_durations_parse() {
        for seconds in [0, 1, 59, 60, 3660, 90_000] {
            let duration = Duration::from_secs(seconds);
            assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }
        for wrong in ["soon", "-1", "1M", "2 months", "1y", "", "s", "five"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_duration("100ms"), Ok(Duration::from_millis(100)));
        for long in ["18446744073709551616", "18446744073709551615s 1000ms", "184467440737 09551615s 1000ms"]
        {
            assert_eq!(parse_duration(long), Err("this time is too long".to_owned()), "{long}");
        }
        assert!(parse_duration(&"999999999999w ".repeat(40)).is_err());
    }

    #[test]
    fn times_out_of_range_do_not_panic() {
        let late = SystemTime::UNIX_EPOCH + Duration::from_millis(i64::MAX as u64);
        assert_eq!(show_time(late), "9999-12-31T23:59:59Z");
        assert_eq!(show_time(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00Z");
    }
}
