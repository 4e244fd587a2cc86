//! What the server refuses.

use super::*;

#[test]
fn a_refused_create_names_the_permission() {
    let zk = SimulatedZooKeeper::new();
    zk.create_with_acl(DIR, b"", &[Acl::new(Permission::READ, "world", "anyone")]);
    let error = Party::join(&zk).blocking().lock().unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("CREATE"), "{error}");
}

#[test]
fn a_refused_listing_leaves_no_znode() {
    let zk = SimulatedZooKeeper::new();
    let acl = Permission::CREATE | Permission::DELETE;
    zk.create_with_acl(DIR, b"", &[Acl::new(acl, "world", "anyone")]);
    let party = Party::join(&zk);
    let error = party.blocking().lock().unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("READ"), "{error}");
    eventually("no znode is left", || zk.children(DIR).is_empty());
    let (lock, calls) = party.listening();
    assert!(lock.lock().unwrap_err().is_access_denied());
    assert_eq!(next(&calls), Call::Dropped(LossReason::Refused));
}

#[test]
fn a_deletion_that_is_refused_is_an_error() {
    let zk = SimulatedZooKeeper::new();
    let acl = Permission::CREATE | Permission::READ;
    zk.create_with_acl(DIR, b"", &[Acl::new(acl, "world", "anyone")]);
    let party = Party::join(&zk);
    let error = party.blocking().lock().unwrap().unlock().unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("DELETE"), "{error}");
    party.session.close();
    assert!(zk.children(DIR).is_empty(), "it goes with the session");
}
