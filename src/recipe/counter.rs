//! The order that sequence numbers define, and the numbers that define none.
//!
//! # How a server counts
//! The counter of a directory is its `cversion`, a signed 32-bit number that starts at 0. Only creations increment it.
//! The leader takes the number of a new child from the newest change of the directory that is still in progress or, if
//! there is none, from its tree (`PrepRequestProcessor`). It puts the next number into the transaction. When the
//! transaction is applied, the tree's counter takes that value (`DataTree.createNode`):
//! - Up to ZooKeeper 3.5, it always does. The numbers form a circle: -2147483648 follows 2147483647.
//! - From 3.6 on (ZOOKEEPER-3249), it does so only if the value is greater, so the tree stays at
//!   2147483647. Creations that overlap get 2147483647, -2147483648, -2147483647 and so on. As soon
//!   as none is in progress, the next creation gets 2147483647 again. So the server issues the same
//!   number many times, and lower numbers after higher ones.
//!
//! # Numbers in doubt
//! The 2^30 numbers from 2147483647 on are in doubt: they do not define which of two requests came first. All others
//! are in order: the 2^30 numbers that the server issued before such a number (or all, if there were fewer) are its
//! predecessors on the circle. The reason is that every server counts from 0 to 2147483646 one by one. A server gets
//! past the numbers in doubt only if it wraps around the circle, or if 2^30 creations overlap without a pause.
//!
//! # Why there is one owner
//! A request decides from a listing that contains its own znode, so it sees every older request that still exists. Take
//! two requests that exclude each other, and suppose that the older one still exists when the younger one decides.
//! Assume that no request outlasts the creation of 2^30 others. Then the younger one does not become the owner:
//! - If its number is in doubt, it owns the lock only if the listing has no request that excludes it.
//! - If its number is in order, the number of the older request is at most 2^30 before it, so it waits.
//!
//! So no request becomes an owner while an older request exists that excludes it. An owner remains
//! the only owner without listing the queue again, whatever numbers the server issues later. A
//! downgraded reader counts as exactly as old as its writer, because both znodes have the same
//! number, and one of them exists at any time.
//!
//! Requests of other libraries are counted like the requests of this crate, but decide by their own rules.
//!
//! # Why no request waits forever
//! A request in doubt waits only for requests that are in order and ahead of it. If any other
//! request excludes it, it fails. So a request waits for an older one, or for a younger one in
//! doubt that sees it and fails.

/// How many numbers are in doubt. The larger this value, the longer a request may last. Numbers are compared by their
/// distance, so the value must be less than half of the circle.
const IN_DOUBT: u32 = 1 << 30;

/// Returns whether the number defines no order.
pub(crate) fn is_in_doubt(sequence: i32) -> bool {
    distance_ahead(sequence, i32::MAX) < IN_DOUBT
}

/// Returns whether the number is in order, and the server issued it before the counter could wrap.
pub(crate) fn is_ordered(sequence: i32) -> bool {
    sequence >= 0 && !is_in_doubt(sequence)
}

/// Returns how far `theirs` is ahead of `mine` on the circle. The result is correct as long as the two are less than
/// 2^31 apart.
pub(crate) fn distance_ahead(mine: i32, theirs: i32) -> u32 {
    mine.wrapping_sub(theirs) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_from_the_last_positive_one_on_are_in_doubt() {
        for sequence in [i32::MAX, i32::MIN, i32::MIN + 1, -1_100_000_000, i32::MIN + (1 << 30) - 2] {
            assert!(is_in_doubt(sequence), "{sequence}");
        }
        for sequence in [0, 1, i32::MAX - 1, i32::MIN + (1 << 30) - 1, -1_000_000_000, -1] {
            assert!(!is_in_doubt(sequence), "{sequence}");
        }
    }
}
