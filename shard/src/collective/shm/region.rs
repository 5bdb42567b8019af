//! The memory that the ranks of a group share, and its layout.
//!
//! The memory is a `memfd`. It has no name in any file system, so nothing is left behind however
//! the processes end. Other ranks open `/proc/<process>/fd/<descriptor>`, which needs the same user
//! and the same process namespace.
//!
//! The layout is `[Control] [RankState; world_size]`, up to a page, then for each rank two halves
//! of [`HALF`] bytes for its values.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::wait::RankState;
use crate::collective::address::GroupToken;
use crate::collective::{CollectiveError, MAX_WORLD_SIZE};

/// Size of one half of a rank's area in bytes: the most that a rank passes to the others in one
/// round.
///
/// Both halves of a rank fit into a second-level cache of 1 MiB. With halves of 1 MiB, long sums
/// took 1.5 times as long.
pub(super) const HALF: usize = 256 << 10;

/// "MRSHM" and the version of the layout.
const MAGIC: u64 = 0x4d52_5348_4d00_0001;
/// Offset of the values: a multiple of the page size, behind the states of the ranks.
const VALUES: usize = 16 << 10;
const _: () = assert!(size_of::<Control>() + MAX_WORLD_SIZE * size_of::<RankState>() <= VALUES);

/// The state of the group.
#[repr(C, align(128))]
struct Control {
    /// [`MAGIC`] once the other fields are initialized.
    magic: AtomicU64,
    token: [AtomicU64; 2],
    world_size: AtomicU64,
    /// Flag that is not 0 once the group has been aborted.
    aborted: AtomicU32,
}

/// The group's memory, mapped into this process. All of its pages are allocated from the start.
pub(super) struct Region {
    map: MmapRaw,
    world_size: usize,
}

impl Region {
    /// Creates the memory of a group. The other ranks open the returned file.
    pub(super) fn create(token: GroupToken, world_size: usize) -> Result<(Region, File), CollectiveError> {
        let doing = "shared memory for the ranks";
        let file = memfd().map_err(CollectiveError::io(doing))?;
        let length = VALUES + world_size * 2 * HALF;
        reserve(&file, length).map_err(CollectiveError::io(doing))?;
        let region = Region { map: map(&file, length).map_err(CollectiveError::io(doing))?, world_size };
        let control = region.control();
        for (word, value) in control.token.iter().zip(words(token.bytes())) {
            word.store(value, Ordering::Relaxed);
        }
        control.world_size.store(world_size as u64, Ordering::Relaxed);
        for rank in 0..world_size {
            region.rank_state(rank).initialize();
        }
        control.magic.store(MAGIC, Ordering::Release);
        Ok((region, file))
    }

