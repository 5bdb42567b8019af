//! `cvt`.

use crate::float::{NAN32, bf16_from_f64, bf16_to_f64, bits32, f16_from_f64, f16_to_f64};
use crate::instruction::{Conversion, Rounding};
use crate::types::Type;

/// Converts a value. The result has 64 bits, with the sign if the target has one.
pub(super) fn convert(conversion: Conversion, a: u64) -> u64 {
    let Conversion { to, from, rounding, saturate } = conversion;
    match (to.is_float(), from.is_float()) {
        (false, false) => to.extend(from.extend(a)),
        (false, true) => {
            let x = float(from, a);
            if x.is_nan() {
                return if from == Type::F64 || to.bits() == 64 { 1 << (to.bits() - 1) } else { 0 };
            }
            let x = if rounding == Rounding::NearestInteger { x.round_ties_even() } else { x.trunc() };
            // A cast from float to integer clamps.
            match to {
                Type::S32 => i64::from(x as i32) as u64,
                Type::U32 => u64::from(x as u32),
                Type::S64 => x as i64 as u64,
                _ => x as u64,
            }
        }
        (true, false) => {
            let value = from.extend(a);
            match (to, from.is_signed()) {
                (Type::F32, true) => u64::from((value as i64 as f32).to_bits()),
                (Type::F32, false) => u64::from((value as f32).to_bits()),
                (_, true) => (value as i64 as f64).to_bits(),
                (_, false) => (value as f64).to_bits(),
            }
        }
        (true, true) => {
            let x = float(from, a);
            if saturate {
                return bits32(if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) as f32 });
            }
            match to {
                Type::F16 => u64::from(f16_from_f64(x)),
                Type::BF16 => u64::from(bf16_from_f64(x)),
                Type::F32 if x.is_nan() => u64::from(NAN32),
                Type::F32 => u64::from((x as f32).to_bits()),
                _ => x.to_bits(),
            }
        }
    }
}

fn float(ty: Type, bits: u64) -> f64 {
    match ty {
        Type::F16 => f16_to_f64(bits as u16),
        Type::BF16 => bf16_to_f64(bits as u16),
        Type::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_clamp_round_and_extend() {
        let to = |to, from, rounding, a| convert(Conversion { to, from, rounding, saturate: false }, a);
        let f = |x: f32| u64::from(x.to_bits());
        assert_eq!(to(Type::S64, Type::S32, Rounding::None, 0xffff_fffe), (-2i64) as u64);
        assert_eq!(to(Type::U64, Type::U32, Rounding::None, 0xffff_fffe), 0xffff_fffe);
        assert_eq!(to(Type::S32, Type::F32, Rounding::NearestInteger, f(2.5)), 2);
        assert_eq!(to(Type::S32, Type::F32, Rounding::ZeroInteger, f(-2.9)), (-2i64) as u64);
        assert_eq!(to(Type::S32, Type::F32, Rounding::ZeroInteger, f(1e20)), 0x7fff_ffff);
        assert_eq!(to(Type::S32, Type::F32, Rounding::ZeroInteger, f(f32::NAN)), 0);
        assert_eq!(to(Type::U64, Type::F32, Rounding::ZeroInteger, f(f32::NAN)), 1 << 63);
        assert_eq!(to(Type::F32, Type::S16, Rounding::Nearest, 0xffff), f(-1.0));
        assert_eq!(to(Type::F16, Type::F32, Rounding::Nearest, f(1.0)), 0x3c00);
        let saturated = |x| {
            let conversion =
                Conversion { to: Type::F32, from: Type::F32, rounding: Rounding::None, saturate: true };
            convert(conversion, f(x))
        };
        assert_eq!([saturated(f32::NAN), saturated(7.0), saturated(0.5)], [0, f(1.0), f(0.5)]);
    }
}
