//! The frames of a client after the handshake: each [`Call`], and each [`Control`] of its connection.

use std::borrow::Cow;
use std::fmt;

use super::OpCode;
use super::writer::Writer;
use crate::chroot::Chroot;
use crate::path::path_of_child;
use crate::{Acl, Call, CreateMode, Op};

/// The number that marks the end of a multi, in place of an operation. In a reply, it also marks an error.
pub(super) const MULTI_END: i32 = -1;

/// The number that stands for watches of any kind.
pub(super) const ANY_WATCH: i32 = 3;

/// The version that stands for any version.
pub(super) const ANY_VERSION: i32 = -1;

/// A request that the connection makes for itself, besides the application's calls. Its paths are relative to the
/// servers' root, not to the chroot.
#[derive(Clone, PartialEq, Eq)]
pub enum Control<'a> {
    /// Removes the watches of all kinds from a znode.
    RemoveWatches {
        path: Cow<'a, str>,
    },
    Ping,
    /// Writes to a znode that does not exist, or at a version that the znode does not have. The write changes nothing,
    /// but passes through the leader.
    Barrier {
        path: &'a str,
    },
    Auth {
        scheme: Cow<'a, str>,
        auth: Cow<'a, [u8]>,
    },
    /// Sends a token of a SASL exchange.
    Sasl {
        token: Cow<'a, [u8]>,
    },
    /// Sets watches again on a new connection. The server immediately reports changes that came after the transaction
    /// `relative_zxid`.
    SetWatches {
        relative_zxid: i64,
        data: Vec<Cow<'a, str>>,
        exist: Vec<Cow<'a, str>>,
        child: Vec<Cow<'a, str>>,
    },
    Close,
}

impl Control<'_> {
    pub fn operation(&self) -> OpCode {
        match self {
            Control::RemoveWatches { .. } => OpCode::RemoveWatches,
            Control::Ping => OpCode::Ping,
            Control::Barrier { .. } => OpCode::SetData,
            Control::Auth { .. } => OpCode::Auth,
            Control::Sasl { .. } => OpCode::Sasl,
            Control::SetWatches { .. } => OpCode::SetWatches,
            Control::Close => OpCode::Close,
        }
    }

    /// Appends the frame.
    pub fn encode(&self, xid: i32, frame: &mut Vec<u8>) {
        Writer::request(frame, xid, self.operation(), |writer| match self {
            Control::RemoveWatches { path } => {
                writer.str(path);
                writer.i32(ANY_WATCH);
            }
            Control::Barrier { path } => {
                writer.str(path);
                writer.buffer(&[]);
                writer.i32(i32::MAX);
            }
            Control::Auth { scheme, auth } => {
                writer.i32(0); // the type, which servers ignore
                writer.str(scheme);
                writer.buffer(auth);
            }
            Control::Sasl { token } => writer.buffer(token),
            Control::SetWatches { relative_zxid, data, exist, child } => {
                writer.i64(*relative_zxid);
                writer.strings(data);
                writer.strings(exist);
                writer.strings(child);
            }
            Control::Ping | Control::Close => {}
        });
    }
}

impl fmt::Debug for Control<'_> {
    /// Writes the operation and, for a `RemoveWatches`, the path. Omits credentials, because they are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.operation())?;
        match self {
            Control::RemoveWatches { path } => write!(f, "({path:?})"),
            _ => Ok(()),
        }
    }
}

impl Call {
    /// Appends the frame of the call, whose paths are relative to the chroot. For a `CreateAndList`, this is the frame
    /// of the create; the listing is a separate call. The caller must check the length with
    /// [`MaxBuffer`](crate::MaxBuffer).
    ///
    /// `operation` is the operation [of the call](OpCode::of_call), except that `Create` may stand in for `Create2`,
    /// which has the same record.
    pub fn encode(&self, operation: OpCode, chroot: &Chroot, xid: i32, frame: &mut Vec<u8>) {
        Writer::request(frame, xid, operation, |writer| match self {
            Call::Create { path, data, acl, mode } => {
                writer.create(&chroot.add_to_created(path, *mode), data, acl, *mode);
            }
            Call::CreateAndList { dir, prefix, data, acl } => {
                let chroot = chroot.prefix().unwrap_or_default();
                let [dir, slash, prefix] = path_of_child(dir, prefix);
                writer.create(&[chroot, dir, slash, prefix], data, acl, CreateMode::EphemeralSequential);
            }
            Call::Delete { path, version } => {
                writer.concat(&chroot.add_to(path));
                writer.version(*version);
            }
            Call::Exists { path, watch }
            | Call::GetData { path, watch }
            | Call::GetChildren { path, watch } => {
                writer.concat(&chroot.add_to(path));
                writer.bool(*watch);
            }
            Call::SetData { path, data, version } => {
                writer.concat(&chroot.add_to(path));
                writer.buffer(data);
                writer.version(*version);
            }
            Call::Multi(steps) => {
                for step in &**steps {
                    writer.multi_header(OpCode::of_step(step).number(), false, -1);
                    writer.step(step, chroot);
                }
                writer.multi_header(MULTI_END, true, -1);
            }
        });
    }
}

impl Writer<'_> {
    fn request(frame: &mut Vec<u8>, xid: i32, operation: OpCode, record: impl FnOnce(&mut Writer<'_>)) {
        Writer::frame(frame, |writer| {
            writer.i32(xid);
            writer.i32(operation.number());
            record(writer);
        });
    }

    fn step(&mut self, step: &Op, chroot: &Chroot) {
        let path = chroot.add_to(step.path());
        match step {
            Op::Create { path, data, acl, mode } => {
                self.create(&chroot.add_to_created(path, *mode), data, acl, *mode);
            }
            Op::Delete { version, .. } | Op::Check { version, .. } => {
                self.concat(&path);
                self.version(*version);
            }
            Op::SetData { data, version, .. } => {
                self.concat(&path);
                self.buffer(data);
                self.version(*version);
            }
        }
    }

    fn create(&mut self, path: &[&str], data: &[u8], acl: &[Acl], mode: CreateMode) {
        self.concat(path);
        self.buffer(data);
        self.acl(acl);
        self.i32(create_flags(mode));
    }

    fn version(&mut self, version: Option<i32>) {
        self.i32(version.unwrap_or(ANY_VERSION));
    }
}

pub(super) fn create_flags(mode: CreateMode) -> i32 {
    match mode {
        CreateMode::Persistent => 0,
        CreateMode::Ephemeral => 1,
        CreateMode::PersistentSequential => 2,
        CreateMode::EphemeralSequential => 3,
        CreateMode::Container => 4,
    }
}
