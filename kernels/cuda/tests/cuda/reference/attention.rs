//! Attention over a paged cache: random caches and steps on the host and on the device, and their
//! result by the definition of `AttentionScores`.

#![allow(dead_code, reason = "the tests of prefill and of decode use different parts")]

use millrace_backend::KeyWindow;
use millrace_cuda::ops::paged::{AttentionScores, PagedKv, SequenceBatch};
use millrace_cuda::{Elem, Memory, View};

use crate::common::*;

/// Sizes and types that all sequences share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) block_size: usize,
    /// Type of queries and output.
    pub(crate) activations: Elem,
    /// Type of keys and values.
    pub(crate) cached: Elem,
}

impl Shape {
    /// Elements of a row of the fused projection.
    pub(crate) fn stride(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// One row of `head_dim` cached elements: its bytes, its scale, and its numbers.
fn random_row(rng: &mut Rng, elem: Elem, head_dim: usize) -> (Vec<u8>, f32, Vec<f32>) {
    match elem {
        Elem::E4M3 => {
            let scale = 1.0 + 0.5 * rng.unit();
            // Most numbers have the size of activations, and some are subnormal.
            let bytes: Vec<u8> = (0..head_dim)
                .map(|_| (rng.pick(&[0u8, 3, 4, 5, 5, 6, 6, 6]) << 3) | (rng.next() & 0x87) as u8)
                .collect();
            let values = bytes.iter().map(|&b| e4m3(b) * scale).collect();
            (bytes, scale, values)
        }
        Elem::I8 => {
            let scale = (1.0 + 0.5 * rng.unit()) / 127.0;
            let numbers: Vec<i8> = (0..head_dim).map(|_| (rng.below(255) as i32 - 127) as i8).collect();
            let values = numbers.iter().map(|&n| f32::from(n) * scale).collect();
            (numbers.iter().map(|&n| n as u8).collect(), scale, values)
        }
        _ => {
            let values = rng.values(elem, head_dim);
            let bytes = match elem {
                Elem::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
                Elem::F16 => values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
                Elem::BF16 => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
                other => panic!("{other:?} is not cached"),
            };
            (bytes, f32::NAN, values)
        }
    }
}

/// The value of an E4M3 code that is not NaN.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude =
        if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Keys and values of some sequences, in blocks that lie in random order among others full of NaN.
pub(crate) struct Cache {
    pub(crate) shape: Shape,
    /// Per sequence `[context, kv_heads, head_dim]`, with the scale applied.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    /// Per sequence its blocks in order.
    pub(crate) tables: Vec<Vec<u32>>,
    blocks: usize,
    memory: [Memory; 4],
}

impl Cache {
    /// A cache of sequences with these numbers of keys.
    pub(crate) fn random(rng: &mut Rng, shape: Shape, contexts: &[usize]) -> Cache {
        let Shape { kv_heads, head_dim, block_size, cached, .. } = shape;
        let used: usize = contexts.iter().map(|c| c.div_ceil(block_size)).sum();
        let blocks = used + 3;
        let mut free = rng.shuffled(blocks);
        let row = head_dim * cached.size();
        let mut bytes = [vec![0xFFu8; blocks * kv_heads * block_size * row], Vec::new()];
        bytes[1] = bytes[0].clone();
        let mut scales = [vec![f32::NAN; blocks * kv_heads * block_size], Vec::new()];
        scales[1] = scales[0].clone();
        let mut exact = [Vec::new(), Vec::new()];
        let mut tables = Vec::new();
        for &context in contexts {
            let table: Vec<u32> = free.split_off(free.len() - context.div_ceil(block_size));
            for which in 0..2 {
                let mut all = Vec::with_capacity(context * kv_heads * head_dim);
                for position in 0..context {
                    for head in 0..kv_heads {
                        let (row_bytes, scale, values) = random_row(rng, cached, head_dim);
                        let block = table[position / block_size] as usize;
                        let at = (block * kv_heads + head) * block_size + position % block_size;
                        bytes[which][at * row..(at + 1) * row].copy_from_slice(&row_bytes);
                        scales[which][at] = scale;
                        all.extend(values);
                    }
                }
                exact[which].push(all);
            }
            tables.push(table);
        }
        let [keys, values] = exact;
        let memory = [
            DEVICE.upload(&bytes[0]).unwrap(),
            DEVICE.upload(&bytes[1]).unwrap(),
            put(Elem::F32, &scales[0]),
            put(Elem::F32, &scales[1]),
        ];
        Cache { shape, keys, values, tables, blocks, memory }
    }

    /// The cache on the device.
    pub(crate) fn paged(&self) -> PagedKv<'_> {
        let Shape { kv_heads, head_dim, block_size, cached, .. } = self.shape;
        let [keys, values, key_scales, value_scales] = &self.memory;
        let scaled = matches!(cached, Elem::E4M3 | Elem::I8);
        PagedKv {
            keys: keys.view(cached),
            values: values.view(cached),
            scales: scaled.then(|| (key_scales.view(Elem::F32), value_scales.view(Elem::F32))),
            blocks: self.blocks,
            block_size,
            kv_heads,
            head_dim,
        }
    }
}

/// One sequence's part in a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// The number of the sequence in the cache.
    pub(crate) sequence: usize,
    /// Tokens of this step.
    pub(crate) queries: usize,
    /// Keys that these tokens see, including their own.
    pub(crate) context: usize,
    /// Length of the prefix whose tokens see each other in both directions, if the step has
    /// prefixes.
    pub(crate) prefix: usize,
}

