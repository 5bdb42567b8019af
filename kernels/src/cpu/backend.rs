//! The operations of [`Backend`]: shapes checked, work divided, kernels called.

use std::convert::Infallible;

use super::attention::{self, QUERIES, Tile};
use super::gemm::{BLOCK_PANELS, Inputs, Linear, PackTile};
use super::kv::Cache;
use super::memory::{Memory, Shared};
use super::prologue::Token;
use super::rows::{AddNorm, Gate, RmsNorm};
use super::simd::Element;
use super::step::Row;
use super::{Buf, Cpu, Kv, Matrix, Step, TileTask, gemm, lock};
use crate::backend::{
    Activation, AttentionSpec, Backend, HostMemory, KvSpec, MatrixFormat, Norm, ProductShape, Prologue,
    StepInput, StepSize,
};
use crate::sampling::{SampleRow, Sampled, ScoreRow, Scored};
use crate::tensor::flatten;
use crate::{Error, Part, Result, sample};

impl Backend for Cpu {
    type Buf = Buf;
    type Vector = Vec<f32>;
    type Matrix = Matrix;
    type Kv = Kv;
    type Step = Step;
    type Graph = Infallible;

    fn name(&self) -> String {
        let threads = self.threads();
        format!("cpu ({}, {threads} {})", self.isa().name(), if threads == 1 { "thread" } else { "threads" })
    }

    fn buf(&self, rows: usize, cols: usize) -> Result<Buf> {
        self.reserve(rows, 0)?;
        Ok(Buf { cols, data: Memory::zeroed(rows.saturating_mul(cols), "activations")? })
    }

