//! Sizes, allocation and weights.

use millrace_backend::{
    AdapterSpec, AdapterWeights, DeviceTypes, Error, HeadRows, KvSpec, ModelLoading, ProductShape, Result,
    RoutingSpec, Segment, Sizing, StateSpec, StepSize, WeightLoading,
};
use millrace_numbers::codes::CodeRows;
use millrace_numbers::codes::StoredCodes;
use millrace_numbers::formats::exact_format;
use millrace_numbers::tensor::{flatten, stacked_shape};
use millrace_numbers::{DType, Part, WeightFormat};

use super::inputs::{InputWords, Inputs};
use super::matrix::{Packed, PanelLayout};
use super::memory::Memory;
use super::quant::{self, IntPanels};
use super::queue::Queue;
use super::super_blocks::{self, KPanels};
use super::tables::{QUANTIZED_FP8, QUANTIZED_NF4, TablePanels};
use super::{Adapters, Buf, Cpu, HeadMatrices, Kv, Matrix, Routing, States, attention, gemm, lock};

impl DeviceTypes for Cpu {
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

impl Sizing for Cpu {
    fn stored_format(&self, parts: &[Part]) -> Option<WeightFormat> {
        exact_format(parts)
    }

    fn quantizes_heads(&self) -> bool {
        true
    }

    fn stacks(&self, format: WeightFormat) -> bool {
        !matches!(format, WeightFormat::Dense(_))
    }

    fn matrix_bytes(&self, out: usize, cols: usize, format: WeightFormat) -> usize {
        if self.cache.maps() {
            return 0;
        }
        match format {
            WeightFormat::Dense(dtype) => Matrix::bytes(out, cols, dtype, self.panel_layout()),
            WeightFormat::Fp8 => TablePanels::bytes(out, cols, QUANTIZED_FP8, self.target.panel_width()),
            WeightFormat::Nf4 => TablePanels::bytes(out, cols, QUANTIZED_NF4, self.target.panel_width()),
            WeightFormat::Codes(format) => TablePanels::bytes(out, cols, format, self.target.panel_width()),
            WeightFormat::Int(format) => IntPanels::bytes(out, cols, format, self.target.panel_width()),
            WeightFormat::K(format) => KPanels::bytes(out, cols, format, self.target.panel_width()),
        }
    }

    fn head_matrices_bytes(&self, count: usize, inputs: usize, outputs: usize, dtype: DType) -> usize {
        HeadMatrices::bytes(count, inputs, outputs, dtype)
    }

    fn embedding_bytes(&self, _rows: usize, _cols: usize, _dtype: DType) -> usize {
        0
    }

    fn routing_bytes(&self, spec: &RoutingSpec) -> usize {
        Routing::bytes(spec)
    }

    fn adapters_bytes(&self, spec: &AdapterSpec) -> usize {
        Adapters::bytes(spec)
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        Kv::bytes(spec, self.bf16_pairs())
    }

    fn scratch_bytes(&self, products: &[ProductShape]) -> usize {
        let rows = products.iter().map(|product| product.rows).max().unwrap_or(0);
        let cols = products.iter().map(|product| product.inputs).max().unwrap_or(0);
        let packed = rows.saturating_mul(Inputs::row_words(cols));
        let threads = self.threads() * gemm::SCRATCH + attention::partial_floats(self.threads());
        let floats = packed.saturating_add(threads);
        let (mut groups, mut blocks) = (0, 0);
        for ProductShape { inputs, format, .. } in products.iter().filter(|_| self.rounds_to_bytes()) {
            match format {
                WeightFormat::Int(format) => {
                    groups = groups.max(quant::row_bytes(format.packed_cols(*inputs)))
                }
                WeightFormat::K(_) => blocks = blocks.max(super_blocks::row_bytes(*inputs)),
                _ => (),
            }
        }
        let quantized = rows.saturating_mul(groups.saturating_add(blocks));
        floats.saturating_mul(size_of::<f32>()).saturating_add(quantized)
    }
}

impl WeightLoading for Cpu {
    fn begin_weights(&self, subject: &str, version: &str) {
        // Panels depend on the instruction set, and an older version of this program may have
        // packed other ones.
        let PanelLayout { width, bf16_pairs } = self.panel_layout();
        let isa = self.target.isa();
        self.cache.begin(subject, &format!("{version}\n{isa:?}, panels of {width}, pairs: {bf16_pairs}"));
    }

    fn reads_parts(&self) -> bool {
        !self.cache.is_read()
    }

    fn end_weights(&self) -> Option<String> {
        self.cache.end()
    }

    fn vector(&self, parts: &[Part]) -> Result<Vec<f32>> {
        Ok(flatten(parts)?)
    }

