//! The `headworks-lab` program: [`headworks_lab::cli`] with a counting allocator.

use std::process::ExitCode;

use headworks_lab::cli::{self, allocations::Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    cli::main()
}
