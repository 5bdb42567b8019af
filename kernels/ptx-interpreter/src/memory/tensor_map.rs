//! Tensor maps, which describe a tensor and the boxes that the copy engine copies of it.
//!
//! The format of NVIDIA's 128 bytes is not public. These have a form of their own, little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0-3 | [`MAGIC`] |
//! | 4-7 | CRC-32 (IEEE) of bytes 8-127 |
//! | 8-15 | address |
//! | 16-35 | five sizes, less 1 |
//! | 36-51 | four strides, divided by 16 |
//! | 52-61 | five extents of a box |
//! | 62 | rank |
//! | 63, 64, 65 | element, swizzle and fill, as numbers |

use std::fmt;

/// Bytes of a map.
pub const MAP_BYTES: usize = 128;
/// The most dimensions.
const MAX_RANK: usize = 5;
/// Marks an encoded map.
const MAGIC: u32 = 0x5450_4d4d;
/// Bytes of a unit that a swizzle moves.
const UNIT: u64 = 16;

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorElement {
    /// One byte.
    U8,
    /// Two bytes.
    U16,
    /// Four bytes.
    U32,
    /// Eight bytes.
    U64,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
}

const ELEMENTS: [TensorElement; 8] = [
    TensorElement::U8,
    TensorElement::U16,
    TensorElement::U32,
    TensorElement::U64,
    TensorElement::F16,
    TensorElement::BF16,
    TensorElement::F32,
    TensorElement::F64,
];

impl TensorElement {
    fn bytes(self) -> u64 {
        match self {
            TensorElement::U8 => 1,
            TensorElement::U16 | TensorElement::F16 | TensorElement::BF16 => 2,
            TensorElement::U32 | TensorElement::F32 => 4,
            TensorElement::U64 | TensorElement::F64 => 8,
        }
    }

    fn is_float(self) -> bool {
        matches!(self, TensorElement::F16 | TensorElement::BF16 | TensorElement::F32 | TensorElement::F64)
    }
}

/// The order of the 16-byte units of a box's rows in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swizzle {
    /// As in the tensor.
    None,
    /// Two units exchange places, in a pattern that repeats every 256 bytes.
    Bytes32,
    /// Four units, every 512 bytes.
    Bytes64,
    /// Eight units, every 1024 bytes.
    Bytes128,
}

const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128];

impl Swizzle {
    /// The place of an address of shared memory.
    pub(crate) fn apply(self, address: u64) -> u64 {
        let mask = match self {
            Swizzle::None => 0,
            Swizzle::Bytes32 => 0x80,
            Swizzle::Bytes64 => 0x180,
            Swizzle::Bytes128 => 0x380,
        };
        address ^ ((address & mask) >> 3)
    }

    /// Bytes of a row within which units move.
    pub(crate) fn span(self) -> Option<u64> {
        match self {
            Swizzle::None => None,
            Swizzle::Bytes32 => Some(32),
            Swizzle::Bytes64 => Some(64),
            Swizzle::Bytes128 => Some(128),
        }
    }
}

/// The value of elements outside of the tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Zero.
    Zeros,
    /// A NaN with all bits set; only for floats.
    Nan,
}

/// A layout that no tensor map can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMapError(String);

impl fmt::Display for TensorMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TensorMapError {}

/// A tensor in device memory and the boxes that are copied of it. Takes the place of the arguments
/// of `cuTensorMapEncodeTiled`, without interleaving and with element strides of 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMapLayout<'a> {
    /// The address, a multiple of 16; of 128 with a swizzle.
    pub address: u64,
    /// The type of the elements.
    pub element: TensorElement,
    /// Elements along each dimension, neighbors in memory first: 1 to 2^32 each.
    pub sizes: &'a [u64],
    /// Bytes from one element to the next along each dimension but the first: multiples of 16 below
    /// 2^40.
    pub strides: &'a [u64],
    /// Elements of a box along each dimension: 1 to 256 each.
    pub extents: &'a [u32],
    /// The order in shared memory.
    pub swizzle: Swizzle,
    /// The value of elements outside of the tensor.
    pub fill: Fill,
}

