//! The process, which never forks here.

#[derive(Clone, Copy, Debug)]
pub(crate) struct Process;

impl Process {
    pub(crate) fn is_current(self) -> bool {
        true
    }
}
