//! Tables, JSON and progress.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::Context;
use comfy_table::{Cell, CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// Writes a line to standard error, as `eprintln!` does; where that cannot be written (a full disk under a log) the line is
/// lost, and nothing else.
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr().lock(), $($line)*);
    }};
}
pub(crate) use say;

/// This program as the user called it: what a hint says can then be typed.
pub(crate) fn program() -> String {
    std::env::args_os().next().map_or_else(|| "reservoir".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// What to do about a gateway that does not answer.
pub(crate) fn advice() -> String {
    format!(
        "start the cluster with `{} up` (where it runs, that may just be starting the gateway again), or name another with \
         --config",
        program()
    )
}

/// Most characters of a name in a table.
const SHOWN: usize = 48;

/// A name for a table: of a long one the beginning and the end, which distinguish it best from others.
pub(crate) fn shortened(name: &str) -> String {
    let name = printable(name);
    let count = name.chars().count();
    if count <= SHOWN {
        return name;
    }
    let (first, last) = (SHOWN * 2 / 3, SHOWN / 3 - 1);
    name.chars().take(first).chain(['…']).chain(name.chars().skip(count - last)).collect()
}

/// A name as a line can have it: whoever may put chooses keys, and a terminal takes control characters for commands.
pub(crate) fn printable(name: &str) -> String {
    name.chars().fold(String::new(), |mut text, c| {
        if c.is_control() {
            text.extend(c.escape_default())
        } else {
            text.push(c)
        }
        text
    })
}

/// Writes a value as JSON to standard output.
pub(crate) fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("the answer could not be written as JSON")?;
    line(&text)
}

/// Writes a line to standard output; a reader that has gone away is no error.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output could not be written")
        }
        _ => Ok(()),
    }
}

/// Writes pairs of a name and a value to standard output.
pub(crate) fn pairs<T: Into<String>>(rows: impl IntoIterator<Item = (T, String)>) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    for (what, value) in rows {
        table.add_row([what.into(), value]);
    }
    line(&table.to_string())
}

/// Writes a table to standard output; what begins with a digit is a number and stands to the right.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(header.iter().copied());
    for row in rows {
        table.add_row(row.into_iter().map(|text| {
            let number = text.starts_with(|c: char| c.is_ascii_digit());
            let cell = Cell::new(text);
            if number { cell.set_alignment(CellAlignment::Right) } else { cell }
        }));
    }
    line(&table.to_string())
}

/// A progress bar for bytes, of so many in all if that is known; nothing where nobody watches.
pub(crate) fn byte_bar(what: &str, total: Option<u64>) -> ProgressBar {
    let form = match total {
        Some(_) => "{msg} {bytes} of {total_bytes} {wide_bar} {binary_bytes_per_sec}",
        None => "{msg} {bytes} so far, {elapsed}, {binary_bytes_per_sec}",
    };
    bar(what, total, form)
}

/// A progress bar for steps; nothing where nobody watches.
pub(crate) fn step_bar(what: &str, total: u64) -> ProgressBar {
    bar(what, Some(total), "{msg} {pos} of {len} {wide_bar} {elapsed}")
}

/// A bar for runs: how many are done, and which share of all.
pub(crate) fn share_bar(parts: u64) -> ProgressBar {
    let bar = bar("", Some(parts), "{msg} {percent:>3} % {wide_bar} {elapsed}");
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}

fn bar(what: &str, total: Option<u64>, form: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(form) {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar
}
