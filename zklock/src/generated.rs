//! `zklock completions` and `zklock man`: output generated from the definitions of the arguments.

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::failure::{Failure, OUTPUT};
use crate::output::print;

pub(crate) fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "zklock", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

pub(crate) fn man(args: &ManArgs) -> Result<u8, Failure> {
    clap_mangen::generate_to(Cli::command(), &args.dir).map_err(|error| {
        Failure::new(
            OUTPUT,
            format!("the manual pages cannot be written to '{}': {error}", args.dir.display()),
        )
    })?;
    Ok(0)
}
