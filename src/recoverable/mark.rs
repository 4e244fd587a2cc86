//! A mark in front of the data, by which a writer recognizes its own data.
//!
//! The format is that of HBase: the byte 255, the length of an id in four bytes, and the id. Here the id is a random
//! GUID, which is different for every write. Its fixed version and variant distinguish it from most other bytes.
//! HBase's own ids are text, whose bytes never match the variant.

use uuid::{Builder, Uuid, Variant};

/// The start of a mark: the magic byte, and the length of a GUID.
const HEAD: [u8; 5] = [0xff, 0, 0, 0, 16];
const LENGTH: usize = HEAD.len() + 16;

pub(super) fn marked(id: Uuid, data: &[u8]) -> Vec<u8> {
    let id = Builder::from_random_bytes(*id.as_bytes()).into_uuid();
    [&HEAD, id.as_bytes().as_slice(), data].concat()
}

/// Returns the data after the mark, or all of the data if there is no mark.
pub(crate) fn unmarked(data: &[u8]) -> &[u8] {
    match data.split_at_checked(LENGTH) {
        Some((mark, datum)) if is_mark(mark) => datum,
        _ => data,
    }
}

fn is_mark(bytes: &[u8]) -> bool {
    let id = bytes.strip_prefix(&HEAD).and_then(|id| Uuid::from_slice(id).ok());
    id.is_some_and(|id| id.get_version_num() == 4 && id.get_variant() == Variant::RFC4122)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unmarked_removes_the_mark_and_keeps_the_data(id: u128, data: Vec<u8>) {
            let written = marked(Uuid::from_u128(id), &data);
            prop_assert_eq!(written.len(), data.len() + LENGTH);
            prop_assert_eq!(unmarked(&written), data);
        }

        #[test]
        fn text_is_not_an_id(id in prop::collection::vec(0..128_u8, 16), data: Vec<u8>) {
            let other = [&HEAD, id.as_slice(), &data].concat();
            prop_assert_eq!(unmarked(&other), &other);
        }
    }

    #[test]
    fn data_without_a_mark_stay_unchanged() {
        let cut_short = marked(Uuid::new_v4(), b"")[..LENGTH - 1].to_vec();
        let of_another_version = [&HEAD, Uuid::from_u128(1 << 127).as_bytes().as_slice()].concat();
        let ones = [&HEAD, [0xff; 16].as_slice()].concat();
        for data in [vec![], vec![0xff], b"text".to_vec(), cut_short, of_another_version, ones] {
            assert_eq!(unmarked(&data), data);
        }
    }

    #[test]
    fn random_guid_without_a_mark_is_kept() {
        let id = Uuid::new_v4();
        assert_eq!(marked(id, b"")[HEAD.len()..], *id.as_bytes());
    }
}