    /// Opens the memory that rank 0 has created.
    pub(super) fn open(
        process: u32,
        descriptor: u32,
        token: GroupToken,
        world_size: usize,
    ) -> Result<Region, CollectiveError> {
        let doing = "opening the memory of rank 0 (the ranks must run as the same user and see its process)";
        let path = format!("/proc/{process}/fd/{descriptor}");
        // The process id may belong to another process by now. Opening a file of that process must
        // neither block nor change anything.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(CollectiveError::Gone),
            // The descriptor now refers to a socket.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Err(CollectiveError::Gone),
            file => file.map_err(CollectiveError::io(doing))?,
        };
        if !is_sealed(&file) {
            return Err(CollectiveError::Gone);
        }
        let length = file.metadata().map_err(CollectiveError::io(doing))?.len() as usize;
        if length < VALUES {
            return Err(CollectiveError::Gone);
        }
        let region = Region { map: map(&file, length).map_err(CollectiveError::io(doing))?, world_size };
        let control = region.control();
        let theirs = [0, 1].map(|i: usize| control.token[i].load(Ordering::Relaxed).to_ne_bytes());
        if control.magic.load(Ordering::Acquire) != MAGIC || !token.matches(&joined(theirs)) {
            return Err(CollectiveError::Gone);
        }
        let theirs = control.world_size.load(Ordering::Relaxed) as usize;
        if theirs != world_size {
            return Err(CollectiveError::OtherWorldSize { ours: world_size, theirs });
        }
        if length != VALUES + world_size * 2 * HALF {
            return Err(CollectiveError::Gone);
        }
        Ok(region)
    }

    fn control(&self) -> &Control {
        // SAFETY: the map is at least VALUES bytes, begins at a page, and lives as long as `self`.
        // A Control is made of atomics, for which all bytes are valid and which other processes may
        // change.
        unsafe { &*self.map.as_ptr().cast::<Control>() }
    }

    pub(super) fn rank_state(&self, rank: usize) -> &RankState {
        assert!(rank < self.world_size);
        // SAFETY: as for the Control, which the states of the ranks follow. The assertions here and
        // beside VALUES keep it inside the map.
        unsafe { &*self.map.as_ptr().add(size_of::<Control>()).cast::<RankState>().add(rank) }
    }

    /// Returns the start of a half of a rank's area: [`HALF`] bytes, aligned to a page.
    fn half(&self, rank: usize, half: usize) -> *mut u8 {
        assert!(rank < self.world_size && half < 2);
        // SAFETY: `create` and `open` make sure that the map has world_size * 2 halves from VALUES
        // on.
        unsafe { self.map.as_mut_ptr().add(VALUES + (rank * 2 + half) * HALF) }
    }

    /// Returns the first `length` bytes that `rank` has published in a half.
    ///
    /// # Safety
    /// The rank must not write to this half while the slice lives.
    pub(super) unsafe fn bytes(&self, rank: usize, half: usize, length: usize) -> &[u8] {
        assert!(length <= HALF);
        // SAFETY: the half has HALF initialized bytes; nobody writes to them, as the caller
        // promises.
        unsafe { std::slice::from_raw_parts(self.half(rank, half), length) }
    }

    /// Returns the first `length` bytes of a half for writing.
    ///
    /// # Safety
    /// Nobody else may read or write this half while the slice lives.
    #[allow(
        clippy::mut_from_ref,
        reason = "the memory belongs to no reference; the caller promises to be alone"
    )]
    pub(super) unsafe fn bytes_mut(&self, rank: usize, half: usize, length: usize) -> &mut [u8] {
        assert!(length <= HALF);
        // SAFETY: the half has HALF initialized bytes; the slice is the only one, as the caller
        // promises.
        unsafe { std::slice::from_raw_parts_mut(self.half(rank, half), length) }
    }

    /// Returns the first `length` values that `rank` has published in a half.
    ///
    /// # Safety
    /// The same as for `bytes`.
    pub(super) unsafe fn values(&self, rank: usize, half: usize, length: usize) -> &[f32] {
        assert!(length * size_of::<f32>() <= HALF);
        // SAFETY: as in `bytes`; a half is aligned to a page, and all bits are values.
        unsafe { std::slice::from_raw_parts(self.half(rank, half).cast(), length) }
    }

    /// Returns the first `length` values of a half for writing.
    ///
    /// # Safety
    /// The same as for `bytes_mut`.
    #[allow(
        clippy::mut_from_ref,
        reason = "the memory belongs to no reference; the caller promises to be alone"
    )]
    pub(super) unsafe fn values_mut(&self, rank: usize, half: usize, length: usize) -> &mut [f32] {
        assert!(length * size_of::<f32>() <= HALF);
        // SAFETY: as in `bytes_mut`; a half is aligned to a page, and all bits are values.
        unsafe { std::slice::from_raw_parts_mut(self.half(rank, half).cast(), length) }
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.control().aborted.load(Ordering::Acquire) != 0
    }

    pub(super) fn abort(&self) {
        // This comes first, so that a rank that finds another one ended sees the reason.
        self.control().aborted.store(1, Ordering::Release);
        for rank in 0..self.world_size {
            self.rank_state(rank).end();
        }
    }
}

fn words(bytes: [u8; GroupToken::LEN]) -> [u64; 2] {
    let (words, _) = bytes.as_chunks();
    [words[0], words[1]].map(u64::from_ne_bytes)
}

fn joined(words: [[u8; 8]; 2]) -> [u8; GroupToken::LEN] {
    std::array::from_fn(|i| words[i / 8][i % 8])
}

fn memfd() -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a string that ends with a zero byte.
    let descriptor = unsafe { libc::memfd_create(c"millrace-collective".as_ptr(), flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and belongs to nobody else.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Sets the length of the file and allocates its memory, so that a shortage is an error here and
/// not a signal later.
fn reserve(file: &File, length: usize) -> io::Result<()> {
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let length = libc::off_t::try_from(length).map_err(too_long)?;
    // SAFETY: a system call on an open file, without pointers.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS | libc::F_SEAL_SEAL) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns whether the file is sealed memory, whose length cannot change any more.
fn is_sealed(file: &File) -> bool {
    // SAFETY: a system call on an open file, without pointers.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & SEALS == SEALS
}

fn map(file: &File, length: usize) -> io::Result<MmapRaw> {
    MmapOptions::new().len(length).populate().map_raw(file)
}
