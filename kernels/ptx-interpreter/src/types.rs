//! The types and state spaces of PTX.

/// A type of PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    BF16,
    F16x2,
    BF16x2,
    F32,
    F64,
}

impl Type {
    pub(crate) fn parse(name: &str) -> Option<Type> {
        Some(match name {
            "pred" => Type::Pred,
            "b8" => Type::B8,
            "b16" => Type::B16,
            "b32" => Type::B32,
            "b64" => Type::B64,
            "u8" => Type::U8,
            "u16" => Type::U16,
            "u32" => Type::U32,
            "u64" => Type::U64,
            "s8" => Type::S8,
            "s16" => Type::S16,
            "s32" => Type::S32,
            "s64" => Type::S64,
            "f16" => Type::F16,
            "bf16" => Type::BF16,
            "f16x2" => Type::F16x2,
            "bf16x2" => Type::BF16x2,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => return None,
        })
    }

    /// Bits of a value; 1 for a predicate.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Type::Pred => 1,
            Type::B8 | Type::U8 | Type::S8 => 8,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::BF16 => 16,
            Type::B32 | Type::U32 | Type::S32 | Type::F16x2 | Type::BF16x2 | Type::F32 => 32,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 64,
        }
    }

    pub(crate) fn bytes(self) -> usize {
        self.bits().div_ceil(8) as usize
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::BF16 | Type::F32 | Type::F64)
    }

    /// Cuts a value to the type's bits.
    pub(crate) fn cut(self, value: u64) -> u64 {
        cut(self.bits(), value)
    }

    /// Extends the low bits of a value to 64 bits, with the sign if the type has one.
    pub(crate) fn extend(self, value: u64) -> u64 {
        let unused = 64 - self.bits();
        if self.is_signed() { ((value << unused) as i64 >> unused) as u64 } else { self.cut(value) }
    }
}

/// The low `bits` bits of a value.
pub(crate) fn cut(bits: u32, value: u64) -> u64 {
    value & (u64::MAX >> (64 - bits))
}

/// A state space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// The windows of the spaces in the generic address space. Other addresses are global.
pub(crate) const SHARED_WINDOW: u64 = 0x7f00_0000_0000;
pub(crate) const LOCAL_WINDOW: u64 = 0x7f10_0000_0000;
pub(crate) const PARAM_WINDOW: u64 = 0x7f20_0000_0000;
/// Bytes of a window.
pub(crate) const WINDOW_BYTES: u64 = 1 << 32;

impl Space {
    pub(crate) fn parse(name: &str) -> Option<Space> {
        Some(match name {
            "global" => Space::Global,
            "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
            "local" => Space::Local,
            "param" | "param::entry" => Space::Param,
            _ => return None,
        })
    }

    /// The generic address of address 0 of the space.
    pub(crate) fn window(self) -> u64 {
        match self {
            Space::Generic | Space::Global => 0,
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Param => PARAM_WINDOW,
        }
    }

    /// The space and the address in it that a generic address stands for.
    pub(crate) fn of_generic(address: u64) -> (Space, u64) {
        for space in [Space::Shared, Space::Local, Space::Param] {
            let offset = address.wrapping_sub(space.window());
            if offset < WINDOW_BYTES {
                return (space, offset);
            }
        }
        (Space::Global, address)
    }
}
