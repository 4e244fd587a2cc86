//! JSON on one line.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns the value in one line, with a line feed. Also escapes some characters that JSON allows unescaped: control
/// characters of a terminal, and characters that some readers take for the end of a line.
pub(crate) fn line(value: &Value) -> String {
    let mut line = String::new();
    for character in value.to_string().chars() {
        match character {
            // Outside of strings, JSON has no such characters.
            '\x7f'..='\u{9f}' | '\u{2028}' | '\u{2029}' => {
                // Writing to a string does not fail.
                let _ = write!(line, "\\u{:04x}", u32::from(character));
            }
            _ => line.push(character),
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        #[test]
        fn any_text_is_one_line_that_parses(text: String) {
            let line = line(&json!({ "text": text }));
            prop_assert_eq!(line.lines().count(), 1);
            let parsed: Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(&parsed["text"], &text);
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        let text = "\x1b[2J\x7f\u{9b}2J\u{2028}";
        let line = line(&json!([text]));
        assert_eq!(line, "[\"\\u001b[2J\\u007f\\u009b2J\\u2028\"]\n");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), json!([text]));
    }
}
