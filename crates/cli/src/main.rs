//! The `reservoir` command: one binary for every role.

mod api;
mod args;
mod bench;
mod catalog;
mod clean;
mod client;
mod commands;
mod demo;
mod gateway;
mod layout;
mod log;
mod numbers;
mod objects;
mod output;
mod private;
mod process;
mod roles;
mod service;
mod silence;
mod simulate;
mod token;
mod up;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let args = args::Args::parse();
    match commands::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line: what failed, then why, from the outside inwards.
            let line = format!("{error:#}").replace('\n', " ");
            crate::output::say!("reservoir: {line}");
            ExitCode::FAILURE
        }
    }
}
