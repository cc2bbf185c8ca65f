//! `reservoir key`: the keys that the gateway encrypts objects' keys with.

use serde::Serialize;

use crate::args::KeyCommand;
use crate::gateway_file;
use crate::output::{json, line};

/// A key as it is listed: without the secret.
#[derive(Serialize)]
struct Listed {
    name: String,
    version: u32,
}

/// Runs `reservoir key`. A running gateway knows at once.
pub(crate) fn key(command: &KeyCommand) -> anyhow::Result<()> {
    let (KeyCommand::Add { table, .. } | KeyCommand::Rotate { table, .. } | KeyCommand::List { table }) = command;
    let file = gateway_file::load(&table.config)?;
    let keys = gateway_file::keys(&table.config, file.s3.as_ref());
    match command {
        KeyCommand::Add { name, .. } => Ok(keys.add(name)?),
        KeyCommand::Rotate { name, .. } => {
            let version = keys.rotate(name.as_deref())?;
            if table.json { json(&version) } else { line(&format!("version {version} encrypts from now on")) }
        }
        KeyCommand::List { .. } => {
            let list: Vec<Listed> = keys.list()?.into_iter().map(|(name, version)| Listed { name, version }).collect();
            if table.json {
                return json(&list);
            }
            list.iter().try_for_each(|key| line(&format!("{}  version {}", key.name, key.version)))
        }
    }
}
