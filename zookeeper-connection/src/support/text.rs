//! Text of others, such as names of znodes, data, host names and certificates: shown as one line that is safe for a
//! terminal and a log.

use std::fmt::{self, Write as _};

/// Displays a text as one line. Escapes control characters, line separators and marks that change the writing
/// direction, and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct OneLine<T>(pub T);

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

/// Returns a text as one line, as [`OneLine`] displays it.
#[must_use]
pub fn one_line(text: &str) -> String {
    OneLine(text).to_string()
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, character)) = rest.char_indices().find(|(_, character)| is_escaped(*character)) {
            self.0.write_str(&rest[..at])?;
            match character.is_control() {
                true => write!(self.0, "{}", character.escape_debug())?,
                false => write!(self.0, "{}", character.escape_unicode())?,
            }
            rest = &rest[at + character.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

fn is_escaped(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_could_disturb_a_line_is_escaped() {
        let json = r#"{"url": "http://é\\\\a", 'x': 1}"#;
        assert_eq!(one_line(json), json);
        let controls = "\x1b[2J\r\n\t\x7f\u{9b}\u{2028}\u{202e}\u{200f}";
        assert_eq!(one_line(controls), "\\u{1b}[2J\\r\\n\\t\\u{7f}\\u{9b}\\u{2028}\\u{202e}\\u{200f}");
        assert_eq!(one_line("日本\u{202e}é"), "日本\\u{202e}é");
    }
}
