//! `make` on a machine where something is missing: what it installs, and what it says of that.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

/// A script that everybody may run.
fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// `make` of a target where nothing is installed but what every machine has, and `curl` does this.
fn make(home: &Path, target: &str, curl: &str, variables: &[(&str, &str)]) -> Output {
    let programs = home.join("programs");
    fs::create_dir_all(&programs).unwrap();
    for program in ["sh", "make", "mktemp", "rm", "mkdir", "cat", "chmod"] {
        let found = testkit::in_path(program).unwrap();
        let _ = symlink(found, programs.join(program));
    }
    script(&programs.join("curl"), curl);
    let mut command = Command::new(programs.join("make"));
    command.arg("--directory").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).arg(target);
    command.env_clear().env("HOME", home).env("PATH", &programs).envs(variables.iter().copied());
    command.output().unwrap()
}

/// What the installer that `curl` brings does: it is run so that it does not ask, and `cargo` is there afterwards.
const INSTALLER: &str = r#"
while [ "$1" != --output ]; do shift; done
cat > "$2" <<'END'
[ "$1" = -y ] || exit 3
mkdir -p "$HOME/.cargo/bin"
echo '#!/bin/sh' > "$HOME/.cargo/bin/cargo"
chmod +x "$HOME/.cargo/bin/cargo"
END"#;

#[test]
fn rust_is_installed_where_it_is_missing_and_that_is_said() {
    let home = tempfile::tempdir().unwrap();
    let first = make(home.path(), "rust", INSTALLER, &[]);
    let printed = String::from_utf8(first.stderr).unwrap();
    assert!(first.status.success() && printed.contains("Rust is missing: its installer"), "{printed}");
    assert!(home.path().join(".cargo/bin/cargo").exists());
    let second = make(home.path(), "rust", "exit 1", &[]);
    assert!(second.status.success() && second.stderr.is_empty());
}

#[test]
fn nothing_is_installed_where_that_is_forbidden_or_fails() {
    let home = tempfile::tempdir().unwrap();
    for (curl, variables, why) in [
        (INSTALLER, &[("NO_INSTALL", "1")][..], "NO_INSTALL forbids"),
        ("echo 'curl: no route' >&2; exit 7", &[], "could not be installed"),
        ("while [ \"$1\" != --output ]; do shift; done; echo 'exit 1' > \"$2\"", &[], "could not be installed"),
    ] {
        let output = make(home.path(), "rust", curl, variables);
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && printed.contains(why), "{printed}");
        assert!(!home.path().join(".cargo").exists());
    }
}

#[test]
fn what_tests_may_install_is_said_and_rustup_is_told_what_is_forbidden() {
    let home = tempfile::tempdir().unwrap();
    let programs = home.path().join(".cargo/bin");
    fs::create_dir_all(&programs).unwrap();
    script(&programs.join("cargo"), "echo \"automatic: ${RUSTUP_AUTO_INSTALL-as usual}\"");
    for (variables, may_install, automatic) in [
        (&[][..], true, "automatic: as usual\n"),
        (&[("NO_INSTALL", "")], true, "automatic: as usual\n"),
        (&[("NO_INSTALL", "1")], false, "automatic: 0\n"),
    ] {
        let output = make(home.path(), "test", "exit 1", variables);
        let [printed, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success() && printed.contains(automatic), "{variables:?}: {printed}{said}");
        assert_eq!(said.contains("NO_INSTALL=1 forbids it") && said.lines().count() == 1, may_install, "{said}");
        assert!(may_install || said.is_empty(), "{said}");
    }
}
