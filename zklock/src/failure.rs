//! [`Failure`]: why the program ends, and its exit code.
//!
//! The codes follow sysexits.h. For subcommands that run a command, they also follow timeout(1) and flock(1).

use std::error::Error;
use std::io;
use std::iter;

use zookeeper_recipes_lock::{ErrorReason, LockError};

use crate::stderr::complain;

pub(crate) const WARNINGS: u8 = 1;
pub(crate) const NOBODY: u8 = 1;
pub(crate) const USAGE: u8 = 64;
pub(crate) const NO_LOCK: u8 = 65;
pub(crate) const NO_DIRECTORY: u8 = 66;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const SYSTEM: u8 = 70;
pub(crate) const CANNOT_CREATE: u8 = 73;
pub(crate) const OUTPUT: u8 = 74;
pub(crate) const NOT_ACQUIRED: u8 = 75;
pub(crate) const LOST: u8 = 76;
pub(crate) const DENIED: u8 = 77;
pub(crate) const CONFIG: u8 = 78;
/// The first code that sysexits.h does not define.
pub(crate) const ALREADY_DONE: u8 = 79;
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;
/// 128 + SIGPIPE, as the shell reports a program that SIGPIPE has ended.
pub(crate) const CLOSED_PIPE: u8 = 141;

/// The methods that messages of the library name, each with the options of this program that call it.
const OPTIONS: [(&str, &str); 5] = [
    ("SessionBuilder::auth", "--auth"),
    ("SessionBuilder::jute_max_buffer", "--jute-max-buffer"),
    ("TlsConfig::client_certificate", "--cert and --cert-key"),
    ("TlsConfig::ca_file", "--ca"),
    ("TlsConfig::server_name", "--tls-server-name"),
];

/// Why the program ends without success.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// One line; empty if there is nothing to report.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    /// A failure to write to standard output. A closed pipe is not reported.
    pub(crate) fn output(error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::new(CLOSED_PIPE, ""),
            _ => Failure::new(OUTPUT, format!("the output cannot be written: {error}")),
        }
    }

    /// Writes the message to standard error.
    pub(crate) fn report(&self) {
        if !self.message.is_empty() {
            complain(&self.message);
        }
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Failure {
        Failure::new(code_of(&error), describe(&error))
    }
}

/// An error and its causes, in one line, with the names of this program's options. A cause that the line already
/// contains is left out.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    let causes = iter::successors(error.source(), |&error| error.source()).map(ToString::to_string);
    let line = causes.fold(error.to_string(), |line, cause| match line.contains(&cause) {
        true => line,
        false => format!("{line}: {cause}"),
    });
    OPTIONS.iter().fold(line, |line, (method, option)| line.replace(method, option))
}

/// The exit code of an error.
pub(crate) fn code_of(error: &LockError) -> u8 {
    match error.reason() {
        ErrorReason::InvalidTls | ErrorReason::CertificateRefused => CONFIG,
        ErrorReason::InvalidArgument | ErrorReason::CallTooLong => USAGE,
        ErrorReason::NotALock => NO_LOCK,
        ErrorReason::NoSuchRequest => NO_DIRECTORY,
        ErrorReason::NoChroot
        | ErrorReason::InvalidAcl
        | ErrorReason::Refused
        | ErrorReason::SequenceExhausted => CANNOT_CREATE,
        ErrorReason::NodeDeleted | ErrorReason::HeldTooLong | ErrorReason::NotOwner => LOST,
        ErrorReason::AccessDenied | ErrorReason::CredentialsRefused => DENIED,
        ErrorReason::Thread => SYSTEM,
        // Among them is an ended lease: the cause is a lost contact.
        _ => UNAVAILABLE,
    }
}
