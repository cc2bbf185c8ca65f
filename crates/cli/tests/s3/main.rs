//! What clients get: objects over S3 and by commands, from a real cluster. In one program more of these tests run at once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]

#[path = "../common/client.rs"]
mod client;
#[path = "../common/mod.rs"]
mod common;

mod access;
mod answers;
mod buckets;
mod compression;
mod conditions;
mod deletes;
mod encryption;
mod files;
mod forms;
mod hard;
mod in_place;
mod lists;
mod objects;
mod signatures;
mod slow;
mod storage_classes;
mod uploads;
mod versions;
