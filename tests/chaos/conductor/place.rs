//! The directory for the history of a run.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

#[derive(Debug)]
pub enum Place {
    /// A directory that is removed unless it is kept.
    Temporary(TempDir),
    Given(PathBuf),
}

impl Place {
    pub fn make(keep: Option<&Path>) -> Place {
        let Some(dir) = keep else {
            let dir = tempfile::Builder::new().prefix("zookeeper-chaos-history.").tempdir();
            return Place::Temporary(dir.expect("a directory for temporary files"));
        };
        fs::create_dir_all(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let dir = dir.canonicalize().expect("it was just created");
        // The journals of another run would be read as part of this one.
        assert!(
            fs::read_dir(&dir).is_ok_and(|mut all| all.next().is_none()),
            "{} is not empty",
            dir.display()
        );
        Place::Given(dir)
    }

    pub fn path(&self) -> &Path {
        match self {
            Place::Temporary(dir) => dir.path(),
            Place::Given(dir) => dir,
        }
    }

    pub fn keep(self) -> PathBuf {
        match self {
            Place::Temporary(dir) => dir.keep(),
            Place::Given(dir) => dir,
        }
    }
}
