//! The servers' rules for paths. A connect string's chroot must keep all of them. A connection checks only that the
//! paths of its calls are [absolute](is_absolute), and leaves the other rules to the servers.

/// The maximum length of a path. Servers have no such limit, but they close the connection if a packet exceeds their
/// buffer. Without this limit, it would be hard to trace the lost connection to a long path.
const MAX_LENGTH: usize = 4096;

/// Returns the rule that a path breaks, if it breaks a rule of ZooKeeper's data model or is longer than 4096 bytes.
pub fn broken_rule(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("a path must not be empty");
    }
    if !path.starts_with('/') {
        return Some("a path must be absolute, starting with a slash");
    }
    if path == "/" {
        return None;
    }
    if path.ends_with('/') {
        return Some("a path must not end with a slash");
    }
    if path.len() > MAX_LENGTH {
        return Some("a path must not be longer than 4096 bytes");
    }
    if path.chars().any(is_forbidden) {
        return Some(
            "a path must not contain NUL, control or private-use characters, U+FFF0 to U+FFFF, or any beyond \
             U+FFFF",
        );
    }
    path[1..].split('/').find_map(|name| match name {
        "" => Some("a path must not contain an empty name (a doubled slash)"),
        "." | ".." => Some("a path must not contain the names '.' and '..'"),
        _ => None,
    })
}

/// Returns whether a path begins with a slash.
///
/// Any other path could lead out of a chroot: below `/app`, the path `lication` would name the znode `/application`.
pub(super) fn is_absolute(path: &str) -> bool {
    path.starts_with('/')
}

/// Returns the parts that together form the path of a child of `dir`, which may be the root.
pub fn path_of_child<'a>(dir: &'a str, name: &'a str) -> [&'a str; 3] {
    [if dir == "/" { "" } else { dir }, "/", name]
}

/// Returns whether servers refuse this character in a path.
pub fn is_forbidden(character: char) -> bool {
    character.is_control()
        || ('\u{e000}'..='\u{f8ff}').contains(&character)
        // Servers refuse U+FFF0 to U+FFFF, and also surrogates, which Java uses for the characters beyond U+FFFF.
        || character >= '\u{fff0}'
}

/// Returns a path for an error message: escaped, and truncated if it is long.
pub fn printable(path: &str) -> String {
    const SHOWN: usize = 128;
    let mut shown: String = path.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if path.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}
