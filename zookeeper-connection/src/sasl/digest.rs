//! [`DigestMd5`]: the client's side of DIGEST-MD5 ([RFC 2831](https://www.rfc-editor.org/rfc/rfc2831)), as far as
//! ZooKeeper servers use it: only for authentication, without protecting the data that follows.

use std::fmt;

use md5::{Digest, Md5};

use super::Exchange;
use super::directives::{Directives, quoted};
use crate::machine::SaslStep;

/// ZooKeeper servers and clients have this name hard-coded, whatever the host.
const DIGEST_URI: &str = "zookeeper/zk-sasl-md5";

/// The RFC's limit for a server's token.
const MAX_CHALLENGE: usize = 2048;

const ANOTHER_MECHANISM: &str = "the server does not use DIGEST-MD5";

/// A user and a password for SASL with DIGEST-MD5.
///
/// The server's JAAS configuration has a line `user_NAME="PASSWORD"` for each user. With DIGEST-MD5, both sides prove
/// to each other that they know the password, without sending it. The mechanism is weak by today's standards, so use it
/// with TLS.
#[derive(Clone)]
pub struct SaslDigest {
    /// The user, which is also the id in an ACL with the scheme `sasl`.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for SaslDigest {
    /// Writes only the user, because the password is secret, and not even the user if it contains a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = if self.user.contains(':') { "…" } else { &self.user };
        f.debug_struct("SaslDigest").field("user", &user).finish_non_exhaustive()
    }
}

impl SaslDigest {
    /// Returns the rule that the login breaks, if it breaks one. The rule shows nothing of the login.
    #[must_use]
    pub fn broken_rule(&self) -> Option<&'static str> {
        match &*self.user {
            "" => Some("it has no user"),
            user if user.contains(':') => Some("a user has no colon; give the password apart from it"),
            _ => None,
        }
    }
}

/// The exchange on one connection. The first token of the client is empty: servers would treat any other token as an
/// attempt to authenticate again.
pub(super) struct DigestMd5 {
    login: SaslDigest,
    /// The client's random part, which makes each response different.
    cnonce: String,
    /// What the server must send to prove that it knows the password. `None` until its challenge arrives.
    proof: Option<String>,
}

impl DigestMd5 {
    /// `cnonce` must not be predictable.
    pub(super) fn new(login: SaslDigest, cnonce: String) -> DigestMd5 {
        DigestMd5 { login, cnonce, proof: None }
    }

    fn respond(&mut self, challenge: &Directives) -> Result<String, &'static str> {
        let nonce = challenge.only("nonce").ok_or(ANOTHER_MECHANISM)?;
        if challenge.only("algorithm") != Some("md5-sess") {
            return Err("the server's DIGEST-MD5 uses an algorithm other than md5-sess");
        }
        if challenge.only("charset") != Some("utf-8") {
            return Err("the server's DIGEST-MD5 uses a charset other than utf-8");
        }
        // Without this directive, there is no security layer.
        let layers = if challenge.has("qop") { challenge.only("qop").unwrap_or_default() } else { "auth" };
        if !layers.split(',').any(|layer| layer.trim() == "auth") {
            return Err("the server's DIGEST-MD5 insists on a security layer");
        }
        let realm = challenge.all("realm").next().unwrap_or_default();
        let secret = Secret::new(&self.login, realm, nonce, &self.cnonce);
        let response = format!(
            "charset=utf-8,username={},realm={},nonce={},nc=00000001,cnonce={},digest-uri=\"{DIGEST_URI}\",\
             maxbuf=65536,response={},qop=auth",
            quoted(&self.login.user),
            quoted(realm),
            quoted(nonce),
            quoted(&self.cnonce),
            secret.answer("AUTHENTICATE", DIGEST_URI),
        );
        self.proof = Some(secret.answer("", DIGEST_URI));
        Ok(response)
    }
}

impl Exchange for DigestMd5 {
    fn step(&mut self, token: &[u8]) -> SaslStep {
        let text = Some(token).filter(|token| token.len() < MAX_CHALLENGE);
        let text = text.and_then(|token| std::str::from_utf8(token).ok());
        let directives = text.and_then(Directives::parse);
        match (&self.proof, directives) {
            (Some(proof), Some(directives)) if directives.only("rspauth") == Some(proof) => {
                SaslStep::Complete
            }
            (Some(_), _) => SaslStep::Refused("the server does not know the password of the user".to_owned()),
            (None, None) => SaslStep::Failed(ANOTHER_MECHANISM.to_owned()),
            (None, Some(directives)) => match self.respond(&directives) {
                Ok(response) => SaslStep::Token(response.into_bytes()),
                Err(why) => SaslStep::Failed(why.to_owned()),
            },
        }
    }
}

