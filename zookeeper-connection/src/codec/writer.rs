//! [`Writer`]: appends values to a buffer.

use crate::Acl;

/// Appends values to a buffer.
#[derive(Debug)]
pub(super) struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    /// Appends a frame: its length, then whatever `body` writes.
    ///
    /// Lengths above `i32::MAX` saturate. Such a frame is useless, but the caller will see that the frame is too long.
    pub(super) fn frame(buffer: &mut Vec<u8>, body: impl FnOnce(&mut Writer<'_>)) {
        let start = buffer.len();
        buffer.extend([0; 4]);
        let body_start = buffer.len();
        body(&mut Writer(buffer));
        let length = saturate(buffer.len() - body_start);
        // In bounds: the four bytes were appended above, and a writer only appends.
        buffer[start..body_start].copy_from_slice(&length.to_be_bytes());
    }

    pub(super) fn i32(&mut self, value: i32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(super) fn i64(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.0.push(u8::from(value));
    }

    /// Appends the length of a buffer, or the count of a vector.
    pub(super) fn length(&mut self, length: usize) {
        self.i32(saturate(length));
    }

    pub(super) fn buffer(&mut self, value: &[u8]) {
        self.length(value.len());
        self.0.extend_from_slice(value);
    }

    pub(super) fn str(&mut self, value: &str) {
        self.concat(&[value]);
    }

    /// Appends the string that these parts form together.
    pub(super) fn concat(&mut self, parts: &[&str]) {
        self.length(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| self.0.extend_from_slice(part.as_bytes()));
    }

    pub(super) fn strings<T: AsRef<str>>(&mut self, values: &[T]) {
        self.length(values.len());
        for value in values {
            self.str(value.as_ref());
        }
    }

    pub(super) fn acl(&mut self, acl: &[Acl]) {
        self.length(acl.len());
        for entry in acl {
            self.i32(i32::from(entry.permissions.bits()));
            self.str(&entry.scheme);
            self.str(&entry.id);
        }
    }

    /// Appends the header of one operation of a multi, or of one result.
    pub(super) fn multi_header(&mut self, number: i32, is_end: bool, error: i32) {
        self.i32(number);
        self.bool(is_end);
        self.i32(error);
    }
}

fn saturate(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}
