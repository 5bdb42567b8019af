//! The numeric reference: every operation as its definition reads, one element at a time.
//!
//! Sums run in f64 and are rounded once, so that any order of summation on a device can be compared
//! with them. Weights and cached keys and values are rounded to the format asked for, but stored as
//! f32. The reference is slow: it is meant for tests and for trying out a decoder, never for
//! serving.

mod adapters;
mod attention;
mod buffers;
mod experts;
mod latent;
mod math;
mod ops;
mod prologue;
mod recurrent;

use std::convert::Infallible;

pub use adapters::Adapters;
pub use buffers::{Buf, Kv, Matrix, Queue};
pub use experts::Routing;
pub use latent::HeadMatrices;
pub use recurrent::States;

use millrace_numbers::formats::{exact_format, fp8, nf4};
use millrace_numbers::tensor::{flatten, stacked_shape};
use millrace_numbers::{DType, Part, WeightFormat};

use crate::sampling::{SampleRow, Sampled, ScoreRow, Scored};
use crate::{
    AdapterSpec, AdapterWeights, Backend, BegunStep, ComputedStep, DeviceTypes, Error, HeadRows, HostMemory,
    KvSpec, ModelLoading, OpenStep, ProductShape, Result, RoutingSpec, SampledRows, Segment, Sizing,
    StateSpec, StepGraphs, StepInput, StepQueue, StepSize, SynchronousStep, WeightLoading, sampling,
};

/// The slow, obvious implementation of [`Backend`].
#[derive(Debug, Default, Clone, Copy)]
pub struct Reference;

impl DeviceTypes for Reference {
    type Buf = Buf;
    type Vector = Vec<f32>;
    type Matrix = Matrix;
    type Experts = Vec<Matrix>;
    type HeadMatrices = HeadMatrices;
    type Adapters = Adapters;
    type Routing = Routing;
    type Kv = Kv;
    type States = States;
    type Queue = Queue;
}

impl Backend for Reference {
    fn name(&self) -> String {
        "reference".to_owned()
    }
}

impl Sizing for Reference {
    fn stored_format(&self, parts: &[Part]) -> Option<WeightFormat> {
        exact_format(parts)
    }

    fn quantizes_heads(&self) -> bool {
        true
    }

    fn stacks(&self, _format: WeightFormat) -> bool {
        true
    }

    fn matrix_bytes(&self, out: usize, cols: usize, _format: WeightFormat) -> usize {
        out * cols * size_of::<f32>()
    }

    fn adapters_bytes(&self, spec: &AdapterSpec) -> usize {
        AdapterSpec { dtype: DType::F32, ..*spec }.bytes()
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        spec.key_elements().saturating_add(spec.value_elements()).saturating_mul(size_of::<f32>())
    }

    fn scratch_bytes(&self, _products: &[ProductShape]) -> usize {
        0
    }
}

impl WeightLoading for Reference {
    fn vector(&self, parts: &[Part]) -> Result<Vec<f32>> {
        Ok(flatten(parts)?)
    }

    fn matrix(&self, segments: &[Segment<'_>]) -> Result<Matrix> {
        let (out, cols) = stacked_shape(segments.iter().flat_map(|segment| segment.parts))?;
        let mut data = Vec::with_capacity(out * cols);
        for segment in segments {
            let mut values = flatten(segment.parts)?;
            // Weights that are stored in the format are its values already.
            if exact_format(segment.parts) != Some(segment.format) {
                round(&mut values, cols, segment.format)?;
            }
            data.append(&mut values);
        }
        Ok(Matrix { out, cols, data })
    }

    fn experts(&self, experts: &[Vec<Part>], format: WeightFormat) -> Result<Vec<Matrix>> {
        experts.iter().map(|parts| self.matrix(&[Segment::new(parts, format)])).collect()
    }

    fn head_matrices(&self, heads: &[Vec<Part>], rows: HeadRows, dtype: DType) -> Result<HeadMatrices> {
        HeadMatrices::new(heads, rows, dtype)
    }
}

impl ModelLoading for Reference {
    fn buf(&self, rows: usize, cols: usize) -> Result<Buf> {
        Ok(Buf { cols, data: vec![0.0; rows * cols] })
    }

