//! [`MaxBuffer`]: how long a call may become on its way through the servers.

use crate::{Acl, Call, CreateMode, Credential, Op, ZkError, ZkResult};

/// The default `jute.maxbuffer`. ZooKeeper's own default is one byte less.
pub const DEFAULT_JUTE_MAX_BUFFER: usize = 1 << 20;

/// The bytes that are left for what surrounds a call: the header and the digest of a transaction, the header of a
/// request, the packet in which servers pass either on, and the request that sets the watch of a read again. That is
/// less than a hundred bytes.
const RESERVE: usize = 1024;

/// The bytes of a length or a count.
const LENGTH: usize = 4;

/// The bytes of a version.
const VERSION: usize = 4;

/// The bytes of an entry of an ACL without its texts: permissions and two lengths.
const ACL_ENTRY: usize = 12;

/// The bytes at the end of a create: whether the znode is ephemeral, and the parent's version. A request has four.
const CREATE_END: usize = 5;

/// The bytes before each operation of a multi in a request. A transaction has eight.
const OPERATION: usize = 9;

/// The longest number that a server appends to a path. Beyond the end of the counter, it has a minus sign.
const SEQUENCE_NUMBER: usize = "-2147483648".len();

/// The longest id that a server is expected to derive from a SASL exchange, or that an unknown identity is expected to
/// have. A Kerberos principal with the longest possible host and realm is about half as long.
const UNKNOWN_ID: usize = 1024;

/// The length of the longest digest of a password: SHA-512 in Base64. The default of the servers has 28 characters.
const DIGEST: usize = 88;

/// How many bytes a byte of a certificate may become in the id that a server derives. A byte of an unknown attribute
/// becomes two digits, and a byte of an object identifier becomes up to three digits and a dot.
const CERTIFICATE_GROWTH: usize = 4;

/// The scheme of an ACL entry that stands for every identity of the session.
const AUTH: &str = "auth";

/// A bound on calls: the servers' `jute.maxbuffer`.
///
/// Servers close the connection on a longer request. What they write for a request can be longer than the request: each
/// sequential znode gets a number, and each ACL entry with the scheme `auth` becomes an entry for every identity of the
/// session. Before the servers write such a transaction, they do not check its length. But they cannot read a
/// transaction that is too long, **so all of them stop, and cannot start again** (ZOOKEEPER-3496). A client must
/// therefore [check](MaxBuffer::check) each call before it sends it.
///
/// ```
/// use zookeeper_connection::{Call, MaxBuffer, ZkError};
///
/// let max_buffer = MaxBuffer::new(64 << 10);
/// assert!(max_buffer.check(&Call::set_data("/a", vec![0; 60_000], None).call).is_ok());
/// let refused = max_buffer.check(&Call::set_data("/a", vec![0; 70_000], None).call);
/// assert!(matches!(refused, Err(ZkError::CallTooLong { .. })));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MaxBuffer {
    limit: usize,
    /// The bytes of the chroot, with which each path begins on the servers.
    chroot: usize,
    /// The bytes of the ACL entries that an entry with the scheme `auth` becomes.
    identities: usize,
}

impl MaxBuffer {
    /// Creates the bound for servers with this `jute.maxbuffer`, and a session without identities.
    #[must_use]
    pub fn new(jute_max_buffer: usize) -> MaxBuffer {
        MaxBuffer { limit: jute_max_buffer.saturating_sub(RESERVE), chroot: 0, identities: 0 }
    }

    /// Sets the length of the chroot, in bytes.
    #[must_use]
    pub fn with_chroot(self, chroot: usize) -> MaxBuffer {
        MaxBuffer { chroot, ..self }
    }

    /// Adds the identity that the session gets from a credential.
    #[must_use]
    pub fn with_credential(self, credential: &Credential) -> MaxBuffer {
        let Credential { scheme, auth } = credential;
        let name = match (scheme.as_str(), auth.iter().position(|byte| *byte == b':')) {
            ("digest", Some(end)) => &auth[..end],
            _ => auth,
        };
        // A server replaces a byte that it cannot decode by a character of three bytes.
        let decoded = name.iter().map(|byte| if byte.is_ascii() { 1 } else { 3 }).sum::<usize>();
        self.with_identity(scheme, decoded + ":".len() + DIGEST)
    }

    /// Adds the identity that the session gets from a certificate whose subject and extensions have this length, in bytes.
    #[must_use]
    pub fn with_certificate(self, length: usize) -> MaxBuffer {
        self.with_identity("x509", CERTIFICATE_GROWTH * length)
    }

    /// Adds an identity that the client does not know, whose id may have up to a kibibyte.
    #[must_use]
    pub fn with_unknown_identity(self) -> MaxBuffer {
        self.with_identity("unknown", UNKNOWN_ID)
    }

