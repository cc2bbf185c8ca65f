//! No source file is longer than a reader takes in.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::path::{Path, PathBuf};

/// Lines.
const MOST: usize = 600;

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_file_is_too_long() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![];
    ["crates", "fuzz/fuzz_targets", "fuzz/src"].iter().for_each(|below| sources(&root.join(below), &mut files));
    assert!(files.len() > 100);
    let lines = |path: &PathBuf| fs::read_to_string(path).unwrap().lines().count();
    let long: Vec<_> = files.iter().map(|path| (lines(path), path)).filter(|(lines, _)| *lines > MOST).collect();
    assert!(long.is_empty(), "longer than {MOST} lines: {long:?}");
}