/// The features of `AttentionScores` on the host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Features {
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) window: Option<KeyWindow>,
    /// Per head.
    pub(crate) alibi: Option<Vec<f32>>,
    /// Per head.
    pub(crate) sinks: Option<Vec<f32>>,
    /// Whether the rows' prefixes count.
    pub(crate) prefix: bool,
}

impl Features {
    /// Causal attention with the scale 1 / sqrt(head_dim).
    pub(crate) fn plain(head_dim: usize) -> Features {
        Features { scale: 1.0 / (head_dim as f32).sqrt(), ..Features::default() }
    }

    /// A random subset of the features.
    pub(crate) fn random(rng: &mut Rng, heads: usize, head_dim: usize) -> Features {
        let some = |rng: &mut Rng| rng.below(3) == 0;
        Features {
            scale: (1.5 + rng.unit()) / (head_dim as f32).sqrt(),
            soft_cap: some(rng).then(|| rng.pick(&[0.5, 2.0, 30.0])),
            window: some(rng).then(|| {
                let len = rng.pick(&[1, 2, 7, 16, 33, 64, 100, 1000]);
                if rng.below(2) == 0 { KeyWindow::Last(len) } else { KeyWindow::Chunk(len) }
            }),
            alibi: some(rng).then(|| (0..heads).map(|_| 0.3 * rng.unit().abs()).collect()),
            sinks: some(rng).then(|| (0..heads).map(|_| 3.0 * rng.unit()).collect()),
            prefix: some(rng),
        }
    }
}

/// A step: queries of some sequences over their caches, on the host and on the device.
pub(crate) struct Step {
    pub(crate) rows: Vec<Row>,
    pub(crate) features: Features,
    shape: Shape,
    /// `[tokens, (heads + 2 * kv_heads) * head_dim]`; NaN where keys and values would lie.
    pub(crate) qkv: Vec<f32>,
    table_stride: usize,
    on_device: [Memory; 7],
}

impl Step {
    /// A step with random queries.
    pub(crate) fn random(rng: &mut Rng, cache: &Cache, rows: &[Row], features: Features) -> Step {
        let tokens: usize = rows.iter().map(|r| r.queries).sum();
        let Shape { heads, head_dim, activations, .. } = cache.shape;
        let queries = rng.values(activations, tokens * heads * head_dim);
        Step::new(cache, rows, features, &queries)
    }

    /// A step with these queries `[tokens, heads, head_dim]`.
    pub(crate) fn new(cache: &Cache, rows: &[Row], features: Features, queries: &[f32]) -> Step {
        let shape = cache.shape;
        let mut qkv = Vec::new();
        for token in queries.chunks_exact(shape.heads * shape.head_dim) {
            qkv.extend(token);
            qkv.extend(vec![f32::NAN; 2 * shape.kv_heads * shape.head_dim]);
        }
        let mut query_start = vec![0u32];
        for row in rows {
            query_start.push(query_start[query_start.len() - 1] + row.queries as u32);
        }
        let contexts: Vec<u32> = rows.iter().map(|r| r.context as u32).collect();
        let prefixes: Vec<u32> = rows.iter().map(|r| r.prefix as u32).collect();
        let table_stride = rows.iter().map(|r| cache.tables[r.sequence].len()).max().unwrap_or(0) + 1;
        // Entries after a table's end name no block.
        let mut tables = vec![u32::MAX; rows.len() * table_stride];
        for (at, row) in tables.chunks_exact_mut(table_stride).zip(rows) {
            let table = &cache.tables[row.sequence];
            at[..table.len()].copy_from_slice(table);
        }
        let per_head = |values: &Option<Vec<f32>>| put(Elem::F32, values.as_deref().unwrap_or(&[]));
        let on_device = [
            put(shape.activations, &qkv),
            put_u32(&query_start),
            put_u32(&contexts),
            put_u32(&tables),
            put_u32(&prefixes),
            per_head(&features.alibi),
            per_head(&features.sinks),
        ];
        Step { rows: rows.to_vec(), features, shape, qkv, table_stride, on_device }
    }

