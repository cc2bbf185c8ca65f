//! `reservoir user`: the access keys for S3.

use serde::Serialize;

use crate::args::UserCommand;
use crate::gateway_file;
use crate::output::{json, line, program};

/// A user as it is listed: without the secret.
#[derive(Serialize)]
struct Listed {
    name: String,
    access_key: String,
}

fn keys(user: &s3::User) -> anyhow::Result<()> {
    line(&format!("access key: {}\nsecret key: {}", user.access_key, user.secret_key))
}

/// Runs `reservoir user`. A running gateway knows at once.
pub(crate) fn user(command: &UserCommand) -> anyhow::Result<()> {
    let (UserCommand::Add { table, .. }
    | UserCommand::Show { table, .. }
    | UserCommand::List { table }
    | UserCommand::Remove { table, .. }) = command;
    let file = gateway_file::load(&table.config)?;
    let users = gateway_file::users(&table.config, file.s3.as_ref());
    match command {
        UserCommand::Add { name, .. } => {
            let user = users.add(name)?;
            if table.json { json(&user) } else { keys(&user) }
        }
        UserCommand::Show { name, secret, .. } => {
            let user = users.get(name)?;
            match (table.json, secret) {
                (true, _) => json(&user),
                (false, true) => line(&user.secret_key),
                (false, false) => keys(&user),
            }
        }
        UserCommand::List { .. } => {
            let list = users.list()?.into_iter().map(|user| Listed { name: user.name, access_key: user.access_key });
            let list: Vec<Listed> = list.collect();
            if table.json {
                return json(&list);
            }
            list.iter().try_for_each(|user| line(&format!("{}  {}", user.access_key, user.name)))
        }
        UserCommand::Remove { name, .. } => {
            users.remove(name)?;
            if users.list()?.is_empty() {
                crate::output::say!(
                    "that was the last user: nobody can use S3 until `{} user add NAME` makes one",
                    program()
                );
            }
            Ok(())
        }
    }
}
