//! All-reduce and all-gather over memory that all ranks of a group can read and write.
//!
//! Every rank allocates a region of [`PeerGroup::region_bytes`] zeros that the others can reach,
//! and a table of all regions' addresses as it sees them. All ranks make the same calls in the same
//! order. The sum is taken in the order of the ranks, in f32, and rounded once, so every rank gets
//! the same bits from either form.
//!
//! A rank that does not come in time is noted in the state ([`PeerGroup::missed`]). From then on
//! the kernels of the group do nothing, instead of hanging.

use std::time::Duration;

use millrace_backend::{Error, Result};

use super::select::{kernel, typed};
use super::shared::allreduce::{ALL_REDUCE_THREADS, AllGatherParams, AllReduceNormParams, AllReduceParams};
use super::shared::peers_h::{FLAG_BYTES, MEETING_BLOCKS, PeerParams, PeerStateRecord};
use super::sizes::{countable, int};
use crate::{Device, Elem, Grid, View};

/// The most ranks of a group.
pub const MAX_RANKS: usize = super::shared::peers_h::MAX_RANKS;

/// One rank's view of its group.
#[derive(Debug, Clone, Copy)]
pub struct PeerGroup<'a> {
    /// This rank.
    pub rank: usize,
    /// Ranks, at most [`MAX_RANKS`].
    pub world: usize,
    /// u64 `[world]`: addresses of the ranks' regions, as this device reaches them.
    pub regions: View<'a>,
    /// u32 `[PeerGroup::STATE]`, zeros at first; only this rank uses it. The last two words may
    /// hold the address of a word of the host's memory, which gets 1 + a rank that did not come in
    /// time.
    pub state: View<'a>,
    /// Bytes of the largest message, a multiple of 16; the same on all ranks.
    pub capacity: usize,
    /// The time that a rank waits for the others.
    pub timeout: Duration,
}

/// The forms of the all-reduce, which give the same result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllReduceForm {
    /// Every rank reads all contributions: one meeting.
    OneShot,
    /// Every rank sums a share: two meetings, less traffic.
    TwoShot,
}

impl AllReduceForm {
    /// The form that is expected to be faster. Latency decides for small messages, the traffic of
    /// links for large ones.
    pub fn for_message(world: usize, bytes: usize) -> AllReduceForm {
        let max_at_once = match world {
            0..=2 => usize::MAX,
            3..=4 => 512 << 10,
            _ => 256 << 10,
        };
        if bytes <= max_at_once { AllReduceForm::OneShot } else { AllReduceForm::TwoShot }
    }
}

