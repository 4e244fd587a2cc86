//! Tests the codec against frames written by hand, and against itself.

mod expected_replies;
mod expected_requests;
pub(super) mod generate;
mod round_trips;

use super::Frames;

/// Returns the bytes that a text describes: words in quotes stand for themselves, and other words are hexadecimal.
fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.split_whitespace() {
        match word.strip_prefix('\'').and_then(|word| word.strip_suffix('\'')) {
            Some(quoted) => bytes.extend(quoted.as_bytes()),
            None => {
                assert_eq!(word.len() % 2, 0, "{word}");
                let digits = (0..word.len()).step_by(2).map(|at| &word[at..at + 2]);
                bytes.extend(digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()));
            }
        }
    }
    bytes
}

/// Returns the frame with these contents.
fn framed(contents: &str) -> Vec<u8> {
    let contents = bytes(contents);
    [&u32::try_from(contents.len()).unwrap().to_be_bytes(), &contents[..]].concat()
}

/// Returns all frames of a stream, which must end with a complete frame.
fn split(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Frames::new(1 << 20);
    frames.push(stream);
    let mut split = Vec::new();
    while let Some(frame) = frames.next_frame().unwrap() {
        split.push(frame.to_vec());
    }
    assert_eq!(split.iter().map(|frame| frame.len() + 4).sum::<usize>(), stream.len());
    split
}
