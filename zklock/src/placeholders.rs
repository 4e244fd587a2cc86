//! Placeholders for the time, like those of date(1).

use std::time::SystemTime;

use crate::spans::show_time;

/// Fills the placeholders of a text, in UTC.
///
/// # Errors
/// The text has an unknown placeholder.
pub(crate) fn fill(text: &str, now: SystemTime) -> Result<String, String> {
    // 2026-07-01T02:03:04Z
    let time = show_time(now);
    let mut filled = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            filled.push(character);
            continue;
        }
        filled += match characters.next() {
            Some('F') => &time[..10],
            Some('Y') => &time[..4],
            Some('m') => &time[5..7],
            Some('d') => &time[8..10],
            Some('H') => &time[11..13],
            Some('M') => &time[14..16],
            Some('%') => "%",
            other => {
                let placeholder = other.map_or_else(|| "%".to_owned(), |other| format!("%{other}"));
                return Err(format!(
                    "'{placeholder}' is not a placeholder: use %F, %Y, %m, %d, %H, %M, or %% for %"
                ));
            }
        };
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn placeholders_are_those_of_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_782_871_384);
        let filled = |text: &str| fill(text, now).unwrap();
        assert_eq!(filled("report %F"), "report 2026-07-01");
        assert_eq!(filled("%Y%m%d-%H:%M 100%%é"), "20260701-02:03 100%é");
        assert_eq!(filled("fixed"), "fixed");
        assert!(fill("%s", now).is_err() && fill("at %", now).is_err());
    }
}
