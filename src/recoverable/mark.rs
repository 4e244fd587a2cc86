//! A mark in front of a datum, by which a writer knows its own again.
//!
//! The format is HBase's: a byte 255, the length of an id as four bytes, the id. Here the id is a GUID, another for every
//! write.

use uuid::Uuid;

/// What a mark begins with: the magic byte, and the length of a GUID.
const HEAD: [u8; 5] = [0xff, 0, 0, 0, 16];
const LENGTH: usize = HEAD.len() + 16;

pub(super) fn marked(id: Uuid, data: &[u8]) -> Vec<u8> {
    [&HEAD, id.as_bytes().as_slice(), data].concat()
}

/// The datum behind the mark, or the whole of one that bears none.
pub(crate) fn unmarked(mut data: Vec<u8>) -> Vec<u8> {
    if data.len() >= LENGTH && data.starts_with(&HEAD) {
        data.drain(..LENGTH);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_mark_comes_off_and_leaves_the_datum(id: u128, data: Vec<u8>) {
            let written = marked(Uuid::from_u128(id), &data);
            prop_assert_eq!(written.len(), data.len() + LENGTH);
            prop_assert_eq!(unmarked(written), data);
        }
    }

    #[test]
    fn a_datum_without_a_mark_stays_as_it_is() {
        let cut_short = marked(Uuid::nil(), b"")[..LENGTH - 1].to_vec();
        for data in [vec![], vec![0xff], b"text".to_vec(), vec![0xff; 40], cut_short] {
            assert_eq!(unmarked(data.clone()), data);
        }
    }
}
