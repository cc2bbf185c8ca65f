//! The pages name files that are there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::path::{Path, PathBuf};

fn files(directory: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

/// Names of source files in backquotes.
fn named(page: &str) -> Vec<&str> {
    let words = page.split('`').skip(1).step_by(2);
    words.filter(|word| word.ends_with(".rs") && !word.contains(char::is_whitespace)).collect()
}

#[test]
fn a_source_file_that_a_page_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let (mut sources, mut pages) = (vec![], vec![]);
    ["crates", "fuzz/fuzz_targets"].iter().for_each(|below| files(&root.join(below), "rs", &mut sources));
    files(&root.join("docs"), "md", &mut pages);
    pages.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|page| root.join(page)));
    // Pages name files from their crate, or from the directory that they are about.
    let sources: Vec<String> =
        sources.iter().map(|path| format!("/{}", path.strip_prefix(&root).unwrap().to_str().unwrap())).collect();
    let short: Vec<String> = sources.iter().map(|path| path.replace("/src/", "/")).collect();
    let is_there = |name: &str| {
        let end = format!("/{name}");
        sources.iter().chain(&short).any(|path| path.ends_with(&end))
    };
    let mut count = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let gone: Vec<&str> = named(&text).into_iter().filter(|name| !is_there(name)).collect();
        assert!(gone.is_empty(), "{} names {gone:?}", page.display());
        count += named(&text).len();
    }
    assert!(count > 50, "{count}");
}
