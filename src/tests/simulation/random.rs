//! [`Random`]: the only source of randomness in a simulation. A seed therefore determines the whole run.

/// SplitMix64 (Steele, Lea and Flood). It is small, fast, and good for every seed, including neighbouring
/// ones.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    /// Returns an index into a list of this length.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns `true` with a probability of one in `times`.
    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}
