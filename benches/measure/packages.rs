//! The packages in the tree of dependencies, as cargo lists them for this machine.

use std::collections::HashSet;
use std::process::Command;

use crate::table::print_packages;

const FEATURES: [(&str, &[&str]); 2] = [("default", &[]), ("`tls`", &["--features", "tls"])];

pub(crate) fn run() {
    print_packages(&FEATURES.map(|(name, features)| (name, count(features))));
}

/// Returns the number of packages, without this one.
fn count(features: &[&str]) -> usize {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["tree", "--locked", "-e", "normal", "--prefix", "none", "--no-dedupe"])
        .args(features)
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("names of packages are UTF-8");
    let packages: HashSet<&str> = tree.lines().filter(|line| !line.is_empty()).collect();
    packages.len() - 1
}
