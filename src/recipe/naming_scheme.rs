//! [`NamingScheme`]: how the requests of a read-write lock are named.

use uuid::Uuid;

/// How the requests of a [`ReadWriteLock`](crate::ReadWriteLock) are named. All clients of its
/// directory must use the same scheme: unlike exclusive locks, shared ones have no name that every
/// library interprets correctly.
///
/// | scheme | a reader's znode | a writer's znode | used by |
/// |---|---|---|---|
/// | `Recipe` | `read-<guid>-<sequence>` | `write-<guid>-<sequence>` | ZooKeeper's recipe page and HBase 1, which leave out the GUID |
/// | `Curator` | `_c_<guid>-__READ__<sequence>` | `_c_<guid>-__WRIT__<sequence>` | `InterProcessReadWriteLock` |
/// | `Kazoo` | `<guid>__rlock__<sequence>` | `<guid>__lock__<sequence>` | `ReadLock` and `WriteLock` |
///
/// A reader waits for every request ahead of it except readers of the same scheme, whatever its
/// name: also for an exclusive [`WriteLock`](crate::WriteLock) on the same directory, or another
/// library's request. The other libraries know only the names of the table: their readers do not
/// wait for an exclusive request of this crate. So use a `ReadWriteLock` for writers among them,
/// too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NamingScheme {
    /// The names of ZooKeeper's recipe for shared locks; the default.
    #[default]
    Recipe,
    /// The names of Apache Curator.
    Curator,
    /// The names of the Python library kazoo.
    Kazoo,
}

impl NamingScheme {
    pub(super) fn reader_prefix(self, guid: Uuid) -> String {
        match self {
            NamingScheme::Recipe => format!("read-{guid}-"),
            NamingScheme::Curator => format!("_c_{guid}-__READ__"),
            NamingScheme::Kazoo => format!("{}__rlock__", guid.simple()),
        }
    }

    pub(super) fn writer_prefix(self, guid: Uuid) -> String {
        match self {
            NamingScheme::Recipe => format!("write-{guid}-"),
            NamingScheme::Curator => format!("_c_{guid}-__WRIT__"),
            NamingScheme::Kazoo => format!("{}__lock__", guid.simple()),
        }
    }

    /// Whether this is the name of a reader of this scheme.
    pub(super) fn is_reader(self, name: &str) -> bool {
        let before_number =
            name.trim_end_matches(|character: char| character.is_ascii_digit() || character == '-');
        match self {
            NamingScheme::Recipe => name.starts_with("read-"),
            NamingScheme::Curator => before_number.ends_with("__READ__"),
            NamingScheme::Kazoo => before_number.ends_with("__rlock__"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMES: [NamingScheme; 3] = [NamingScheme::Recipe, NamingScheme::Curator, NamingScheme::Kazoo];

    #[test]
    fn requests_are_named_as_in_the_schemes_library() {
        let guid = Uuid::from_u128(0x0b2e);
        let names = SCHEMES.map(|scheme| [scheme.reader_prefix(guid), scheme.writer_prefix(guid)]);
        assert_eq!(
            names,
            [
                ["read-00000000-0000-0000-0000-000000000b2e-", "write-00000000-0000-0000-0000-000000000b2e-"],
                [
                    "_c_00000000-0000-0000-0000-000000000b2e-__READ__",
                    "_c_00000000-0000-0000-0000-000000000b2e-__WRIT__"
                ],
                ["00000000000000000000000000000b2e__rlock__", "00000000000000000000000000000b2e__lock__"],
            ]
        );
    }

    #[test]
    fn reader_is_recognized_by_its_name_beyond_the_wrap() {
        let guid = Uuid::from_u128(0x0b2e);
        for scheme in SCHEMES {
            for number in ["0000000007", "2147483647", "-2147483648", "-000000005"] {
                assert!(scheme.is_reader(&format!("{}{number}", scheme.reader_prefix(guid))), "{scheme:?}");
                assert!(!scheme.is_reader(&format!("{}{number}", scheme.writer_prefix(guid))), "{scheme:?}");
            }
        }
        assert!(NamingScheme::Recipe.is_reader("read-0000000006"), "a name of HBase");
    }

    #[test]
    fn request_of_another_scheme_is_not_a_reader() {
        let guid = Uuid::from_u128(0x0b2e);
        for scheme in SCHEMES {
            for other in SCHEMES.into_iter().filter(|other| *other != scheme) {
                assert!(!scheme.is_reader(&format!("{}0000000007", other.reader_prefix(guid))));
            }
            for name in
                ["x-0b2e-lock-0000000007", "x-72057594037927936-0000000007", "_c_0b2e-lock-0000000007"]
            {
                assert!(!scheme.is_reader(name), "{scheme:?} {name}");
            }
        }
    }
}
