//! The operations of a forward pass.

use super::math::{activate, dot, gate, normalize, soft_cap};
use super::{
    Adapters, Buf, HeadMatrices, Kv, Matrix, Queue, Reference, Routing, States, attention, experts, latent,
    prologue, recurrent,
};
use crate::{
    Activation, AdapterOps, AttentionOps, AttentionSpec, ChannelRecurrence, Convolution, ExpertMlp,
    ExpertOps, ForwardOps, GateFunction, Gating, LatentPrologue, LatentSpec, Norm, OpenStep, Prologue,
    Recurrence, RecurrentOps, Result, RouterTerms, RowParts, ScoreTerms, StateCopy, TransferOps,
};

impl ForwardOps for Reference {
    fn embed(
        &self,
        step: &OpenStep<'_, Queue>,
        table: &Matrix,
        first: usize,
        factor: f32,
        out: &mut Buf,
    ) -> Result<()> {
        for (t, &token) in step.queue().tokens.iter().enumerate() {
            match (token as usize).checked_sub(first) {
                Some(held) if held < table.out => {
                    out.row_mut(t).copy_from_slice(table.row(held));
                    out.row_mut(t).iter_mut().for_each(|x| *x *= factor);
                }
                _ => out.row_mut(t).fill(0.0),
            }
        }
        Ok(())
    }

    fn embed_positions(&self, step: &OpenStep<'_, Queue>, table: &Matrix, out: &mut Buf) -> Result<()> {
        for (t, &(position, _)) in step.queue().places.iter().enumerate() {
            out.row_mut(t).copy_from_slice(table.row(position));
        }
        Ok(())
    }

    fn norm(&self, n: usize, x: &Buf, norm: &Norm<Vec<f32>>, out: &mut Buf) -> Result<()> {
        for t in 0..n {
            out.row_mut(t).copy_from_slice(x.row(t));
            normalize(out.row_mut(t), norm, 0);
        }
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
        for t in 0..n {
            for (r, b) in residual.row_mut(t).iter_mut().zip(branch.row(t)) {
                *r += b;
            }
        }
        self.norm(n, residual, norm, out)
    }

    fn norm_parts(&self, n: usize, x: &mut Buf, parts: RowParts, norm: &Norm<Vec<f32>>) -> Result<()> {
        let RowParts { first, count, cols } = parts;
        for t in 0..n {
            for (part, x) in x.row_mut(t)[first..].chunks_exact_mut(cols).take(count).enumerate() {
                normalize(x, norm, if norm.weight.len() > cols { part } else { 0 });
            }
        }
        Ok(())
    }

    fn add(&self, n: usize, x: &Buf, out: &mut Buf) -> Result<()> {
        for t in 0..n {
            out.row_mut(t).iter_mut().zip(x.row(t)).for_each(|(out, x)| *out += x);
        }
        Ok(())
    }

    fn scale(&self, n: usize, factor: f32, x: &mut Buf) -> Result<()> {
        for t in 0..n {
            x.row_mut(t).iter_mut().for_each(|x| *x *= factor);
        }
        Ok(())
    }

    fn soft_cap(&self, n: usize, cap: f32, x: &mut Buf) -> Result<()> {
        for t in 0..n {
            x.row_mut(t).iter_mut().for_each(|x| *x = soft_cap(f64::from(*x), cap) as f32);
        }
        Ok(())
    }

    fn clamp(&self, n: usize, bound: f32, x: &mut Buf) -> Result<()> {
        for t in 0..n {
            x.row_mut(t).iter_mut().for_each(|x| *x = x.clamp(-bound, bound));
        }
        Ok(())
    }

    fn linear(&self, n: usize, x: &Buf, w: &Matrix, bias: Option<&Vec<f32>>, out: &mut Buf) -> Result<()> {
        for t in 0..n {
            for o in 0..w.out {
                let row = &w.data[o * w.cols..(o + 1) * w.cols];
                let bias = bias.map_or(0.0, |b| b[o]);
                out.row_mut(t)[o] = (dot(x.row(t), row) + f64::from(bias)) as f32;
            }
        }
        Ok(())
    }

    fn multiply_gates(
        &self,
        n: usize,
        gates: (&Buf, usize),
        function: GateFunction,
        x: &mut Buf,
    ) -> Result<()> {
        recurrent::multiply_gates(n, gates, function, x);
        Ok(())
    }

    fn gate(&self, n: usize, gating: Gating, x: &Buf, out: &mut Buf) -> Result<()> {
        for t in 0..n {
            let (gates, ups) = x.row(t).split_at(x.cols / 2);
            for ((o, g), u) in out.row_mut(t).iter_mut().zip(gates).zip(ups) {
                *o = gate(gating, *g, *u);
            }
        }
        Ok(())
    }

