//! [`Directives`]: the contents of a DIGEST-MD5 token.

/// A list `name=value, name="value"`, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directives(Vec<(String, String)>);

impl Directives {
    /// Parses a text. Returns `None` if it has another form. In a quoted value, a backslash quotes the next
    /// character. List elements may be empty.
    pub(super) fn parse(text: &str) -> Option<Directives> {
        let mut directives = Vec::new();
        let mut rest = text.trim_start_matches(|c| c == ',' || is_space(c));
        while !rest.is_empty() {
            let (name, after) = rest.split_once('=')?;
            let name = name.trim_end_matches(is_space);
            let (value, after) = split_value(after.trim_start_matches(is_space))?;
            if name.is_empty() || !name.chars().all(is_token) {
                return None;
            }
            directives.push((name.to_ascii_lowercase(), value));
            let after = after.trim_start_matches(is_space);
            if !after.is_empty() && !after.starts_with(',') {
                return None;
            }
            rest = after.trim_start_matches(|c| c == ',' || is_space(c));
        }
        Some(Directives(directives))
    }

    /// Returns the value of a directive that occurs exactly once.
    pub(super) fn only<'a>(&'a self, name: &str) -> Option<&'a str> {
        let mut values = self.all(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// Returns whether a directive occurs at least once.
    pub(super) fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    #[cfg(any(test, zk_laws))]
    pub(super) fn iter(&self) -> impl Iterator<Item = &(String, String)> {
        self.0.iter()
    }

    /// Returns the values of a directive, in the order of the text.
    pub(super) fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// Splits off a value, which may be quoted. Returns the value without quotes, and the rest of the text.
fn split_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(|c| !is_token(c)).unwrap_or(text.len());
        return (end > 0).then(|| (text[..end].to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.chars();
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => value.push(chars.next()?),
            other => value.push(other),
        }
    }
}

/// Returns a value in quotes.
pub(super) fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Returns whether a character may occur in a name, or in a value without quotes.
fn is_token(c: char) -> bool {
    c.is_ascii_graphic() && !"()<>@,;:\\\"/[]?={}".contains(c)
}
