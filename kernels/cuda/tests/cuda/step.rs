//! Step preparation on the device against a slot table on the host, step after step.

use millrace_cuda::ops::step::{
    PreparedStep, SlotArray, SlotState, SlotWrites, StepRows, append, prepare, prepare_plain, write_ranges,
};
use millrace_cuda::{Elem, Memory};

use crate::common::*;
use crate::words::{get_i32, put_i32};

/// The most tokens of a slot.
const HISTORY: usize = 41;
/// The byte that memory is filled with, which no kernel writes.
const UNWRITTEN: u8 = 0x55;

/// One slot as the host knows it.
#[derive(Debug, Clone, Default)]
struct HostSlot {
    tokens: Vec<i32>,
    blocks: Vec<i32>,
    /// Positions computed so far.
    computed: usize,
}

/// The sizes of a test.
struct Sizes {
    slots: usize,
    max_rows: usize,
    max_tokens: usize,
    block_size: usize,
}

impl Sizes {
    fn table_stride(&self) -> usize {
        HISTORY.div_ceil(self.block_size)
    }
}

/// Words to write into a slot, from a position on.
struct SlotWrite {
    slot: usize,
    at: usize,
    words: Vec<i32>,
}

/// A row of a step.
#[derive(Debug, Clone, Copy)]
struct HostRow {
    slot: usize,
    start: usize,
    count: usize,
    sample: bool,
    /// The length of the sequence's prefix, and its anchor.
    prefix: (usize, usize),
}

/// Writes words into the device's slots.
fn write(sizes: &Sizes, array: &SlotArray<'_>, writes: &[SlotWrite]) {
    let (mut ranges, mut words) = (Vec::new(), Vec::new());
    for write in writes {
        ranges.extend([write.slot, write.at, words.len(), write.words.len()].map(|n| n as i32));
        words.extend(&write.words);
    }
    // Garbage beyond the count, which the kernel must not read.
    ranges.resize(4 * (sizes.slots + 1), -7);
    let (ranges, words, count) = (put_i32(&ranges), put_i32(&words), put_i32(&[writes.len() as i32]));
    let writes = SlotWrites {
        most: sizes.slots + 1,
        count: count.view(Elem::I32),
        ranges: ranges.view(Elem::I32),
        words: words.view(Elem::I32),
    };
    write_ranges(&DEVICE, array, &writes).unwrap();
}

/// Memory of words that no kernel writes.
fn unwritten(n: usize) -> Memory {
    let memory = garbage(Elem::I32, n);
    DEVICE.fill(memory.view(Elem::I32), UNWRITTEN).unwrap();
    memory
}

/// Ends some sequences and begins others in their slots. Returns the new prompts.
fn replace_sequences(slots: &mut [HostSlot], rng: &mut Rng) -> Vec<SlotWrite> {
    let mut prompts = Vec::new();
    for (s, slot) in slots.iter_mut().enumerate() {
        if slot.tokens.is_empty() || rng.below(6) == 0 {
            let length = 1 + rng.below(HISTORY - 2);
            let tokens: Vec<i32> = (0..length).map(|_| rng.below(1000) as i32).collect();
            *slot = HostSlot { tokens: tokens.clone(), ..HostSlot::default() };
            prompts.push(SlotWrite { slot: s, at: 0, words: tokens });
        }
    }
    prompts
}

/// Chooses the rows of a step, and gives their sequences the blocks that they need. Returns the
/// rows and the new blocks.
fn choose_rows(sizes: &Sizes, slots: &mut [HostSlot], rng: &mut Rng) -> (Vec<HostRow>, Vec<SlotWrite>) {
    let (mut rows, mut blocks, mut left) = (Vec::new(), Vec::new(), sizes.max_tokens);
    for s in rng.shuffled(sizes.slots) {
        let slot = &mut slots[s as usize];
        let most = (slot.tokens.len() - slot.computed).min(left).min(HISTORY - 1 - slot.computed);
        if most == 0 || rows.len() == sizes.max_rows || rng.below(4) == 0 {
            continue;
        }
        let count = 1 + rng.below(most);
        let end = slot.computed + count;
        let sample = end == slot.tokens.len() && rng.below(5) > 0;
        let missing = end.div_ceil(sizes.block_size).saturating_sub(slot.blocks.len());
        let new: Vec<i32> = (0..missing).map(|_| rng.below(500) as i32).collect();
        if missing > 0 {
            blocks.push(SlotWrite { slot: s as usize, at: slot.blocks.len(), words: new.clone() });
            slot.blocks.extend(new);
        }
        let prefix = (rng.below(end + 5), rng.below(9));
        rows.push(HostRow { slot: s as usize, start: slot.computed, count, sample, prefix });
        slot.computed = end;
        left -= count;
    }
    (rows, blocks)
}

/// The memory that a preparation writes, in the order of the fields of [`PreparedStep`].
struct Outputs {
    max_tokens: usize,
    memory: [Memory; 12],
}

