//! Arithmetic on the registers of a warp: one function per operation and type.

use crate::float::{
    bf16_from_f64, bf16_to_f64, bits32, f16_from_f64, f16_to_f64, flush, fma_down, multiply_add_odd,
};
use crate::types::{Type, cut};

/// A value per lane.
pub(crate) type Lanes = [u64; 32];
/// Computes the lanes of a mask.
pub(crate) type Fn1 = fn(&mut Lanes, &Lanes, u32);
pub(crate) type Fn2 = fn(&mut Lanes, &Lanes, &Lanes, u32);
pub(crate) type Fn3 = fn(&mut Lanes, &Lanes, &Lanes, &Lanes, u32);

/// A loop over the lanes of a mask. All 32 are a loop of their own, which compilers vectorize.
macro_rules! each_lane {
    ($mask:expr, |$i:ident| $body:block) => {
        if $mask == u32::MAX {
            for $i in 0..32 $body
        } else {
            for $i in (0..32).filter(|i| $mask >> i & 1 == 1) $body
        }
    };
}

macro_rules! lanes {
    (|$a:ident| $value:expr) => {
        (|d, a, mask| {
            each_lane!(mask, |i| {
                let $a = a[i];
                d[i] = $value;
            })
        }) as Fn1
    };
    (|$a:ident, $b:ident| $value:expr) => {
        (|d, a, b, mask| {
            each_lane!(mask, |i| {
                let ($a, $b) = (a[i], b[i]);
                d[i] = $value;
            })
        }) as Fn2
    };
    (|$a:ident, $b:ident, $c:ident| $value:expr) => {
        (|d, a, b, c, mask| {
            each_lane!(mask, |i| {
                let ($a, $b, $c) = (a[i], b[i], c[i]);
                d[i] = $value;
            })
        }) as Fn3
    };
}

/// A function of integers for the width and the sign of a type.
macro_rules! integers {
    ($ty:expr, |$($x:ident),+| $value:expr) => {
        match $ty {
            Type::B16 | Type::U16 => lanes!(|$($x),+| { $(let $x = $x as u16;)+ ($value) as u16 as u64 }),
            Type::S16 => lanes!(|$($x),+| { $(let $x = $x as i16;)+ ($value) as u16 as u64 }),
            Type::B32 | Type::U32 => lanes!(|$($x),+| { $(let $x = $x as u32;)+ ($value) as u32 as u64 }),
            Type::S32 => lanes!(|$($x),+| { $(let $x = $x as i32;)+ ($value) as u32 as u64 }),
            Type::B64 | Type::U64 => lanes!(|$($x),+| { ($value) as u64 }),
            Type::S64 => lanes!(|$($x),+| { $(let $x = $x as i64;)+ ($value) as u64 }),
            _ => return None,
        }
    };
}

macro_rules! f32s {
    (|$($x:ident),+| $value:expr) => { lanes!(|$($x),+| { $(let $x = f(u64::from($x));)+ bits32($value) }) };
}

macro_rules! f64s {
    (|$($x:ident),+| $value:expr) => {
        lanes!(|$($x),+| { $(let $x = f64::from_bits($x);)+ f64::to_bits($value) })
    };
}

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

/// Finds the operation of an opcode with one operand; `modifiers` are the words between name and
/// type.
pub(crate) fn unary(name: &str, modifiers: &[&str], ty: Type) -> Option<Fn1> {
    use Type::{B32, F32, F64, Pred, U32};
    Some(match (name, modifiers, ty) {
        ("mov", [], _) => lanes!(|a| a),
        ("not", [], Pred) => lanes!(|a| a ^ 1),
        ("not", [], _) => integers!(ty, |a| !a),
        ("neg", [], F32) => lanes!(|a| a ^ 0x8000_0000),
        ("neg", [], F64) => lanes!(|a| a ^ (1 << 63)),
        ("neg", [], _) => integers!(ty, |a| a.wrapping_neg()),
        ("abs", [], F32) => lanes!(|a| a & 0x7fff_ffff),
        ("abs", [], F64) => lanes!(|a| a & ((1 << 63) - 1)),
        ("abs", [], Type::S32) => lanes!(|a| u64::from((a as i32).wrapping_abs() as u32)),
        ("abs", [], Type::S64) => lanes!(|a| (a as i64).wrapping_abs() as u64),
        ("popc", [], B32) => lanes!(|a| u64::from((a as u32).count_ones())),
        ("clz", [], B32) => lanes!(|a| u64::from((a as u32).leading_zeros())),
        ("brev", [], B32) => lanes!(|a| u64::from((a as u32).reverse_bits())),
        ("bfind", ["shiftamt"], U32) => {
            lanes!(|a| if a == 0 { 0xffff_ffff } else { u64::from((a as u32).leading_zeros()) })
        }
        ("rcp", ["rn"], F32) => f32s!(|a| 1.0 / a),
        ("rcp", ["approx", "ftz"], F32) => f32s!(|a| flush(1.0 / flush(a))),
        ("rcp", ["approx", "ftz"], F64) => f64s!(|a| {
            let top = f64::from_bits(a.to_bits() >> 32 << 32);
            f64::from_bits((1.0 / top).to_bits() >> 32 << 32)
        }),
        ("rsqrt", ["approx"], F32) => f32s!(|a| (1.0 / f64::from(a).sqrt()) as f32),
        ("sqrt", ["rn"], F32) => f32s!(|a| a.sqrt()),
        ("ex2", ["approx", "ftz"], F32) => f32s!(|a| flush(f64::from(flush(a)).exp2() as f32)),
        _ => return None,
    })
}

