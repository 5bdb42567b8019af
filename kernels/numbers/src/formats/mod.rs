//! The formats of quantized weights. A format is a file, which says how its tensors are laid out,
//! reads them, and quantizes weights where Millrace writes the format.
//!
//! | file | format | arithmetic |
//! |---|---|---|
//! | [`gptq`] | GPTQ | [`crate::integers`] |
//! | [`awq`] | AWQ | [`crate::integers`] |
//! | [`compressed_tensors`] | pack-quantized and int-quantized of compressed-tensors | [`crate::integers`] |
//! | [`bitsandbytes`] | int8, nf4 and fp4 of bitsandbytes | [`crate::integers`], [`crate::codes`] |
//! | [`chatglm`] | integers of the code of ChatGLM | [`crate::integers`] |
//! | [`nf4`] | the table of NF4, and weights that are quantized to it | [`crate::codes`] |
//! | [`fp8`] | e4m3 numbers with scales per matrix, row or block | [`crate::codes`] |
//! | [`mxfp4`] | the experts of gpt-oss | [`crate::codes`] |
//! | [`ggml`] | the blocks of GGUF files, a table of types | integers, codes, or its own |
//!
//! A [`Scheme`] is a format of checkpoints with what `quantization_config` says about it, and reads
//! the tensors of a [`StoredModule`]. A [`Target`] is a format that checkpoints are written in.
//!
//! [`Part::read_row`] returns weights as f32, whatever the format. A device that multiplies by the
//! same codes takes codes, scales and offsets as they are: [`exact_format`] tells whether it can,
//! and [`IntegerRows`](crate::integers::IntegerRows), [`CodeRows`](crate::codes::CodeRows) and
//! [`BlockRows`](ggml::BlockRows) read them.

pub mod awq;
pub mod bitsandbytes;
pub mod chatglm;
pub mod compressed_tensors;
pub mod fp8;
pub mod ggml;
pub mod gptq;
mod module;
pub mod mxfp4;
pub mod nf4;
mod target;
mod written;

pub use module::{Element, ModuleError, StoredModule, StoredTensor};
pub use target::Target;
pub use written::{EncodedRows, STACK, WrittenTensor};

use crate::codes::exact_codes;
use crate::experts::ExpertRows;
use crate::integers::exact_integers;
use crate::{HostTensor, Part, Result, WeightFormat};

/// Declares the formats of quantized checkpoints: the file of each, and the type in it that has
/// what a configuration says.
macro_rules! schemes {
    ($($file:ident::$name:ident,)*) => {
        /// The scheme of a quantized checkpoint: its format, and what its configuration says about
        /// it.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs, reason = "each variant is the type of its name")]
        pub enum Scheme {
            $($name($file::$name),)*
        }

        /// The ends of the names of the tensors of quantized modules, in all formats.
        const TENSORS: &[&[&str]] = &[$($file::TENSORS),*];

        impl Scheme {
            /// Returns the name of the format.
            pub fn name(&self) -> &'static str {
                match self { $(Scheme::$name(scheme) => scheme.name(),)* }
            }

            /// Returns the matrix of a module, or `None` if the module is not quantized.
            ///
            /// # Errors
            /// If the tensors of the module are not those that the scheme says.
            pub fn read(&self, module: &StoredModule<'_>) -> Result<Option<HostTensor>, ModuleError> {
                match self { $(Scheme::$name(scheme) => scheme.read(module),)* }
            }

            /// Returns the tensors of a quantized module with a matrix `[rows, cols]`. There are
            /// none if modules are dense.
            pub fn layout(&self, rows: usize, cols: usize) -> Vec<WrittenTensor> {
                match self { $(Scheme::$name(scheme) => scheme.layout(rows, cols),)* }
            }
        }
    };
}

schemes! {
    gptq::Gptq,
    awq::Awq,
    compressed_tensors::CompressedTensors,
    bitsandbytes::Bitsandbytes,
    fp8::Fp8,
    mxfp4::Mxfp4,
    chatglm::ChatGlm,
}

impl Scheme {
    /// Returns the tensors of the matrices `[rows, cols]` of all experts, whose rows are stored in
    /// `order`. There are none if experts are stored as other modules are.
    pub fn expert_layout(&self, rows: usize, cols: usize, order: ExpertRows) -> Vec<WrittenTensor> {
        match self {
            Scheme::Mxfp4(scheme) => scheme.expert_layout(rows, cols, order),
            _ => Vec::new(),
        }
    }

    /// Returns the matrices of all experts, whose rows are stored in `order`, or `None` if they are
    /// not quantized, or not in one tensor.
    ///
    /// # Errors
    /// If the tensors of the experts are not those that the scheme says.
    pub fn read_experts(
        &self,
        experts: &StoredModule<'_>,
        order: ExpertRows,
    ) -> Result<Option<HostTensor>, ModuleError> {
        match self {
            Scheme::Mxfp4(scheme) => scheme.read_experts(experts, order),
            _ => Ok(None),
        }
    }
}

/// Returns the ends of the names of the tensors of quantized modules, in all formats. Some are
/// there more than once.
pub fn tensor_names() -> impl Iterator<Item = &'static str> {
    TENSORS.iter().copied().flatten().copied()
}

/// Returns the format in which a device that multiplies by all stored formats keeps `parts`,
/// stacked, without rounding them. See [`ggml::exact_blocks`], [`exact_integers`] and
/// [`exact_codes`].
pub fn exact_format(parts: &[Part]) -> Option<WeightFormat> {
    if let Some(format) = ggml::exact_blocks(parts) {
        return Some(format);
    }
    exact_integers(parts).map(WeightFormat::Int).or_else(|| exact_codes(parts).map(WeightFormat::Codes))
}
