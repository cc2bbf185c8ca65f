//! Clients that people use, unmodified, against a cluster that `up` started: aws, boto3, rclone and s3cmd.
//!
//! They are installed once into `target/clients`, as `clients/requirements.txt` says.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]

#[path = "common/client.rs"]
mod client;
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use client::S3;
use common::{Cluster, content};

const REQUIREMENTS: &str = include_str!("clients/requirements.txt");

/// The directory of the clients' programs, or why there is none.
fn programs() -> &'static Result<PathBuf, String> {
    static PROGRAMS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("clients");
        let installed = home.join("installed.txt");
        if fs::read_to_string(&installed).is_ok_and(|text| text == REQUIREMENTS) {
            return Ok(home.join("bin"));
        }
        let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/requirements.txt");
        testkit::may_install("what clients/requirements.txt names")?;
        let python = testkit::find_or_install("python3-venv", || {
            let python = testkit::in_path("python3")?;
            let has_venv = Command::new(&python).args(["-c", "import ensurepip, venv"]).output().ok()?.status.success();
            has_venv.then_some(python)
        })?;
        eprintln!("clients are missing: pip installs them into {} now; NO_INSTALL=1 would forbid it", home.display());
        ran(Command::new(python).args(["-m", "venv", "--clear"]).arg(&home));
        let pip = ["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "--requirement"];
        ran(Command::new(home.join("bin/python3")).args(pip).arg(list));
        fs::write(installed, REQUIREMENTS).unwrap();
        Ok(home.join("bin"))
    })
}

/// Runs a command, which must succeed; what it printed.
#[track_caller]
fn ran(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

/// A cluster, a directory to work in, and the keys of the cluster.
struct Bench {
    place: tempfile::TempDir,
    s3: S3,
    cluster: Cluster,
}

impl Bench {
    /// None where the clients are not, and may not be installed.
    fn new() -> Option<Self> {
        if let Err(why) = programs() {
            eprintln!("skipped: {why}");
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
        Some(Self { s3: S3::of(&cluster), place, cluster })
    }

    /// The same with more lines in the section `[s3]` of `gateway.toml`.
    fn configured(self, lines: &str) -> Self {
        let Self { place, cluster, .. } = self;
        let directory = cluster.directory.clone();
        assert!(cluster.stop());
        let path = directory.join("gateway.toml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text.replace("[s3]\n", &format!("[s3]\n{lines}\n"))).unwrap();
        let cluster = Cluster::start(&directory, &[]);
        Self { s3: S3::of(&cluster), place, cluster }
    }

    /// What programs that use boto3 expect, at this endpoint.
    fn boto3(&self, endpoint: &str, more: &[&str]) {
        self.script("boto3_test.py", endpoint, more);
    }

    /// Runs one of the scripts in `clients`.
    fn script(&self, name: &str, endpoint: &str, more: &[&str]) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name);
        let keys = [&self.s3.key, &self.s3.secret];
        ran(self.program("python3").arg(script).arg(endpoint).args(keys).args(more));
    }

    fn path(&self, name: &str) -> String {
        self.place.path().join(name).to_str().unwrap().to_owned()
    }

    /// A file of random bytes.
    fn file(&self, name: &str, length: usize) -> (String, Vec<u8>) {
        let bytes = content(length, length as u64);
        fs::write(self.path(name), &bytes).unwrap();
        (self.path(name), bytes)
    }

    /// One of the programs, with nothing of this machine's settings.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(programs().as_ref().unwrap().join(name));
        command.env("HOME", self.place.path()).env("AWS_ACCESS_KEY_ID", &self.s3.key);
        command.env("AWS_SECRET_ACCESS_KEY", &self.s3.secret).env("AWS_DEFAULT_REGION", "us-east-1");
        command.env_remove("AWS_PROFILE").env_remove("AWS_ENDPOINT_URL").current_dir(self.place.path());
        command
    }
}

#[test]
fn boto3() {
    let Some(bench) = Bench::new() else { return };
    bench.boto3(&bench.s3.endpoint, &["path"]);
}

#[test]
fn an_upload_of_ten_thousand_parts() {
    let Some(bench) = Bench::new() else { return };
    bench.script("parts_test.py", &bench.s3.endpoint, &[]);
}

#[test]
fn boto3_with_buckets_as_hosts() {
    let Some(bench) = Bench::new() else { return };
    let bench = bench.configured("domain = \"localhost\"");
    let endpoint = bench.s3.endpoint.replace("127.0.0.1", "localhost");
    bench.boto3(&endpoint, &["virtual"]);
    // Hosts that are not below the domain name buckets in paths.
    bench.boto3(&endpoint, &["path"]);
}

