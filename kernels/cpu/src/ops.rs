//! The operations of a forward pass: shapes are checked, work is divided among threads, kernels are
//! called.

use millrace_backend::{
    Activation, AdapterOps, AttentionOps, AttentionSpec, ChannelRecurrence, Convolution, DistanceBias, Error,
    ExpertMlp, ExpertOps, ForwardOps, GateFunction, Gating, KvSpec, LatentPrologue, LatentSpec, Norm,
    OpenStep, Prologue, QkvLayout, Recurrence, RecurrentOps, Result, RouterTerms, RowParts, ScoreTerms,
    StateCopy, TransferOps,
};

use super::attention::{HeadDims, Scoring};
use super::gemm::{BLOCK_PANELS, Linear};
use super::inputs::{GROUP, InputWords, Inputs, PackTile};
use super::kv::{Cache, WriteKv};
use super::matrix::Packed;
use super::memory::Shared;
use super::norms::{AddNorm, NormParts, NormRow};
use super::outputs::Outputs;
use super::prologue::Token;
use super::queue::Queue;
use super::rows::{Activate, Add, Clamp, Gate, Scale, SoftCap};
use super::tile::Tiles;
use super::{Adapters, Buf, Cpu, HeadMatrices, Kv, Matrix, PackedInputs, Routing, States, latent, lock};

impl ForwardOps for Cpu {
    fn embed(
        &self,
        step: &OpenStep<'_, Queue>,
        table: &Matrix,
        first: usize,
        factor: f32,
        out: &mut Buf,
    ) -> Result<()> {
        if !table.is_dense() {
            return Err(Error::Unsupported("an embedding that is not dense".to_owned()));
        }
        let step = step.queue();
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
            if factor != 1.0 {
                row.iter_mut().for_each(|x| *x *= factor);
            }
        });
        Ok(())
    }

    fn embed_positions(&self, step: &OpenStep<'_, Queue>, table: &Matrix, out: &mut Buf) -> Result<()> {
        if !table.is_dense() {
            return Err(Error::Unsupported("positions that are not dense".to_owned()));
        }
        let step = step.queue();
        assert_eq!(out.cols, table.cols, "columns of the positions");
        let (n, cols) = (step.tokens.len(), out.cols);
        let rows = Shared::new(out.rows_mut(n));
        self.for_rows(n, 8 * cols, |t| {
            let (position, _) = step.place(t);
            assert!(position < table.out, "a position outside the table");
            // SAFETY: row t belongs to this task alone.
            table.read_row(position, unsafe { rows.slice(t * cols, cols) });
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
            self.target.dispatch(NormRow { x, norm, out });
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
            self.target.dispatch(AddNorm { residual, branch, norm, out });
        });
        Ok(())
    }

    fn norm_parts(&self, n: usize, x: &mut Buf, parts: RowParts, norm: &Norm<Vec<f32>>) -> Result<()> {
        let (cols, RowParts { first, count, cols: of_part }) = (x.cols, parts);
        let weights = norm.weight.len();
        assert!(weights == of_part || weights == count * of_part, "weights of {count} parts");
        let x = Shared::new(x.rows_mut(n));
        self.for_rows(n, count * of_part, |t| {
            // SAFETY: row t belongs to this task alone.
            let x = unsafe { x.slice(t * cols + first, count * of_part) };
            self.target.dispatch(NormParts { x, cols: of_part, norm });
        });
        Ok(())
    }

    fn add(&self, n: usize, x: &Buf, out: &mut Buf) -> Result<()> {
        assert_eq!(x.cols, out.cols, "columns of the sum");
        let cols = out.cols;
        let (x, out) = (x.rows(n), Shared::new(out.rows_mut(n)));
        self.for_rows(n, cols, |t| {
            // SAFETY: row t belongs to this task alone.
            let out = unsafe { out.slice(t * cols, cols) };
            self.target.dispatch(Add { x: &x[t * cols..(t + 1) * cols], out });
        });
        Ok(())
    }

    fn scale(&self, n: usize, factor: f32, x: &mut Buf) -> Result<()> {
        let cols = x.cols;
        let x = Shared::new(x.rows_mut(n));
        self.for_rows(n, cols, |t| {
            // SAFETY: row t belongs to this task alone.
            self.target.dispatch(Scale { factor, x: unsafe { x.slice(t * cols, cols) } });
        });
        Ok(())
    }

    fn soft_cap(&self, n: usize, cap: f32, x: &mut Buf) -> Result<()> {
        let cols = x.cols;
        let x = Shared::new(x.rows_mut(n));
        self.for_rows(n, 4 * cols, |t| {
            // SAFETY: row t belongs to this task alone.
            self.target.dispatch(SoftCap { cap, x: unsafe { x.slice(t * cols, cols) } });
        });
        Ok(())
    }

    fn clamp(&self, n: usize, bound: f32, x: &mut Buf) -> Result<()> {
        let cols = x.cols;
        let x = Shared::new(x.rows_mut(n));
        self.for_rows(n, cols, |t| {
            // SAFETY: row t belongs to this task alone.
            self.target.dispatch(Clamp { bound, x: unsafe { x.slice(t * cols, cols) } });
        });
        Ok(())
    }

    fn linear(&self, n: usize, x: &Buf, w: &Matrix, bias: Option<&Vec<f32>>, out: &mut Buf) -> Result<()> {
        self.multiply(n, x, w, bias.map(Vec::as_slice), out)
    }

    fn multiply_gates(
        &self,
        n: usize,
        gates: (&Buf, usize),
        function: GateFunction,
        x: &mut Buf,
    ) -> Result<()> {
        self.multiply_rows(n, gates, function, x);
        Ok(())
    }

    fn gate(&self, n: usize, gating: Gating, x: &Buf, out: &mut Buf) -> Result<()> {
        assert_eq!(x.cols, 2 * out.cols, "gate and up features");
        let cols = out.cols;
        let (x, out) = (x.rows(n), Shared::new(out.rows_mut(n)));
        self.for_rows(n, 4 * cols, |t| {
            // SAFETY: row t belongs to this task alone.
            let out = unsafe { out.slice(t * cols, cols) };
            self.target.dispatch(Gate { gating, x: &x[2 * t * cols..2 * (t + 1) * cols], out });
        });
        Ok(())
    }

    fn activate(&self, n: usize, act: Activation, x: &mut Buf) -> Result<()> {
        let cols = x.cols;
        let x = Shared::new(x.rows_mut(n));
        self.for_rows(n, 4 * cols, |t| {
            // SAFETY: row t belongs to this task alone.
            self.target.dispatch(Activate { act, x: unsafe { x.slice(t * cols, cols) } });
        });
        Ok(())
    }

    fn gather(&self, step: &OpenStep<'_, Queue>, x: &Buf, out: &mut Buf) -> Result<()> {
        let step = step.queue();
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
}

