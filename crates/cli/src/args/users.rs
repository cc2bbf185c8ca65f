//! The arguments of commands about users and keys.

use clap::Subcommand;

use super::TableArgs;

/// What to do with users.
#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Add a user, and print the keys.
    Add {
        /// The name; buckets are owned by it.
        name: String,
        /// Which cluster, and how to print.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Print a user's keys.
    Show {
        /// The name.
        name: String,
        /// Print the secret key alone, for scripts.
        #[arg(long, conflicts_with = "json")]
        secret: bool,
        /// Which cluster, and how to print.
        #[command(flatten)]
        table: TableArgs,
    },
    /// List the users and their access keys.
    List {
        /// Which cluster, and how to print.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Remove a user. Buckets stay.
    Remove {
        /// The name.
        name: String,
        /// Which cluster, and how to print.
        #[command(flatten)]
        table: TableArgs,
    },
}

/// What to do with the keys that the gateway encrypts with.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Add a named key, which clients ask for with `aws:kms`.
    Add {
        /// The name.
        name: String,
        /// Which cluster, and how to print.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Give a key a new version, with which is encrypted from now on. What older ones encrypted stays readable, with them.
    Rotate {
        /// The name (default: the key of what is encrypted without naming one, `AES256`).
        name: Option<String>,
        /// Which cluster, and how to print.
        #[command(flatten)]
        table: TableArgs,
    },
    /// List the keys and their newest versions.
    List {
        /// Which cluster, and how to print.
        #[command(flatten)]
        table: TableArgs,
    },
}
