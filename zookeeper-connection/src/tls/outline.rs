//! [`Outline`]: the parts of a certificate that rustls does not show.

use std::time::Duration;

use pkcs8::der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use pkcs8::der::{Decode, Reader, Result, SliceReader, Tag, Tagged};
use rustls::pki_types::UnixTime;
use rustls::{CertificateError, Error};

/// The object identifier of the attribute `CN`, without its tag and length.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// A certificate that states its version starts with this tag. Only version 1 is not stated.
const VERSION: u8 = 0xa0;

/// The extensions of a certificate, among them subjectAltName, start with this tag.
const EXTENSIONS: u8 = 0xa3;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Outline {
    /// Whether the format is X.509 v1, which has no extensions and therefore no subjectAltName.
    pub(super) is_v1: bool,
    /// The first and the last moment at which the certificate is valid, as a time since 1970.
    validity: (Duration, Duration),
    /// The `CN` of the subject. `None` if there is none or more than one.
    pub(super) common_name: Option<String>,
    /// The length of what may name the subject, in bytes: the subject and the extensions.
    pub(super) names_length: usize,
}

impl Outline {
    /// Reads a certificate in DER format.
    pub(super) fn of(certificate: &[u8]) -> Result<Outline> {
        in_sequence(&mut SliceReader::new(certificate)?, |certificate| {
            let outline = in_sequence(certificate, Outline::of_signed)?;
            skip_all(certificate)?;
            Ok(outline)
        })
    }

    /// Reads the part of a certificate that is signed.
    fn of_signed(fields: &mut SliceReader<'_>) -> Result<Outline> {
        let is_v1 = fields.peek_byte() != Some(VERSION);
        // The version, the serial number, the algorithm of the signature, and the issuer.
        for _ in usize::from(is_v1)..4 {
            AnyRef::decode(fields)?;
        }
        let validity = in_sequence(fields, |times| Ok((time(times)?, time(times)?)))?;
        let subject = AnyRef::decode(fields)?;
        let common_name = subject.sequence(common_name)?;
        let mut names_length = subject.value().len();
        while !fields.is_finished() {
            let is_extensions = fields.peek_byte() == Some(EXTENSIONS);
            let field = AnyRef::decode(fields)?;
            names_length += if is_extensions { field.value().len() } else { 0 };
        }
        Ok(Outline { is_v1, validity, common_name, names_length })
    }

    /// Checks whether the certificate is valid now.
    ///
    /// # Errors
    /// The same as those of rustls.
    pub(super) fn check_validity(&self, now: UnixTime) -> std::result::Result<(), Error> {
        let (not_before, not_after) = self.validity;
        let seconds = Duration::from_secs(now.as_secs());
        if seconds < not_before {
            let not_before = UnixTime::since_unix_epoch(not_before);
            return Err(CertificateError::NotValidYetContext { time: now, not_before }.into());
        }
        if seconds > not_after {
            let not_after = UnixTime::since_unix_epoch(not_after);
            return Err(CertificateError::ExpiredContext { time: now, not_after }.into());
        }
        Ok(())
    }
}

/// Reads the contents of a sequence to their end.
fn in_sequence<'r, T>(
    reader: &mut SliceReader<'r>,
    read: impl FnOnce(&mut SliceReader<'r>) -> Result<T>,
) -> Result<T> {
    AnyRef::decode(reader)?.sequence(read)
}

fn skip_all(reader: &mut SliceReader<'_>) -> Result<()> {
    while !reader.is_finished() {
        AnyRef::decode(reader)?;
    }
    Ok(())
}

fn time(times: &mut SliceReader<'_>) -> Result<Duration> {
    match Tag::peek(times)? {
        Tag::UtcTime => Ok(UtcTime::decode(times)?.to_unix_duration()),
        _ => Ok(GeneralizedTime::decode(times)?.to_unix_duration()),
    }
}

/// Reads the only `CN` of a subject.
fn common_name(subject: &mut SliceReader<'_>) -> Result<Option<String>> {
    let mut names = Vec::new();
    while !subject.is_finished() {
        let mut attributes = SliceReader::new(AnyRef::decode(subject)?.value())?;
        while !attributes.is_finished() {
            let read = |attribute: &mut SliceReader<'_>| {
                let is_name = AnyRef::decode(attribute)?.value() == COMMON_NAME;
                Ok((is_name, text(AnyRef::decode(attribute)?)))
            };
            let (is_name, text) = in_sequence(&mut attributes, read)?;
            names.extend(is_name.then_some(text));
        }
    }
    Ok(if let [name] = &mut *names { name.take() } else { None })
}

/// Returns a string of one of the three usual kinds.
fn text(value: AnyRef<'_>) -> Option<String> {
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String => {
            String::from_utf8(value.value().to_vec()).ok()
        }
        _ => None,
    }
}