impl AdapterOps for Cpu {
    fn adapt(
        &self,
        step: &OpenStep<'_, Queue>,
        x: &Buf,
        adapters: &Adapters,
        mid: &mut Buf,
        out: &mut Buf,
    ) -> Result<()> {
        self.adapt_rows(step.queue(), x, adapters, mid, out);
        Ok(())
    }
}

impl AttentionOps for Cpu {
    fn prologue(
        &self,
        step: &OpenStep<'_, Queue>,
        qkv: &mut Buf,
        prologue: &Prologue<'_, Vec<f32>>,
        kv: &mut Kv,
    ) -> Result<()> {
        let step = step.queue();
        let layout = prologue.layout;
        if layout.kv_heads > 0 {
            check_cache(step, kv, layout);
        }
        assert_eq!(qkv.cols, layout.cols(), "columns of the projection");
        if let Some(rope) = prologue.rope {
            assert!(rope.rotated() <= layout.head_dim && rope.rotary_dim % 2 == 0, "rotated features");
        }

        let rows = qkv.rows_mut(step.tokens.len());
        let size = kv.spec.block_size;
        match &mut kv.cache {
            Cache::F32(pages) => self.write(step, rows, prologue, size, pages.writer()),
            Cache::F16(pages) => self.write(step, rows, prologue, size, pages.writer()),
            Cache::BF16(pages) | Cache::Bf16Pairs(pages) => {
                self.write(step, rows, prologue, size, pages.writer());
            }
            Cache::Int8(pages) => self.write(step, rows, prologue, size, pages.writer()),
        }
        Ok(())
    }

    fn attention(
        &self,
        step: &OpenStep<'_, Queue>,
        qkv: &Buf,
        kv: &Kv,
        spec: &AttentionSpec,
        terms: ScoreTerms<'_, Vec<f32>>,
        out: &mut Buf,
    ) -> Result<()> {
        let (step, layout) = (step.queue(), spec.layout);
        check_cache(step, kv, layout);
        assert!(layout.heads.is_multiple_of(layout.kv_heads), "heads in whole groups");
        assert_eq!(out.cols, layout.heads * layout.head_dim, "columns of the attention");
        assert!(qkv.cols == layout.cols() || qkv.cols == out.cols, "columns of the projection");
        for term in [terms.alibi, terms.sinks].into_iter().flatten() {
            assert_eq!(term.len(), layout.heads, "numbers of the query heads");
        }
        if let Some(DistanceBias { table, reach }) = terms.distance {
            assert_eq!(table.len(), layout.heads * (2 * reach + 1), "biases of the query heads");
        }
        let dims = HeadDims { query_stride: qkv.cols, ..HeadDims::of(layout) };
        self.attend(step, (qkv, kv), Scoring { dims, spec, terms }, out);
        Ok(())
    }

