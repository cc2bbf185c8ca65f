//! The file that says whose directory it is.

use crate::backend::Backend;
use crate::record::{IDENTITY_LEN, Identity};
use crate::{FORMAT, IDENTITY, Options, StoreError, io_error};

/// The format before this one: its records do not say what copies are kept for. A store that has it is read, and has the present
/// one from then on, which an older build refuses: it would take some records for damaged.
const WITHOUT_WANTED: u32 = 2;

/// Writes the identity into an empty directory, or checks it.
pub(crate) fn identify(
    backend: &dyn Backend,
    options: &Options,
    files: &[(String, u64)],
    empty: bool,
) -> Result<Identity, StoreError> {
    let mut stored = [0; IDENTITY_LEN];
    if let Some((_, len)) = files.iter().find(|(name, _)| name == IDENTITY) {
        let len = stored.len().min(*len as usize);
        backend.read_at(IDENTITY, 0, &mut stored[..len]).map_err(io_error("reading the identity"))?;
    }
    match Identity::decode(&stored) {
        Some(found) if ![FORMAT, WITHOUT_WANTED].contains(&found.format) => {
            Err(StoreError::Format { found: found.format })
        }
        Some(found) if (found.cluster, found.target) == (options.cluster, options.target) => {
            // It may be in the page cache alone until there are segments, and they would be worth nothing without it.
            let is_older = found.format != FORMAT;
            let found = Identity { format: FORMAT, ..found };
            if empty || is_older { write_identity(backend, found) } else { Ok(found) }
        }
        Some(found) => Err(StoreError::Other {
            found_cluster: found.cluster,
            found_target: found.target,
            cluster: options.cluster,
            target: options.target,
        }),
        None if !empty => Err(StoreError::Identity),
        None => {
            // Nothing stored yet: a torn identity is that of a first start that was cut off.
            if files.iter().any(|(name, _)| name == IDENTITY) {
                backend.remove(IDENTITY).map_err(io_error("removing a torn identity"))?;
            }
            backend.create(IDENTITY, IDENTITY_LEN as u64).map_err(io_error("creating the identity"))?;
            let Options { cluster, target, secret, .. } = *options;
            write_identity(backend, Identity { format: FORMAT, cluster, target, secret })
        }
    }
}

fn write_identity(backend: &dyn Backend, identity: Identity) -> Result<Identity, StoreError> {
    backend.write_at(IDENTITY, 0, &identity.encode()).map_err(io_error("writing the identity"))?;
    backend.sync(IDENTITY).map_err(io_error("syncing the identity"))?;
    Ok(identity)
}
