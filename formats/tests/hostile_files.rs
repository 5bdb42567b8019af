//! Files that announce more than they have, and files that shrink while they are mapped. The files
//! are the seeds of the fuzzer, which are small valid files of every format.
//!
//! The test replaces the bytes at each place of a file by huge numbers, and counts the memory that
//! the readers take. Memory in proportion to a number that has not been compared with the size of
//! the file would be gigabytes.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_formats::vocabulary::{read_llama2c, read_sentencepiece, read_tekken, read_tiktoken};
use millrace_formats::{Checkpoint, Source};

/// Counts the bytes that are requested from the system's allocator.
struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all calls are passed to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller fulfills the requirements of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfills the requirements of `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller fulfills the requirements of `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED.fetch_add(size as u64, Ordering::Relaxed);
        // SAFETY: the caller fulfills the requirements of `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Held by each test, because the memory of the whole process is counted.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The numbers that replace those of a file. Some are near the limits of the readers, others beyond
/// all limits.
const HUGE: [&[u8]; 3] = [&[0xff; 8], &[0xff, 0xff, 0xff, 0x7f], &[0xff, 0xff, 0x0f, 0, 0, 0, 0, 0]];

/// Bytes at the beginning of a file that are replaced, where the fixed part of a header is. Of the
/// next ones, some are replaced.
const REPLACED: usize = 96;
const SOME: usize = 800;
const EVERY: usize = 11;

/// Bytes that a reader may take for each byte of the file, and for itself. The vocabulary of a .flm
/// file may have 65,536 gaps.
const PER_BYTE: u64 = 200;
const FIXED: u64 = 4 << 20;

/// Returns the seeds of a target of the fuzzer, with their names.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut seeds: Vec<_> =
        paths.map(|path| (path.display().to_string(), fs::read(&path).unwrap())).collect();
    seeds.sort();
    assert!(seeds.len() >= 3, "{target}");
    seeds
}

/// Runs `read` on `file` with each number at each place, and counts the memory that it takes.
fn replace_numbers(name: &str, file: &[u8], read: impl Fn(&[u8])) {
    let limit = PER_BYTE * file.len() as u64 + FIXED;
    let places = (0..file.len().min(SOME)).filter(|&at| at < REPLACED || at.is_multiple_of(EVERY));
    for at in places {
        for huge in HUGE {
            let mut changed = file.to_vec();
            let end = (at + huge.len()).min(file.len());
            changed[at..end].copy_from_slice(&huge[..end - at]);
            let before = ALLOCATED.load(Ordering::Relaxed);
            read(&changed);
            let taken = ALLOCATED.load(Ordering::Relaxed) - before;
            assert!(taken < limit, "{name} with {huge:x?} at byte {at}: {taken} bytes, at most {limit}");
        }
    }
}

/// Writes a file of the name `name`, and returns the source of its model.
fn written(folder: &Path, name: &str, bytes: &[u8]) -> (PathBuf, Source) {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    let is_whole = name == "model";
    (path.clone(), if is_whole { Source::File(path) } else { Source::Directory(folder.to_owned()) })
}

/// Opens a model and reads everything in it.
fn read_all(source: &Source) {
    let _ = source.tokenizer_data();
    let Ok(checkpoint) = Checkpoint::open(source) else { return };
    checkpoint.tensors().for_each(|info| assert!(checkpoint.find(&info.name).is_some()));
}

#[test]
fn announced_sizes_take_no_memory() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    for (target, file) in
        [("model_files", "model"), ("pytorch", "pytorch_model.bin"), ("safetensors", "model.safetensors")]
    {
        let folder = folder.path().join(target);
        fs::create_dir(&folder).unwrap();
        for (name, seed) in seeds(target) {
            // The first byte of these seeds is for the fuzzer.
            let bytes = if target == "safetensors" { &seed[1..] } else { &seed[..] };
            replace_numbers(&name, bytes, |bytes| read_all(&written(&folder, file, bytes).1));
        }
    }
}

#[test]
fn announced_sizes_of_vocabularies_take_no_memory() {
    let _alone = alone();
    for (name, seed) in seeds("vocabularies") {
        replace_numbers(&name, &seed[1..], |bytes| {
            let _ = read_sentencepiece(bytes);
            let _ = read_llama2c(bytes);
            let _ = read_tekken(bytes);
            let _ = read_tiktoken(bytes);
        });
    }
}

#[test]
#[cfg(target_os = "linux")]
fn every_format_that_shrinks_while_it_is_mapped_is_an_error() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mut shrunk = 0;
    for (target, file) in
        [("model_files", "model"), ("pytorch", "pytorch_model.bin"), ("safetensors", "model.safetensors")]
    {
        let folder = folder.path().join(target);
        fs::create_dir(&folder).unwrap();
        for (name, seed) in seeds(target) {
            let bytes = if target == "safetensors" { &seed[1..] } else { &seed[..] };
            let (path, source) = written(&folder, file, bytes);
            let Ok(checkpoint) = Checkpoint::open(&source) else { continue };
            let Some(first) = checkpoint.tensors().find(|tensor| tensor.bytes > 0) else { continue };
            checkpoint.check_readable().unwrap();
            fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
            // Reading does not end the process, and is no success either.
            let sum: u64 =
                checkpoint.find(&first.name).unwrap().bytes.iter().map(|&byte| u64::from(byte)).sum();
            let error = checkpoint.check_readable().expect_err(&format!("{name}: {sum}")).to_string();
            assert!(error.contains("could not be read to its end: it was truncated"), "{name}: {error}");
            shrunk += 1;
        }
    }
    assert!(shrunk >= 12, "{shrunk} files");
}
