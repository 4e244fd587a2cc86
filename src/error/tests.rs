//! Tests of the messages, and of the reason that each client error becomes.

use std::error::Error as _;

use super::*;
use crate::error::ErrorKind;

/// Shorthands for tests that check for one reason.
impl LockError {
    pub(crate) fn is_closed(&self) -> bool {
        self.reason() == ErrorReason::Closed
    }

    pub(crate) fn is_access_denied(&self) -> bool {
        self.reason() == ErrorReason::AccessDenied
    }

    pub(crate) fn is_invalid_argument(&self) -> bool {
        self.reason() == ErrorReason::InvalidArgument
    }
}

/// One error for each reason, grouped by kind. The error is about an operation on a path if the reason allows
/// that.
fn by_kind() -> [(ErrorKind, Vec<LockError>); 4] {
    let of = |reason| LockError::of(reason, Operation::LOCK, "/a");
    let client = |source| LockError::client(Operation::LOCK, "/a", source);
    let retry = vec![
        LockError::no_server("a server", Duration::ZERO),
        client(ZkError::ConnectionLoss),
        client(ZkError::Throttled),
        client(ZkError::SessionFull { limit: 1 }),
        LockError::thread(std::io::Error::from(std::io::ErrorKind::WouldBlock)),
    ];
    let lock_again = vec![
        of(ErrorReason::LeaseExpired),
        of(ErrorReason::NodeDeleted),
        of(ErrorReason::HeldTooLong),
        of(ErrorReason::NotOwner),
    ];
    let reconnect = vec![client(ZkError::SessionExpired), of(ErrorReason::SessionLost)];
    let permanent = vec![
        LockError::invalid_path("a".to_owned(), "a rule"),
        LockError::invalid_argument("argument", "a rule"),
        LockError::invalid_tls("a rule"),
        LockError::certificate_refused("zk1:2281 (why)"),
        LockError::turned_away(ErrorReason::CredentialsRefused, "zk1", "why"),
        LockError::turned_away(ErrorReason::NotZooKeeper, "zk1", "why"),
        LockError::outcome_unknown(Operation::LOCK, "/a", ZkError::ConnectionLoss),
        LockError::no_chroot(Operation::LOCK, "/a", Some("/app")),
        of(ErrorReason::SequenceExhausted),
        LockError::not_a_lock_request("/a", "a rule"),
        LockError::not_a_lock_directory("/a"),
        of(ErrorReason::NoSuchRequest),
        LockError::server_diverged(Operation::REVOKE, "/a", Some("zk1:2181")),
        LockError::znode_of_another(Operation::CREATE, "/a", Some(1)),
        client(ZkError::NoAuth),
        client(ZkError::InvalidAcl),
        of(ErrorReason::Cancelled),
        LockError::leader_panicked("/a", "boom"),
        of(ErrorReason::Closed),
        client(ZkError::Unimplemented),
        client(ZkError::EndsConnection { bytes: 1 }),
        client(ZkError::CallTooLong { bytes: 2, limit: 1 }),
        client(ZkError::NoNode),
        LockError::other("test"),
    ];
    [
        (ErrorKind::Retry, retry),
        (ErrorKind::LockAgain, lock_again),
        (ErrorKind::Reconnect, reconnect),
        (ErrorKind::Permanent, permanent),
    ]
}

fn one_of_each() -> Vec<LockError> {
    by_kind().into_iter().flat_map(|(_, errors)| errors).collect()
}

#[test]
fn every_message_names_operation_and_path_and_more() {
    for error in one_of_each() {
        let message = error.to_string();
        if let (Some(operation), Some(path)) = (error.operation(), error.path()) {
            let beginning = format!("{operation} '{path}': ");
            assert!(message.starts_with(&beginning) && message.len() > beginning.len() + 9, "{message}");
        }
        assert!(!message.is_empty() && !message.ends_with([':', '.', ' ']), "{message}");
    }
}

#[test]
fn message_without_a_source_names_the_remedy() {
    let advice = [
        (ErrorReason::Cancelled, "new cancel token"),
        (ErrorReason::NotOwner, "lock again"),
        (ErrorReason::Closed, "new session"),
        (ErrorReason::NodeDeleted, "lock again"),
        (ErrorReason::HeldTooLong, "raise the limit"),
        (ErrorReason::SequenceExhausted, "delete it"),
        (ErrorReason::LeaderPanicked, "start another"),
        (ErrorReason::NoServer, "check the connect string"),
        (ErrorReason::NoChroot, "create_chroot"),
        (ErrorReason::LeaseExpired, "lock again"),
    ];
    let all = one_of_each();
    for (reason, advice) in advice {
        let error = all.iter().find(|error| error.reason() == reason).unwrap();
        assert!(error.source().is_none() && error.to_string().contains(advice), "{error}");
    }
}

#[test]
fn every_reason_has_its_kind() {
    for (kind, errors) in by_kind() {
        for error in errors {
            assert_eq!(error.kind(), kind, "{error:?}");
        }
    }
}

#[test]
fn error_names_operation_path_and_advice_and_keeps_its_source() {
    let error = LockError::client(Operation::CREATE, "/a", ZkError::NoAuth);
    assert!(error.is_access_denied());
    assert_eq!((error.operation(), error.path()), (Some("create"), Some("/a")));
    assert_eq!(
        error.to_string(),
        "create '/a': access denied; the ACL of its parent '/' must grant this client CREATE permission"
    );
    let source = error.source().and_then(|source| source.downcast_ref::<ZkError>());
    assert_eq!(source, Some(&ZkError::NoAuth));
}

#[test]
fn source_of_the_application_is_its_own_error() {
    let error = LockError::other(std::io::Error::other("the disk is full"));
    let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    assert!(source.is_some(), "{error:?}");
}