impl TensorMapLayout<'_> {
    /// Encodes the map as a kernel's parameter, which must be aligned to 64 bytes.
    ///
    /// # Errors
    /// The first rule of `cuTensorMapEncodeTiled` that the layout breaks.
    pub fn encode(&self) -> Result<[u8; MAP_BYTES], TensorMapError> {
        self.check().map_err(TensorMapError)?;
        let mut map = [0; MAP_BYTES];
        map[8..16].copy_from_slice(&self.address.to_le_bytes());
        for (i, size) in self.sizes.iter().enumerate() {
            map[16 + 4 * i..20 + 4 * i].copy_from_slice(&((size - 1) as u32).to_le_bytes());
        }
        for (i, stride) in self.strides.iter().enumerate() {
            let units =
                u32::try_from(stride / UNIT).map_err(|_| TensorMapError("a stride is too large".into()))?;
            map[36 + 4 * i..40 + 4 * i].copy_from_slice(&units.to_le_bytes());
        }
        for (i, extent) in self.extents.iter().enumerate() {
            map[52 + 2 * i..54 + 2 * i].copy_from_slice(&(*extent as u16).to_le_bytes());
        }
        let number = |found: Option<usize>| found.map_or(0, |i| i as u8);
        map[62] = self.sizes.len() as u8;
        map[63] = number(ELEMENTS.iter().position(|e| *e == self.element));
        map[64] = number(SWIZZLES.iter().position(|s| *s == self.swizzle));
        map[65] = u8::from(self.fill == Fill::Nan);
        let sum = checksum(&map[8..]);
        map[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        map[4..8].copy_from_slice(&sum.to_le_bytes());
        Ok(map)
    }

    fn check(&self) -> Result<(), String> {
        let rank = self.sizes.len();
        if !(1..=MAX_RANK).contains(&rank) || self.extents.len() != rank || self.strides.len() + 1 != rank {
            return Err(format!("a tensor map of {rank} sizes with {} strides", self.strides.len()));
        }
        let alignment = if self.swizzle == Swizzle::None { UNIT } else { 128 };
        if !self.address.is_multiple_of(alignment) {
            return Err(format!("the tensor's address {:#x} is not aligned to {alignment}", self.address));
        }
        if let Some(size) = self.sizes.iter().find(|size| !(1..=1 << 32).contains(*size)) {
            return Err(format!("a dimension of {size} elements"));
        }
        let wrong = |stride: &&u64| !stride.is_multiple_of(UNIT) || **stride == 0 || **stride >= 1 << 36;
        if let Some(stride) = self.strides.iter().find(wrong) {
            return Err(format!("a stride of {stride} bytes"));
        }
        if let Some(extent) = self.extents.iter().find(|extent| !(1..=256).contains(*extent)) {
            return Err(format!("a box of {extent} elements"));
        }
        let row = u64::from(self.extents[0]) * self.element.bytes();
        if !row.is_multiple_of(UNIT) {
            return Err(format!("the rows of a box have {row} bytes, which is no multiple of 16"));
        }
        // A narrower row takes the room of the whole span in a way that is not documented.
        if self.swizzle.span().is_some_and(|span| row != span) {
            return Err(format!("the rows of a box have {row} bytes with {:?}", self.swizzle));
        }
        if self.fill == Fill::Nan && !self.element.is_float() {
            return Err(format!("NaN as the fill of {:?}", self.element));
        }
        Ok(())
    }
}

/// A part of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Its place in shared memory.
    pub(crate) to: u64,
    /// The address of the first byte inside of the tensor.
    pub(crate) from: u64,
    /// The bytes that come from the tensor.
    pub(crate) start: u8,
    pub(crate) end: u8,
}

/// A decoded map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decoded {
    address: u64,
    element_bytes: u64,
    sizes: Vec<i64>,
    strides: Vec<u64>,
    extents: Vec<i64>,
    swizzle: Swizzle,
    /// The byte that elements outside of the tensor consist of.
    pub(crate) fill: u8,
}

/// The parts of a box and their bytes.
#[derive(Debug)]
pub(crate) struct CutBox {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) bytes: u64,
}

impl Decoded {
    /// Decodes a map; `None` for other bytes.
    pub(crate) fn parse(map: &[u8; MAP_BYTES]) -> Option<Decoded> {
        let word = |at: usize| u32::from_le_bytes([map[at], map[at + 1], map[at + 2], map[at + 3]]);
        if word(0) != MAGIC || word(4) != checksum(&map[8..]) {
            return None;
        }
        let rank = usize::from(map[62]).min(MAX_RANK);
        Some(Decoded {
            address: u64::from(word(8)) | u64::from(word(12)) << 32,
            element_bytes: ELEMENTS.get(usize::from(map[63]))?.bytes(),
            sizes: (0..rank).map(|i| i64::from(word(16 + 4 * i)) + 1).collect(),
            strides: (1..rank).map(|i| u64::from(word(32 + 4 * i)) * UNIT).collect(),
            extents: (0..rank)
                .map(|i| i64::from(map[52 + 2 * i]) | i64::from(map[53 + 2 * i]) << 8)
                .collect(),
            swizzle: *SWIZZLES.get(usize::from(map[64]))?,
            fill: if map[65] == 0 { 0 } else { 0xff },
        })
    }

