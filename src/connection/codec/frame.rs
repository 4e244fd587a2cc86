//! [`Frames`]: splits the stream of a server into frames.

use super::DecodeError;

/// The length in front of a frame.
const PREFIX: usize = 4;

/// A larger buffer is given back once its frame was read.
const KEPT_CAPACITY: usize = 256 << 10;

/// Splits a stream into frames. A frame is a length of four bytes and as many bytes.
///
/// Holds what has arrived and was not read. If [`next`](Frames::next) is called until it returns
/// `None` after each [`push`](Frames::push), this is less than one frame.
#[derive(Debug)]
pub(crate) struct Frames {
    max: usize,
    buffer: Vec<u8>,
    /// Where the next frame starts. The bytes before it were read.
    start: usize,
}

impl Frames {
    /// Frames of at most `max` bytes, without their length.
    pub(crate) fn new(max: usize) -> Frames {
        Frames { max, buffer: Vec::new(), start: 0 }
    }

    /// Appends bytes of the stream.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            // Moves the start of one frame, so no byte is moved more than once.
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
    /// `NegativeLength` or `TooLong`, as soon as the length has arrived, and again on every later
    /// call: the stream cannot be read any further.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, DecodeError> {
        // In bounds: `start` only passes frames that have arrived.
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
