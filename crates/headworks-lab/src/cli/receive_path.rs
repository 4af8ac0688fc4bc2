//! `headworks-lab run receive-path`: requests through one connection of the server, for benches/counts.sh.
//!
//! Exit codes: 0 all requests were answered, 1 otherwise.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use headworks_server::{RECEIVE_PATH_ROUND, ReceivePath, ReceivePathOp};

use crate::cli::complain;

/// Options of `headworks-lab run receive-path`.
#[derive(Args)]
pub struct ReceivePathArgs {
    /// What the requests do, with 4 KiB each
    #[arg(long, value_enum, default_value_t = OpName::Read)]
    op: OpName,
    /// Rounds of 64 requests
    #[arg(long, default_value_t = 1000)]
    rounds: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum OpName {
    Read,
    Write,
}

impl ReceivePathArgs {
    /// Passes the rounds and prints their number.
    pub fn run(self) -> ExitCode {
        match self.pass() {
            Ok(()) => {
                println!(
                    "{} requests answered",
                    self.rounds.saturating_mul(RECEIVE_PATH_ROUND as u64)
                );
                ExitCode::SUCCESS
            }
            Err(error) => {
                complain(error);
                ExitCode::FAILURE
            }
        }
    }

    fn pass(&self) -> Result<(), String> {
        let mut path = ReceivePath::new(match self.op {
            OpName::Read => ReceivePathOp::Read,
            OpName::Write => ReceivePathOp::Write,
        })?;
        (0..self.rounds).try_for_each(|_| path.round())
    }
}
