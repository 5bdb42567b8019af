//! A cache of packed weights, so that a second start needs neither the checkpoint's matrices nor
//! the time to pack them.
//!
//! Loading asks for the same arrays in the same order each time. The first time, each array is
//! appended to a file after it was packed. Later, it is read from the file, or mapped.

mod file;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use millrace_backend::ThreadPool;

use super::memory::{Memory, Plain};
use file::{CacheReader, CacheWriter};

/// A cache of packed weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheOptions {
    /// The folder of the cache, which is created if there is none. Whoever can write to it can
    /// change the weights.
    pub folder: PathBuf,
    /// The use of cached weights.
    pub mode: CacheMode,
}

/// The use of cached weights.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum CacheMode {
    /// They are copied to huge pages, which products read fastest, and their checksums are checked.
    #[default]
    Copy,
    /// The file is mapped. Its pages are shared by all processes that use it, and the system may
    /// drop them and read them again, so that weights may be larger than the memory. Nothing is
    /// read at the start, and checksums are not checked.
    Map,
}

/// The state of the cache while weights are loaded.
#[derive(Debug)]
pub(super) struct WeightCache {
    options: Option<CacheOptions>,
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    use_of_file: FileUse,
    /// The reason why the cache is not used as it should be.
    warning: Option<String>,
}

#[derive(Debug, Default)]
enum FileUse {
    #[default]
    None,
    /// The file, and the number of the next array.
    Read(CacheReader, usize),
    Write(CacheWriter),
}

/// The threads and the cache that pack weights.
#[derive(Clone, Copy)]
pub(super) struct Packing<'a> {
    pub(super) pool: &'a ThreadPool,
    pub(super) cache: &'a WeightCache,
}

impl WeightCache {
    pub(super) fn new(options: Option<CacheOptions>) -> Self {
        WeightCache { options, state: Mutex::default() }
    }

    /// Begins the loading of weights. Weights of the same `subject` replace each other in the
    /// cache; `version` says which ones they are. Both are part of the label of the file.
    pub(super) fn begin(&self, subject: &str, version: &str) {
        let Some(options) = &self.options else { return };
        let path = options.folder.join(format!("{:08x}.weights", crc32fast::hash(subject.as_bytes())));
        let label = format!("{subject}\n{version}");
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = CacheState::default();
        let opened = CacheReader::open(&path, &label);
        state.warning = opened.as_ref().err().map(|error| about(&path, error));
        state.use_of_file = match opened {
            Ok(Some(reader)) => FileUse::Read(reader, 0),
            // A damaged file is replaced.
            Ok(None) | Err(_) => match CacheWriter::create(&path, &label) {
                Ok(writer) => FileUse::Write(writer),
                Err(error) => {
                    state.warning = Some(about(&path, &error));
                    FileUse::None
                }
            },
        };
    }

    /// Tells whether the next array comes from the cache.
    pub(super) fn is_read(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(state.use_of_file, FileUse::Read(..))
    }

    /// Tells whether weights stay in the file.
    pub(super) fn maps(&self) -> bool {
        self.options.as_ref().is_some_and(|options| options.mode == CacheMode::Map)
    }

    /// Ends the loading of weights. Returns the reason if the cache was not used as it should be.
    pub(super) fn end(&self) -> Option<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let CacheState { use_of_file, warning } = std::mem::take(&mut *state);
        if let FileUse::Write(writer) = use_of_file
            && let Err(error) = writer.finish()
        {
            return Some(format!("the cache of packed weights cannot be written: {error}"));
        }
        warning
    }
}