    pub(crate) fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// The parts of the box that begins at these coordinates, and is copied to an address of shared
    /// memory.
    pub(crate) fn cut(&self, to: u64, at: &[i64]) -> CutBox {
        let row = self.extents[0] as u64 * self.element_bytes;
        let rows: i64 = self.extents[1..].iter().product();
        let mut chunks = Vec::new();
        for index in 0..rows {
            let (mut rest, mut inside, mut from) = (index, true, self.address as i64);
            let outer = self.extents.iter().zip(&self.sizes).zip(at).skip(1).zip(&self.strides);
            for (((extent, size), at), stride) in outer {
                let position = at + rest % extent;
                rest /= extent;
                inside &= (0..*size).contains(&position);
                from = from.wrapping_add(position.wrapping_mul(*stride as i64));
            }
            // The bytes of the row that lie in the tensor, counted from the row's start.
            let first = at[0].wrapping_mul(self.element_bytes as i64);
            let (low, high) =
                if inside { (-first, self.sizes[0] * self.element_bytes as i64 - first) } else { (0, 0) };
            for unit in 0..row / UNIT {
                let begin = (unit * UNIT) as i64;
                let clip = |x: i64| (x - begin).clamp(0, UNIT as i64);
                let (start, end) = (clip(low), clip(high).max(clip(low)));
                chunks.push(Chunk {
                    to: self.swizzle.apply(to + index as u64 * row + begin as u64),
                    from: from.wrapping_add(first + begin + start) as u64,
                    start: start as u8,
                    end: end as u8,
                });
            }
        }
        CutBox { chunks, bytes: row * rows as u64 }
    }
}

/// CRC-32 as in Ethernet, bit by bit.
fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(
            sum ^ u32::from(*byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: TensorMapLayout<'_> = TensorMapLayout {
        address: 0x1000,
        element: TensorElement::BF16,
        sizes: &[100, 7],
        strides: &[256],
        extents: &[64, 3],
        swizzle: Swizzle::Bytes128,
        fill: Fill::Zeros,
    };

    #[test]
    fn maps_survive_and_other_bytes_are_refused() {
        let map = LAYOUT.encode().expect("the layout is possible");
        let decoded = Decoded::parse(&map).expect("the map was encoded");
        assert_eq!((decoded.rank(), decoded.address, decoded.fill), (2, 0x1000, 0));
        assert_eq!((&decoded.sizes[..], &decoded.strides[..]), (&[100, 7][..], &[256][..]));
        for changed in [3, 9, 60, 127] {
            let mut other = map;
            other[changed] ^= 1;
            assert_eq!(Decoded::parse(&other), None);
        }
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn layouts_that_the_driver_refuses_are_refused() {
        let refused =
            |layout: TensorMapLayout<'_>| layout.encode().expect_err("a rule is broken").to_string();
        assert!(refused(TensorMapLayout { address: 0x1010, ..LAYOUT }).contains("aligned to 128"));
        assert!(refused(TensorMapLayout { sizes: &[100, 0], ..LAYOUT }).contains("0 elements"));
        assert!(refused(TensorMapLayout { strides: &[200], ..LAYOUT }).contains("stride of 200"));
        assert!(refused(TensorMapLayout { strides: &[], ..LAYOUT }).contains("2 sizes with 0"));
        assert!(refused(TensorMapLayout { extents: &[64, 257], ..LAYOUT }).contains("257"));
        assert!(refused(TensorMapLayout { extents: &[63, 3], ..LAYOUT }).contains("126 bytes"));
        assert!(refused(TensorMapLayout { extents: &[128, 3], ..LAYOUT }).contains("Bytes128"));
        let nan = TensorMapLayout { fill: Fill::Nan, element: TensorElement::U16, ..LAYOUT };
        assert!(refused(nan).contains("NaN"));
    }

    #[test]
    fn boxes_are_cut_at_the_edges() {
        let map = Decoded::parse(&LAYOUT.encode().expect("possible")).expect("encoded");
        // Columns 60 to 123 of rows -1, 0 and 1: 40 columns lie inside.
        let cut = map.cut(0x400, &[60, -1]);
        assert_eq!((cut.bytes, cut.chunks.len()), (384, 24));
        assert!(cut.chunks[..8].iter().all(|chunk| chunk.start == chunk.end));
        assert_eq!(cut.chunks[8], Chunk { to: 0x490, from: 0x1078, start: 0, end: 16 });
        assert_eq!(cut.chunks[8 + 5].end - cut.chunks[8 + 5].start, 0);
        assert_eq!((cut.chunks[8 + 4].start, cut.chunks[8 + 4].end), (0, 16));
        // Three columns before the tensor.
        let cut = map.cut(0, &[-3, 0]);
        assert_eq!(cut.chunks[0], Chunk { to: 0, from: 0x1000, start: 6, end: 16 });
    }
}