    fn linear_heads(&self, n: usize, x: &Buf, w: &HeadMatrices, out: &mut Buf) -> Result<()> {
        self.multiply_heads(n, x, w, out);
        Ok(())
    }

    fn latent_prologue(
        &self,
        step: &OpenStep<'_, Queue>,
        queries: &mut Buf,
        latents: &mut Buf,
        prologue: &LatentPrologue<'_, Vec<f32>>,
        kv: &mut Kv,
    ) -> Result<()> {
        self.store_latents(step.queue(), (queries, latents), prologue, kv);
        Ok(())
    }

    fn latent_attention(
        &self,
        step: &OpenStep<'_, Queue>,
        queries: &Buf,
        kv: &Kv,
        spec: &LatentSpec,
        out: &mut Buf,
    ) -> Result<()> {
        latent::check_attention(step.queue(), queries, kv, spec, out);
        let dims =
            HeadDims { key: spec.key_dim, value: spec.value_dim, query_stride: queries.cols, shared: true };
        let scoring = Scoring { dims, spec: &spec.attention(), terms: ScoreTerms::NONE };
        self.attend(step.queue(), (queries, kv), scoring, out);
        Ok(())
    }
}

impl RecurrentOps for Cpu {
    fn convolve(
        &self,
        step: &OpenStep<'_, Queue>,
        x: &Buf,
        convolution: &Convolution<'_, Vec<f32>>,
        states: &mut States,
        out: &mut Buf,
    ) -> Result<()> {
        self.convolve_rows(step.queue(), x, convolution, states, out);
        Ok(())
    }

    fn recur(
        &self,
        step: &OpenStep<'_, Queue>,
        inputs: (&Buf, &Buf),
        recurrence: &Recurrence<'_, Vec<f32>>,
        states: &mut States,
        out: &mut Buf,
    ) -> Result<()> {
        self.recur_rows(step.queue(), inputs, recurrence, states, out);
        Ok(())
    }

    fn recur_by_channel(
        &self,
        step: &OpenStep<'_, Queue>,
        recurrence: &ChannelRecurrence<'_, Vec<f32>, Buf>,
        states: &mut States,
        out: &mut Buf,
    ) -> Result<()> {
        self.recur_rows_by_channel(step.queue(), recurrence, states, out);
        Ok(())
    }

    fn copy_states(&self, copies: &[StateCopy], states: &mut States) -> Result<()> {
        self.copy_places(copies, states);
        Ok(())
    }
}

impl ExpertOps for Cpu {
    fn route(
        &self,
        _step: &OpenStep<'_, Queue>,
        n: usize,
        logits: &Buf,
        terms: RouterTerms<'_, Vec<f32>>,
        routing: &mut Routing,
    ) -> Result<()> {
        self.choose_experts(n, logits, terms, routing);
        Ok(())
    }

    fn expert_mlp(
        &self,
        n: usize,
        x: &Buf,
        mlp: &ExpertMlp<'_, Vec<Matrix>, Vec<f32>>,
        routing: &mut Routing,
        out: &mut Buf,
    ) -> Result<()> {
        self.compute_experts(n, x, mlp, routing, out)
    }

    fn add_gated(&self, n: usize, x: &Buf, gate: &Buf, _routing: &mut Routing, out: &mut Buf) -> Result<()> {
        self.add_gated_rows(n, x, gate, out);
        Ok(())
    }
}

impl TransferOps for Cpu {
    fn read(&self, buf: &Buf, n: usize) -> Result<Vec<f32>> {
        Ok(buf.rows(n).to_vec())
    }

    fn download(&self, buf: &Buf, n: usize, _scratch: &mut Vec<u8>, to: &mut [f32]) -> Result<()> {
        to.copy_from_slice(buf.rows(n));
        Ok(())
    }

    fn upload(&self, n: usize, from: &[f32], _scratch: &mut Vec<u8>, buf: &mut Buf) -> Result<()> {
        buf.rows_mut(n).copy_from_slice(from);
        Ok(())
    }
}

