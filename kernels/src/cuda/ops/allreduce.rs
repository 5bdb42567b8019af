//! All-reduce and all-gather over memory that all ranks of a group can read and write.
//!
//! Every rank allocates a [`Group::region_bytes`] region of zeros that the others can reach, and a table of all regions' addresses as it
//! sees them. All ranks make the same calls in the same order. The sum is taken in the order of the ranks, in f32, and rounded once: the
//! same bits on every rank, whichever form. A rank that does not come in time is noted in the state ([`Group::missed`]); the group does
//! nothing more from then on, instead of hanging.

use std::time::Duration;

use super::{countable, typed};
use crate::cuda::{Args, Cost, Device, Elem, Grid, View};
use crate::{Error, Result};

/// The most ranks of a group.
pub const MOST_RANKS: usize = 8;
/// As in `peers.cuh`: blocks of a launch, all of which must run at the same time.
const MOST_BLOCKS: usize = 64;
const FLAG_BYTES: usize = 2 * MOST_BLOCKS * MOST_RANKS * 4;
const THREADS: u32 = 256;

/// One rank's view of its group.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    /// This rank.
    pub rank: usize,
    /// Ranks, at most [`MOST_RANKS`].
    pub world: usize,
    /// u64 `[world]`: addresses of the ranks' regions, as this device reaches them.
    pub regions: View<'a>,
    /// u32 `[Group::STATE]`, zeros at first; this rank's own. The last two words may hold the address of a word of the host's memory: it
    /// gets 1 + a rank that did not come in time.
    pub state: View<'a>,
    /// Bytes of the largest message, a multiple of 16; the same on all ranks.
    pub capacity: usize,
    /// How long a rank waits for the others.
    pub patience: Duration,
}

/// Forms of the all-reduce, for the same result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Every rank reads everything: one meeting.
    OneShot,
    /// Every rank sums a share: two meetings, less traffic.
    TwoShot,
}

impl Form {
    /// Which of the two is expected to be faster: below these sizes latency counts, above them the traffic of links.
    pub fn for_message(world: usize, bytes: usize) -> Form {
        let most_at_once = match world {
            0..=2 => usize::MAX,
            3..=4 => 512 << 10,
            _ => 256 << 10,
        };
        if bytes <= most_at_once { Form::OneShot } else { Form::TwoShot }
    }
}

