//! [`SessionTag`]: the part of a GUID by which a session recognizes its own requests.

use uuid::{Uuid, Variant, Version};

use super::znode_name::generated_sequence;

/// The last twelve digits of a GUID: the number of a request on its session.
const NUMBER: u128 = (1 << 48) - 1;

/// The three digits before those: which attempt of the request to create its znode.
const ATTEMPT: u128 = 0xfff << 48;

/// The random part of the GUIDs of a session's requests. The rest of each GUID is the number of the request and of its
/// attempt to create its znode.
///
/// So from the name of any znode, a session can tell whether it created that znode, and for which request, even if the
/// reply to the create was lost. No two attempts of a request have the same name, unless 4,095 others come between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionTag(Uuid);

impl SessionTag {
    /// Makes a tag from 62 bits of this GUID, which must be random.
    pub(crate) fn new(random: Uuid) -> SessionTag {
        let bits = uuid::Builder::from_u128(random.as_u128() & !(NUMBER | ATTEMPT));
        SessionTag(bits.with_version(Version::Random).with_variant(Variant::RFC4122).into_uuid())
    }

    /// Returns the GUID for an attempt of the request with this number.
    pub(crate) fn guid(self, number: u64, attempt: u32) -> Uuid {
        let attempt = (u128::from(attempt) << 48) & ATTEMPT;
        Uuid::from_u128(self.0.as_u128() | (u128::from(number) & NUMBER) | attempt)
    }

    /// Reads the tag and the number of the request from the name of a request's znode. Returns `None` for a name without
    /// a sequence number or without a GUID.
    pub(crate) fn read(name: &str) -> Option<(SessionTag, u64)> {
        generated_sequence(name)?;
        let starts = ["x-", "_c_", "read-", "write-"];
        let rest = starts.iter().find_map(|start| name.strip_prefix(start)).unwrap_or(name);
        let parse = |length| Uuid::try_parse(rest.get(..length)?).ok();
        let guid = parse(uuid::fmt::Hyphenated::LENGTH).or_else(|| parse(uuid::fmt::Simple::LENGTH))?;
        let number = (guid.as_u128() & NUMBER).try_into().ok()?;
        Some((SessionTag(Uuid::from_u128(guid.as_u128() & !(NUMBER | ATTEMPT))), number))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::recipe::access::Access;
    use crate::recipe::naming_scheme::NamingScheme;

    fn any_access() -> impl Strategy<Value = Access> {
        use NamingScheme::{Curator, CuratorLatch, Kazoo, Recipe};
        let access = |scheme| [Access::Exclusive(scheme), Access::Read(scheme), Access::Write(scheme)];
        let mut all = [Recipe, Curator, CuratorLatch, Kazoo].map(access).concat();
        all.push(Access::Permit(NonZeroU32::MIN));
        prop::sample::select(all)
    }

    proptest! {
        #[test]
        fn a_session_recognizes_the_names_of_its_requests(
            random: u128, other: u128, number in 0..1_u64 << 48, attempt: u32, access in any_access(), sequence: i32,
        ) {
            let tag = SessionTag::new(Uuid::from_u128(random));
            let name = format!("{}{sequence:010}", access.prefix(tag.guid(number, attempt)));
            prop_assert_eq!(SessionTag::read(&name), Some((tag, number)), "{}", name);
            let stranger = access.prefix(Uuid::from_u128(other)) + "0000000000";
            prop_assert!(SessionTag::read(&stranger).is_none_or(|(read, _)| read != tag || random == other));
        }

        #[test]
        fn a_guid_is_a_random_one_by_its_form(random: u128, number: u64, attempt: u32) {
            let guid = SessionTag::new(Uuid::from_u128(random)).guid(number, attempt);
            prop_assert_eq!(guid.get_version(), Some(Version::Random));
            prop_assert_eq!(guid.get_variant(), Variant::RFC4122);
        }

        #[test]
        fn attempts_have_different_names(random: u128, number: u64, first: u32, between in 1..1_u32 << 12) {
            let tag = SessionTag::new(Uuid::from_u128(random));
            prop_assert_ne!(tag.guid(number, first), tag.guid(number, first.wrapping_add(between)));
        }

        #[test]
        fn any_name_can_be_read(name in "(x-|_c_|read-|)[0-9a-fé-]{0,40}(-lock-|__lock__)[0-9-]{0,11}") {
            let _ = SessionTag::read(&name);
        }
    }

    #[test]
    fn names_of_others_have_no_tag() {
        for name in
            ["x-72057594037927936-0000000007", "lock-0000000007", "read-0000000006", "done", "-0000000001"]
        {
            assert_eq!(SessionTag::read(name), None, "{name}");
        }
        let without_a_number = format!("x-{}-lock-", Uuid::from_u128(7));
        assert_eq!(SessionTag::read(&without_a_number), None);
    }
}