impl Outputs {
    fn new(sizes: &Sizes) -> Outputs {
        let &Sizes { max_rows: rows, max_tokens: tokens, .. } = sizes;
        let tables = rows * sizes.table_stride();
        let lengths = [rows + 1, rows, rows, tables, tokens, tokens, 2 * tokens, tokens, rows, rows, rows, 2];
        Outputs { max_tokens: tokens, memory: lengths.map(unwritten) }
    }

    fn clear(&self) {
        for memory in &self.memory {
            DEVICE.fill(memory.view(Elem::I32), UNWRITTEN).unwrap();
        }
    }

    fn prepared(&self) -> PreparedStep<'_> {
        let [
            query_start,
            context,
            prefix,
            tables,
            tokens,
            positions,
            axes,
            slots,
            outputs,
            output_slots,
            output_at,
            counts,
        ] = std::array::from_fn(|i| self.memory[i].view(Elem::I32));
        PreparedStep {
            max_tokens: self.max_tokens,
            query_start,
            context,
            prefix,
            tables,
            tokens,
            positions,
            axes,
            slots,
            outputs,
            output_slots,
            output_at,
            counts,
        }
    }
}

/// The preparation of a step by its definition. The arrays have no entries beyond the counts.
#[derive(Default)]
struct Expected {
    query_start: Vec<i32>,
    context: Vec<i32>,
    prefix: Vec<i32>,
    /// The blocks that each row needs.
    tables: Vec<Vec<i32>>,
    tokens: Vec<i32>,
    positions: Vec<i32>,
    axes: [Vec<i32>; 2],
    slots: Vec<i32>,
    outputs: Vec<i32>,
    output_slots: Vec<i32>,
    output_at: Vec<i32>,
}

impl Expected {
    fn of(sizes: &Sizes, slots: &[HostSlot], rows: &[HostRow]) -> Expected {
        let mut want = Expected { query_start: vec![0], ..Expected::default() };
        for row in rows {
            let (slot, end) = (&slots[row.slot], row.start + row.count);
            for position in row.start..end {
                let block = slot.blocks[position / sizes.block_size] as usize;
                want.tokens.push(slot.tokens[position]);
                want.positions.push(position as i32);
                let (length, anchor) = row.prefix;
                let is_behind = position >= length;
                want.axes[0].push(if is_behind { anchor } else { position } as i32);
                want.axes[1].push(if is_behind { position - length + 1 } else { 0 } as i32);
                want.slots.push((block * sizes.block_size + position % sizes.block_size) as i32);
            }
            want.query_start.push(want.tokens.len() as i32);
            want.context.push(end as i32);
            want.prefix.push(row.prefix.0 as i32);
            want.tables.push(slot.blocks[..end.div_ceil(sizes.block_size)].to_vec());
            if row.sample {
                want.outputs.push(want.tokens.len() as i32 - 1);
                want.output_slots.push(row.slot as i32);
                want.output_at.push(end as i32);
            }
        }
        want
    }

    /// Compares with the result of a kernel, which also marks what lies beyond the counts.
    fn assert(&self, sizes: &Sizes, got: &PreparedStep<'_>, rows: &[HostRow]) {
        let padded = |values: &[i32], len: usize, padding: i32| {
            let mut all = values.to_vec();
            all.resize(len, padding);
            all
        };
        let &Sizes { max_rows, max_tokens, .. } = sizes;
        let (tokens, samples) = (self.tokens.len() as i32, self.outputs.len());
        for (what, got, want) in [
            ("query_start", got.query_start, padded(&self.query_start, max_rows + 1, tokens)),
            ("context", got.context, padded(&self.context, max_rows, 0)),
            ("prefix", got.prefix, padded(&self.prefix, max_rows, 0)),
            ("tokens", got.tokens, padded(&self.tokens, max_tokens, -1)),
            ("positions", got.positions, padded(&self.positions, max_tokens, 0)),
            ("axes", got.axes, self.axes.iter().flat_map(|of| padded(of, max_tokens, 0)).collect()),
            ("slots", got.slots, padded(&self.slots, max_tokens, -1)),
            ("outputs", got.outputs, padded(&self.outputs, max_rows, -1)),
        ] {
            assert_eq!(get_i32(got), want, "{what} of {rows:?}");
        }
        assert_eq!(get_i32(got.counts), [tokens, samples as i32]);
        assert_eq!(get_i32(got.output_slots)[..samples], self.output_slots);
        assert_eq!(get_i32(got.output_at)[..samples], self.output_at);
        let tables = get_i32(got.tables);
        for (r, (got, want)) in tables.chunks(sizes.table_stride()).zip(&self.tables).enumerate() {
            assert_eq!(got[..want.len()], *want, "table of row {r}");
        }
    }
}

