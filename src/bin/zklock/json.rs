//! JSON on one line.

use std::fmt::Write as _;

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(i64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl Json {
    pub(crate) fn text(text: impl Into<String>) -> Json {
        Json::Text(text.into())
    }

    /// `null` for `None`.
    pub(crate) fn or_null<T>(value: Option<T>, json: impl FnOnce(T) -> Json) -> Json {
        value.map_or(Json::Null, json)
    }

    /// The value in one line, with a line feed.
    pub(crate) fn line(&self) -> String {
        let mut line = String::new();
        self.append_to(&mut line);
        line.push('\n');
        line
    }

    fn append_to(&self, line: &mut String) {
        match self {
            Json::Null => line.push_str("null"),
            Json::Bool(value) => line.push_str(if *value { "true" } else { "false" }),
            Json::Number(number) => line.push_str(&number.to_string()),
            Json::Text(text) => append_text(text, line),
            Json::List(values) => {
                append_all(line, ['[', ']'], values, |value, line| value.append_to(line));
            }
            Json::Object(members) => append_all(line, ['{', '}'], members, |(name, value), line| {
                append_text(name, line);
                line.push(':');
                value.append_to(line);
            }),
        }
    }
}

fn append_all<T>(line: &mut String, [open, close]: [char; 2], items: &[T], append: impl Fn(&T, &mut String)) {
    line.push(open);
    for (position, item) in items.iter().enumerate() {
        if position > 0 {
            line.push(',');
        }
        append(item, line);
    }
    line.push(close);
}

fn append_text(text: &str, line: &mut String) {
    line.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => line.extend(['\\', character]),
            // Control characters, and those that end a line in some readers.
            '\0'..' ' | '\x7f'..='\u{9f}' | '\u{2028}' | '\u{2029}' => {
                // Writing to a string does not fail.
                let _ = write!(line, "\\u{:04x}", u32::from(character));
            }
            _ => line.push(character),
        }
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_one_line_that_parses(text: String) {
            let line = Json::Object(vec![("text", Json::text(&*text))]).line();
            prop_assert_eq!(line.lines().count(), 1);
            let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(&parsed["text"], &text);
        }
    }

    #[test]
    fn values_parse() {
        let list = vec![Json::Null, Json::Bool(true), Json::Number(-5), Json::List(Vec::new())];
        let parsed: serde_json::Value = serde_json::from_str(&Json::List(list).line()).unwrap();
        assert_eq!(parsed, serde_json::json!([null, true, -5, []]));
    }
}
