//! Checks that transactions take effect as a whole or not at all.

use super::scene::{Outcome, Problem, Scene, done, same};
use super::{Check, ensure, named};
use zookeeper_recipes_lock::client::ZkError;
use zookeeper_recipes_lock::client::port::{Op, Transacted, Verbs, ZooKeeperClient};
use zookeeper_recipes_lock::client::{Acl, CreateMode};
use zookeeper_recipes_lock::data::OpOutcome;

pub(super) const CHECKS: &[Check] = &[
    named!(transaction_takes_effect_in_order),
    named!(failed_transaction_changes_nothing),
    named!(failed_check_fails_a_transaction),
];

fn set(path: &str, data: &[u8]) -> Op {
    Op::SetData { path: path.to_owned(), data: data.to_vec(), version: None }
}

fn delete(path: &str) -> Op {
    Op::Delete { path: path.to_owned(), version: None }
}

fn check(path: &str, version: Option<i32>) -> Op {
    Op::Check { path: path.to_owned(), version }
}

fn create(path: &str, mode: CreateMode) -> Op {
    Op::Create { path: path.to_owned(), data: b"new".to_vec(), acl: Acl::open_unsafe(), mode }
}

fn transact(client: &dyn ZooKeeperClient, operations: &[Op]) -> Outcome<Transacted> {
    match client.transact(operations) {
        Err(ZkError::Unimplemented) => Err(Problem::Lacking("transactions")),
        outcome => done("transact", outcome),
    }
}

fn transaction_takes_effect_in_order(scene: &Scene<'_>) -> Outcome {
    let (client, kept, gone) = (scene.connect()?, scene.given("kept")?, scene.given("gone")?);
    let (made, numbered) = (scene.path("made"), scene.path("numbered-"));
    let outcome = transact(
        &*client,
        &[
            check(&kept, Some(0)),
            create(&made, CreateMode::Persistent),
            create(&format!("{made}/child"), CreateMode::Ephemeral),
            create(&numbered, CreateMode::PersistentSequential),
            set(&kept, b"set"),
            delete(&gone),
        ],
    )?;
    let Transacted::Committed(outcomes) = outcome else {
        return Err(Problem::Violated(format!("a transaction: {outcome:?}")));
    };
    let [checked, first, second, third, changed, deleted] = outcomes.as_slice() else {
        return Err(Problem::Violated(format!("the outcomes of six operations: {outcomes:?}")));
    };
    same("the outcome of a check", checked, &OpOutcome::Checked)?;
    same("the outcome of a create", first, &OpOutcome::Created(made.clone()))?;
    same(
        "the outcome of a create below the new znode",
        second,
        &OpOutcome::Created(format!("{made}/child")),
    )?;
    let number =
        |path: &str| path.strip_prefix(&numbered).is_some_and(|number| number.parse::<i32>().is_ok());
    ensure!(matches!(third, OpOutcome::Created(path) if number(path)), "a sequential create: {third:?}");
    ensure!(matches!(changed, OpOutcome::DataSet(stat) if stat.version == 1), "a change: {changed:?}");
    same("the outcome of a delete", deleted, &OpOutcome::Deleted)?;
    same("the new data", done("get_data", scene.other.get_data(&kept, false))?.0, b"set".to_vec())?;
    same("the deleted znode", done("exists", scene.other.exists(&gone, false))?, None)?;
    let child = done("exists", scene.other.exists(&format!("{made}/child"), false))?;
    ensure!(child.is_some_and(|stat| stat.session().is_some()), "the ephemeral child: {child:?}");
    Ok(())
}

fn failed_transaction_changes_nothing(scene: &Scene<'_>) -> Outcome {
    let (client, kept) = (scene.connect()?, scene.given("kept")?);
    let (made, missing) = (scene.path("made"), scene.path("missing"));
    let operations =
        [create(&made, CreateMode::Persistent), set(&kept, b"set"), delete(&missing), delete(&kept)];
    let failed = Transacted::Failed { position: 2, error: ZkError::NoNode };
    same("a transaction that deletes a missing znode", transact(&*client, &operations)?, failed)?;
    same(
        "a znode that the failed transaction would create",
        done("exists", scene.other.exists(&made, false))?,
        None,
    )?;
    let (data, stat) = done("get_data", scene.other.get_data(&kept, false))?;
    same("the data that the failed transaction would set", (data, stat.version), (Vec::new(), 0))
}

fn failed_check_fails_a_transaction(scene: &Scene<'_>) -> Outcome {
    let (client, kept) = (scene.connect()?, scene.given("kept")?);
    let checks = [
        (check(&scene.path("missing"), None), ZkError::NoNode),
        (check(&kept, Some(7)), ZkError::BadVersion),
    ];
    for (check, error) in checks {
        let failed = Transacted::Failed { position: 0, error };
        same("a transaction", transact(&*client, &[check, set(&kept, b"set")])?, failed)?;
        let (_, stat) = done("get_data", scene.other.get_data(&kept, false))?;
        same("the version of the data that the failed transaction would set", stat.version, 0)?;
    }
    Ok(())
}