    fn vector(&self, parts: &[Part<'_>]) -> Result<Vec<f32>> {
        flatten(parts)
    }

    fn matrix(&self, parts: &[Part<'_>], format: MatrixFormat) -> Result<Matrix> {
        let matrix = Matrix::pack(parts, format.dense()?, self.target.panel_width(), &self.pool)?;
        self.reserve(0, matrix.cols)?;
        Ok(matrix)
    }

    fn matrix_bytes(&self, out: usize, cols: usize, format: MatrixFormat) -> usize {
        match format {
            MatrixFormat::Dense(dtype) => Matrix::bytes(out, cols, dtype, self.target.panel_width()),
            MatrixFormat::Fp8 => format.bytes(out, cols),
        }
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        Kv::bytes(spec)
    }

    fn scratch_bytes(&self, products: &[ProductShape]) -> usize {
        let rows = products.iter().map(|product| product.rows).max().unwrap_or(0);
        let cols = products.iter().map(|product| product.inputs).max().unwrap_or(0);
        let packed = rows.saturating_add(self.target.tile_rows()).saturating_mul(cols);
        packed.saturating_add(self.threads() * gemm::SCRATCH).saturating_mul(size_of::<f32>())
    }

    fn kv(&self, spec: KvSpec) -> Result<Kv> {
        if attention::scratch(spec.head_dim) > gemm::SCRATCH {
            return Err(Error::Unsupported(format!("heads of {} features", spec.head_dim)));
        }
        Kv::new(spec)
    }

    fn step(&self, size: &StepSize<'_>) -> Result<Step> {
        Ok(Step::new(size))
    }

    fn begin(&self, step: &mut Step, input: &StepInput<'_>) -> Result<()> {
        step.set(input);
        Ok(())
    }

    fn embed(&self, step: &Step, table: &Matrix, first: usize, out: &mut Buf) -> Result<()> {
        assert_eq!(out.cols, table.cols, "columns of the embedding");
        let n = step.tokens.len();
        let cols = out.cols;
        let rows = Shared::new(out.rows_mut(n));
        self.for_rows(n, 8 * cols, |t| {
            // SAFETY: row t belongs to this task alone.
            let row = unsafe { rows.slice(t * cols, cols) };
            match (step.tokens[t] as usize).checked_sub(first) {
                Some(held) if held < table.out => table.read_row(held, row),
                _ => row.fill(0.0),
            }
        });
        Ok(())
    }

    fn norm(&self, n: usize, x: &Buf, norm: &Norm<Vec<f32>>, out: &mut Buf) -> Result<()> {
        assert_eq!(x.cols, out.cols, "columns of the norm");
        let cols = out.cols;
        let (x, out) = (x.rows(n), Shared::new(out.rows_mut(n)));
        self.for_rows(n, cols, |t| {
            let x = &x[t * cols..(t + 1) * cols];
            // SAFETY: row t belongs to this task alone.
            let out = unsafe { out.slice(t * cols, cols) };
            self.target.dispatch(RmsNorm { x, weight: &norm.weight, eps: norm.eps, out });
        });
        Ok(())
    }

    fn add_norm(
        &self,
        n: usize,
        residual: &mut Buf,
        branch: &Buf,
        norm: &Norm<Vec<f32>>,
        out: &mut Buf,
    ) -> Result<()> {
        assert!(residual.cols == out.cols && branch.cols == out.cols, "columns of the norm");
        let cols = out.cols;
        let (residual, branch) = (Shared::new(residual.rows_mut(n)), branch.rows(n));
        let out = Shared::new(out.rows_mut(n));
        self.for_rows(n, 2 * cols, |t| {
            let branch = &branch[t * cols..(t + 1) * cols];
            // SAFETY: row t of both belongs to this task alone.
            let (residual, out) = unsafe { (residual.slice(t * cols, cols), out.slice(t * cols, cols)) };
            self.target.dispatch(AddNorm { residual, branch, weight: &norm.weight, eps: norm.eps, out });
        });
        Ok(())
    }

    fn linear(&self, n: usize, x: &Buf, w: &Matrix, bias: Option<&Vec<f32>>, out: &mut Buf) -> Result<()> {
        assert!(x.cols == w.cols && out.cols == w.out, "{} to {} by a matrix", x.cols, out.cols);
        assert!(bias.is_none_or(|b| b.len() == w.out), "length of the bias");
        if n == 0 {
            return Ok(());
        }
        let x = x.rows(n);
        let mut packed = lock(&self.inputs);
        // A single row is already in the order of a tile of one.
        let inputs = Inputs { n, x: if n == 1 { x.as_ptr() } else { packed.memory.as_ptr() } };
        if n > 1 {
            let rows = self.target.tile_rows();
            assert!(
                n.next_multiple_of(rows) * w.cols <= packed.memory.len(),
                "more rows than any buffer has"
            );
            let to = Shared::new(&mut packed.memory);
            self.parallel(n.div_ceil(rows), n * w.cols, |tile, _| {
                self.target.dispatch(PackTile { n, cols: w.cols, x, tile, to });
            });
        }
        let out = Shared::new(out.rows_mut(n));
        let bias = bias.map(Vec::as_slice);
        let panels = w.out.div_ceil(self.target.panel_width());
        // Several tasks for each thread even out what other processes take; whole blocks keep the kernels at their best.
        let at_once = (panels / (8 * self.threads())).next_multiple_of(BLOCK_PANELS).max(BLOCK_PANELS);
        let at_once = at_once.min(panels.div_ceil(self.threads())).max(1);
        self.parallel(panels.div_ceil(at_once), n * w.cols * w.out, |task, thread| {
            let (_guard, scratch) = self.scratch(thread);
            let panels = task * at_once..panels.min((task + 1) * at_once);
            self.target.dispatch(Linear { inputs, w, bias, out, panels, scratch });
        });
        Ok(())
    }

    fn prologue(
        &self,
        step: &Step,
        qkv: &mut Buf,
        prologue: &Prologue<'_, Vec<f32>>,
        kv: &mut Kv,
    ) -> Result<()> {
        let layout = prologue.layout;
        check_cache(step, kv, layout.kv_heads, layout.head_dim);
        assert_eq!(qkv.cols, layout.cols(), "columns of the projection");
        if let Some(rope) = prologue.rope {
            assert!(rope.rotary_dim <= layout.head_dim && rope.rotary_dim % 2 == 0, "rotated features");
        }
        let rows = qkv.rows_mut(step.tokens.len());
        let spec = kv.spec;
        match &mut kv.cache {
            Cache::F32(pages) => self.write(step, rows, prologue, &spec, &mut pages.k, &mut pages.v),
            Cache::F16(pages) => self.write(step, rows, prologue, &spec, &mut pages.k, &mut pages.v),
            Cache::BF16(pages) => self.write(step, rows, prologue, &spec, &mut pages.k, &mut pages.v),
        }
        Ok(())
    }

    fn attention(&self, step: &Step, qkv: &Buf, kv: &Kv, spec: &AttentionSpec, out: &mut Buf) -> Result<()> {
        let layout = spec.layout;
        check_cache(step, kv, layout.kv_heads, layout.head_dim);
        assert!(layout.heads.is_multiple_of(layout.kv_heads), "heads in whole groups");
        assert_eq!(qkv.cols, layout.cols(), "columns of the projection");
        assert_eq!(out.cols, layout.heads * layout.head_dim, "columns of the attention");
        let n = step.tokens.len();
        let (qkv, out) = (qkv.rows(n), Shared::new(out.rows_mut(n)));

        let mut tasks = lock(&self.tiles);
        tasks.clear();
        for (index, row) in step.rows.iter().enumerate() {
            add_tiles(&mut tasks, index, row, spec);
        }
        // The longest first, so that no thread begins a long one when the others are done.
        tasks.sort_unstable_by_key(|task| std::cmp::Reverse(task.cost));
        let work = tasks.iter().map(|task| task.cost).sum::<usize>() * layout.head_dim;
        self.parallel(tasks.len(), work, |task, thread| {
            let TileTask { row, kv_head, first, end, .. } = tasks[task];
            let (_guard, scratch) = self.scratch(thread);
            let row = &step.rows[row];
            let blocks = step.blocks(row);
            let queries = first..end;
            self.target.dispatch(Tile { spec, kv, row, blocks, kv_head, queries, qkv, out, scratch });
        });
        Ok(())
    }

    fn gate(&self, n: usize, act: Activation, x: &Buf, out: &mut Buf) -> Result<()> {
        assert_eq!(x.cols, 2 * out.cols, "gate and up features");
        let cols = out.cols;
        let (x, out) = (x.rows(n), Shared::new(out.rows_mut(n)));
        self.for_rows(n, 4 * cols, |t| {
            // SAFETY: row t belongs to this task alone.
            let out = unsafe { out.slice(t * cols, cols) };
            self.target.dispatch(Gate { act, x: &x[2 * t * cols..2 * (t + 1) * cols], out });
        });
        Ok(())
    }

    fn gather(&self, step: &Step, x: &Buf, out: &mut Buf) -> Result<()> {
        assert_eq!(x.cols, out.cols, "columns of the gathered rows");
        let cols = x.cols;
        let x = x.rows(step.tokens.len());
        let rows = out.rows_mut(step.outputs.len()).chunks_exact_mut(cols.max(1));
        for (row, &t) in rows.zip(&step.outputs) {
            row.copy_from_slice(&x[t as usize * cols..][..cols]);
        }
        Ok(())
    }

    fn copy_rows(&self, x: &Buf, from: usize, n: usize, out: &mut Buf, to: usize) -> Result<()> {
        assert_eq!(x.cols, out.cols, "columns of the copied rows");
        let cols = x.cols;
        out.rows_mut(to + n)[to * cols..].copy_from_slice(&x.rows(from + n)[from * cols..]);
        Ok(())
    }

    fn sample(&self, step: &mut Step, logits: &mut Buf, rows: &[SampleRow<'_>]) -> Result<()> {
        step.chosen.clear();
        let nothing = Sampled { token: 0, logprob: f32::NAN, top: Vec::new() };
        self.for_logits(logits, rows, &mut step.chosen, nothing, sample::choose);
        Ok(())
    }

    fn score(
        &self,
        _step: &mut Step,
        logits: &mut Buf,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<()> {
        let nothing = Scored { logprob: f32::NAN, rank: 0, top: Vec::new() };
        self.for_logits(logits, rows, scored, nothing, sample::score);
        Ok(())
    }

    fn collect(&self, step: &mut Step, chosen: &mut Vec<Sampled>) -> Result<()> {
        chosen.append(&mut step.chosen);
        Ok(())
    }

    fn record<E: From<Error>>(
        &self,
        _work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<Infallible>, E> {
        Ok(None)
    }

    fn replay(&self, graph: &Infallible) -> Result<()> {
        match *graph {}
    }

    fn read(&self, buf: &Buf, n: usize) -> Result<Vec<f32>> {
        Ok(buf.rows(n).to_vec())
    }
}

impl Cpu {
    /// Appends what `make` makes of each row of logits; `empty` holds a result's place.
    fn for_logits<Row: Sync, T: Clone + Send>(
        &self,
        logits: &mut Buf,
        rows: &[Row],
        results: &mut Vec<T>,
        empty: T,
        make: impl Fn(&mut [f32], &Row) -> T + Sync,
    ) {
        let cols = logits.cols;
        let logits = Shared::new(logits.rows_mut(rows.len()));
        let first = results.len();
        results.resize(first + rows.len(), empty);
        let results = Shared::new(&mut results[first..]);
        self.parallel(rows.len(), 8 * cols * rows.len(), |t, _| {
            // SAFETY: row t and its result belong to this task alone.
            let (logits, result) = unsafe { (logits.slice(t * cols, cols), results.slice(t, 1)) };
            result[0] = make(logits, &rows[t]);
        });
    }

    fn write<T: Element>(
        &self,
        step: &Step,
        rows: &mut [f32],
        prologue: &Prologue<'_, Vec<f32>>,
        spec: &KvSpec,
        k: &mut [T],
        v: &mut [T],
    ) {
        let cols = prologue.layout.cols();
        let (rows, k, v) = (Shared::new(rows), Shared::new(k), Shared::new(v));
        self.for_rows(step.tokens.len(), 4 * cols, |t| {
            let (position, blocks) = step.place(t);
            let block = blocks[position / spec.block_size];
            // SAFETY: row t belongs to this task alone.
            let qkv = unsafe { rows.slice(t * cols, cols) };
            self.target.dispatch(Token { qkv, prologue, position, block, spec, k, v });
        });
    }
}

/// The kernels go where the block tables point: they must point into this cache, and cover every position.
fn check_cache(step: &Step, kv: &Kv, kv_heads: usize, head_dim: usize) {
    assert!(kv.spec.kv_heads == kv_heads && kv.spec.head_dim == head_dim, "heads of the cache");
    assert!(step.blocks_end <= kv.spec.blocks, "a block outside the cache");
    for row in &step.rows {
        let covered = step.blocks(row).len() * kv.spec.block_size;
        assert!(row.start + row.count <= covered, "a position without a block");
    }
}

fn add_tiles(tasks: &mut Vec<TileTask>, index: usize, row: &Row, spec: &AttentionSpec) {
    let group = spec.layout.heads / spec.layout.kv_heads;
    for first in (0..row.count * group).step_by(QUERIES) {
        let end = (first + QUERIES).min(row.count * group);
        let keys = (row.start + (end - 1) / group + 1).min(spec.window.unwrap_or(usize::MAX));
        for kv_head in 0..spec.layout.kv_heads {
            tasks.push(TileTask { row: index, kv_head, first, end, cost: (end - first) * (keys + 16) });
        }
    }
}

impl HostMemory for Cpu {
    fn host<'a>(&self, buf: &'a Buf, n: usize) -> &'a [f32] {
        buf.rows(n)
    }

    fn host_mut<'a>(&self, buf: &'a mut Buf, n: usize) -> &'a mut [f32] {
        buf.rows_mut(n)
    }

    fn chosen<'a>(&self, step: &'a mut Step) -> &'a mut Vec<Sampled> {
        &mut step.chosen
    }
}