    fn activate(&self, n: usize, act: Activation, x: &mut Buf) -> Result<()> {
        for t in 0..n {
            x.row_mut(t).iter_mut().for_each(|x| *x = activate(act, f64::from(*x)) as f32);
        }
        Ok(())
    }

    fn gather(&self, step: &OpenStep<'_, Queue>, x: &Buf, out: &mut Buf) -> Result<()> {
        for (i, &t) in step.queue().outputs.iter().enumerate() {
            out.row_mut(i).copy_from_slice(x.row(t as usize));
        }
        Ok(())
    }

    fn copy_rows(&self, x: &Buf, from: usize, n: usize, out: &mut Buf, to: usize) -> Result<()> {
        for i in 0..n {
            out.row_mut(to + i).copy_from_slice(x.row(from + i));
        }
        Ok(())
    }
}

impl AdapterOps for Reference {
    fn adapt(
        &self,
        step: &OpenStep<'_, Queue>,
        x: &Buf,
        adapters: &Adapters,
        mid: &mut Buf,
        out: &mut Buf,
    ) -> Result<()> {
        adapters.adapt(step.queue(), x, mid, out);
        Ok(())
    }
}

impl AttentionOps for Reference {
    fn prologue(
        &self,
        step: &OpenStep<'_, Queue>,
        qkv: &mut Buf,
        prologue: &Prologue<'_, Vec<f32>>,
        kv: &mut Kv,
    ) -> Result<()> {
        prologue::run(step.queue(), qkv, prologue, kv);
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
        attention::run(step.queue(), (qkv, kv), spec, terms, out);
        Ok(())
    }

    fn linear_heads(&self, n: usize, x: &Buf, w: &HeadMatrices, out: &mut Buf) -> Result<()> {
        latent::linear_heads(n, x, w, out);
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
        latent::prologue(step.queue(), queries, latents, prologue, kv);
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
        latent::attention(step.queue(), (queries, kv), spec, out);
        Ok(())
    }
}

impl RecurrentOps for Reference {
    fn convolve(
        &self,
        step: &OpenStep<'_, Queue>,
        x: &Buf,
        convolution: &Convolution<'_, Vec<f32>>,
        states: &mut States,
        out: &mut Buf,
    ) -> Result<()> {
        recurrent::convolve(step.queue(), x, convolution, states, out);
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
        recurrent::recur(step.queue(), inputs, recurrence, states, out);
        Ok(())
    }

    fn recur_by_channel(
        &self,
        step: &OpenStep<'_, Queue>,
        recurrence: &ChannelRecurrence<'_, Vec<f32>, Buf>,
        states: &mut States,
        out: &mut Buf,
    ) -> Result<()> {
        recurrent::recur_by_channel(step.queue(), recurrence, states, out);
        Ok(())
    }

    fn copy_states(&self, copies: &[StateCopy], states: &mut States) -> Result<()> {
        states.copy(copies);
        Ok(())
    }
}

impl ExpertOps for Reference {
    fn route(
        &self,
        _step: &OpenStep<'_, Queue>,
        n: usize,
        logits: &Buf,
        terms: RouterTerms<'_, Vec<f32>>,
        routing: &mut Routing,
    ) -> Result<()> {
        let Routing { router, chosen } = routing;
        *chosen = (0..n).map(|t| experts::route(logits.row(t), router, terms)).collect();
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
        experts::run(n, x, mlp, routing, out);
        Ok(())
    }

    fn add_gated(&self, n: usize, x: &Buf, gate: &Buf, _routing: &mut Routing, out: &mut Buf) -> Result<()> {
        for t in 0..n {
            let factor = 1.0 / (1.0 + (-f64::from(gate.row(t)[0])).exp());
            for (out, x) in out.row_mut(t).iter_mut().zip(x.row(t)) {
                *out = (f64::from(*out) + factor * f64::from(*x)) as f32;
            }
        }
        Ok(())
    }
}

impl TransferOps for Reference {
    fn read(&self, buf: &Buf, n: usize) -> Result<Vec<f32>> {
        Ok(buf.data[..n * buf.cols].to_vec())
    }

    fn download(&self, buf: &Buf, n: usize, _scratch: &mut Vec<u8>, to: &mut [f32]) -> Result<()> {
        to.copy_from_slice(&buf.data[..n * buf.cols]);
        Ok(())
    }

    fn upload(&self, n: usize, from: &[f32], _scratch: &mut Vec<u8>, buf: &mut Buf) -> Result<()> {
        buf.data[..n * buf.cols].copy_from_slice(from);
        Ok(())
    }
}