/// Prepares a step with both kernels and compares the results with the definition.
fn check_preparation(
    sizes: &Sizes,
    on_device: &SlotState<'_>,
    rows: &[HostRow],
    want: &Expected,
    outputs: &Outputs,
) {
    let words = |row: &HostRow| [row.slot, row.start, row.count, usize::from(row.sample)].map(|n| n as i32);
    let mut packed: Vec<i32> = rows.iter().flat_map(words).collect();
    // Garbage beyond the count, which the kernels must not read.
    packed.resize(4 * sizes.max_rows, -9);
    let mut prefixes: Vec<i32> =
        rows.iter().flat_map(|row| [row.prefix.0, row.prefix.1]).map(|n| n as i32).collect();
    prefixes.resize(2 * sizes.max_rows, -9);
    let (packed, count) = (put_i32(&packed), put_i32(&[rows.len() as i32]));
    let prefixes = put_i32(&prefixes);
    let step_rows = StepRows {
        most: sizes.max_rows,
        count: count.view(Elem::I32),
        rows: packed.view(Elem::I32),
        prefixes: prefixes.view(Elem::I32),
    };
    let prepared = outputs.prepared();
    for version in [prepare_plain, prepare] {
        outputs.clear();
        version(&DEVICE, on_device, &step_rows, sizes.block_size, &prepared).unwrap();
        want.assert(sizes, &prepared, rows);
    }
}

/// Appends random tokens on the device and in the host's slots, and compares the histories.
fn check_append(
    sizes: &Sizes,
    on_device: &SlotState<'_>,
    prepared: &PreparedStep<'_>,
    output_slots: &[i32],
    slots: &mut [HostSlot],
    rng: &mut Rng,
) {
    let sampled: Vec<i32> = (0..sizes.max_rows).map(|_| rng.below(1000) as i32).collect();
    let on_sampled = put_i32(&sampled);
    append(&DEVICE, on_device, prepared, sizes.max_rows, on_sampled.view(Elem::I32)).unwrap();
    for (slot, token) in output_slots.iter().zip(&sampled) {
        slots[*slot as usize].tokens.push(*token);
    }
    let got = get_i32(on_device.history);
    for (s, slot) in slots.iter().enumerate() {
        assert_eq!(got[s * HISTORY..][..slot.tokens.len()], slot.tokens, "history of slot {s}");
    }
}

/// Runs random steps, one after the other, on the device and on the host.
fn check_steps(sizes: &Sizes, steps: usize, rng: &mut Rng) {
    let stride = sizes.table_stride();
    let (history, tables) = (unwritten(sizes.slots * HISTORY), unwritten(sizes.slots * stride));
    let on_device = SlotState {
        slots: sizes.slots,
        history: history.view(Elem::I32),
        history_stride: HISTORY,
        tables: tables.view(Elem::I32),
        table_stride: stride,
    };
    let mut slots = vec![HostSlot::default(); sizes.slots];
    for _ in 0..steps {
        let prompts = replace_sequences(&mut slots, rng);
        write(sizes, &on_device.histories(), &prompts);
        let (rows, blocks) = choose_rows(sizes, &mut slots, rng);
        write(sizes, &on_device.block_tables(), &blocks);
        let outputs = Outputs::new(sizes);
        let want = Expected::of(sizes, &slots, &rows);
        check_preparation(sizes, &on_device, &rows, &want, &outputs);
        check_append(sizes, &on_device, &outputs.prepared(), &want.output_slots, &mut slots, rng);
    }
}

#[test]
fn steps_match_their_definition() {
    for_seeds(6, |rng| {
        let sizes = Sizes {
            slots: rng.pick(&[1, 3, 9]),
            max_rows: rng.pick(&[1, 4, 9, 300]),
            max_tokens: rng.pick(&[1, 7, 64, 300]),
            block_size: rng.pick(&[16, 4, 1]),
        };
        check_steps(&sizes, 8, rng);
    });
}

/// A step has more rows than a block has threads, so that a thread adds up several rows.
#[test]
fn many_rows_match_their_definition() {
    for_seeds(1, |rng| {
        check_steps(&Sizes { slots: 600, max_rows: 700, max_tokens: 2000, block_size: 16 }, 2, rng)
    });
}

/// A token that is sampled for a full slot is reported and not kept.
#[test]
fn a_full_slot_keeps_no_more_tokens() {
    let (history, tables) = (put_i32(&[5, 6, 7, 8]), put_i32(&[0, 0]));
    let slots = SlotState {
        slots: 2,
        history: history.view(Elem::I32),
        history_stride: 2,
        tables: tables.view(Elem::I32),
        table_stride: 1,
    };
    let word = unwritten(8);
    let view = word.view(Elem::I32);
    let (output_slots, output_at, counts) = (put_i32(&[0]), put_i32(&[2]), put_i32(&[1, 1]));
    let prepared = PreparedStep {
        max_tokens: 1,
        query_start: view,
        context: view,
        prefix: view,
        tables: view,
        tokens: view,
        positions: view,
        axes: view,
        slots: view,
        outputs: view,
        output_slots: output_slots.view(Elem::I32),
        output_at: output_at.view(Elem::I32),
        counts: counts.view(Elem::I32),
    };
    let sampled = put_i32(&[99]);
    append(&DEVICE, &slots, &prepared, 1, sampled.view(Elem::I32)).unwrap();
    assert_eq!(get_i32(slots.history), [5, 6, 7, 8]);
}
