//! The weights of one rank, cut from those of the whole model.

use bytes::Bytes;
use millrace_numbers::{DType, HostTensor, Part};

use super::share::{Cut, Split};
use crate::description::{DecoderSpec, TensorPlace, WeightError, WeightSlot, WeightSource, take_parts};

/// One rank's share of a model's weights. The rest of the weights is not read.
pub(super) struct SplitWeights {
    whole: Box<dyn WeightSource>,
    spec: DecoderSpec,
    split: Split,
    /// Rows of zeros that pad the vocabulary.
    zeros: Bytes,
}

impl SplitWeights {
    /// Creates the share of `split` in a model. `spec` and `whole` describe the whole model.
    pub(super) fn new(whole: Box<dyn WeightSource>, spec: DecoderSpec, split: Split) -> Self {
        let padding = split.cut(&spec, WeightSlot::Embedding).padding;
        let (_, cols) = spec.shape(WeightSlot::Embedding);
        let zeros = vec![0; padding * cols * DType::F32.size()].into();
        SplitWeights { whole, spec, split, zeros }
    }
}

impl WeightSource for SplitWeights {
    fn parts(&self, slot: WeightSlot) -> Result<Vec<Part>, WeightError> {
        let Cut { rows, cols, padding } = self.split.cut(&self.spec, slot);
        let whole = self.whole.parts(slot)?;
        let mut parts = Vec::new();
        for wanted in rows {
            take_parts(&whole, wanted, slot.is_vector(), &mut parts);
        }
        if let Some(cols) = cols {
            for part in &mut parts {
                part.cols = part.cols.start + cols.start..part.cols.start + cols.end;
            }
        }
        if padding > 0 {
            let (_, cols) = self.spec.shape(slot);
            let (rows, cols) = if slot.is_vector() { (1, padding) } else { (padding, cols) };
            let zeros = self.zeros.slice(..rows * cols * DType::F32.size());
            parts.push(Part::whole(HostTensor::dense(DType::F32, rows, cols, zeros)));
        }
        Ok(parts)
    }

    fn tensor_of(&self, part: &Part) -> Option<TensorPlace> {
        self.whole.tensor_of(part)
    }

    fn will_need(&self, part: &Part) {
        self.whole.will_need(part);
    }

    fn place(&self) -> String {
        self.whole.place()
    }

    fn identity(&self) -> String {
        self.whole.identity()
    }

    fn check_readable(&self) -> Result<(), WeightError> {
        self.whole.check_readable()
    }

    fn verify(&self) -> Result<(), WeightError> {
        self.whole.verify()
    }
}