impl PeerGroup<'_> {
    /// Words of [`PeerGroup::state`].
    pub const STATE: usize = size_of::<PeerStateRecord>() / 4;

    /// Bytes of a region for messages of up to `capacity` bytes.
    pub fn region_bytes(capacity: usize) -> usize {
        FLAG_BYTES + 4 * capacity
    }

    /// The rank that did not come in time, if there is one. The call waits for all work submitted
    /// so far.
    ///
    /// # Errors
    /// An error of the device.
    pub fn missed(&self, device: &Device) -> Result<Option<usize>> {
        let bytes = device.read(self.state.slice(2..3))?;
        let word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | usize::from(byte));
        Ok(word.checked_sub(1))
    }

    fn check(&self, message: usize) -> Result<()> {
        if self.world == 0 || self.world > MAX_RANKS || self.rank >= self.world {
            return Err(Error::Shape(format!(
                "rank {} of {}; a group has at most {MAX_RANKS}",
                self.rank, self.world
            )));
        }
        if !self.capacity.is_multiple_of(16) || message > self.capacity {
            return Err(Error::Shape(format!(
                "a message of {message} bytes through halves of {}",
                self.capacity
            )));
        }
        self.regions.expect("regions", Elem::U64, self.world)?;
        self.state.expect("state", Elem::U32, PeerGroup::STATE)
    }

    /// The group as kernels take it.
    fn params(&self) -> PeerParams {
        PeerParams {
            regions: self.regions.into(),
            state: self.state.into(),
            rank: int(self.rank),
            world: int(self.world),
            capacity: self.capacity as i64,
            timeout: u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// Replaces the first `len` elements of `x` by their sum over the ranks.
///
/// # Errors
/// [`Error::Shape`] for a view that is too short, a message that is too long, or one that
/// is not at a multiple of 16 bytes although its length is (all ranks must use the same kernel);
/// [`Error::Unsupported`] for a type other than f32, f16 and bf16; an error of the launch. A
/// missing rank is no error here: see [`PeerGroup::missed`].
pub fn all_reduce(
    device: &Device,
    group: &PeerGroup<'_>,
    form: AllReduceForm,
    x: View<'_>,
    len: usize,
) -> Result<()> {
    let elem = x.elem();
    countable(&[len])?;
    group.check(len * elem.size())?;
    x.expect("x", elem, len)?;
    if len == 0 {
        return Ok(());
    }
    let plain = is_plain(len, &[x])?;
    let kernel = match (form, plain) {
        (AllReduceForm::OneShot, false) => typed!(AllReduceParams, "allreduce", "all_reduce_one", elem),
        (AllReduceForm::OneShot, true) => typed!(AllReduceParams, "allreduce", "all_reduce_one_plain", elem),
        (AllReduceForm::TwoShot, false) => typed!(AllReduceParams, "allreduce", "all_reduce_two", elem),
        (AllReduceForm::TwoShot, true) => typed!(AllReduceParams, "allreduce", "all_reduce_two_plain", elem),
    }?;
    let units = if plain { len } else { len / elem.per_vector() };
    let share = if form == AllReduceForm::TwoShot { units.div_ceil(group.world) } else { units };
    let params = AllReduceParams { peers: group.params(), x: x.into(), units: int(units) };
    // SAFETY: the views were checked, and the regions hold flags and four halves by contract.
    unsafe { device.launch(kernel, grid_for(share), &params) }
}

/// A grid with a thread for each of `units`, as far as all blocks can run at once.
fn grid_for(units: usize) -> Grid {
    Grid::flat(units.div_ceil(ALL_REDUCE_THREADS).min(MEETING_BLOCKS), ALL_REDUCE_THREADS as u32)
}

/// The operands of [`all_reduce_norm`].
#[derive(Debug, Clone, Copy)]
pub struct AllReduceNorm<'a> {
    /// Number of rows; 0 is allowed and does nothing, on all ranks.
    pub rows: usize,
    /// Features of a row.
    pub cols: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// `[rows, cols]`: this rank's contribution.
    pub x: View<'a>,
    /// `[rows, cols]`, the same on all ranks: the sum is added to it.
    pub residual: View<'a>,
    /// f32 `[cols]`.
    pub weight: View<'a>,
    /// `[rows, cols]`; may be `x`.
    pub out: View<'a>,
}

/// Computes `residual += sum of x over the ranks; out = rms_norm(residual) * weight`, in the
/// one-shot form.
///
/// # Errors
/// As for [`all_reduce`].
pub fn all_reduce_norm(device: &Device, group: &PeerGroup<'_>, n: &AllReduceNorm<'_>) -> Result<()> {
    let elem = n.x.elem();
    let len = n.rows * n.cols;
    countable(&[n.rows, n.cols])?;
    group.check(len * elem.size())?;
    for (what, view) in [("x", n.x), ("residual", n.residual), ("out", n.out)] {
        view.expect(what, elem, len)?;
    }
    n.weight.expect("weight", Elem::F32, n.cols)?;
    if len == 0 {
        return Ok(());
    }
    let plain = is_plain(n.cols, &[n.x, n.residual, n.out, n.weight])?;
    let kernel = match plain {
        true => typed!(AllReduceNormParams, "allreduce", "all_reduce_norm_plain", elem),
        false => typed!(AllReduceNormParams, "allreduce", "all_reduce_norm", elem),
    }?;
    let params = AllReduceNormParams {
        peers: group.params(),
        out: n.out.into(),
        residual: n.residual.into(),
        x: n.x.into(),
        weight: n.weight.into(),
        rows: int(n.rows),
        cols: int(n.cols),
        eps: n.eps,
    };
    let grid = Grid::flat(n.rows.min(MEETING_BLOCKS), ALL_REDUCE_THREADS as u32);
    // SAFETY: the views were checked, and the regions hold flags and four halves by contract.
    unsafe { device.launch(kernel, grid, &params) }
}

/// The operands of [`all_gather`]: a matrix of which every rank has the same number of columns.
#[derive(Debug, Clone, Copy)]
pub struct AllGatherColumns<'a> {
    /// Rows; 0 is allowed and does nothing, on all ranks.
    pub rows: usize,
    /// Columns of each rank.
    pub part_cols: usize,
    /// Columns of the whole matrix, at most those of all ranks together. Columns beyond them are
    /// padding.
    pub whole_cols: usize,
    /// f32 `[rows, part_cols]`, this rank's.
    pub part: View<'a>,
    /// f32 `[rows, whole_cols]`.
    pub whole: View<'a>,
}

/// Computes `whole[row, r * part_cols + c] = part of rank r [row, c]`.
///
/// # Errors
/// As for [`all_reduce`].
pub fn all_gather(device: &Device, group: &PeerGroup<'_>, g: &AllGatherColumns<'_>) -> Result<()> {
    let &AllGatherColumns { rows, part_cols, whole_cols, part, whole } = g;
    let len = rows * part_cols;
    countable(&[len, group.world * part_cols])?;
    group.check(len * Elem::F32.size())?;
    if whole_cols > group.world * part_cols {
        return Err(Error::Shape(format!(
            "{} parts of {part_cols} columns are not {whole_cols}",
            group.world
        )));
    }
    part.expect("part", Elem::F32, len)?;
    whole.expect("whole", Elem::F32, rows * whole_cols)?;
    if len == 0 {
        return Ok(());
    }
    let plain = is_plain(part_cols, &[part])? || is_plain(whole_cols, &[whole])?;
    let (kernel, units) = match plain {
        true => (kernel!(AllGatherParams, "allreduce", "all_gather_plain"), len),
        false => (kernel!(AllGatherParams, "allreduce", "all_gather"), len / Elem::F32.per_vector()),
    };
    let params = AllGatherParams {
        peers: group.params(),
        whole: whole.into(),
        part: part.into(),
        rows: int(rows),
        part_cols: int(part_cols),
        whole_cols: int(whole_cols),
    };
    // SAFETY: the views were checked, and the regions hold flags and four halves by contract.
    unsafe { device.launch(kernel, grid_for(units), &params) }
}

/// Whether rows of `cols` elements need the plain kernel. The answer is the same on all ranks.
fn is_plain(cols: usize, views: &[View<'_>]) -> Result<bool> {
    let elem = views[0].elem();
    if !cols.is_multiple_of(elem.per_vector()) {
        return Ok(true);
    }
    if views.iter().all(|view| view.address().is_multiple_of(16)) {
        return Ok(false);
    }
    Err(Error::Shape("all-reduce needs memory at multiples of 16 bytes".to_owned()))
}
