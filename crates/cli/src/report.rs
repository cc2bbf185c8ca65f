//! One HTML file that needs nothing else: text, tables and plots.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use crate::args::ReportArgs;
use crate::output::{json, table};

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #bbb;padding:.25em .7em;text-align:right}\
    th{background:#eee}td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}";

/// Makes the directory that the report will be written into, if one is asked for, and sees that it can be.
pub(crate) fn make_directory(args: &ReportArgs) -> anyhow::Result<()> {
    let Some(directory) = &args.out else { return Ok(()) };
    fs::create_dir_all(directory).and_then(|()| tempfile::tempfile_in(directory).map(drop)).with_context(|| {
        format!("nothing can be written into {}: choose another directory with --out", directory.display())
    })
}

/// What a command measured, as objects and as a table.
pub(crate) struct Measured<'a, R> {
    pub(crate) objects: &'a [R],
    pub(crate) header: &'a [&'a str],
    pub(crate) rows: &'a [Vec<String>],
}

impl<R: Serialize> Measured<'_, R> {
    /// Prints it, and writes a report of it where one is asked for; `fill` adds what comes before the table.
    pub(crate) fn conclude(
        &self,
        args: &ReportArgs,
        title: &str,
        fill: impl FnOnce(&mut Report) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if args.json {
            json(&self.objects)?;
        } else {
            table(self.header, self.rows.to_vec())?;
        }
        let Some(directory) = &args.out else { return Ok(()) };
        let mut report = Report::new(title);
        fill(&mut report)?;
        report.table(self.header, self.rows);
        report.file("result.json", serde_json::to_string_pretty(&self.objects)?);
        crate::output::say!("written: {}", report.write(directory)?.display());
        Ok(())
    }
}

/// A report in the making.
pub(crate) struct Report {
    html: String,
    files: Vec<(String, String)>,
}

impl Report {
    pub(crate) fn new(title: &str) -> Self {
        let title = escaped(title);
        let html = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
        );
        Self { html, files: Vec::new() }
    }

    pub(crate) fn heading(&mut self, text: &str) {
        let _ = writeln!(self.html, "<h2>{}</h2>", escaped(text));
    }

    pub(crate) fn text(&mut self, text: &str) {
        let _ = writeln!(self.html, "<p>{}</p>", escaped(text));
    }

    pub(crate) fn table(&mut self, header: &[&str], rows: &[Vec<String>]) {
        self.html.push_str("<table><tr>");
        for cell in header {
            let _ = write!(self.html, "<th>{}</th>", escaped(cell));
        }
        self.html.push_str("</tr>\n");
        for row in rows {
            self.html.push_str("<tr>");
            for cell in row {
                let _ = write!(self.html, "<td>{}</td>", escaped(cell));
            }
            self.html.push_str("</tr>\n");
        }
        self.html.push_str("</table>\n");
    }

    /// A plot, in the page and as a file of its own.
    pub(crate) fn plot(&mut self, name: &str, svg: String) {
        let _ = writeln!(self.html, "<figure>{svg}</figure>");
        self.file(&format!("{name}.svg"), svg);
    }

    /// A file beside the page.
    pub(crate) fn file(&mut self, name: &str, contents: String) {
        self.files.push((name.to_owned(), contents));
    }

    /// Writes everything into `directory`, which [`make_directory`] has made; the path of the page.
    pub(crate) fn write(mut self, directory: &Path) -> anyhow::Result<PathBuf> {
        self.html.push_str("</body></html>\n");
        let page = directory.join("report.html");
        self.files.push(("report.html".to_owned(), self.html));
        for (name, contents) in &self.files {
            let path = directory.join(name);
            fs::write(&path, contents).with_context(|| format!("{} could not be written", path.display()))?;
        }
        Ok(page)
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
