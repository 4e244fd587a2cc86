//! [`Credential`]: what a client presents to a server.

use std::fmt;

/// An identity that a connection presents to every server, as `addauth` does.
#[derive(Clone)]
pub struct Credential {
    /// The scheme, for example `digest`.
    pub scheme: String,
    /// The contents, for example `user:password` for `digest`.
    pub auth: Vec<u8>,
}

impl fmt::Debug for Credential {
    /// Writes only the scheme, because the contents are secret, and not even the scheme if it looks like contents.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if is_scheme(&self.scheme) { &self.scheme } else { "…" };
        f.debug_struct("Credential").field("scheme", &scheme).finish_non_exhaustive()
    }
}

impl Credential {
    /// Returns the rule that the credential breaks, if it breaks one. The rule shows nothing of the credential.
    #[must_use]
    pub fn broken_rule(&self) -> Option<&'static str> {
        if !is_scheme(&self.scheme) {
            return Some("its scheme must consist of letters, digits, '-', '_' and '.', such as 'digest'");
        }
        let has_password = self.auth.contains(&b':');
        (self.scheme == "digest" && !has_password).then_some("with the scheme digest, write USER:PASSWORD")
    }
}

fn is_scheme(text: &str) -> bool {
    let is_permitted = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    !text.is_empty() && text.chars().all(is_permitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(scheme: &str, auth: &str) -> Credential {
        Credential { scheme: scheme.to_owned(), auth: auth.as_bytes().to_vec() }
    }

    #[test]
    fn only_credentials_that_a_server_could_accept_keep_the_rules() {
        for (scheme, auth) in
            [("digest", "user:secret"), ("digest", ":"), ("x509", ""), ("a-b_c.1", "secret")]
        {
            assert_eq!(credential(scheme, auth).broken_rule(), None, "{scheme} {auth}");
        }
        for (scheme, auth) in [("digest", "secret"), ("", "user:secret"), ("user:secret", "digest")] {
            let rule = credential(scheme, auth).broken_rule().unwrap();
            assert!(!rule.contains("secret") && !rule.contains("user"), "{rule}");
            assert!(!format!("{:?}", credential(scheme, auth)).contains("secret"));
        }
    }
}