impl Packing<'_> {
    /// Fills arrays, which are all zeros, from the cache. Returns whether it has them. Otherwise
    /// the caller packs them and calls [`Packing::keep`]. A failure of the cache is no error;
    /// [`WeightCache::end`] returns it.
    pub(super) fn load(self, arrays: &mut [&mut dyn Cached]) -> bool {
        let Packing { pool, cache } = self;
        let mut state = cache.state.lock().unwrap_or_else(PoisonError::into_inner);
        let CacheState { use_of_file, warning } = &mut *state;
        let FileUse::Read(reader, next) = use_of_file else { return false };
        let mut read = || {
            for array in arrays.iter_mut() {
                take(reader, *next, &mut **array, pool, cache.maps())?;
                *next += 1;
            }
            io::Result::Ok(())
        };
        let Err(error) = read() else { return true };
        arrays.iter_mut().for_each(|array| array.bytes_mut().fill(0));
        let removed = match reader.remove() {
            Ok(()) => "; it is removed".to_owned(),
            Err(error) => format!(", and not be removed: {error}"),
        };
        let why = format!("the cache of packed weights cannot be used: {error}{removed}");
        (*use_of_file, *warning) = (FileUse::None, Some(why));
        false
    }

    /// Keeps packed arrays. In the mode that maps, they then are parts of the file.
    pub(super) fn keep(self, arrays: &mut [&mut dyn Cached]) {
        let Packing { pool, cache } = self;
        let mut state = cache.state.lock().unwrap_or_else(PoisonError::into_inner);
        let CacheState { use_of_file, warning } = &mut *state;
        let FileUse::Write(writer) = use_of_file else { return };
        let write = |array: &mut &mut dyn Cached| {
            let start = writer.append(array.bytes_mut(), pool)?;
            if cache.maps() { array.map(writer.file(), start) } else { Ok(()) }
        };
        if let Err(error) = arrays.iter_mut().try_for_each(write) {
            let why = format!("the cache of packed weights cannot be written: {error}");
            (*use_of_file, *warning) = (FileUse::None, Some(why));
        }
    }
}

/// An array that the cache keeps.
pub(super) trait Cached {
    /// Returns the bytes of the array.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Replaces the array by a part of a file with the same length.
    ///
    /// # Errors
    /// If the system refuses the mapping, or the part is not inside the file.
    fn map(&mut self, file: &File, start: u64) -> io::Result<()>;
}

impl<T: Plain> Cached for Memory<T> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        Memory::bytes_mut(self)
    }

    fn map(&mut self, file: &File, start: u64) -> io::Result<()> {
        if !self.is_empty() {
            *self = Memory::mapped(file, start, self.len())?;
        }
        Ok(())
    }
}

/// Fills an array from the file.
fn take(
    reader: &CacheReader,
    index: usize,
    array: &mut dyn Cached,
    pool: &ThreadPool,
    map: bool,
) -> io::Result<()> {
    let bytes = array.bytes_mut();
    if !map {
        return reader.read(index, bytes, pool);
    }
    let start = reader.start(index, bytes.len())?;
    array.map(reader.file(), start)
}