    fn with_identity(self, scheme: &str, id: usize) -> MaxBuffer {
        let identities = self.identities + ACL_ENTRY + text(scheme) + id;
        MaxBuffer { identities, ..self }
    }

    /// Refuses a call that may become too long on the servers.
    ///
    /// # Errors
    /// `CallTooLong`.
    pub fn check(&self, call: &Call) -> ZkResult<()> {
        let (bytes, limit) = (self.bytes(call), self.limit);
        if bytes > limit { Err(ZkError::CallTooLong { bytes, limit }) } else { Ok(()) }
    }

    /// Returns the length that the request and the transaction of a call have at most, without their headers.
    #[must_use]
    pub fn bytes(&self, call: &Call) -> usize {
        match call {
            Call::Create { path, data, acl, mode } => self.create(path.len(), data, acl, *mode),
            Call::CreateAndList { dir, prefix, data, acl } => {
                let path = dir.len() + "/".len() + prefix.len();
                self.create(path, data, acl, CreateMode::EphemeralSequential)
            }
            Call::SetData { path, data, .. } => self.set_data(path, data),
            Call::Delete { path, .. }
            | Call::Exists { path, .. }
            | Call::GetData { path, .. }
            | Call::GetChildren { path, .. } => self.path(path.len()) + VERSION,
            Call::Multi(operations) => {
                operations.iter().map(|operation| OPERATION + self.operation(operation)).sum()
            }
        }
    }

    fn operation(&self, operation: &Op) -> usize {
        match operation {
            Op::Create { path, data, acl, mode } => self.create(path.len(), data, acl, *mode),
            Op::SetData { path, data, .. } => self.set_data(path, data),
            Op::Delete { path, .. } | Op::Check { path, .. } => self.path(path.len()) + VERSION,
        }
    }

    fn set_data(&self, path: &str, data: &[u8]) -> usize {
        self.path(path.len()) + LENGTH + data.len() + VERSION
    }

    fn create(&self, path: usize, data: &[u8], acl: &[Acl], mode: CreateMode) -> usize {
        let acl = acl.iter().map(|entry| self.acl_entry(entry)).sum::<usize>();
        self.created_path(path, mode) + LENGTH + data.len() + LENGTH + acl + CREATE_END
    }

    fn acl_entry(&self, Acl { scheme, id, .. }: &Acl) -> usize {
        let own = ACL_ENTRY + text(scheme) + text(id);
        if scheme == AUTH { own.max(self.identities) } else { own }
    }

    /// Returns the bytes of the path of a new znode. Without its number, if it has one, the path has `length` bytes.
    #[must_use]
    pub fn created_path(&self, length: usize, mode: CreateMode) -> usize {
        self.path(length + if mode.is_sequential() { SEQUENCE_NUMBER } else { 0 })
    }

    /// Returns the bytes of a path of this length.
    #[must_use]
    pub fn path(&self, length: usize) -> usize {
        LENGTH + self.chroot + length
    }
}

