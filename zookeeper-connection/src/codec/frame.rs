//! [`Frames`]: splits a stream into frames.

use std::fmt;

use super::DecodeError;

/// The size of the length in front of a frame.
const PREFIX: usize = 4;

/// A larger buffer shrinks to this capacity at the first push after its frame has been read.
const KEPT_CAPACITY: usize = 256 << 10;

/// Splits a stream into frames. A frame is a length of four bytes, followed by that many bytes.
///
/// The buffer holds the bytes that have not been read and, until the next [`push`](Frames::push), those that have been
/// read since the last push. If [`next_frame`](Frames::next_frame) is called after each push until it returns `None`,
/// less than one frame is left unread.
pub struct Frames {
    max: usize,
    buffer: Vec<u8>,
    /// The start of the next frame. The bytes before it have been read.
    start: usize,
}

impl fmt::Debug for Frames {
    /// Omits the bytes, which may contain data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("max", &self.max).finish_non_exhaustive()
    }
}

impl Frames {
    /// Accepts frames of at most `max` bytes, not counting the length.
    pub fn new(max: usize) -> Frames {
        Frames { max, buffer: Vec::new(), start: 0 }
    }

    /// Sets the maximum length of the frames that are read from now on.
    pub fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// Appends bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            // Only the start of one frame is moved, so no byte is moved more than once.
            self.buffer.drain(..self.start);
            self.start = 0;
            if self.buffer.capacity() > KEPT_CAPACITY {
                self.buffer.shrink_to(KEPT_CAPACITY);
            }
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next frame without its length, or `None` until all of it has arrived.
    ///
    /// # Errors
    /// `NegativeLength` or `TooLong`, as soon as the length has arrived. Every later call returns the same error,
    /// because the stream cannot be read any further (unless [`set_max`](Frames::set_max) raises the maximum).
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, DecodeError> {
        // In bounds: `start` only moves past frames that have arrived.
        let Some((prefix, rest)) = self.buffer[self.start..].split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = usize::try_from(i32::from_be_bytes(*prefix)).map_err(|_| DecodeError::NegativeLength)?;
        if length > self.max {
            return Err(DecodeError::TooLong);
        }
        let frame = rest.get(..length);
        if frame.is_some() {
            self.start += PREFIX + length;
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::DEFAULT_MAX_FRAME;

    #[test]
    fn length_over_the_bound_is_an_error_before_the_frame_arrives() {
        let mut frames = Frames::new(100);
        frames.push(&101_i32.to_be_bytes());
        assert_eq!(frames.next_frame(), Err(DecodeError::TooLong));
        assert_eq!(frames.next_frame(), Err(DecodeError::TooLong));
    }

    #[test]
    fn length_at_the_bound_is_accepted() {
        let mut frames = Frames::new(100);
        frames.push(&100_i32.to_be_bytes());
        frames.push(&[7; 100]);
        assert_eq!(frames.next_frame(), Ok(Some(&[7; 100][..])));
        assert_eq!(frames.next_frame(), Ok(None));
    }

    #[test]
    fn listing_of_a_hundred_thousand_locks_is_within_the_default_bound() {
        let mut frames = Frames::new(DEFAULT_MAX_FRAME);
        frames.push(&[0x00, 0x60, 0x00, 0x00]);
        assert_eq!(frames.next_frame(), Ok(None));
    }

    #[test]
    fn negative_length_is_an_error() {
        let mut frames = Frames::new(usize::MAX);
        frames.push(&(-1_i32).to_be_bytes());
        assert_eq!(frames.next_frame(), Err(DecodeError::NegativeLength));
    }

    #[test]
    fn frame_may_be_empty() {
        let mut frames = Frames::new(0);
        frames.push(&[0; 8]);
        assert_eq!(frames.next_frame(), Ok(Some(&[][..])));
        assert_eq!(frames.next_frame(), Ok(Some(&[][..])));
        assert_eq!(frames.next_frame(), Ok(None));
    }

    #[test]
    fn claimed_length_reserves_nothing() {
        let mut frames = Frames::new(usize::MAX);
        frames.push(&i32::MAX.to_be_bytes());
        assert_eq!(frames.next_frame(), Ok(None));
        assert!(frames.buffer.capacity() < 1024);
    }

    #[test]
    fn memory_of_a_large_frame_is_given_back() {
        let mut frames = Frames::new(usize::MAX);
        let length = 16 * KEPT_CAPACITY;
        frames.push(&i32::try_from(length).unwrap().to_be_bytes());
        frames.push(&vec![0; length]);
        assert_eq!(frames.next_frame().unwrap().map(<[u8]>::len), Some(length));
        frames.push(&[0, 0]);
        assert_eq!(frames.next_frame(), Ok(None));
        assert!(frames.buffer.capacity() <= KEPT_CAPACITY);
        frames.push(&[0, 1, 9]);
        assert_eq!(frames.next_frame(), Ok(Some(&[9][..])));
    }

    #[test]
    fn read_frames_do_not_accumulate() {
        let mut frames = Frames::new(100);
        for _ in 0..10_000 {
            // Each push ends one frame and starts another.
            frames.push(&[0, 0, 0, 2, 1, 2, 0]);
            while frames.next_frame().is_ok_and(|frame| frame.is_some()) {}
            frames.push(&[0, 0, 1, 1]);
            while frames.next_frame().is_ok_and(|frame| frame.is_some()) {}
        }
        assert!(frames.buffer.capacity() < 1024);
    }
}