fn about(path: &Path, error: &io::Error) -> String {
    format!("the cache of packed weights {} cannot be used: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test's own, removed at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let name = format!("millrace-cache-{test}-{}", std::process::id());
            let _ = std::fs::remove_dir_all(std::env::temp_dir().join(&name));
            Folder(std::env::temp_dir().join(name))
        }

        fn cache(&self, mode: CacheMode) -> WeightCache {
            WeightCache::new(Some(CacheOptions { folder: self.0.clone(), mode }))
        }

        fn files(&self) -> Vec<PathBuf> {
            std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const SIZES: [usize; 5] = [10, 3_000_000, 0, 1 << 20, 77];

    /// Loads arrays of these sizes whose numbers begin with `first`. Returns how many were packed,
    /// and the warning.
    fn load(cache: &WeightCache, version: &str, sizes: &[usize], first: f32) -> (usize, Option<String>) {
        let pool = ThreadPool::new(2).unwrap();
        let mut packed = 0;
        cache.begin("a model", version);
        for (number, &size) in sizes.iter().enumerate() {
            let mut memory: Memory<f32> = Memory::zeroed(size, "a test").unwrap();
            let value = |index: usize| first + (number * 7 + index % 1000) as f32;
            let packing = Packing { pool: &pool, cache };
            if !packing.load(&mut [&mut memory]) {
                packed += 1;
                assert!(memory.iter().all(|x| *x == 0.0), "array {number} is not zeroed");
                memory.iter_mut().enumerate().for_each(|(index, x)| *x = value(index));
                packing.keep(&mut [&mut memory]);
            }
            assert_eq!(memory.len(), size);
            assert!(memory.iter().enumerate().all(|(index, x)| *x == value(index)), "array {number}");
        }
        (packed, cache.end())
    }

    #[test]
    fn arrays_are_packed_once() {
        for mode in [CacheMode::Copy, CacheMode::Map] {
            let folder = Folder::new("once");
            let cache = folder.cache(mode);
            assert_eq!(load(&cache, "1", &SIZES, 1.0), (5, None));
            assert_eq!(folder.files().len(), 1);
            assert_eq!(load(&cache, "1", &SIZES, 1.0), (0, None), "{mode:?}");
            // Another version replaces the file.
            assert_eq!(load(&cache, "2", &SIZES, 2.0), (5, None));
            assert_eq!(load(&cache, "2", &SIZES, 2.0), (0, None));
            assert_eq!(folder.files().len(), 1);
        }
    }

    #[test]
    fn a_damaged_file_is_noticed_and_replaced() {
        let folder = Folder::new("damaged");
        let cache = folder.cache(CacheMode::Copy);
        load(&cache, "1", &SIZES, 1.0);
        let file = folder.files().remove(0);
        let whole = std::fs::read(&file).unwrap();
        let changes: [(usize, &str); 5] = [
            (0, "does not begin"),
            // In the second array, and in the table.
            (5_000_000, "checksum of its contents"),
            (whole.len() - 30, "checksum of its table"),
            (whole.len() - 1, "no table"),
            (whole.len() - 12, "no table"),
        ];
        for (at, why) in changes {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            std::fs::write(&file, &bytes).unwrap();
            let (packed, warning) = load(&cache, "1", &SIZES, 1.0);
            let warning = warning.unwrap();
            assert!(packed > 0, "a change of byte {at}");
            if at < 12 || at > whole.len() - 40 {
                assert!(
                    warning.contains(why) || warning.contains("checksum of its table"),
                    "{at}: {warning}"
                );
                assert_eq!(load(&cache, "1", &SIZES, 1.0), (0, None), "the file was replaced");
            } else {
                assert!(warning.contains(why), "{at}: {warning}");
                assert_eq!(load(&cache, "1", &SIZES, 1.0), (5, None), "the file was removed");
            }
            std::fs::write(&file, &whole).unwrap();
        }
        for len in [0, 5, 20, 4000, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&file, &whole[..len]).unwrap();
            assert!(load(&cache, "1", &SIZES, 1.0).1.is_some(), "{len} bytes");
        }
        assert_eq!(load(&cache, "1", &SIZES, 1.0), (0, None));
    }

    #[test]
    fn other_arrays_than_those_of_the_file_are_packed() {
        let folder = Folder::new("other");
        for mode in [CacheMode::Copy, CacheMode::Map] {
            let cache = folder.cache(mode);
            load(&cache, "1", &SIZES, 1.0);
            let (packed, warning) = load(&cache, "1", &[10, 3_000_001], 1.0);
            assert_eq!(packed, 1);
            assert!(warning.unwrap().contains("other arrays"));
            assert_eq!(load(&cache, "1", &SIZES, 1.0), (5, None), "the file was removed");
            let more = [&SIZES[..], &[5]].concat();
            assert_eq!(load(&cache, "1", &more, 1.0).0, 1);
        }
    }

    #[test]
    fn a_failed_load_leaves_no_file() {
        let folder = Folder::new("failed");
        let cache = folder.cache(CacheMode::Copy);
        cache.begin("a model", "1");
        assert_eq!(folder.files().len(), 1);
        drop(cache);
        assert!(folder.files().is_empty());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_warning() {
        let folder = Folder::new("readonly");
        std::fs::write(&folder.0, "a file in place of the folder").unwrap();
        let cache = folder.cache(CacheMode::Copy);
        let (packed, warning) = load(&cache, "1", &SIZES, 1.0);
        assert_eq!(packed, 5);
        assert!(warning.unwrap().contains("cannot be used"));
        std::fs::remove_file(&folder.0).unwrap();
        assert_eq!(load(&WeightCache::new(None), "1", &SIZES, 1.0), (5, None));
    }
}
