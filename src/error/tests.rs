//! What the errors say, and which one a client's error becomes.

use super::*;
use std::error::Error as _;

#[test]
fn error_names_operation_path_and_advice_and_keeps_its_source() {
    let error = LockError::client(Operation::CREATE, "/a", ZkError::NoAuth);
    assert!(error.is_access_denied());
    assert_eq!(
        error.to_string(),
        "create '/a': access denied; the ACL grants this client no CREATE permission there"
    );
    assert!(error.source().is_some());
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
fn refusal_is_recoverable_and_names_quota_and_throttling() {
    let error = LockError::client(Operation::CREATE, "/a", ZkError::Throttled);
    assert!(error.is_recoverable(), "{error:?}");
    let message = error.to_string();
    for part in ["create '/a': ", "quota", "throttl", "try again later"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn every_client_error_has_its_variant() {
    let made_of = |source| LockError::client(Operation::LIST, "/a", source);
    assert!(made_of(ZkError::ConnectionLoss).is_connection_loss());
    assert!(made_of(ZkError::OperationTimeout).is_connection_loss());
    assert!(made_of(ZkError::SessionExpired).is_session_lost());
    assert!(made_of(ZkError::AuthFailed).is_access_denied());
    assert!(matches!(made_of(ZkError::InvalidAcl), LockError::InvalidAcl { .. }));
    assert!(matches!(made_of(ZkError::Throttled), LockError::Refused { .. }));
    assert!(matches!(made_of(ZkError::Unimplemented), LockError::Unsupported { .. }));
    assert!(matches!(made_of(ZkError::NoNode), LockError::Server { .. }));
}
