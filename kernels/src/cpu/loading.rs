//! Sizes, allocation and weights.

use super::inputs::{Inputs, Words};
use super::memory::Memory;
use super::quant::{self, IntPanels};
use super::queue::Queue;
use super::super_blocks::{self, KPanels};
use super::tables::{TableFormat, TablePanels};
use super::{Buf, Cpu, Kv, Matrix, attention, gemm, lock};
use crate::backend::{
    DeviceTypes, KvSpec, ModelLoading, ProductShape, Segment, Sizing, StepSize, WeightFormat,
};
use crate::tensor::flatten;
use crate::{Error, Part, Result};

impl DeviceTypes for Cpu {
    type Buf = Buf;
    type Vector = Vec<f32>;
    type Matrix = Matrix;
    type Kv = Kv;
    type Queue = Queue;
}

impl Sizing for Cpu {
    fn matrix_bytes(&self, out: usize, cols: usize, format: WeightFormat) -> usize {
        match format {
            WeightFormat::Dense(dtype) => Matrix::bytes(out, cols, dtype, self.panel_layout()),
            WeightFormat::Fp8 => TablePanels::bytes(out, cols, TableFormat::E4m3, self.target.panel_width()),
            WeightFormat::Nf4 => TablePanels::bytes(out, cols, TableFormat::Nf4, self.target.panel_width()),
            WeightFormat::Int(format) => IntPanels::bytes(out, cols, format, self.target.panel_width()),
            WeightFormat::K(format) => KPanels::bytes(out, cols, format, self.target.panel_width()),
        }
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        Kv::bytes(spec)
    }

    fn scratch_bytes(&self, products: &[ProductShape]) -> usize {
        let rows = products.iter().map(|product| product.rows).max().unwrap_or(0);
        let cols = products.iter().map(|product| product.inputs).max().unwrap_or(0);
        let packed = rows.saturating_mul(Inputs::row_words(cols));
        let floats = packed.saturating_add(self.threads() * gemm::SCRATCH);
        let row_bytes = |is: fn(&WeightFormat) -> bool, bytes: fn(usize) -> usize| {
            let products = products.iter().filter(|product| is(&product.format));
            products.map(|product| product.inputs).max().map_or(0, bytes)
        };
        let groups = row_bytes(|format| matches!(format, WeightFormat::Int(_)), quant::row_bytes);
        let blocks = row_bytes(|format| matches!(format, WeightFormat::K(_)), super_blocks::row_bytes);
        let quantized = rows.saturating_mul(groups.saturating_add(blocks));
        floats.saturating_mul(size_of::<f32>()).saturating_add(quantized)
    }
}

impl ModelLoading for Cpu {
    fn buf(&self, rows: usize, cols: usize) -> Result<Buf> {
        self.reserve_inputs(rows, 0)?;
        lock(&self.quantized).reserve(rows, 0)?;
        lock(&self.super_blocks).reserve(rows, 0)?;
        Ok(Buf { cols, data: Memory::zeroed(rows.saturating_mul(cols), "activations")? })
    }

    fn vector(&self, parts: &[Part]) -> Result<Vec<f32>> {
        flatten(parts)
    }

    fn matrix(&self, segments: &[Segment<'_>]) -> Result<Matrix> {
        let (parts, format) = Segment::in_one_format(segments)?;
        match format {
            WeightFormat::Int(format) => {
                let matrix = Matrix::pack_int(&parts, format, self.target, &self.pool)?;
                lock(&self.quantized).reserve(0, matrix.cols)?;
                Ok(matrix)
            }
            WeightFormat::K(format) => {
                let matrix = Matrix::pack_super_blocks(&parts, format, self.target, &self.pool)?;
                lock(&self.super_blocks).reserve(0, matrix.cols)?;
                Ok(matrix)
            }
            WeightFormat::Fp8 => self.table(&parts, TableFormat::E4m3),
            WeightFormat::Nf4 => self.table(&parts, TableFormat::Nf4),
            WeightFormat::Dense(dtype) => {
                let matrix = Matrix::pack(&parts, dtype, self.panel_layout(), &self.pool)?;
                self.reserve_inputs(0, matrix.cols)?;
                Ok(matrix)
            }
        }
    }

    fn kv(&self, spec: KvSpec) -> Result<Kv> {
        let largest = spec.key_dim.max(spec.value_dim);
        if attention::scratch(largest) > gemm::SCRATCH {
            return Err(Error::Unsupported(format!("heads of {largest} features")));
        }
        Kv::new(spec)
    }

    fn queue(&self, size: &StepSize<'_>) -> Result<Queue> {
        Ok(Queue::new(size))
    }
}

impl Cpu {
    /// Loads a matrix of codes into a table.
    fn table(&self, parts: &[Part], format: TableFormat) -> Result<Matrix> {
        let words = if self.panel_layout().bf16_pairs { Words::Bf16Pairs } else { Words::F32 };
        let matrix = Matrix::pack_table(parts, format, words, self.target, &self.pool)?;
        self.reserve_inputs(0, matrix.cols)?;
        Ok(matrix)
    }
}