/// Returns the length of a text as a server writes it: a character of four bytes takes six. A path has no such
/// characters, because servers refuse them there.
fn text(text: &str) -> usize {
    text.len() + 2 * text.bytes().filter(|byte| *byte >= 0xf0).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Permissions;
    use crate::chroot::Chroot;
    use crate::codec::OpCode;

    const MODES: [CreateMode; 5] = [
        CreateMode::Persistent,
        CreateMode::Ephemeral,
        CreateMode::PersistentSequential,
        CreateMode::EphemeralSequential,
        CreateMode::Container,
    ];

    fn credential(scheme: &str, auth: &[u8]) -> Credential {
        Credential { scheme: scheme.to_owned(), auth: auth.to_vec() }
    }

    fn create(mode: CreateMode, acl: Vec<Acl>) -> Op {
        Op::Create { path: "/a/item-".to_owned(), data: vec![0; 7], acl, mode }
    }

    fn calls() -> Vec<Call> {
        let (version, data) = (Some(3), vec![0; 100]);
        let long = Acl::new(Permissions::READ, "digest", "someone:with a digest");
        let acl = [Acl::open_unsafe(), Acl::creator_all(), vec![long]].concat();
        let mut operations = vec![
            Op::SetData { path: "/a".to_owned(), data: data.clone(), version },
            Op::Delete { path: "/a".to_owned(), version },
            Op::Check { path: "/".to_owned(), version },
        ];
        operations.extend(MODES.map(|mode| create(mode, acl.clone())));
        let mut calls = vec![
            Call::create_and_list("/a", "x-", data.clone(), acl.clone()).call,
            Call::set_data("/a", data.clone(), version).call,
            Call::delete("/a", version).call,
            Call::exists("/a", true).call,
            Call::get_data("/", true).call,
            Call::get_children("/", true).call,
            Call::multi([]).call,
            Call::multi(operations).call,
        ];
        calls.extend(MODES.map(|mode| Call::create("/a/b", data.clone(), acl.clone(), mode).call));
        calls
    }

    /// Returns the body of a request.
    fn request(call: &Call, chroot: &str) -> usize {
        let mut frame = Vec::new();
        call.encode(OpCode::of_call(call), &Chroot::new(chroot), 1, &mut frame);
        frame.len() - 4
    }

    #[test]
    fn no_request_is_longer_than_its_bound_and_its_headers() {
        for chroot in ["", "/app"] {
            let max_buffer = MaxBuffer::new(1 << 20).with_chroot(chroot.len());
            for call in calls() {
                let (bytes, request) = (max_buffer.bytes(&call), request(&call, chroot));
                assert!(request <= bytes + 17 && bytes <= request + 100, "{request}, {bytes}: {call:?}");
            }
        }
    }

    #[test]
    fn each_sequential_znode_counts_with_the_longest_number() {
        let max_buffer = MaxBuffer::new(1 << 20);
        let of = |mode| max_buffer.bytes(&Call::multi(vec![create(mode, Vec::new()); 100]).call);
        let sequential = [CreateMode::PersistentSequential, CreateMode::EphemeralSequential];
        for mode in MODES {
            let numbers = if sequential.contains(&mode) { 100 * 11 } else { 0 };
            assert_eq!(of(mode), 100 * (9 + 4 + 8 + 4 + 7 + 4 + 5) + numbers, "{mode:?}");
        }
    }

    #[test]
    fn entry_for_the_creator_counts_once_for_each_identity() {
        let bytes = |max_buffer: &MaxBuffer, acl: Vec<Acl>| {
            max_buffer.bytes(&Call::create("/a", [], acl, CreateMode::Persistent).call)
        };
        let none = MaxBuffer::new(1 << 20);
        let user = credential("digest", b"user:a very long secret that is not part of the id");
        let (one, two) = (none.clone().with_credential(&user), none.clone().with_credential(&user));
        let two = two.with_credential(&user);
        let entry = 12 + "digest".len() + "user:".len() + 88;
        let rest = bytes(&none, Vec::new());
        assert_eq!(bytes(&none, Acl::creator_all()), rest + 12 + "auth".len());
        assert_eq!(bytes(&one, Acl::creator_all()), rest + entry);
        assert_eq!(bytes(&two, Acl::creator_all()), rest + 2 * entry);
        assert_eq!(bytes(&two, [Acl::creator_all(), Acl::creator_all()].concat()), rest + 4 * entry);
        assert_eq!(bytes(&two, Acl::open_unsafe()), rest + 12 + "world".len() + "anyone".len());
    }

    #[test]
    fn identities_count_with_the_longest_id_that_servers_derive() {
        let none = MaxBuffer::new(1 << 20);
        let identities = |max_buffer: MaxBuffer| max_buffer.identities;
        let of =
            |scheme: &str, auth: &[u8]| identities(none.clone().with_credential(&credential(scheme, auth)));
        assert_eq!(of("digest", b"\xff\xff:x"), 12 + 6 + 6 + 1 + 88, "bytes that are not UTF-8 are replaced");
        assert_eq!(of("digest", b"user"), 12 + 6 + 4 + 1 + 88);
        assert_eq!(of("other", b"a:b"), 12 + 5 + 3 + 1 + 88, "the id of an unknown scheme may be all of it");
        assert_eq!(identities(none.clone().with_certificate(500)), 12 + 4 + 2000);
        assert!(identities(none.clone().with_unknown_identity()) > 1024);
    }

    #[test]
    fn character_of_four_bytes_counts_as_servers_write_it() {
        assert_eq!([text("a"), text("ä"), text("€"), text("😀")], [1, 2, 3, 6]);
        let acl = |id: &str| vec![Acl::new(Permissions::ALL, "digest", id)];
        let bytes =
            |id| MaxBuffer::new(0).bytes(&Call::create("/a", [], acl(id), CreateMode::Ephemeral).call);
        assert_eq!(bytes("😀:x"), bytes("123456:x"));
    }

    #[test]
    fn call_is_refused_beyond_the_setting_less_the_reserve() {
        for setting in [4096, 1 << 20, 16 << 20] {
            let max_buffer = MaxBuffer::new(setting);
            let of = |bytes: usize| Call::set_data("/a", vec![0; bytes - 2 - 12], None).call;
            let limit = setting - 1024;
            assert_eq!(max_buffer.check(&of(limit)), Ok(()));
            let refused = ZkError::CallTooLong { bytes: limit + 1, limit };
            assert_eq!(max_buffer.check(&of(limit + 1)), Err(refused));
        }
        let tiny = MaxBuffer::new(1).check(&Call::exists("/", false).call);
        assert!(matches!(tiny, Err(ZkError::CallTooLong { limit: 0, .. })), "{tiny:?}");
    }
}
