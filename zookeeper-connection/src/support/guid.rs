//! [`new_guid`]: GUIDs that no fork repeats.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use uuid::{Builder, Uuid, Variant, Version};

/// Makes a random GUID.
///
/// Its bits come from the system, not from a generator in this process. A fork copies the state of such a generator, so
/// parent and child would make the same GUIDs, and each would take the other's znodes for its own. `Uuid::new_v4` uses
/// such a generator if any crate of the program enables the feature `fast-rng` of `uuid`.
///
/// If a virtual machine is restored twice from one snapshot, even the system's numbers may repeat for a while. So the
/// time is mixed in.
pub fn new_guid() -> Uuid {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let mut random = [0; 16];
    // If the system has no random numbers, what is mixed in still makes each GUID unique.
    let _ = getrandom::fill(&mut random);
    let here = (process::id(), SystemTime::now(), Instant::now(), MADE.fetch_add(1, Ordering::Relaxed));
    let half = |which: u8| {
        let mut hasher = DefaultHasher::new();
        (which, here).hash(&mut hasher);
        hasher.finish()
    };
    let mixed = u128::from_ne_bytes(random) ^ (u128::from(half(0)) << 64 | u128::from(half(1)));
    Builder::from_u128(mixed).with_version(Version::Random).with_variant(Variant::RFC4122).into_uuid()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn guids_are_random_by_their_form_and_differ() {
        let guids: BTreeSet<Uuid> = (0..1_000).map(|_| new_guid()).collect();
        assert_eq!(guids.len(), 1_000);
        assert!(guids.iter().all(|guid| guid.get_version() == Some(Version::Random)));
    }

    #[test]
    fn each_free_bit_is_set_in_half_of_the_guids() {
        let of_version_and_variant = 0xf << 76 | 0x3 << 62;
        let guids: Vec<u128> = (0..1_000).map(|_| new_guid().as_u128()).collect();
        for bit in (0..128).map(|place| 1_u128 << place).filter(|bit| of_version_and_variant & bit == 0) {
            let set = guids.iter().filter(|guid| *guid & bit != 0).count();
            // Seven standard deviations to either side.
            assert!((390..610).contains(&set), "{bit:x} is set in {set} of 1000");
        }
    }
}
