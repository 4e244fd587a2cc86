//! [`Reader`]: reads values from the start of a slice, and never past its end.

use super::DecodeError;
use crate::Names;
use crate::Stat;

/// The bytes of a frame that have not been read yet.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the remaining bytes.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Fails if any bytes remain.
    pub(super) fn finish(self) -> Result<(), DecodeError> {
        if self.is_empty() { Ok(()) } else { Err(DecodeError::TrailingBytes) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (value, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(*value)
    }

    pub(super) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_be_bytes)
    }

    pub(super) fn bool(&mut self) -> Result<bool, DecodeError> {
        self.array().map(|[byte]: [u8; 1]| byte != 0)
    }

    /// Reads a length or a count.
    fn length(&mut self) -> Result<usize, DecodeError> {
        match self.i32()? {
            -1 => Ok(0),
            length => usize::try_from(length).map_err(|_| DecodeError::NegativeLength),
        }
    }

    pub(super) fn buffer(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.length()?;
        let (value, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(value)
    }

    pub(super) fn str(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.buffer()?).map_err(|_| DecodeError::NotUtf8)
    }

    /// Reads the count of items that take at least `min_size` bytes each; `min_size` is greater than zero. Fails if the
    /// remaining bytes cannot hold that many items. The caller may therefore reserve memory for them.
    fn count(&mut self, min_size: usize) -> Result<usize, DecodeError> {
        let count = self.length()?;
        if count > self.0.len() / min_size.max(1) { Err(DecodeError::Truncated) } else { Ok(count) }
    }

    #[cfg(any(test, feature = "test-util"))]
    /// Reads a vector whose items take at least `min_size` bytes each; `min_size` is greater than zero.
    pub(super) fn vector<T>(
        &mut self,
        min_size: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.count(min_size)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    #[cfg(any(test, feature = "test-util"))]
    /// Reads a vector of strings.
    pub(super) fn strings<T: From<&'a str>>(&mut self) -> Result<Vec<T>, DecodeError> {
        self.vector(4, |reader| reader.str().map(T::from))
    }

    /// Reads a vector of names.
    pub(super) fn names(&mut self) -> Result<Names, DecodeError> {
        let count = self.count(4)?;
        let (mut text, mut ends) = (Vec::with_capacity(self.0.len() - 4 * count), Vec::with_capacity(count));
        for _ in 0..count {
            text.extend_from_slice(self.buffer()?);
            ends.push(text.len());
        }
        Names::from_utf8(text, ends).ok_or(DecodeError::NotUtf8)
    }

    pub(super) fn stat(&mut self) -> Result<Stat, DecodeError> {
        Ok(Stat {
            czxid: self.i64()?,
            mzxid: self.i64()?,
            ctime: self.i64()?,
            mtime: self.i64()?,
            version: self.i32()?,
            cversion: self.i32()?,
            aversion: self.i32()?,
            ephemeral_owner: self.i64()?,
            data_length: self.i32()?,
            num_children: self.i32()?,
            pzxid: self.i64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_is_bounded_by_the_bytes_that_are_left() {
        for (count, outcome) in [(0, Ok(0)), (3, Ok(3)), (4, Err(DecodeError::Truncated))] {
            let bytes = [&[0, 0, 0, count][..], &[0; 14]].concat();
            assert_eq!(Reader::new(&bytes).count(4), outcome);
        }
    }
}
