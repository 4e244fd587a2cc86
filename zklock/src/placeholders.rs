//! Placeholders for the time, like those of date(1), and what systemd makes of them.

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

/// One of the placeholders, as systemd fills it in the file of a unit: a specifier.
pub(crate) struct Specifier {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
}

impl Specifier {
    /// Returns the first specifier whose value a key contains. A host name may be in a key for good reason, and systemd
    /// refuses %F, which it does not know.
    pub(crate) fn in_key(key: &str, machine_id: &str) -> Option<Specifier> {
        // An empty machine id is in each key. An initial one is not an id.
        let is_id = machine_id.len() == 32 && machine_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let has_machine_id = is_id && key.contains(machine_id);
        let has_credentials = key.split_once("/run/").is_some_and(|(_, rest)| rest.contains("credentials/"));
        let has_units = key.contains("/systemd/system") || key.contains("/systemd/user");
        let found = [
            (has_machine_id, "%m", "the id of this machine"),
            (has_credentials, "%d", "the directory of credentials"),
            (has_units, "%Y", "the directory of a unit"),
        ];
        let (_, name, meaning) = found.into_iter().find(|(is_found, ..)| *is_found)?;
        Some(Specifier { name, meaning })
    }
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

    #[test]
    fn keys_that_systemd_has_filled_are_known() {
        let id = "5f0a5bd197a14c3c9b2ea7a4ab4c1ac9";
        let found = |key: &str| Specifier::in_key(key, id).map(|specifier| specifier.name);
        // What systemd makes of %Y-%m-%d, and releases before %Y.
        let filled = "/etc/systemd/system-5f0a5bd197a14c3c9b2ea7a4ab4c1ac9-/run/credentials/report.service";
        assert_eq!(found(filled), Some("%m"));
        assert_eq!(found("2026-5f0a5bd197a14c3c9b2ea7a4ab4c1ac9-29"), Some("%m"));
        assert_eq!(found("/run/credentials/report.service"), Some("%d"));
        assert_eq!(found("day /run/user/1000/credentials/report.service"), Some("%d"));
        assert_eq!(found("/etc/systemd/system"), Some("%Y"));
        assert_eq!(found("/home/app/.config/systemd/user"), Some("%Y"));
        for key in
            ["2026-07-01", "host1 2026", "ffffffffffffffffffffffffffffffff", "rotate credentials/a", "system"]
        {
            assert_eq!(found(key), None, "{key}");
        }
        // Before the first boot has ended, and without systemd.
        for id in ["uninitialized", ""] {
            assert!(Specifier::in_key("uninitialized", id).is_none(), "{id}");
        }
    }
}
