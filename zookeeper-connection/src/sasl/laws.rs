//! Laws of DIGEST-MD5 that hold for any tokens of a server.

use super::Exchange;
use super::digest::{DigestMd5, SaslDigest};
use super::directives::{Directives, quoted};
use crate::machine::SaslStep;

/// Checks the client's responses to two tokens in a row. A response repeats the values of the challenge unchanged, and
/// contains no password. No proof completes the exchanges of two different passwords. (A fuzzer learns the right proof
/// for one of them, because it sees what texts are compared with.) Writing parsed directives and parsing them again
/// yields the same directives.
///
/// # Panics
/// If a law is violated.
pub fn check_tokens(challenge: &[u8], proof: &[u8]) {
    let [mut exchange, mut with_another_password] = ["secret", "another"].map(|password| {
        let login = SaslDigest { user: "a \"user\" \\ €".to_owned(), password: password.to_owned() };
        DigestMd5::new(login, "cnonce".to_owned())
    });
    check_directives(challenge);
    check_directives(proof);
    match exchange.step(challenge) {
        SaslStep::Token(response) => {
            let parse = |token: &[u8]| Directives::parse(std::str::from_utf8(token).ok()?);
            let (asked, answered) = (parse(challenge), parse(&response));
            let (Some(asked), Some(answered)) = (asked, answered) else {
                panic!("both tokens can be parsed")
            };
            assert_eq!(asked.only("nonce"), answered.only("nonce"));
            assert_eq!(
                asked.all("realm").next().unwrap_or_default(),
                answered.only("realm").unwrap_or("none")
            );
            assert_eq!(answered.only("username"), Some("a \"user\" \\ €"));
            // The challenge may contain the password by chance, and the response repeats these two values.
            let is_own = |name: &str| name != "nonce" && name != "realm";
            let mut own = answered.iter().filter(|(name, _)| is_own(name));
            assert!(own.all(|(_, value)| !value.contains("secret")));
        }
        SaslStep::Failed(_) => return,
        other => panic!("{other:?} in response to a challenge"),
    }
    with_another_password.step(challenge);
    let are_complete = [exchange, with_another_password].map(|mut exchange| match exchange.step(proof) {
        SaslStep::Complete => true,
        SaslStep::Refused(_) | SaslStep::Failed(_) => false,
        other => panic!("{other:?} in response to a proof"),
    });
    assert_ne!(are_complete, [true, true]);
}

fn check_directives(text: &[u8]) {
    let Some(directives) = std::str::from_utf8(text).ok().and_then(Directives::parse) else { return };
    let copy: Vec<String> =
        directives.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
    assert_eq!(Directives::parse(&copy.join(",")), Some(directives));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates texts that resemble challenges.
    fn challenge() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            Just("nonce=\"abc\"".to_owned()),
            Just("charset=utf-8".to_owned()),
            Just("algorithm=md5-sess".to_owned()),
            "(realm|qop|nonce|x)=\"[a-z\\\\,\" é]{0,6}\"",
            "[a-z=\", \\\\]{0,5}",
        ];
        let sound = Just(",nonce=n,charset=utf-8,algorithm=md5-sess");
        let rest = prop_oneof![sound, Just("")];
        (prop::collection::vec(part, 0..6), rest).prop_map(|(parts, rest)| parts.join(",") + rest)
    }

    #[test]
    fn challenge_may_contain_the_password_by_chance() {
        check_tokens(b"realm=\"a secret\",nonce=secret,charset=utf-8,algorithm=md5-sess", b"");
    }

    proptest! {
        #[test]
        fn any_tokens_have_sound_responses(challenge in challenge(), proof in "(rspauth=)?[0-9a-f]{0,33}") {
            check_tokens(challenge.as_bytes(), proof.as_bytes());
        }

        #[test]
        fn any_bytes_are_tokens(
            challenge in prop::collection::vec(any::<u8>(), 0..100),
            proof in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            check_tokens(&challenge, &proof);
        }
    }
}