    fn computes_adapters(&self) -> bool {
        true
    }

    fn adapters(&self, spec: &AdapterSpec) -> Result<Adapters> {
        Ok(Adapters::new(*spec))
    }

    fn load_adapter(&self, adapters: &mut Adapters, place: usize, weights: &AdapterWeights) -> Result<()> {
        adapters.load(place, weights)
    }

    fn routing(&self, spec: &RoutingSpec) -> Result<Routing> {
        Ok(Routing::new(spec.router))
    }

    fn kv(&self, spec: KvSpec) -> Result<Kv> {
        Ok(Kv::new(spec))
    }

    fn states(&self, spec: StateSpec) -> Result<States> {
        Ok(States::new(spec))
    }

    fn queue(&self, _size: &StepSize<'_>) -> Result<Queue> {
        Ok(Queue::default())
    }
}

/// Rounds rows of `cols` weights to the values that `format` can hold.
fn round(values: &mut [f32], cols: usize, format: WeightFormat) -> Result<()> {
    match format {
        WeightFormat::Dense(dtype) => values.iter_mut().for_each(|w| *w = dtype.round(*w)),
        WeightFormat::Nf4 => nf4::round(values, cols)?,
        WeightFormat::Int(format) => format.round(values, cols)?,
        WeightFormat::K(format) => format.round(values, cols)?,
        WeightFormat::Codes(_) => {
            return Err(Error::Unsupported("other weights as stored codes".to_owned()));
        }
        WeightFormat::Fp8 => {
            let mut bytes = vec![0; cols];
            for row in values.chunks_exact_mut(cols.max(1)) {
                let factor = fp8::quantize(row, &mut bytes)?;
                row.iter_mut().zip(&bytes).for_each(|(w, byte)| *w = fp8::widen(*byte) * factor);
            }
        }
    }
    Ok(())
}

impl StepGraphs for Reference {
    type Graph = Infallible;
}

impl StepQueue for Reference {
    type FinishedStep = SynchronousStep;

    fn begin<'q>(&self, queue: &'q mut Queue, input: &StepInput<'_>) -> Result<BegunStep<'q, Queue>> {
        *queue = Queue { tokens: input.tokens.to_vec(), outputs: input.outputs.to_vec(), ..Queue::default() };
        for row in input.rows {
            let table = queue.tables.len();
            queue.places.extend((row.start..row.start + row.count).map(|position| (position, table)));
            queue.tables.push(row.blocks.to_vec());
            queue.slots.push(row.slot);
            queue.prefixes.push(row.prefix);
            queue.adapters.push(row.adapter);
        }
        Ok(BegunStep::new(queue, input))
    }

    fn sample(&self, step: &mut OpenStep<'_, Queue>, logits: &mut Buf, rows: &[SampleRow<'_>]) -> Result<()> {
        let choose = |(t, row)| sampling::choose(logits.row_mut(t), row, &sampling::Plain);
        step.queue_mut().sampled = rows.iter().enumerate().map(choose).collect();
        Ok(())
    }

    fn score(
        &self,
        _step: &mut ComputedStep<'_, Queue>,
        logits: &mut Buf,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<()> {
        for (t, row) in rows.iter().enumerate() {
            scored.push(sampling::score(logits.row_mut(t), row, &sampling::Plain));
        }
        Ok(())
    }

    fn finish(&self, step: ComputedStep<'_, Queue>) -> Result<SynchronousStep> {
        Ok(SynchronousStep::new(step))
    }

    fn collect(&self, queue: &mut Queue, _step: SynchronousStep, sampled: &mut SampledRows) -> Result<()> {
        queue.sampled.drain(..).for_each(|token| sampled.push_row([token]));
        Ok(())
    }
}

impl HostMemory for Reference {
    fn host<'a>(&self, buf: &'a Buf, n: usize) -> &'a [f32] {
        &buf.data[..n * buf.cols]
    }

    fn host_mut<'a>(&self, buf: &'a mut Buf, n: usize) -> &'a mut [f32] {
        &mut buf.data[..n * buf.cols]
    }

    fn sampled<'a>(&self, step: &'a mut OpenStep<'_, Queue>) -> &'a mut Vec<Sampled> {
        &mut step.queue_mut().sampled
    }
}