    /// Tokens of all sequences.
    pub(crate) fn tokens(&self) -> usize {
        self.rows.iter().map(|r| r.queries).sum()
    }

    /// The fused projection on the device.
    pub(crate) fn qkv_view(&self) -> View<'_> {
        self.on_device[0].view(self.shape.activations)
    }

    /// The sequences on the device.
    pub(crate) fn batch(&self) -> SequenceBatch<'_> {
        SequenceBatch {
            rows: self.rows.len(),
            tokens: self.tokens(),
            query_start: self.on_device[1].view(Elem::I32),
            context: self.on_device[2].view(Elem::I32),
            tables: self.on_device[3].view(Elem::I32),
            table_stride: self.table_stride,
            max_queries: self.rows.iter().map(|r| r.queries).max().unwrap_or(0),
            max_context: self.rows.iter().map(|r| r.context).max().unwrap_or(0),
        }
    }

    /// The features on the device.
    pub(crate) fn scores(&self) -> AttentionScores<'_> {
        let Features { scale, soft_cap, window, alibi, sinks, prefix } = &self.features;
        AttentionScores {
            scale: *scale,
            soft_cap: *soft_cap,
            window: *window,
            prefix: prefix.then(|| self.on_device[4].view(Elem::I32)),
            alibi: alibi.is_some().then(|| self.on_device[5].view(Elem::F32)),
            sinks: sinks.is_some().then(|| self.on_device[6].view(Elem::F32)),
        }
    }

    /// The step's output by the definition: `[tokens, heads * head_dim]`.
    pub(crate) fn reference(&self, cache: &Cache) -> Vec<f32> {
        let mut out = Vec::new();
        let mut token = 0;
        for row in &self.rows {
            for query in 0..row.queries {
                for head in 0..self.shape.heads {
                    let at = token * self.shape.stride() + head * self.shape.head_dim;
                    let q = &self.qkv[at..at + self.shape.head_dim];
                    let position = row.context - row.queries + query;
                    out.extend(self.attend(cache, row, position, head, q));
                }
                token += 1;
            }
        }
        out
    }

    /// Whether the query at position `i` sees the key at `j`.
    fn sees(&self, row: &Row, i: usize, j: usize) -> bool {
        let in_window = |window| match window {
            KeyWindow::Last(window) => j + window > i,
            KeyWindow::Around(distance) => j + distance > i && j < i + distance,
            KeyWindow::Chunk(size) => j / size == i / size,
        };
        let causal = j <= i && self.features.window.is_none_or(in_window);
        causal || (self.features.prefix && i < row.prefix && j < row.prefix)
    }

    fn attend(&self, cache: &Cache, row: &Row, i: usize, head: usize, q: &[f32]) -> Vec<f32> {
        let Shape { heads, kv_heads, head_dim, .. } = self.shape;
        let kv_head = head / (heads / kv_heads);
        let at = |j: usize| (j * kv_heads + kv_head) * head_dim;
        let keys = &cache.keys[row.sequence];
        let values = &cache.values[row.sequence];
        let f = &self.features;
        let seen: Vec<usize> = (0..row.context).filter(|&j| self.sees(row, i, j)).collect();
        let scores: Vec<f64> = seen
            .iter()
            .map(|&j| {
                let k = &keys[at(j)..at(j) + head_dim];
                let dot: f64 = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                let mut score = f64::from(f.scale) * dot;
                if let Some(cap) = f.soft_cap {
                    score = f64::from(cap) * (score / f64::from(cap)).tanh();
                }
                let slope = f.alibi.as_ref().map_or(0.0, |slopes| f64::from(slopes[head]));
                score + slope * (j as f64 - i as f64)
            })
            .collect();
        let sink = f.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
        let most = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f64 = weights.iter().sum::<f64>() + (sink - most).exp();
        let mut out = vec![0.0; head_dim];
        for (&j, weight) in seen.iter().zip(&weights) {
            for (o, &v) in out.iter_mut().zip(&values[at(j)..at(j) + head_dim]) {
                *o += weight / sum * f64::from(v);
            }
        }
        out.iter().map(|&o| o as f32).collect()
    }
}
