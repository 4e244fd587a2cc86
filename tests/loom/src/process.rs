//! The process, which does not fork here.

#[derive(Clone, Copy, Debug)]
pub(crate) struct Process;

impl Process {
    pub(crate) fn is_current(self) -> bool {
        true
    }
}
