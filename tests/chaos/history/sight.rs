//! One call of `is_owner` that returned `true`, and what such calls prove.

use crate::clock;

/// A sight of ownership: the lock was owned at some moment between these two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    pub before: u64,
    pub after: u64,
}

impl Sight {
    /// The size of a sight in the file, in bytes.
    pub const SIZE: usize = 24;

    /// Calls `is_owner` and reads the clock before and after.
    pub fn of(is_owner: impl FnOnce() -> bool) -> Option<Sight> {
        let before = clock::now();
        let owns = is_owner();
        let after = clock::now();
        owns.then_some(Sight { before, after })
    }

    pub fn to_bytes(self, hold: u64) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        for (place, number) in bytes.chunks_exact_mut(8).zip([hold, self.before, self.after]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Returns the number of the hold, and the sight.
    pub fn from_bytes(bytes: &[u8]) -> Option<(u64, Sight)> {
        let mut numbers = bytes.chunks_exact(8).filter_map(|n| n.try_into().ok()).map(u64::from_le_bytes);
        Some((numbers.next()?, Sight { before: numbers.next()?, after: numbers.next()? }))
    }
}
