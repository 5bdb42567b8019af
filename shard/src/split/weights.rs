//! The weights of one rank, cut out of those of the whole model.

use std::ops::Range;

use millrace_kernels::{DType, HostTensor, Part};

use super::{Cut, Split};
use crate::Error;
use crate::model::{DecoderSpec, Slot, WeightSource};

/// What one rank takes of a model's weights. Nothing else of them is read.
pub struct SplitWeights {
    whole: Box<dyn WeightSource>,
    spec: DecoderSpec,
    split: Split,
    /// As many rows of zeros as the vocabulary lacks at most.
    zeros: Vec<u8>,
}

impl SplitWeights {
    /// The share of `split` in the model that `spec` describes whole.
    pub fn new(whole: Box<dyn WeightSource>, spec: DecoderSpec, split: Split) -> Self {
        let padding = split.cut(&spec, Slot::Embedding).padding;
        let zeros = vec![0; padding * spec.hidden * DType::F32.size()];
        SplitWeights { whole, spec, split, zeros }
    }
}

impl WeightSource for SplitWeights {
    fn parts(&self, slot: Slot) -> Result<Vec<Part<'_>>, Error> {
        let Cut { rows, cols, padding } = self.split.cut(&self.spec, slot);
        let whole = self.whole.parts(slot)?;
        let mut parts = Vec::new();
        for wanted in rows {
            take(&whole, wanted, slot.is_vector(), &mut parts);
        }
        if let Some(cols) = cols {
            for part in &mut parts {
                part.cols = part.cols.start + cols.start..part.cols.start + cols.end;
            }
        }
        if padding > 0 {
            let cols = self.spec.hidden;
            parts.push(Part::whole(HostTensor {
                dtype: DType::F32,
                rows: padding,
                cols,
                bytes: &self.zeros,
            }));
        }
        Ok(parts)
    }

    fn will_need(&self, part: &Part<'_>) {
        self.whole.will_need(part);
    }

    fn identity(&self) -> String {
        self.whole.identity()
    }

    fn verify(&self) -> Result<(), Error> {
        self.whole.verify()
    }
}

/// Appends the parts of `whole` that make up its rows `wanted`, or its elements if it is a vector.
fn take<'a>(whole: &[Part<'a>], wanted: Range<usize>, vector: bool, to: &mut Vec<Part<'a>>) {
    let mut first = 0;
    for part in whole {
        let axis = if vector { &part.cols } else { &part.rows };
        let here = first..first + axis.len();
        first = here.end;
        let (start, end) = (wanted.start.max(here.start), wanted.end.min(here.end));
        if start < end {
            let range = axis.start + start - here.start..axis.start + end - here.start;
            let mut taken = part.clone();
            *(if vector { &mut taken.cols } else { &mut taken.rows }) = range;
            to.push(taken);
        }
    }
}
