//! A server of PostgreSQL of a test's own: a new cluster in a temporary directory, on a free port of the loopback
//! interface, stopped when this is dropped.
//!
//! The programs are those of this machine. Where there are none, and this is Debian and root, the package is installed
//! first, without a server of the system's own.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, bail, ensure};
use postgres::{Client, Config, NoTls};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::package::find_or_install;

/// How long the server may take to start or to stop.
const LIMIT: Duration = Duration::from_secs(60);
/// The user that runs it when the tests run as root, which it refuses: `nobody` everywhere.
const NOBODY: u32 = 65_534;
/// Ports that are tried, as another program may take one between the check and the start.
const TRIES: usize = 5;

/// A server.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    place: tempfile::TempDir,
    port: u16,
    server: Option<Child>,
    encrypts: bool,
    databases: AtomicU32,
}

impl Postgres {
    /// The password of its user `reservoir`.
    pub const PASSWORD: &'static str = "of-the-tests";

    /// Starts one.
    ///
    /// # Errors
    /// When the programs are not there and cannot be installed, or the server does not start.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_with(None, &std::env::temp_dir())
    }

    /// Starts one whose data are in a directory, which others than its owner may enter.
    ///
    /// # Errors
    /// As [`Postgres::start`].
    pub fn start_in(place: &Path) -> anyhow::Result<Self> {
        Self::start_with(None, place)
    }

    /// Starts one that has a certificate and its key (PEM), and takes other connections too.
    ///
    /// # Errors
    /// As [`Postgres::start`].
    pub fn start_encrypted(certificate: &str, key: &str) -> anyhow::Result<Self> {
        Self::start_with(Some((certificate, key)), &std::env::temp_dir())
    }

    fn start_with(certificate: Option<(&str, &str)>, parent: &Path) -> anyhow::Result<Self> {
        let programs = programs()?;
        let place =
            tempfile::Builder::new().prefix("postgres-").tempdir_in(parent).context("no temporary directory")?;
        let password = place.path().join("password");
        fs::write(&password, Self::PASSWORD).context("the password cannot be written")?;
        if geteuid().is_root() {
            for path in [place.path(), &password] {
                chown(path, Some(NOBODY), Some(NOBODY)).context("a directory cannot be given to nobody")?;
            }
        }
        let mut this = Self {
            programs,
            place,
            port: 0,
            server: None,
            encrypts: certificate.is_some(),
            databases: AtomicU32::new(0),
        };
        let mut make = this.command("initdb");
        make.arg("--pgdata").arg(this.data()).arg("--pwfile").arg(&password);
        // Texts are sorted by the rules of a language, as is usual: nothing may rely on the order of bytes.
        make.args(["--username=reservoir", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"]);
        let made = make.output().context("initdb does not start")?;
        ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr).replace('\n', "; "));
        if let Some((certificate, key)) = certificate {
            for (name, text) in [("server.crt", certificate), ("server.key", key)] {
                this.give(&this.data().join(name), text)?;
            }
        }
        for _ in 0..TRIES {
            this.port =
                TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).context("no free port")?.port();
            if this.start_again().is_ok() {
                return Ok(this);
            }
        }
        bail!("it does not start: {}", fs::read_to_string(this.log()).unwrap_or_default().replace('\n', "; "))
    }

    /// The address of a new, empty database, whose texts are sorted as English has them where the server can do that.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn database(&self) -> anyhow::Result<String> {
        Ok(self.url(&self.new_database()?))
    }

    fn new_database(&self) -> anyhow::Result<String> {
        let name = format!("catalog_{}", self.databases.fetch_add(1, Ordering::SeqCst));
        let mut client = self.connect()?;
        let english = format!("CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'");
        if client.batch_execute(&english).is_err() {
            client.batch_execute(&format!("CREATE DATABASE {name}")).context("a database cannot be made")?;
        }
        Ok(name)
    }

    /// The address of a new database that is reached without a network, by its directory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn local_database(&self) -> anyhow::Result<String> {
        let (name, place) = (self.new_database()?, self.place.path().display());
        Ok(format!("postgres:///{name}?host={place}&port={}&user=reservoir&password={}", self.port, Self::PASSWORD))
    }

    /// Its connections of this program, as it names itself: those that are encrypted, and those that are not.
    ///
    /// # Errors
    /// When it does not say.
    pub fn connections(&self, program: &str) -> anyhow::Result<(i64, i64)> {
        let sql = "SELECT COUNT(*) FILTER (WHERE ssl), COUNT(*) FILTER (WHERE NOT ssl) \
                   FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = $1";
        let row = self.connect()?.query_one(sql, &[&program])?;
        Ok((row.get(0), row.get(1)))
    }

    /// Lets it take only encrypted connections over the network, or others too, from its next start on.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn demand_encryption(&self) -> anyhow::Result<()> {
        let rule = |kind, address| format!("{kind} all all {address} scram-sha-256\n");
        self.give(&self.data().join("pg_hba.conf"), &(rule("local", "") + &rule("hostssl", "127.0.0.1/32")))
    }

    /// Writes a file that only the server may read.
    fn give(&self, path: &Path, text: &str) -> anyhow::Result<()> {
        fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).context("a file cannot be closed to others")?;
        if geteuid().is_root() {
            chown(path, Some(NOBODY), Some(NOBODY)).context("a file cannot be given to nobody")?;
        }
        Ok(())
    }

    /// Ends it as a crash of its machine would: what was not synced may be gone.
    ///
    /// # Errors
    /// When it does not end.
    pub fn crash(&mut self) -> anyhow::Result<()> {
        self.end(Signal::QUIT)
    }

    /// Starts it again, and waits until it answers.
    ///
    /// # Errors
    /// When it does not.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(self.log()).context("its log cannot be written")?;
        let errors = log.try_clone().context("its log cannot be shared")?;
        let mut start = self.command("postgres");
        start.arg("-D").arg(self.data()).arg("-p").arg(self.port.to_string()).arg("-k").arg(self.place.path());
        // In its directory, and not in what all of the machine share, where it would be left when a test is killed.
        start.args(["-c", "listen_addresses=127.0.0.1", "-c", "dynamic_shared_memory_type=mmap"]);
        if self.encrypts {
            start.args(["-c", "ssl=on"]);
        }
        self.server = Some(start.stdout(log).stderr(errors).spawn().context("postgres does not start")?);
        let deadline = Instant::now() + LIMIT;
        loop {
            if self.connect().is_ok() {
                return Ok(());
            }
            let ended = self.server.as_mut().is_none_or(|server| !matches!(server.try_wait(), Ok(None)));
            if ended || Instant::now() >= deadline {
                self.end(Signal::QUIT)?;
                bail!("it does not answer");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        if let (Ok(None), Some(pid)) = (server.try_wait(), Pid::from_raw(server.id() as i32)) {
            kill_process(pid, signal).context("postgres cannot be stopped")?;
        }
        let deadline = Instant::now() + LIMIT;
        while matches!(server.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                server.kill().context("postgres cannot be killed")?;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.place.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.place.path().join("log")
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://reservoir:{}@127.0.0.1:{}/{database}", Self::PASSWORD, self.port)
    }

    fn connect(&self) -> anyhow::Result<Client> {
        let mut local = Config::new();
        local.host_path(self.place.path()).port(self.port).user("reservoir").password(Self::PASSWORD);
        Ok(local.dbname("postgres").connect(NoTls)?)
    }

    /// One of the programs, which refuse root.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.current_dir(self.place.path()).stdin(Stdio::null()).env_remove("PGDATA");
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Nobody needs its data any more.
        let _ = self.end(Signal::QUIT);
    }
}

/// The directory of the programs.
fn programs() -> anyhow::Result<PathBuf> {
    if let Some(found) = find() {
        return Ok(found);
    }
    // Debian's package makes and starts a server on a fixed port, unless it is configured not to.
    let settings = || Some(PathBuf::from("/etc/postgresql-common/createcluster.conf")).filter(|path| path.exists());
    let settings = find_or_install("postgresql-common", settings).map_err(Error::msg)?;
    let text = fs::read_to_string(&settings).with_context(|| format!("{} cannot be read", settings.display()))?;
    fs::write(&settings, text + "\ncreate_main_cluster = false\n")
        .with_context(|| format!("{} cannot be written", settings.display()))?;
    find_or_install("postgresql", find).map_err(Error::msg)
}

/// Where Debian has them, or the search path: the newest when there are several.
fn find() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    versions.sort_by_key(|path| {
        let version = path.parent().and_then(Path::file_name).and_then(OsStr::to_str);
        version.and_then(|version| version.parse::<u32>().ok())
    });
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = versions.into_iter().rev().chain(std::env::split_paths(&path));
    let mut complete = places.filter(|place| place.join("initdb").exists() && place.join("postgres").exists());
    complete.next()
}