/// The values from which both sides compute their answers.
struct Secret<'a> {
    key: String,
    nonce: &'a str,
    cnonce: &'a str,
}

impl<'a> Secret<'a> {
    fn new(login: &SaslDigest, realm: &str, nonce: &'a str, cnonce: &'a str) -> Secret<'a> {
        let user = hash(&[&encoded(&login.user), b":", &encoded(realm), b":", &encoded(&login.password)]);
        let key = hex(hash(&[&user, format!(":{nonce}:{cnonce}").as_bytes()]));
        Secret { key, nonce, cnonce }
    }

    /// Returns the answer of the client, whose method is `AUTHENTICATE`, or of the server, whose method is empty.
    fn answer(&self, method: &str, uri: &str) -> String {
        let Secret { key, nonce, cnonce } = self;
        let action = hex(hash(&[format!("{method}:{uri}").as_bytes()]));
        hex(hash(&[format!("{key}:{nonce}:00000001:{cnonce}:auth:{action}").as_bytes()]))
    }
}

/// Encodes text as the RFC requires: in ISO 8859-1 if possible, otherwise in UTF-8.
fn encoded(text: &str) -> Vec<u8> {
    let latin: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    latin.unwrap_or_else(|| text.as_bytes().to_vec())
}

fn hash(parts: &[&[u8]]) -> [u8; 16] {
    let mut md5 = Md5::new();
    parts.iter().for_each(|part| md5.update(part));
    md5.finalize().into()
}

fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHALLENGE: &str = r#"realm="zk-sasl-md5",nonce="OA6MG9tEQGm2hh",charset=utf-8,algorithm=md5-sess"#;
    const CNONCE: &str = "OA6MHXh6VqTrRk";

    fn login(user: &str, password: &str) -> SaslDigest {
        SaslDigest { user: user.to_owned(), password: password.to_owned() }
    }

    fn exchange() -> DigestMd5 {
        DigestMd5::new(login("chris", "secret"), CNONCE.to_owned())
    }

    /// Returns the directives of the response to a challenge.
    fn response(challenge: &str) -> Directives {
        let SaslStep::Token(token) = exchange().step(challenge.as_bytes()) else {
            panic!("{challenge} fails")
        };
        Directives::parse(std::str::from_utf8(&token).unwrap()).unwrap()
    }

    fn failure(challenge: &[u8]) -> String {
        match exchange().step(challenge) {
            SaslStep::Failed(why) => why,
            other => panic!("{other:?}"),
        }
    }

    /// The example of RFC 2831, section 4.
    #[test]
    fn answers_are_those_of_the_rfc() {
        let (nonce, uri) = ("OA6MG9tEQGm2hh", "imap/elwood.innosoft.com");
        let secret = Secret::new(&login("chris", "secret"), "elwood.innosoft.com", nonce, CNONCE);
        assert_eq!(secret.answer("AUTHENTICATE", uri), "d388dad90d4bbd760a152321f2143af7");
        assert_eq!(secret.answer("", uri), "ea40f60335c427b5527b84dbabcdfffd");
    }

    #[test]
    fn response_has_what_zookeeper_expects() {
        let response = response(CHALLENGE);
        for (name, value) in [
            ("charset", "utf-8"),
            ("username", "chris"),
            ("realm", "zk-sasl-md5"),
            ("nonce", "OA6MG9tEQGm2hh"),
            ("nc", "00000001"),
            ("cnonce", CNONCE),
            ("digest-uri", DIGEST_URI),
            ("qop", "auth"),
        ] {
            assert_eq!(response.only(name), Some(value), "{name}");
        }
        let secret = Secret::new(&login("chris", "secret"), "zk-sasl-md5", "OA6MG9tEQGm2hh", CNONCE);
        assert_eq!(response.only("response"), Some(&*secret.answer("AUTHENTICATE", DIGEST_URI)));
    }

    #[test]
    fn server_must_prove_that_it_knows_the_password() {
        let mut exchange = exchange();
        assert!(matches!(exchange.step(CHALLENGE.as_bytes()), SaslStep::Token(_)));
        let proof = exchange.proof.clone().unwrap();
        // The response itself proves nothing.
        let response = Secret::new(&login("chris", "secret"), "zk-sasl-md5", "OA6MG9tEQGm2hh", CNONCE);
        let response = response.answer("AUTHENTICATE", DIGEST_URI);
        for wrong in [
            "rspauth=0".to_owned(),
            format!("rspauth={response}"),
            format!("rspauth={}", &proof[1..]),
            format!("rspauth={proof},rspauth={proof}"),
            format!("proof={proof}"),
        ] {
            assert!(matches!(exchange.step(wrong.as_bytes()), SaslStep::Refused(_)), "{wrong}");
        }
        assert!(!matches!(exchange.step(b""), SaslStep::Complete));
        assert_eq!(exchange.step(format!("rspauth={proof}").as_bytes()), SaslStep::Complete);
    }

    #[test]
    fn text_is_encoded_in_iso_8859_1_if_possible_and_otherwise_in_utf_8() {
        assert_eq!(encoded("p\u{e4}ssw\u{f6}rd"), b"p\xe4ssw\xf6rd");
        assert_eq!(encoded("pa\u{20ac}"), "pa\u{20ac}".as_bytes());
        assert_eq!(encoded("plain"), b"plain");
    }

    #[test]
    fn user_and_realm_with_quotes_and_backslashes_are_escaped() {
        let mut exchange = DigestMd5::new(login("a\"b\\c,d=e", "secret"), CNONCE.to_owned());
        let challenge = CHALLENGE.replace("zk-sasl-md5", r#"a \"realm\" \\ of, commas"#);
        let SaslStep::Token(token) = exchange.step(challenge.as_bytes()) else { panic!("{challenge} fails") };
        let response = Directives::parse(std::str::from_utf8(&token).unwrap()).unwrap();
        assert_eq!(response.only("username"), Some("a\"b\\c,d=e"));
        assert_eq!(response.only("realm"), Some(r#"a "realm" \ of, commas"#));
    }

    #[test]
    fn challenge_may_have_spaces_empty_elements_capitals_and_values_without_quotes() {
        let challenge =
            ", NONCE = OA6MG9tEQGm2hh ,, Algorithm=\"md5-sess\", charset=utf-8,\tqop=\"auth-int, auth\",x=y,";
        assert_eq!(response(challenge).only("nonce"), Some("OA6MG9tEQGm2hh"));
        assert_eq!(response(challenge).only("realm"), Some(""));
    }

    #[test]
    fn challenges_of_another_form_fail() {
        let utf_16: Vec<u8> = CHALLENGE.encode_utf16().flat_map(u16::to_be_bytes).collect();
        let long = format!("{CHALLENGE},x=\"{}\"", "y".repeat(10 << 20));
        for challenge in [
            &b""[..],
            b"nonce",
            b"=x",
            b"nonce=\"x",
            b"nonce=\"x\\",
            b"nonce=\"x\"y",
            b"no nce=x",
            b"nonce=",
            b"nonce=\xff",
            // The end of an AP-REP, or of another binary token.
            b"\x60\x82\x01\x02\x06\x09",
            &utf_16,
            long.as_bytes(),
            format!("{CHALLENGE},nonce=\"another\"").as_bytes(),
            CHALLENGE.replace("nonce", "once").as_bytes(),
        ] {
            assert_eq!(failure(challenge), ANOTHER_MECHANISM);
        }
        for malformed in ["x", "=x", "x=", "x y=z", "x/y=z", "x=\"y", "x=\"y\\", "x=\"y\"z", "x=y z", "x=y=z"]
        {
            assert_eq!(
                failure(format!("{CHALLENGE},{malformed}").as_bytes()),
                ANOTHER_MECHANISM,
                "{malformed}"
            );
        }
        let without = |text: &str, other: &str| failure(CHALLENGE.replace(text, other).as_bytes());
        assert!(without("md5-sess", "md5").contains("algorithm"));
        assert!(without("utf-8", "ebcdic").contains("charset"));
        assert!(without("charset=utf-8,", "").contains("charset"));
        assert!(without("charset=utf-8", "charset=utf-8,charset=utf-8").contains("charset"));
        for layers in ["qop=auth-int", "qop=\"auth-int,auth-conf\"", "qop=auth,qop=auth-int"] {
            assert!(
                failure(format!("{CHALLENGE},{layers}").as_bytes()).contains("security layer"),
                "{layers}"
            );
        }
    }

    #[test]
    fn password_is_not_in_debug_output() {
        let text = format!("{:?}", login("chris", "secret"));
        assert!(text.contains("chris") && !text.contains("secret"), "{text}");
    }
}