#[test]
fn boto3_and_aws_with_encrypted_connections_and_compressed_chunks() {
    let Some(bench) = Bench::new() else { return };
    let names = ["s3.localhost", "*.s3.localhost", "127.0.0.1"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    fs::write(bench.cluster.directory.join("s3.pem"), made.cert.pem()).unwrap();
    fs::write(bench.cluster.directory.join("s3.key"), made.signing_key.serialize_pem()).unwrap();
    let plain = bench.s3.endpoint.clone();
    let lines = "domain = \"s3.localhost\"\ncertificate = \"s3.pem\"\nkey = \"s3.key\"\ncompress = true";
    let bench = bench.configured(lines);
    assert_eq!(bench.s3.endpoint, plain.replace("http://", "https://"));
    let certificate = bench.cluster.directory.join("s3.pem");
    let certificate = certificate.to_str().unwrap();
    let endpoint = bench.s3.endpoint.replace("127.0.0.1", "s3.localhost");
    bench.boto3(&endpoint, &["virtual", certificate]);
    let aws = |more: &[&str]| {
        let mut command = bench.program("aws");
        command.args(["--endpoint-url", &bench.s3.endpoint, "s3", "mb", "s3://encrypted"]).args(more);
        command.output().unwrap()
    };
    assert!(aws(&["--ca-bundle", certificate]).status.success());
    let refused = aws(&[]);
    assert!(!refused.status.success(), "a certificate that nobody vouches for is refused by the client");
    // Nobody is answered in the clear.
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    assert!(agent.get(&plain).call().is_err());
}

#[test]
fn aws() {
    let Some(bench) = Bench::new() else { return };
    let aws = |args: &[&str]| ran(bench.program("aws").args(["--endpoint-url", &bench.s3.endpoint]).args(args));
    // Larger than the threshold of a multipart upload.
    let (large, bytes) = bench.file("large", 20 << 20);
    let (small, _) = bench.file("small", 1_000);
    aws(&["s3", "mb", "s3://first"]);
    aws(&["s3", "cp", &large, "s3://first/a/large"]);
    aws(&["s3", "cp", &small, "s3://first/small", "--content-type", "text/plain"]);
    let copy = bench.path("copy");
    aws(&["s3", "cp", "s3://first/a/large", &copy]);
    assert!(fs::read(&copy).unwrap() == bytes);
    assert!(aws(&["s3", "ls", "s3://first"]).contains("PRE a/"));
    let tree = bench.path("tree");
    for n in 0..20 {
        fs::create_dir_all(format!("{tree}/{}", n % 3)).unwrap();
        fs::write(format!("{tree}/{}/{n}", n % 3), content(n * 1_000, n as u64)).unwrap();
    }
    aws(&["s3", "sync", &tree, "s3://first/tree"]);
    assert_eq!(aws(&["s3", "sync", &tree, "s3://first/tree"]), "", "nothing is left to do");
    let back = bench.path("back");
    aws(&["s3", "sync", "s3://first/tree", &back]);
    ran(Command::new("diff").args(["-r", &tree, &back]));
    aws(&["s3", "mv", "s3://first/small", "s3://first/moved"]);
    let head = aws(&["s3api", "head-object", "--bucket", "first", "--key", "moved"]);
    assert!(head.contains("text/plain"), "{head}");
    aws(&["s3", "rm", "--recursive", "s3://first"]);
    aws(&["s3", "rb", "s3://first"]);
    assert_eq!(aws(&["s3", "ls"]), "");
}

#[test]
fn rclone() {
    let Some(bench) = Bench::new() else { return };
    let rclone = |args: &[&str]| {
        let mut command = bench.program("rclone");
        for (key, value) in [
            ("TYPE", "s3"),
            ("PROVIDER", "Other"),
            ("ENDPOINT", &bench.s3.endpoint),
            ("ACCESS_KEY_ID", &bench.s3.key),
            ("SECRET_ACCESS_KEY", &bench.s3.secret),
        ] {
            command.env(format!("RCLONE_CONFIG_R_{key}"), value);
        }
        ran(command.args(["--s3-upload-cutoff", "8M", "--s3-chunk-size", "5M"]).args(args))
    };
    let tree = bench.path("tree");
    for n in 0..12 {
        fs::create_dir_all(format!("{tree}/ü {}", n % 2)).unwrap();
        fs::write(format!("{tree}/ü {}/{n}", n % 2), content(n * 1_000_000, n as u64)).unwrap();
    }
    rclone(&["mkdir", "R:second"]);
    rclone(&["copy", &tree, "R:second/tree"]);
    rclone(&["check", &tree, "R:second/tree"]);
    rclone(&["check", "--download", &tree, "R:second/tree"]);
    assert_eq!(rclone(&["lsf", "--recursive", "--files-only", "R:second"]).lines().count(), 12);
    fs::remove_file(format!("{tree}/ü 0/2")).unwrap();
    rclone(&["sync", &tree, "R:second/tree"]);
    assert_eq!(rclone(&["lsf", "--recursive", "--files-only", "R:second"]).lines().count(), 11);
    rclone(&["purge", "R:second"]);
}

#[test]
fn s3cmd() {
    let Some(bench) = Bench::new() else { return };
    let host = bench.s3.endpoint.trim_start_matches("http://");
    let s3cmd = |args: &[&str]| {
        let keys = [format!("--access_key={}", bench.s3.key), format!("--secret_key={}", bench.s3.secret)];
        let hosts = [format!("--host={host}"), format!("--host-bucket={host}")];
        ran(bench.program("s3cmd").args(keys).args(hosts).args(["--no-ssl", "--multipart-chunk-size-mb=5"]).args(args))
    };
    let (large, bytes) = bench.file("large", 12 << 20);
    s3cmd(&["mb", "s3://third"]);
    s3cmd(&["put", &large, "s3://third/a/large file"]);
    let copy = bench.path("copy");
    s3cmd(&["get", "s3://third/a/large file", &copy]);
    assert!(fs::read(&copy).unwrap() == bytes);
    assert!(s3cmd(&["ls", "s3://third/a/"]).contains("large file"));
    assert!(s3cmd(&["info", "s3://third/a/large file"]).contains("12582912"));
    s3cmd(&["cp", "s3://third/a/large file", "s3://third/b"]);
    s3cmd(&["del", "--recursive", "--force", "s3://third"]);
    s3cmd(&["rb", "s3://third"]);
}
