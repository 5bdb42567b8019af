//! The element types of dense numbers.

/// An element type of dense weights and KV caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// IEEE single precision (binary32).
    F32,
    /// IEEE half precision (binary16).
    F16,
    /// bfloat16: the upper 16 bits of a binary32 number.
    BF16,
}

impl DType {
    /// Appends the bytes of the nearest number of this type.
    pub fn push(self, x: f32, bytes: &mut Vec<u8>) {
        match self {
            DType::F32 => bytes.extend(x.to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f32(x).to_le_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f32(x).to_le_bytes()),
        }
    }

    /// Returns the little-endian number that `bytes` begin with.
    ///
    /// # Panics
    /// If there are fewer bytes than a number has.
    pub fn read(self, bytes: &[u8]) -> f32 {
        match self {
            DType::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            DType::F16 => half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            DType::BF16 => half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        }
    }

    /// Reads successive little-endian numbers to `out`.
    pub(crate) fn read_row(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            DType::F32 => {
                for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                    *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                }
            }
            DType::F16 => {
                for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *o = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
                }
            }
            DType::BF16 => {
                for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *o = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
                }
            }
        }
    }

    /// Returns the bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// Returns the value of this type that is nearest to `x`; ties go to the even one.
    pub fn round(self, x: f32) -> f32 {
        match self {
            DType::F32 => x,
            DType::F16 => half::f16::from_f32(x).to_f32(),
            DType::BF16 => half::bf16::from_f32(x).to_f32(),
        }
    }

    /// Returns the name used on the command line and in `config.json`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
        }
    }
}