#[test]
fn answer_of_the_server_is_in_the_message() {
    let error = LockError::client(Operation::SET_DATA, "/a", ZkError::BadVersion);
    assert_eq!(
        error.to_string(),
        format!("set the data of '/a': the server answered: {}", ZkError::BadVersion)
    );
}

#[test]
fn no_other_error_is_converted_to_a_lock_error() {
    struct Probe<T>(std::marker::PhantomData<T>);
    trait Fallback {
        const IS_CONVERTED: bool = false;
    }
    impl<T> Fallback for Probe<T> {}
    impl<T> Probe<T>
    where
        LockError: From<T>,
    {
        const IS_CONVERTED: bool = true;
    }
    const { assert!(Probe::<LockError>::IS_CONVERTED, "an error is converted to itself") };
    const { assert!(!Probe::<ZkError>::IS_CONVERTED) };
    const { assert!(!Probe::<std::io::Error>::IS_CONVERTED) };
}

#[test]
fn refused_acl_names_both_causes_and_their_remedies() {
    let message = LockError::client(Operation::CREATE, "/a", ZkError::InvalidAcl).to_string();
    assert!(message.starts_with("create '/a': "), "{message}");
    for part in ["empty", "unknown scheme", "no identity", "correct it", "authenticate"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn refusal_can_be_retried_and_names_quota_and_throttling() {
    let error = LockError::client(Operation::CREATE, "/a", ZkError::Throttled);
    assert_eq!(error.kind(), ErrorKind::Retry, "{error:?}");
    let message = error.to_string();
    for part in ["create '/a': ", "quota", "throttl", "try again later"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn every_client_error_has_its_reason() {
    let reason_of = |source| LockError::client(Operation::LIST, "/a", source).reason();
    assert_eq!(reason_of(ZkError::ConnectionLoss), ErrorReason::ConnectionLoss);
    assert_eq!(reason_of(ZkError::OperationTimeout), ErrorReason::ConnectionLoss);
    assert_eq!(reason_of(ZkError::SessionExpired), ErrorReason::SessionLost);
    assert_eq!(reason_of(ZkError::AuthFailed), ErrorReason::AccessDenied);
    assert_eq!(reason_of(ZkError::InvalidAcl), ErrorReason::InvalidAcl);
    assert_eq!(reason_of(ZkError::Throttled), ErrorReason::Refused);
    assert_eq!(reason_of(ZkError::Unimplemented), ErrorReason::Unsupported);
    assert_eq!(reason_of(ZkError::NoNode), ErrorReason::Server(ZkError::NoNode));
}

/// The reasons that a chapter of the operations guide lists below each heading with a kind.
fn documented() -> Vec<(ErrorKind, String)> {
    let guide = include_str!("../../docs/operations.md");
    let (_, chapter) = guide.split_once("\n## Errors\n").unwrap();
    let (chapter, _) = chapter.split_once("\n## ").unwrap();
    let kinds = [ErrorKind::Retry, ErrorKind::LockAgain, ErrorKind::Reconnect, ErrorKind::Permanent];
    let mut kind = None;
    let mut listed = Vec::new();
    for line in chapter.lines() {
        if let Some(heading) = line.strip_prefix("### `") {
            kind = kinds.into_iter().find(|kind| heading.starts_with(&format!("{kind:?}`: ")));
            assert!(kind.is_some(), "{line}");
        } else if let Some((reason, _)) = line.strip_prefix("- **`").and_then(|row| row.split_once("`**: ")) {
            listed.push((kind.unwrap(), reason.to_owned()));
        }
    }
    listed
}

#[test]
fn operations_guide_lists_each_reason_once_and_below_its_kind() {
    let name_of = |error: &LockError| {
        let name = format!("{:?}", error.reason());
        name.split('(').next().unwrap().to_owned()
    };
    let mut named: Vec<(ErrorKind, String)> =
        one_of_each().iter().map(|error| (error.reason().kind(), name_of(error))).collect();
    let mut documented = documented();
    let order = |(kind, name): &(ErrorKind, String)| (format!("{kind:?}"), name.clone());
    for list in [&mut named, &mut documented] {
        list.sort_by_key(order);
    }
    named.dedup();
    assert_eq!(documented, named);
}

#[test]
fn text_of_others_is_one_line_in_a_message() {
    let error = LockError::client(Operation::READ, "/a\u{202e}\n/b\x1b[2J", ZkError::NoNode);
    assert!(error.to_string().starts_with("read '/a\\u{202e}\\n/b\\u{1b}[2J': "), "{error}");
    assert!(!format!("{error:?}").contains(['\u{202e}', '\n', '\x1b']), "{error:?}");
    assert_eq!(error.path(), Some("/a\u{202e}\n/b\x1b[2J"), "a program gets the path as it is");
}

#[test]
fn each_loss_has_the_reason_of_the_same_name() {
    for loss in [
        LossReason::SessionLost,
        LossReason::LeaseExpired,
        LossReason::NodeDeleted,
        LossReason::HeldTooLong,
        LossReason::Closed,
    ] {
        assert_eq!(format!("{:?}", ErrorReason::from(loss)), format!("{loss:?}"));
    }
}

#[test]
fn missing_parent_is_named() {
    for source in [ZkError::NoNode, ZkError::NoChildrenForEphemerals] {
        let message = LockError::client(Operation::CREATE, "/a/b", source).to_string();
        assert!(message.starts_with("create '/a/b': its parent '/a' "), "{message}");
    }
    let message = LockError::client(Operation::DELETE, "/a/b", ZkError::NoNode).to_string();
    assert!(!message.contains("parent"), "{message}");
}