impl Cpu {
    /// Computes `out = x · wᵀ + bias` over the first `n` rows.
    pub(super) fn multiply(
        &self,
        n: usize,
        x: &Buf,
        w: &Matrix,
        bias: Option<&[f32]>,
        out: &mut Buf,
    ) -> Result<()> {
        assert!(x.cols == w.cols && out.cols == w.out, "{} to {} by a matrix", x.cols, out.cols);
        assert!(bias.is_none_or(|b| b.len() == w.out), "length of the bias");
        if n == 0 {
            return Ok(());
        }
        match &w.packed {
            Packed::Stack(segments) => {
                let mut first = 0;
                for segment in segments {
                    let cols = first..first + segment.out;
                    first = cols.end;
                    self.multiply_columns(n, x, segment, Outputs::new(out, n, cols, bias));
                }
                return Ok(());
            }
            #[cfg(target_arch = "x86_64")]
            Packed::Bf16Pairs(panels) if self.target.has_tiles() => {
                self.tile_linear(n, x, panels, bias, out);
                return Ok(());
            }
            Packed::Stored(_) => return Err(Error::Unsupported("a product by an embedding".to_owned())),
            _ => (),
        }
        self.multiply_columns(n, x, w, Outputs::new(out, n, 0..w.out, bias));
        Ok(())
    }

    /// Computes `x · wᵀ` and the bias over the first `n` rows, at least one, into some columns of a
    /// buffer.
    fn multiply_columns(&self, n: usize, x: &Buf, w: &Matrix, outputs: Outputs<'_>) {
        match &w.packed {
            Packed::Int(panels) if self.rounds_to_bytes() => return self.int_linear(n, x, panels, outputs),
            Packed::SuperBlocks(panels) if self.rounds_to_bytes() => {
                return self.super_block_linear(n, x, panels, outputs);
            }
            _ => (),
        }
        let mut packed = lock(&self.inputs);
        let highest = match &w.packed {
            Packed::Table(panels, words) => self.table_rows(panels, *words),
            _ => self.target.tile_rows(),
        };
        let inputs = self.pack_inputs(n, x, w.words(), highest, &mut packed);
        match &w.packed {
            Packed::Table(panels, words) => self.table_linear((inputs, *words), panels, outputs),
            Packed::Int(panels) => self.exact_linear(inputs, panels, outputs),
            Packed::SuperBlocks(panels) => self.exact_linear(inputs, panels, outputs),
            _ => {
                assert_eq!(outputs.stride, w.out, "dense rows are not stacked");
                let Outputs { out, bias, .. } = outputs;
                self.for_panels(w.out, BLOCK_PANELS, n * w.cols * w.out, |panels, thread| {
                    let (_guard, scratch) = self.scratch(thread);
                    self.target.dispatch(Linear { inputs, w, bias, out, panels, scratch });
                });
            }
        }
    }

    /// Packs the first `n` rows of `x` into tiles of at most `highest` rows.
    pub(super) fn pack_inputs(
        &self,
        n: usize,
        x: &Buf,
        form: InputWords,
        highest: usize,
        packed: &mut PackedInputs,
    ) -> Inputs {
        let cols = x.cols;
        let (x, words) = (x.rows(n), form.count(cols));
        if n == 1 && form == InputWords::F32 && cols.is_multiple_of(GROUP) {
            // A single row without padding already has the layout of a tile of height one.
            return Inputs { n, words, x: x.as_ptr().cast() };
        }
        let room = packed.memory.len();
        assert!(n * Inputs::row_words(words) <= room, "more rows than any buffer has");
        let to = Shared::new(&mut packed.memory).words();
        let tiles = Tiles::new(n, highest);
        self.parallel(tiles.count(), n * cols, |tile, _| {
            self.target.dispatch(PackTile { words: form, cols, x, rows: tiles.rows(tile), to });
        });
        Inputs { n, words, x: to.as_ptr() }
    }

    /// Runs the prologue of every token. Blocks of the cache have `block_size` tokens.
    fn write(
        &self,
        step: &Queue,
        rows: &mut [f32],
        prologue: &Prologue<'_, Vec<f32>>,
        block_size: usize,
        kv: impl WriteKv,
    ) {
        let cols = prologue.layout.cols();
        let rows = Shared::new(rows);
        self.for_rows(step.tokens.len(), 4 * cols, |t| {
            let (position, blocks) = step.place(t);
            let (block, slot) = (blocks[position / block_size], position % block_size);
            // SAFETY: row t belongs to this task alone.
            let qkv = unsafe { rows.slice(t * cols, cols) };
            let axes = step.row(t).prefix.axes(position);
            self.target.dispatch(Token { qkv, prologue, position, axes, block, slot, kv });
        });
    }
}

/// Checks that the block tables refer to blocks of this cache and cover every position, because the
/// kernels read and write there without further checks.
fn check_cache(step: &Queue, kv: &Kv, layout: QkvLayout) {
    let KvSpec { heads, key_dim, value_dim, .. } = kv.spec;
    let QkvLayout { kv_heads, head_dim, .. } = layout;
    assert_eq!((heads, key_dim, value_dim), (kv_heads, head_dim, head_dim), "heads of the cache");
    step.check_blocks(kv.spec.blocks, kv.spec.block_size);
}
