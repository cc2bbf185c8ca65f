//! Commands of the system that set up networks.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Runs a command; its standard output.
///
/// # Errors
/// It cannot be started, or fails: with its own words.
pub(crate) fn run(program: &str, args: &[&str], input: &str) -> anyhow::Result<String> {
    let what = || format!("{program} {}", args.join(" "));
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(what)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that ends before it has read everything says why in its exit status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().with_context(what)?;
    if !output.status.success() {
        bail!("{}: {}", what(), String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// One `ip` command of words without spaces.
pub(crate) fn ip(words: &str) -> anyhow::Result<String> {
    run("ip", &words.split(' ').collect::<Vec<_>>(), "")
}

/// Many `ip` commands, a line each, in one process and one namespace (none: this process's own).
pub(crate) fn ip_batch(namespace: Option<&str>, lines: &[String]) -> anyhow::Result<()> {
    let place: &[&str] = match namespace {
        Some(name) => &["-n", name],
        None => &[],
    };
    run("ip", &[place, &["-batch", "-"]].concat(), &(lines.join("\n") + "\n")).map(drop)
}

/// One `tc` command of words without spaces.
pub(crate) fn tc(words: &str) -> anyhow::Result<()> {
    run("tc", &words.split_whitespace().collect::<Vec<_>>(), "").map(drop)
}
