//! Step preparation on the device against a slot table on the host, step after step.

use millrace_kernels::cuda::ops::step::{
    List, Prepared, Ranges, Rows, Slots, append, prepare, prepare_plain, write_ranges,
};
use millrace_kernels::cuda::{Elem, Memory};

use crate::common::*;
use crate::words::{get_i32, put_i32};

const HISTORY: usize = 41;

/// One slot as the host knows it.
#[derive(Debug, Clone, Default)]
struct Slot {
    tokens: Vec<i32>,
    blocks: Vec<i32>,
    /// Positions computed so far.
    computed: usize,
}

struct Case {
    slots: usize,
    most_rows: usize,
    most_tokens: usize,
    block_size: usize,
}

impl Case {
    fn table_stride(&self) -> usize {
        HISTORY.div_ceil(self.block_size)
    }
}

/// Ranges as the device takes them: (slot, at, words).
fn write(case: &Case, list: &List<'_>, ranges: &[(usize, usize, Vec<i32>)]) {
    let (mut all, mut words) = (Vec::new(), Vec::new());
    for (slot, at, of_range) in ranges {
        all.extend([*slot as i32, *at as i32, words.len() as i32, of_range.len() as i32]);
        words.extend(of_range);
    }
    // Garbage beyond the count.
    all.resize(4 * (case.slots + 1), -7);
    let (all, words, count) = (put_i32(&all), put_i32(&words), put_i32(&[ranges.len() as i32]));
    let ranges = Ranges {
        most: case.slots + 1,
        count: count.view(Elem::I32),
        ranges: all.view(Elem::I32),
        words: words.view(Elem::I32),
    };
    write_ranges(&DEVICE, list, &ranges).unwrap();
}

/// Memory of words that look like nothing that a kernel writes.
fn words(n: usize) -> Memory {
    let memory = garbage(Elem::I32, n);
    DEVICE.fill(memory.view(Elem::I32), 0x55).unwrap();
    memory
}

