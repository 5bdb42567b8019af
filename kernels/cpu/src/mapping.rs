//! Zeroed memory from the operating system, on huge pages where it has them.
//!
//! A model has many matrices of some megabytes. If each had a mapping of its own, the start and the
//! end of each would be on small pages or waste a part of a huge page. So matrices are cut, one
//! after the other, from ranges that are much larger.
//!
//! Nothing here touches the memory. A page is taken from the system, as a huge page if possible,
//! when the first thread writes to it.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{MmapMut, MmapOptions};

/// Bytes of a cache line. Pieces start at multiples of it.
pub(super) const LINE: usize = 64;
/// Bytes of a huge page on x86-64 and on most ARM systems. Ranges start at multiples of it.
const HUGE: usize = 2 << 20;
/// Bytes of a usual range. The last huge page of a range may be used in part, so that at most 0.8%
/// of the memory is wasted.
const RANGE: usize = 256 << 20;
/// The largest size of small pages on any system. Freed memory is returned in multiples of it.
#[cfg(target_os = "linux")]
const PAGE: usize = 64 << 10;

/// The range that pieces are cut from. A range that cannot hold the next piece is left to the
/// pieces that were cut from it; the rest of it was never touched and costs no memory.
static OPEN: Mutex<Option<OpenRange>> = Mutex::new(None);

struct OpenRange {
    range: Arc<Range>,
    /// Bytes that have been cut off.
    used: usize,
}

/// A mapping and its part from the first boundary of a huge page.
#[derive(Debug)]
struct Range {
    map: MmapMut,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pointer is that of the mapping, which may be used and freed by any thread. Only
// pieces, which do not overlap, access the memory.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

/// A part of a mapping that nothing else uses. It starts zeroed, at a cache line.
#[derive(Debug)]
pub(super) struct Piece {
    start: NonNull<u8>,
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux returns memory early"))]
    len: usize,
    /// Keeps the memory mapped.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux returns memory early"))]
    range: Arc<Range>,
}

impl Piece {
    /// Returns the address of the first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

/// Returns `bytes` bytes of zeroed memory, or `None` if the system refuses them.
pub(super) fn cut(bytes: usize) -> Option<Piece> {
    // A large piece has a range of its own, so that it does not close the open one.
    if bytes > RANGE / 2 {
        return Some(Range::map(bytes)?.piece(0, bytes));
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(OpenRange { range, used }) = &mut *open
        && bytes <= range.len - *used
    {
        let piece = range.piece(*used, bytes);
        *used = (*used + bytes).next_multiple_of(LINE).min(range.len);
        return Some(piece);
    }
    // Where a limit on address space forbids a range, a mapping of this size may still be allowed.
    let Some(range) = Range::map(RANGE) else { return Some(Range::map(bytes)?.piece(0, bytes)) };
    let piece = range.piece(0, bytes);
    *open = Some(OpenRange { range, used: bytes.next_multiple_of(LINE) });
    Some(piece)
}

impl Range {
    /// Maps a range of `bytes` bytes, rounded up to huge pages.
    fn map(bytes: usize) -> Option<Arc<Range>> {
        let len = bytes.checked_next_multiple_of(HUGE)?;
        // Longer by one huge page, because the system aligns mappings to small pages only. The rest
        // before and behind the range is never touched.
        let mut map = MmapOptions::new().len(len.checked_add(HUGE)?).map_anon().ok()?;
        // The advice comes before the first touch: pages that are there already stay small. Its
        // failure does no harm.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let first = map.as_mut_ptr();
        let before = first.addr().next_multiple_of(HUGE) - first.addr();
        // SAFETY: `before` is less than the huge page by which the mapping is longer.
        let start = NonNull::new(unsafe { first.add(before) })?;
        Some(Arc::new(Range { map, start, len }))
    }

    /// Returns the `len` bytes from `at`, which must be inside and not part of any other piece.
    fn piece(self: &Arc<Self>, at: usize, len: usize) -> Piece {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of {}", self.len);
        // SAFETY: the offset is inside the mapping.
        Piece { start: unsafe { self.start.add(at) }, len, range: Arc::clone(self) }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Piece {
    /// Returns the memory to the system now, because other pieces may keep the range for long.
    fn drop(&mut self) {
        let first = self.range.map.as_ptr().addr();
        let start = self.start.addr().get();
        let (from, to) = (start.next_multiple_of(PAGE), (start + self.len) / PAGE * PAGE);
        if from < to {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: these pages belong to this piece alone, which is not used any more, and no
            // other piece is ever cut from them. A failure only means that the memory stays.
            let _ = unsafe { self.range.map.unchecked_advise_range(advice, from - first, to - from) };
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Returns how many small pages of the piece are in memory.
    fn resident(piece: &Piece) -> usize {
        // SAFETY: the call has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let start = piece.start.addr().get() / page * page;
        let len = piece.start.addr().get() + piece.len - start;
        let mut pages = vec![0u8; len.div_ceil(page)];
        // SAFETY: the range is mapped, and there is a byte for each of its pages.
        let result = unsafe { libc::mincore(start as *mut libc::c_void, len, pages.as_mut_ptr()) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn memory_is_taken_when_it_is_written_and_returned_with_the_piece() {
        let piece = cut(RANGE).unwrap();
        assert_eq!(resident(&piece), 0);
        assert!(piece.start.addr().get().is_multiple_of(HUGE));
        // SAFETY: the piece is longer.
        unsafe { piece.start.write_bytes(1, 1 << 20) };
        assert!(resident(&piece) >= 16);
    }

    #[test]
    fn a_freed_piece_of_a_shared_range_takes_no_memory() {
        let range = Range::map(8 * HUGE).unwrap();
        let (first, second) = (range.piece(0, 3 * HUGE + LINE), range.piece(3 * HUGE + LINE, HUGE));
        for piece in [&first, &second] {
            // SAFETY: the pieces have this length.
            unsafe { piece.start.write_bytes(7, piece.len) };
        }
        drop(first);
        let again = std::mem::ManuallyDrop::new(range.piece(0, 3 * HUGE));
        assert_eq!(resident(&again), 0);
        // SAFETY: the piece is still there.
        let kept = unsafe { std::slice::from_raw_parts(second.start.as_ptr(), second.len) };
        assert!(kept.iter().all(|byte| *byte == 7));
    }

    /// Pieces of usual sizes follow each other without gaps.
    #[test]
    fn pieces_fill_their_range() {
        let pieces: Vec<Piece> = (0..200).map(|i| cut((1 << 20) + 4096 * i + 1).unwrap()).collect();
        let mut ranges: Vec<usize> = pieces.iter().map(|piece| piece.range.start.addr().get()).collect();
        ranges.dedup();
        // Other tests cut pieces at the same time, but not nearly as much.
        assert!(ranges.len() <= 4, "{} ranges", ranges.len());
    }
}