impl Group<'_> {
    /// Words of [`Group::state`].
    pub const STATE: usize = 6;

    /// Bytes of a region for messages of up to `capacity` bytes.
    pub fn region_bytes(capacity: usize) -> usize {
        FLAG_BYTES + 4 * capacity
    }

    /// The rank that did not come in time, if there is one. Waits for everything asked for so far.
    ///
    /// # Errors
    /// What the device fails with.
    pub fn missed(&self, device: &Device) -> Result<Option<usize>> {
        let bytes = device.read(self.state.slice(2..3))?;
        let word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | usize::from(byte));
        Ok(word.checked_sub(1))
    }

    fn check(&self, message: usize) -> Result<()> {
        if self.world == 0 || self.world > MOST_RANKS || self.rank >= self.world {
            return Err(Error::Shape(format!(
                "rank {} of {}; a group has at most {MOST_RANKS}",
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
        self.state.expect("state", Elem::U32, Group::STATE)
    }

    fn args(&self) -> Args {
        let patience = u64::try_from(self.patience.as_nanos()).unwrap_or(u64::MAX);
        let args = Args::new().with(self.regions).with(self.state).with(self.rank).with(self.world);
        args.with(self.capacity as i64).with(patience)
    }
}

/// Replaces the first `len` elements of `x` by their sum over the ranks.
///
/// # Errors
/// [`Error::Shape`] for a view that is too short, a message that is too long, or one that is not at a multiple of 16 bytes although its
/// length is (all ranks must use the same kernel); [`Error::Unsupported`] for a type other than f32, f16 and bf16; what the launch fails
/// with. That a rank is missing is no error here: see [`Group::missed`].
pub fn all_reduce(device: &Device, group: &Group<'_>, form: Form, x: View<'_>, len: usize) -> Result<()> {
    let elem = x.elem();
    countable(&[len])?;
    group.check(len * elem.size())?;
    x.expect("x", elem, len)?;
    if len == 0 {
        return Ok(());
    }
    let plain = is_plain(len, &[x])?;
    let name = match (form, plain) {
        (Form::OneShot, false) => typed!(elem, "all_reduce_one"),
        (Form::OneShot, true) => typed!(elem, "all_reduce_one_plain"),
        (Form::TwoShot, false) => typed!(elem, "all_reduce_two"),
        (Form::TwoShot, true) => typed!(elem, "all_reduce_two_plain"),
    }?;
    let units = if plain { len } else { len / elem.per_vector() };
    let each = if form == Form::TwoShot { units.div_ceil(group.world) } else { units };
    // SAFETY: the views were checked, the regions hold flags and four halves by contract, and the arguments are those of the kernel.
    unsafe { device.launch("allreduce", name, grid_for(each), &group.args().with(x).with(units)) }
}

/// A thread for each of `units`, as far as all blocks can run at once.
fn grid_for(units: usize) -> Grid {
    Grid::flat(units.div_ceil(THREADS as usize).min(MOST_BLOCKS), THREADS)
}

/// What follows an all-reduce in a decoder.
#[derive(Debug, Clone, Copy)]
pub struct AddNorm<'a> {
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

/// `residual += sum of x over the ranks; out = rms_norm(residual) * weight`, in the one-shot form.
///
/// # Errors
/// As for [`all_reduce`].
pub fn all_reduce_norm(device: &Device, group: &Group<'_>, n: &AddNorm<'_>) -> Result<()> {
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
    let name = if plain { typed!(elem, "all_reduce_norm_plain") } else { typed!(elem, "all_reduce_norm") }?;
    let args = group.args().with(n.out).with(n.residual).with(n.x).with(n.weight).with(n.rows).with(n.cols);
    let grid = Grid::flat(n.rows.min(MOST_BLOCKS), THREADS);
    // SAFETY: as above.
    unsafe { device.launch("allreduce", name, grid, &args.with(n.eps)) }
}

/// Columns of a matrix, of which every rank has as many.
#[derive(Debug, Clone, Copy)]
pub struct GatherColumns<'a> {
    /// Rows; 0 is allowed and does nothing, on all ranks.
    pub rows: usize,
    /// Columns of each rank.
    pub part_cols: usize,
    /// Columns of the whole, at most those of all ranks: what the last ones have beyond is padding.
    pub whole_cols: usize,
    /// f32 `[rows, part_cols]`, this rank's.
    pub part: View<'a>,
    /// f32 `[rows, whole_cols]`.
    pub whole: View<'a>,
}

/// `whole[row, r * part_cols + c] = part of rank r [row, c]`.
///
/// # Errors
/// As for [`all_reduce`].
pub fn all_gather(device: &Device, group: &Group<'_>, g: &GatherColumns<'_>) -> Result<()> {
    let &GatherColumns { rows, part_cols, whole_cols, part, whole } = g;
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
    let (name, units) = if plain { ("all_gather_plain", len) } else { ("all_gather", len / 4) };
    let args = group.args().with(whole).with(part).with(rows).with(part_cols).with(whole_cols);
    // SAFETY: as above.
    unsafe { device.launch("allreduce", name, grid_for(units), &args) }
}

/// What a rank moves at least, its own memory and its links together: `len` elements in, out, and those of the other ranks.
pub fn cost(elem: Elem, form: Form, world: usize, len: usize) -> Cost {
    let over_links = match form {
        Form::OneShot => (world - 1) * len,
        Form::TwoShot => 2 * len * (world - 1) / world,
    };
    Cost { flops: (len * (world - 1)) as f64, ..Cost::moving((2 * len + over_links) * elem.size()) }
}

/// Whether rows of `cols` elements need the plain kernel. Depends on nothing that could differ between ranks.
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
