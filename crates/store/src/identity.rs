//! The file that says whose directory it is.

use crate::backend::Backend;
use crate::{FORMAT, IDENTITY, Options, StoreError, io_error, record};

/// Writes who this is into an empty directory, or checks it.
pub(crate) fn identify(
    backend: &dyn Backend,
    options: &Options,
    files: &[(String, u64)],
    empty: bool,
) -> Result<(), StoreError> {
    let mut stored = [0; record::IDENTITY_LEN];
    if files.iter().any(|(name, len)| name == IDENTITY && *len >= record::IDENTITY_LEN as u64) {
        backend.read_at(IDENTITY, 0, &mut stored).map_err(io_error("reading the identity"))?;
    }
    match record::decode_identity(&stored) {
        Some((format, ..)) if format != FORMAT => Err(StoreError::Format { found: format }),
        Some((_, cluster, target)) if (cluster, target) == (options.cluster, options.target) => {
            // It may be in the page cache alone until there are segments, and they would be worth nothing without it.
            if empty { write_identity(backend, options) } else { Ok(()) }
        }
        Some((_, cluster, target)) => Err(StoreError::Other {
            found_cluster: cluster,
            found_target: target,
            cluster: options.cluster,
            target: options.target,
        }),
        None if !empty => Err(StoreError::Identity),
        None => {
            // Nothing stored yet: a torn identity is that of a first start that was cut off.
            if files.iter().any(|(name, _)| name == IDENTITY) {
                backend.remove(IDENTITY).map_err(io_error("removing a torn identity"))?;
            }
            backend.create(IDENTITY, record::IDENTITY_LEN as u64).map_err(io_error("creating the identity"))?;
            write_identity(backend, options)
        }
    }
}

fn write_identity(backend: &dyn Backend, options: &Options) -> Result<(), StoreError> {
    let identity = record::encode_identity(FORMAT, options.cluster, options.target);
    backend.write_at(IDENTITY, 0, &identity).map_err(io_error("writing the identity"))?;
    backend.sync(IDENTITY).map_err(io_error("syncing the identity"))
}
