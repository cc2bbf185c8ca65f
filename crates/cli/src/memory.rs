//! Where memory comes from.
//!
//! mimalloc, because threads hand messages to each other: a simulation of a large cluster takes a quarter less time with it
//! than with the C library. It asks for pages of 2 MiB, without which the simulation would take another fifth: each event
//! happens to any of thousands of nodes, whose addresses the processor does not remember in small pages. A daemon has little
//! from them, and keeps several times the memory resident.
//!
//! It is version 3, which the crate takes unless told otherwise. In gateways one thread allocates payloads and another frees them:
//! with version 2 they keep five times the memory, and new pages cost puts of 128 KiB a tenth.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Lets this process and those that it starts have small pages only.
pub(crate) fn keep_pages_small() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        // Nothing fails by it.
        tracing::debug!("memory stays in large pages: {error}");
    }
}
