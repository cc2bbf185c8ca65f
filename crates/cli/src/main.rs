//! The `reservoir` command: one binary for every role.

mod api;
mod args;
mod authority;
mod background;
mod bench;
mod catalog;
mod change;
mod clean;
mod client;
mod commands;
mod demo;
mod down;
mod fewer;
mod gateway;
mod gateway_file;
mod join;
mod keys;
mod local_cluster;
mod location;
mod log;
mod memory;
mod migrate;
mod node_cluster;
mod objects;
mod output;
mod password;
mod permissions;
mod plan;
mod plot;
mod process;
mod report;
mod rewrite;
mod roles;
mod running;
mod s3_endpoint;
mod silence;
mod simulate;
mod units;
mod up;
mod users;
mod watch;

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
