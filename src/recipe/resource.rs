//! The name of a znode for a resource. Characters that ZooKeeper refuses are escaped as in a URL.

use std::fmt::Write as _;

use super::znode_name::generated_sequence;
use zookeeper_connection::is_forbidden;

/// Returns the name of a resource's znode. Different resources have different names.
///
/// Escapes the slash, the percent sign, the characters that ZooKeeper forbids, and the names `.` and `..`. If the
/// name ends in a sequence number, escapes its last digit, too: the directory of a resource must not look like a
/// request for a lock on the directory above.
pub(crate) fn escaped(resource: &str) -> String {
    let mut name = escaped_characters(resource);
    if generated_sequence(&name).is_some() {
        if let Some(digit) = name.pop() {
            let _ = write!(name, "%{:02X}", u32::from(digit));
        }
    }
    name
}

fn escaped_characters(resource: &str) -> String {
    match resource {
        "." | ".." => resource.replace('.', "%2E"),
        _ => resource.chars().fold(String::with_capacity(resource.len()), |mut name, character| {
            if !matches!(character, '/' | '%') && !is_forbidden(character) {
                name.push(character);
                return name;
            }
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a string does not fail.
                let _ = write!(name, "%{byte:02X}");
            }
            name
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::path::ZNodePath;
    use proptest::prelude::*;

    /// Recovers the original text from the name alone. Because this is possible, the names are unique.
    fn unescaped(name: &str) -> String {
        let mut bytes = Vec::new();
        let mut rest = name.as_bytes();
        while let [first, behind @ ..] = rest {
            rest = behind;
            if *first == b'%' {
                let digits = std::str::from_utf8(&behind[..2]).unwrap();
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
                rest = &behind[2..];
            } else {
                bytes.push(*first);
            }
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn ordinary_names_stay_readable() {
        for name in ["report", "daily report", "Größe_7.v2", "a..b", "...", "x:y@z"] {
            assert_eq!(escaped(name), name);
        }
    }

    #[test]
    fn forbidden_characters_are_escaped() {
        let cases = [
            ("reports/daily", "reports%2Fdaily"),
            ("/", "%2F"),
            ("100%", "100%25"),
            ("a%2Fb", "a%252Fb"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("a\0b\n", "a%00b%0A"),
            ("\u{85}", "%C2%85"),
            ("\u{e000}", "%EE%80%80"),
            ("🦀", "%F0%9F%A6%80"),
            ("0000000003", "000000000%33"),
            ("order-1234567890", "order-123456789%30"),
            ("/0000000003", "%2F000000000%33"),
        ];
        for (resource, name) in cases {
            assert_eq!(escaped(resource), name);
        }
    }

    proptest! {
        #[test]
        fn every_resource_has_a_unique_name_of_one_znode(resource in any::<String>()) {
            prop_assume!(!resource.is_empty());
            let name = escaped(&resource);
            prop_assert_eq!(unescaped(&name), resource);
            prop_assert!(!name.contains('/'));
            prop_assert_eq!(generated_sequence(&name), None);
            let path = format!("/locks/{name}");
            prop_assert!(path.len() > 4096 || ZNodePath::parse(&path).is_ok(), "{path}");
        }
    }
}