/// Finds the operation of an opcode with two operands.
pub(crate) fn binary(name: &str, modifiers: &[&str], ty: Type) -> Option<Fn2> {
    match (name, modifiers) {
        ("setp", [relation]) => return compare(relation, ty),
        ("mul", ["wide"]) => return wide(ty),
        _ => {}
    }
    if ty.is_float() || matches!(ty, Type::F16x2 | Type::BF16x2) {
        return binary_float(name, modifiers, ty);
    }
    Some(match (name, modifiers, ty) {
        ("and", [], Type::Pred) => lanes!(|a, b| a & b),
        ("or", [], Type::Pred) => lanes!(|a, b| a | b),
        ("xor", [], Type::Pred) => lanes!(|a, b| a ^ b),
        ("add", [], _) => integers!(ty, |a, b| a.wrapping_add(b)),
        ("sub", [], _) => integers!(ty, |a, b| a.wrapping_sub(b)),
        ("mul", ["lo"], _) => integers!(ty, |a, b| a.wrapping_mul(b)),
        ("mul", ["hi"], Type::U32) => lanes!(|a, b| (a * b) >> 32),
        ("mul", ["hi"], Type::S32) => {
            lanes!(|a, b| u64::from(((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32))
        }
        ("mul", ["hi"], Type::U64) => lanes!(|a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        // The caller refuses divisors of zero.
        ("div", [], _) => integers!(ty, |a, b| a.wrapping_div(b)),
        ("rem", [], _) => integers!(ty, |a, b| a.wrapping_rem(b)),
        ("min", [], _) => integers!(ty, |a, b| a.min(b)),
        ("max", [], _) => integers!(ty, |a, b| a.max(b)),
        ("and", [], _) => integers!(ty, |a, b| a & b),
        ("or", [], _) => integers!(ty, |a, b| a | b),
        ("xor", [], _) => integers!(ty, |a, b| a ^ b),
        ("shl", [], Type::B16) => lanes!(|a, b| if b > 15 { 0 } else { cut(16, a << b) }),
        ("shl", [], Type::B32) => lanes!(|a, b| if b > 31 { 0 } else { cut(32, a << b) }),
        ("shl", [], Type::B64) => lanes!(|a, b| if b > 63 { 0 } else { a << b }),
        ("shr", [], Type::S16) => lanes!(|a, b| u64::from((a as i16 >> b.min(15)) as u16)),
        ("shr", [], Type::S32) => lanes!(|a, b| u64::from((a as i32 >> b.min(31)) as u32)),
        ("shr", [], Type::S64) => lanes!(|a, b| (a as i64 >> b.min(63)) as u64),
        ("shr", [], _) => lanes!(|a, b| if b > 63 { 0 } else { a >> b }),
        _ => return None,
    })
}

fn binary_float(name: &str, modifiers: &[&str], ty: Type) -> Option<Fn2> {
    use Type::{F32, F64};
    Some(match (name, modifiers, ty) {
        ("add", [] | ["rn"], F32) => f32s!(|a, b| a + b),
        ("sub", [] | ["rn"], F32) => f32s!(|a, b| a - b),
        ("mul", [] | ["rn"], F32) => f32s!(|a, b| a * b),
        ("div", ["rn"], F32) => f32s!(|a, b| a / b),
        ("div", ["approx"], F32) => f32s!(|a, b| {
            // Beyond 2^126 the divisor's reciprocal is flushed to zero.
            if b.is_finite() && b.abs() > 2f32.powi(126) { a * 0f32.copysign(b) } else { a / b }
        }),
        ("min", [], F32) => f32s!(|a, b| least(a, b)),
        ("max", [], F32) => f32s!(|a, b| -least(-a, -b)),
        ("copysign", [], F32) => lanes!(|a, b| (a & 0x8000_0000) | (b & 0x7fff_ffff)),
        ("add", [] | ["rn"], F64) => f64s!(|a, b| a + b),
        ("sub", [] | ["rn"], F64) => f64s!(|a, b| a - b),
        ("mul", [] | ["rn"], F64) => f64s!(|a, b| a * b),
        ("div", ["rn"], F64) => f64s!(|a, b| a / b),
        ("min", [], F64) => f64s!(|a, b| if a.is_nan() || b < a { b } else { a }),
        ("max", [], F64) => f64s!(|a, b| if a.is_nan() || b > a { b } else { a }),
        _ => return None,
    })
}

/// The lesser one: a number rather than a NaN, and -0 rather than +0.
fn least(a: f32, b: f32) -> f32 {
    if a.is_nan() || b < a || (a == b && b.is_sign_negative()) { b } else { a }
}

fn wide(ty: Type) -> Option<Fn2> {
    Some(match ty {
        Type::U16 => lanes!(|a, b| u64::from(a as u16) * u64::from(b as u16)),
        Type::S16 => lanes!(|a, b| u64::from((i32::from(a as i16) * i32::from(b as i16)) as u32)),
        Type::U32 => lanes!(|a, b| u64::from(a as u32) * u64::from(b as u32)),
        Type::S32 => lanes!(|a, b| (i64::from(a as i32) * i64::from(b as i32)) as u64),
        _ => return None,
    })
}

macro_rules! float_relations {
    ($relation:expr, $to:expr) => {
        match $relation {
            "eq" => lanes!(|a, b| ($to(a) == $to(b)).into()),
            "ne" => lanes!(|a, b| ($to(a) < $to(b) || $to(a) > $to(b)).into()),
            "lt" => lanes!(|a, b| ($to(a) < $to(b)).into()),
            "le" => lanes!(|a, b| ($to(a) <= $to(b)).into()),
            "gt" => lanes!(|a, b| ($to(a) > $to(b)).into()),
            "ge" => lanes!(|a, b| ($to(a) >= $to(b)).into()),
            "equ" => lanes!(|a, b| (!($to(a) < $to(b)) && !($to(a) > $to(b))).into()),
            "neu" => lanes!(|a, b| ($to(a) != $to(b)).into()),
            "ltu" => lanes!(|a, b| (!($to(a) >= $to(b))).into()),
            "leu" => lanes!(|a, b| (!($to(a) > $to(b))).into()),
            "gtu" => lanes!(|a, b| (!($to(a) <= $to(b))).into()),
            "geu" => lanes!(|a, b| (!($to(a) < $to(b))).into()),
            "num" => lanes!(|a, b| (!$to(a).is_nan() && !$to(b).is_nan()).into()),
            "nan" => lanes!(|a, b| ($to(a).is_nan() || $to(b).is_nan()).into()),
            _ => return None,
        }
    };
}

#[expect(clippy::neg_cmp_op_on_partial_ord, reason = "the unordered relations hold for NaN")]
fn compare(relation: &str, ty: Type) -> Option<Fn2> {
    Some(match ty {
        Type::F32 => float_relations!(relation, f),
        Type::F64 => float_relations!(relation, f64::from_bits),
        _ => match relation {
            "eq" => integers!(ty, |a, b| a == b),
            "ne" => integers!(ty, |a, b| a != b),
            "lt" => integers!(ty, |a, b| a < b),
            "le" => integers!(ty, |a, b| a <= b),
            "gt" => integers!(ty, |a, b| a > b),
            "ge" => integers!(ty, |a, b| a >= b),
            _ => return None,
        },
    })
}

/// Finds the operation of an opcode with three operands.
pub(crate) fn ternary(name: &str, modifiers: &[&str], ty: Type) -> Option<Fn3> {
    Some(match (name, modifiers, ty) {
        ("selp", [], _) => lanes!(|a, b, c| if c != 0 { a } else { b }),
        ("mad", ["lo"], _) => integers!(ty, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        ("prmt", [], Type::B32) => lanes!(|a, b, c| permute(a, b, c)),
        ("fma", ["rn"], Type::F32) => f32s!(|a, b, c| a.mul_add(b, c)),
        ("fma", ["rm"], Type::F32) => f32s!(|a, b, c| fma_down(a, b, c)),
        ("fma", ["rn"], Type::F64) => f64s!(|a, b, c| a.mul_add(b, c)),
        ("fma", ["rn"], Type::F16x2) => lanes!(|a, b, c| fma2(a, b, c, f16_to_f64, f16_from_f64)),
        ("fma", ["rn"], Type::BF16x2) => lanes!(|a, b, c| fma2(a, b, c, bf16_to_f64, bf16_from_f64)),
        _ => return None,
    })
}

/// `cvt` of two f32 to a pair; the first goes to the high half.
pub(crate) fn convert_pair(ty: Type) -> Option<Fn2> {
    fn join(a: u64, b: u64, narrow: fn(f64) -> u16) -> u64 {
        u64::from(narrow(f(a).into())) << 16 | u64::from(narrow(f(b).into()))
    }
    Some(match ty {
        Type::F16x2 => lanes!(|a, b| join(a, b, f16_from_f64)),
        Type::BF16x2 => lanes!(|a, b| join(a, b, bf16_from_f64)),
        _ => return None,
    })
}

fn fma2(a: u64, b: u64, c: u64, widen: fn(u16) -> f64, narrow: fn(f64) -> u16) -> u64 {
    let half = |shift: u32| {
        let [a, b, c] = [a, b, c].map(|x| widen((x >> shift) as u16));
        u64::from(narrow(multiply_add_odd(a, b, c)))
    };
    half(0) | half(16) << 16
}

fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = b << 32 | a & 0xffff_ffff;
    (0..4).fold(0, |d, i| {
        let nibble = selector >> (4 * i) & 15;
        let byte = bytes >> (8 * (nibble & 7)) & 255;
        let byte = if nibble & 8 == 0 { byte } else { 255 * (byte >> 7) };
        d | byte << (8 * i)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(f: Option<Fn2>, a: u64, b: u64) -> u64 {
        let mut d = [7; 32];
        f.expect("the operation exists")(&mut d, &[a; 32], &[b; 32], 1 << 3);
        assert_eq!(d.iter().filter(|d| **d == 7).count(), 31, "lanes outside of the mask keep their value");
        d[3]
    }

    #[test]
    fn integers_wrap_and_shifts_saturate() {
        assert_eq!(one(binary("add", &[], Type::S32), 0xffff_ffff, 2), 1);
        assert_eq!(one(binary("sub", &[], Type::S16), 0, 1), 0xffff);
        assert_eq!(one(binary("mul", &["hi"], Type::U32), 0x8000_0000, 6), 3);
        assert_eq!(one(binary("mul", &["wide"], Type::S32), 0xffff_ffff, 5), (-5i64) as u64);
        assert_eq!(one(binary("shl", &[], Type::B32), 5, 32), 0);
        assert_eq!(one(binary("shr", &[], Type::S32), 0x8000_0000, 99), 0xffff_ffff);
        assert_eq!(one(binary("div", &[], Type::S32), (-9i32) as u32 as u64, 2), (-4i32) as u32 as u64);
        assert_eq!(one(binary("setp", &["lt"], Type::S32), 0xffff_ffff, 0), 1);
        assert_eq!(one(binary("setp", &["lt"], Type::U32), 0xffff_ffff, 0), 0);
    }

    #[test]
    fn floats_treat_nan_as_ptx_does() {
        let (nan, one_) = (u64::from(f32::NAN.to_bits()), u64::from(1f32.to_bits()));
        assert_eq!(one(binary("max", &[], Type::F32), nan, one_), one_);
        assert_eq!(one(binary("min", &[], Type::F32), one_, nan), one_);
        assert_eq!(one(binary("min", &[], Type::F32), 0, 0x8000_0000), 0x8000_0000);
        assert_eq!(one(binary("max", &[], Type::F32), 0x8000_0000, 0), 0);
        assert_eq!(one(binary("setp", &["ne"], Type::F32), nan, one_), 0);
        assert_eq!(one(binary("setp", &["neu"], Type::F32), nan, one_), 1);
        assert_eq!(one(binary("setp", &["ltu"], Type::F32), nan, one_), 1);
        assert_eq!(one(binary("add", &[], Type::F32), nan, one_), 0x7fff_ffff);
    }

    #[test]
    fn permute_picks_bytes_and_spreads_signs() {
        assert_eq!(permute(0x0302_0100, 0x0706_0504, 0x7531), 0x0705_0301);
        assert_eq!(permute(0x8000_0080, 0, 0xba98), 0xff00_00ff);
    }
}
