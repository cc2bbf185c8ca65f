//! Files as earlier versions stored them, over chunks in memory: read, and dropped.

use std::io::Read;

use bytes::Bytes;
use object::ChunkService;
use object::files::{File, FileError, Reader, drop_files, each_file};
use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::initiator::ChunkPut;

use crate::memory::Memory;
use crate::world::World;

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// All files, and why others cannot be read.
fn all(service: &dyn ChunkService) -> (Vec<File>, Vec<FileError>) {
    let (mut files, mut errors) = (vec![], vec![]);
    let each = &mut |file: Result<File, FileError>| {
        match file {
            Ok(file) => files.push(file),
            Err(error) => errors.push(error),
        }
        Ok::<_, FileError>(())
    };
    each_file(service, each).unwrap();
    files.sort_by(|a, b| a.manifest.name.cmp(&b.manifest.name));
    (files, errors)
}

fn read(memory: &Memory, file: &File) -> std::io::Result<Vec<u8>> {
    let mut back = vec![];
    Reader::new(memory, &file.manifest).read_to_end(&mut back).map(|_| back)
}

#[test]
fn every_size_comes_back() {
    let memory = Memory::default();
    let sizes = [0, 1, 99, 100, 101, 200, 299, 300, 301, 600, 601, 2_500];
    for size in sizes {
        // Three entries in an index chunk, where there are more.
        memory.put_file(&format!("{size:04}"), 5, &content(size), 100, (size > 300).then_some(3));
    }
    let (files, errors) = all(&memory);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(files.len(), sizes.len());
    for (file, size) in files.iter().zip(sizes) {
        assert_eq!((file.manifest.name.clone(), file.manifest.indirect), (format!("{size:04}"), size > 300));
        assert_eq!(read(&memory, file).unwrap(), content(size), "{size}");
    }
}

#[test]
fn the_newest_version_is_found_and_no_object() {
    let world = World::new();
    let gateway = world.start();
    gateway.put("an object", true, 1);
    for (time, fill) in [(3, 3), (9, 9), (5, 5)] {
        world.memory.put_file("f", time, &[fill; 150], 100, None);
    }
    world.memory.put_file("g", 1, b"g", 100, None);
    let (files, errors) = all(&*world.memory);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(files.iter().map(|file| file.manifest.name.as_str()).collect::<Vec<_>>(), ["f", "g"]);
    assert_eq!((files[0].manifest.created_ms, files[0].versions.len()), (9, 3));
    assert_eq!(read(&world.memory, &files[0]).unwrap(), [9; 150]);
}

#[test]
fn what_is_damaged_or_not_to_be_had_is_no_file() {
    let memory = Memory::default();
    memory.put_file("short", 1, &content(250), 100, None);
    memory.put_file("swapped", 1, &content(250), 100, None);
    let (files, _) = all(&memory);
    let [short, swapped] = &files[..] else { panic!("{files:?}") };
    let mut lying = swapped.clone();
    lying.manifest.entries.swap(0, 1);
    assert!(read(&memory, &lying).unwrap_err().to_string().contains("its hash"));
    lying.manifest.entries.truncate(2);
    assert!(read(&memory, &lying).unwrap_err().to_string().contains("its length"));
    memory.chunks.lock().unwrap().remove(&short.manifest.entries[2].id);
    assert!(read(&memory, short).unwrap_err().to_string().contains("cannot be had"));
    let junk = Bytes::from_static(b"not a manifest");
    memory.put(ChunkPut::new(ChunkId::of_manifest("junk", 5, &junk), junk)).wait().unwrap();
    let (files, errors) = all(&memory);
    assert!(files.len() == 2 && matches!(errors[..], [FileError::Malformed(..)]), "{errors:?}");
}

#[test]
fn a_silent_target_stops_it() {
    let memory = Memory { silent: vec![NodeId(4)], ..Memory::default() };
    let outcome = each_file(&memory, &mut |_| Ok::<_, FileError>(()));
    assert!(matches!(outcome, Err(FileError::Silent(_))), "{outcome:?}");
    assert!(matches!(drop_files(&memory, &[]), Err(FileError::Silent(_))));
}

#[test]
fn dropped_files_are_gone_with_their_versions_and_a_cleaner_takes_their_chunks() {
    let world = World::new();
    let gateway = world.start();
    let object = gateway.put("k", true, 7);
    for (name, time, fill) in [("f", 1, 1), ("f", 2, 2), ("g", 1, 7)] {
        world.memory.put_file(name, time, &vec![fill; 2 << 20], 1 << 20, None);
    }
    let held = |kind| world.memory.chunks.lock().unwrap().keys().filter(|id| id.kind() == kind).count();
    // The bucket, the object, three versions of files; a chunk of each fill.
    assert_eq!((held(ChunkKind::Manifest), held(ChunkKind::Payload)), (5, 3));
    let (files, _) = all(&*world.memory);
    drop_files(&*world.memory, &files).unwrap();
    assert!(all(&*world.memory).0.is_empty());
    assert_eq!((held(ChunkKind::Manifest), held(ChunkKind::Payload)), (2, 3));
    gateway.passes(2);
    assert_eq!(held(ChunkKind::Payload), 1, "what the object has in common with a file stays");
    assert!(gateway.objects.whole(&object).is_ok());
}

#[test]
fn files_whose_manifests_are_outside_of_their_groups_are_found() {
    let mut memory = Memory::default();
    memory.put_file("f", 5, &content(300), 100, None);
    memory.elsewhere = Some(ChunkKind::Manifest);
    let (files, errors) = all(&memory);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(read(&memory, &files[0]).unwrap(), content(300));
}
