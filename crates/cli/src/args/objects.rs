//! The command line of what works on objects.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::TableArgs;
use crate::location::Location;

/// Whose objects, in which cluster, and how to print.
#[derive(Debug, ClapArgs)]
pub(crate) struct ObjectArgs {
    /// Ask as this user (default: the first in users.toml).
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Which cluster, and how to print.
    #[command(flatten)]
    pub(crate) table: TableArgs,
}

/// Settings of `put`.
#[derive(Debug, ClapArgs)]
pub(crate) struct PutArgs {
    /// The file to store; `-` reads standard input (then TO is needed). With -r a directory.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Store it as this: s3://BUCKET/KEY, or a key in the bucket `files`, which is made when it is not there. One that ends in
    /// `/`, or a bucket alone, is a place for the last part of FILE (default: there, in `files`).
    #[arg(value_name = "TO")]
    pub(crate) to: Option<Location>,
    /// The same as TO.
    #[arg(long, hide = true, conflicts_with = "to")]
    pub(crate) name: Option<Location>,
    /// Store all files below a directory, each under its path in it. Links to directories are not followed.
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Keep it as this storage class says, which gateway.toml names (default: as the bucket says).
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,
    /// Whose objects, in which cluster, and how to print.
    #[command(flatten)]
    pub(crate) with: ObjectArgs,
}

/// Settings of `get`.
#[derive(Debug, ClapArgs)]
pub(crate) struct GetArgs {
    /// The object to read: s3://BUCKET/KEY, or a key in the bucket `files`. With -r what its keys begin with, up to a `/`.
    pub(crate) what: Location,
    /// Where to write it (default: the last part of the key, in this directory); `-` is standard output. With -r a directory,
    /// which is made.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Read all objects below, each into a file of its path.
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Whose objects, in which cluster, and how to print.
    #[command(flatten)]
    pub(crate) with: ObjectArgs,
}

/// Settings of `stat`.
#[derive(Debug, ClapArgs)]
pub(crate) struct StatArgs {
    /// The object to show: s3://BUCKET/KEY, or a key in the bucket `files`.
    pub(crate) what: Location,
    /// Of how many of its chunks to say which targets have them, 0 to 64.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = number_of_chunks)]
    pub(crate) chunks: usize,
    /// Whose objects, in which cluster, and how to print.
    #[command(flatten)]
    pub(crate) with: ObjectArgs,
}

/// Settings of `ls`.
#[derive(Debug, ClapArgs)]
pub(crate) struct LsArgs {
    /// What the keys begin with: s3://BUCKET/PREFIX, or a prefix in the bucket `files` (default: all there). `s3://` lists the
    /// buckets.
    pub(crate) what: Option<Location>,
    /// Whose objects, in which cluster, and how to print.
    #[command(flatten)]
    pub(crate) with: ObjectArgs,
}

/// Settings of `rm`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RmArgs {
    /// The object to remove: s3://BUCKET/KEY, or a key in the bucket `files`. With -r what its keys begin with, up to a `/`.
    pub(crate) what: Location,
    /// Remove all objects below; of s3://BUCKET all in it. The bucket stays.
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Whose objects, in which cluster, and how to print.
    #[command(flatten)]
    pub(crate) with: ObjectArgs,
}

/// Settings of `mb` and `rb`.
#[derive(Debug, ClapArgs)]
pub(crate) struct BucketArgs {
    /// The bucket: s3://BUCKET.
    #[arg(value_parser = bucket)]
    pub(crate) bucket: Location,
    /// Whose bucket, in which cluster, and how to print.
    #[command(flatten)]
    pub(crate) with: ObjectArgs,
}

/// Settings of `rewrite`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RewriteArgs {
    /// The bucket: s3://BUCKET.
    #[arg(value_parser = bucket)]
    pub(crate) bucket: Location,
    /// The storage class that its objects get, also those that are put from now on without one. Left out: what they have is shown.
    #[arg(long, value_name = "CLASS")]
    pub(crate) class: Option<String>,
    /// Whose objects, in which cluster, and how to print.
    #[command(flatten)]
    pub(crate) with: ObjectArgs,
}

/// Settings of `migrate`. All targets and a gateway must run.
#[derive(Debug, ClapArgs)]
pub(crate) struct MigrateArgs {
    /// Where to: s3://BUCKET/PREFIX, or a prefix in the bucket `files` (default: that bucket). The name of a file is appended.
    #[arg(long, value_name = "TO", default_value = "s3://files")]
    pub(crate) to: Location,
    /// Only name the files.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Whose objects, in which cluster, and how to print.
    #[command(flatten)]
    pub(crate) with: ObjectArgs,
}

fn bucket(text: &str) -> Result<Location, String> {
    let at: Location = text.parse()?;
    let is_bucket = text.starts_with("s3://") && !at.bucket.is_empty() && at.key.is_empty();
    if is_bucket { Ok(at) } else { Err(format!("{text:?} is no bucket: write s3://BUCKET")) }
}

fn number_of_chunks(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= s3::MOST_CHUNKS);
    number.ok_or_else(|| format!("{text:?} is not a number of chunks: write 0 to {}", s3::MOST_CHUNKS))
}