    fn matrix(&self, segments: &[Segment<'_>]) -> Result<Matrix> {
        if let &[Segment { parts, format }] = segments {
            return self.segment(parts, format);
        }
        let (out, cols) = stacked_shape(segments.iter().flat_map(|segment| segment.parts))?;
        let (mut stack, mut before) = (Vec::with_capacity(segments.len()), 0);
        for &Segment { parts, format } in segments {
            if !self.stacks(format) {
                return Err(Error::Unsupported(format!("rows of {} among others", format.name())));
            }
            let segment = self.segment(parts, format);
            stack.push(segment.map_err(|error| Segment::error_after(before, error))?);
            before += parts.len();
        }
        Ok(Matrix { out, cols, packed: Packed::Stack(stack) })
    }

    fn experts(&self, experts: &[Vec<Part>], format: WeightFormat) -> Result<Vec<Matrix>> {
        experts.iter().map(|parts| self.matrix(&[Segment::new(parts, format)])).collect()
    }

    fn head_matrices(&self, heads: &[Vec<Part>], rows: HeadRows, dtype: DType) -> Result<HeadMatrices> {
        HeadMatrices::new(heads, rows, dtype)
    }

    /// Keeps the parts. A step reads a few rows of the embedding, and the system keeps those in
    /// memory that are read often.
    fn embedding(&self, parts: &[Part], dtype: DType) -> Result<Matrix> {
        Matrix::stored(parts, dtype)
    }

    fn copies_embedding(&self) -> bool {
        false
    }
}

impl Cpu {
    /// Packs rows in one format, and makes room for the activations that are multiplied by them.
    fn segment(&self, parts: &[Part], format: WeightFormat) -> Result<Matrix> {
        match format {
            WeightFormat::Int(format) => {
                let matrix = Matrix::pack_int(parts, format, self.target, self.packing())?;
                if self.rounds_to_bytes() {
                    lock(&self.quantized).reserve(0, format.packed_cols(matrix.cols))?;
                } else {
                    self.reserve_inputs(0, matrix.cols)?;
                }
                Ok(matrix)
            }
            WeightFormat::K(format) => {
                let matrix = Matrix::pack_super_blocks(parts, format, self.target, self.packing())?;
                if self.rounds_to_bytes() {
                    lock(&self.super_blocks).reserve(0, matrix.cols)?;
                } else {
                    self.reserve_inputs(0, matrix.cols)?;
                }
                Ok(matrix)
            }
            WeightFormat::Fp8 => self.coded(parts, QUANTIZED_FP8, None),
            WeightFormat::Nf4 => self.coded(parts, QUANTIZED_NF4, None),
            WeightFormat::Codes(format) => {
                let Some(stored) = CodeRows::new(parts, format) else {
                    return Err(Error::Unsupported("other weights as stored codes".to_owned()));
                };
                self.coded(parts, format, Some(stored))
            }
            WeightFormat::Dense(dtype) => {
                let matrix = Matrix::pack(parts, dtype, self.panel_layout(), self.packing())?;
                self.reserve_inputs(0, matrix.cols)?;
                Ok(matrix)
            }
        }
    }
}

impl ModelLoading for Cpu {
    fn buf(&self, rows: usize, cols: usize) -> Result<Buf> {
        self.reserve_inputs(rows, 0)?;
        lock(&self.quantized).reserve(rows, 0)?;
        lock(&self.super_blocks).reserve(rows, 0)?;
        Ok(Buf { cols, data: Memory::zeroed(rows.saturating_mul(cols), "activations")? })
    }

    fn computes_adapters(&self) -> bool {
        true
    }

    fn adapters(&self, spec: &AdapterSpec) -> Result<Adapters> {
        Adapters::new(spec, self.target.panel_width())
    }

    fn load_adapter(&self, adapters: &mut Adapters, place: usize, weights: &AdapterWeights) -> Result<()> {
        adapters.load(place, weights)
    }

    fn routing(&self, spec: &RoutingSpec) -> Result<Routing> {
        Routing::new(spec, |rows, cols| self.buf(rows, cols))
    }

    fn kv(&self, spec: KvSpec) -> Result<Kv> {
        let (keys, values) = (spec.key_dim, spec.value_dim);
        // Values that are part of the keys may have as many features.
        let values = if values == 0 { keys } else { values };
        if attention::scratch(keys, values) > gemm::SCRATCH {
            return Err(Error::Unsupported(format!("heads of {keys} features, and values of {values}")));
        }
        Kv::new(spec, self.bf16_pairs())
    }

    fn states(&self, spec: StateSpec) -> Result<States> {
        States::new(spec)
    }

    fn queue(&self, size: &StepSize<'_>) -> Result<Queue> {
        lock(&self.attention).reserve(size, self.threads());
        Ok(Queue::new(size))
    }
}

impl Cpu {
    /// Loads a matrix of codes that stand for numbers: those of `stored`, or quantized.
    fn coded(&self, parts: &[Part], format: StoredCodes, stored: Option<CodeRows<'_>>) -> Result<Matrix> {
        let words = if self.panel_layout().bf16_pairs { InputWords::Bf16Pairs } else { InputWords::F32 };
        let (target, packing) = (self.target, self.packing());
        let matrix = match stored {
            Some(stored) => Matrix::pack_codes(parts, format, &stored, words, target, packing)?,
            None => Matrix::pack_quantized_codes(parts, format, words, target, packing)?,
        };
        self.reserve_inputs(0, matrix.cols)?;
        Ok(matrix)
    }
}