fn check(case: &Case, steps: usize, rng: &mut Rng) {
    let stride = case.table_stride();
    let (history, tables) = (words(case.slots * HISTORY), words(case.slots * stride));
    let on_device = Slots {
        slots: case.slots,
        history: history.view(Elem::I32),
        history_stride: HISTORY,
        tables: tables.view(Elem::I32),
        table_stride: stride,
    };
    let mut slots = vec![Slot::default(); case.slots];
    for _ in 0..steps {
        // Sequences end and others begin.
        let mut new = Vec::new();
        for (s, slot) in slots.iter_mut().enumerate() {
            if slot.tokens.is_empty() || rng.below(6) == 0 {
                let prompt: Vec<i32> =
                    (0..1 + rng.below(HISTORY - 2)).map(|_| rng.below(1000) as i32).collect();
                *slot = Slot { tokens: prompt.clone(), ..Slot::default() };
                new.push((s, 0, prompt));
            }
        }
        write(case, &on_device.histories(), &new);

        let (mut rows, mut blocks, mut room) = (Vec::new(), Vec::new(), case.most_tokens);
        for s in rng.shuffled(case.slots) {
            let slot = &mut slots[s as usize];
            let left = (slot.tokens.len() - slot.computed).min(room).min(HISTORY - 1 - slot.computed);
            if left == 0 || rows.len() == case.most_rows || rng.below(4) == 0 {
                continue;
            }
            let count = 1 + rng.below(left);
            let end = slot.computed + count;
            let sample = end == slot.tokens.len() && rng.below(5) > 0;
            let missing = end.div_ceil(case.block_size).saturating_sub(slot.blocks.len());
            let more: Vec<i32> = (0..missing).map(|_| rng.below(500) as i32).collect();
            if missing > 0 {
                blocks.push((s as usize, slot.blocks.len(), more.clone()));
                slot.blocks.extend(more);
            }
            rows.push([s as i32, slot.computed as i32, count as i32, i32::from(sample)]);
            slot.computed = end;
            room -= count;
        }
        write(case, &on_device.block_tables(), &blocks);

        let made = [
            case.most_rows + 1,
            case.most_rows,
            case.most_rows * stride,
            case.most_tokens,
            case.most_tokens,
            case.most_tokens,
            case.most_rows,
            case.most_rows,
            case.most_rows,
            2,
        ]
        .map(words);
        let [
            query_start,
            context,
            out_tables,
            tokens,
            positions,
            places,
            outputs,
            output_slots,
            output_at,
            counts,
        ] = std::array::from_fn(|i| made[i].view(Elem::I32));
        let prepared = Prepared {
            most_tokens: case.most_tokens,
            query_start,
            context,
            tables: out_tables,
            tokens,
            positions,
            slots: places,
            outputs,
            output_slots,
            output_at,
            counts,
        };
        let mut packed = rows.concat();
        packed.resize(4 * case.most_rows, -9);
        let (packed, count) = (put_i32(&packed), put_i32(&[rows.len() as i32]));
        let of_step =
            Rows { most: case.most_rows, count: count.view(Elem::I32), rows: packed.view(Elem::I32) };

        // What the definition says.
        let mut starts = vec![0];
        let (mut contexts, mut ids, mut at, mut place) = (vec![], vec![], vec![], vec![]);
        let (mut wanted, mut wanted_slots, mut wanted_at) = (vec![], vec![], vec![]);
        let mut needed = vec![];
        for &[s, start, count, sample] in &rows {
            let slot = &slots[s as usize];
            for position in start..start + count {
                ids.push(slot.tokens[position as usize]);
                at.push(position);
                let block = slot.blocks[position as usize / case.block_size];
                place.push(block * case.block_size as i32 + position % case.block_size as i32);
            }
            starts.push(ids.len() as i32);
            contexts.push(start + count);
            if sample == 1 {
                wanted.push(ids.len() as i32 - 1);
                wanted_slots.push(s);
                wanted_at.push(start + count);
            }
            needed.push(slot.blocks[..((start + count) as usize).div_ceil(case.block_size)].to_vec());
        }
        let (filled, samples) = (ids.len() as i32, wanted.len());
        starts.resize(case.most_rows + 1, ids.len() as i32);
        contexts.resize(case.most_rows, 0);
        wanted.resize(case.most_rows, -1);
        ids.resize(case.most_tokens, -1);
        at.resize(case.most_tokens, 0);
        place.resize(case.most_tokens, -1);
        let compared = [
            ("query_start", query_start, starts),
            ("context", context, contexts),
            ("tokens", tokens, ids),
            ("positions", positions, at),
            ("slots", places, place),
            ("outputs", outputs, wanted),
        ];
        for version in [prepare_plain, prepare] {
            made.iter().for_each(|memory| DEVICE.fill(memory.view(Elem::I32), 0x55).unwrap());
            version(&DEVICE, &on_device, &of_step, case.block_size, &prepared).unwrap();
            for (what, got, want) in &compared {
                assert_eq!(get_i32(*got), *want, "{what} of {rows:?}");
            }
            assert_eq!(get_i32(counts), [filled, samples as i32]);
            assert_eq!(get_i32(output_slots)[..samples], wanted_slots);
            assert_eq!(get_i32(output_at)[..samples], wanted_at);
            for (r, (got, want)) in get_i32(out_tables).chunks(stride).zip(&needed).enumerate() {
                assert_eq!(got[..want.len()], *want, "table of row {r}");
            }
        }

        let sampled: Vec<i32> = (0..case.most_rows).map(|_| rng.below(1000) as i32).collect();
        let on_sampled = put_i32(&sampled);
        append(&DEVICE, &on_device, &prepared, case.most_rows, on_sampled.view(Elem::I32)).unwrap();
        for (s, token) in wanted_slots.iter().zip(&sampled[..samples]) {
            slots[*s as usize].tokens.push(*token);
        }
        let got = get_i32(on_device.history);
        for (s, slot) in slots.iter().enumerate() {
            assert_eq!(got[s * HISTORY..][..slot.tokens.len()], slot.tokens, "history of slot {s}");
        }
    }
}

#[test]
fn steps_one_after_the_other() {
    for_seeds(6, |rng| {
        let case = Case {
            slots: rng.pick(&[1, 3, 9]),
            most_rows: rng.pick(&[1, 4, 9, 300]),
            most_tokens: rng.pick(&[1, 7, 64, 300]),
            block_size: rng.pick(&[16, 4, 1]),
        };
        check(&case, 8, rng);
    });
}

/// More rows than a block has threads, so that a thread adds up several.
#[test]
fn many_rows() {
    for_seeds(1, |rng| {
        check(&Case { slots: 600, most_rows: 700, most_tokens: 2000, block_size: 16 }, 2, rng)
    });
}

/// The token after the longest sequence is reported and not kept.
#[test]
fn a_full_slot_keeps_nothing_more() {
    let (history, tables) = (put_i32(&[5, 6, 7, 8]), put_i32(&[0, 0]));
    let slots = Slots {
        slots: 2,
        history: history.view(Elem::I32),
        history_stride: 2,
        tables: tables.view(Elem::I32),
        table_stride: 1,
    };
    let word = words(8);
    let view = word.view(Elem::I32);
    let (output_slots, output_at, counts) = (put_i32(&[0]), put_i32(&[2]), put_i32(&[1, 1]));
    let prepared = Prepared {
        most_tokens: 1,
        query_start: view,
        context: view,
        tables: view,
        tokens: view,
        positions: view,
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
