//! Tests of the integer and bf16 operations of all instruction sets of this machine.

use half::bf16;

use super::{Isa, Kernel, Simd, Target};

/// Applies the dot products to vectors that repeat these numbers, and returns the first lanes.
struct Dots {
    bytes: ([u8; 4], [i8; 4]),
    pairs: ([f32; 2], [f32; 2]),
}

impl Kernel for Dots {
    type Output = (i32, f32);

    unsafe fn run<S: Simd>(self) -> (i32, f32) {
        let pair = |[a, b]: [f32; 2]| {
            let bits = |x| i32::from(bf16::from_f32(x).to_bits());
            bits(b) << 16 | bits(a)
        };
        // SAFETY: the caller guarantees the instruction set; nothing is read through pointers.
        unsafe {
            let (u, s) = self.bytes;
            let (u, s) = (i32::from_le_bytes(u), i32::from_le_bytes(s.map(|s| s as u8)));
            let sum = S::dot_u8_i8(S::splat_i(3), S::splat_i(u), S::splat_i(s));
            let sum = S::to_f32(S::add_i(sum, S::splat_i(-3)));
            let (a, b) = self.pairs;
            let product = S::dot_bf16(S::splat(1.0), S::splat_i(pair(a)), S::splat_i(pair(b)));
            (S::lanes(sum)[S::LANES - 1] as i32, S::lanes(product)[S::LANES - 1])
        }
    }
}

#[test]
fn dot_products_are_those_of_the_numbers() {
    for isa in Isa::ALL {
        let Ok(target) = Target::new(Some(isa)) else {
            println!("this machine has no {}: not tested", isa.name());
            continue;
        };
        println!("this machine has {}", isa.name());
        for (u, s) in [([255; 4], [-128; 4]), ([255; 4], [127; 4]), ([1, 2, 3, 4], [-5, 6, -7, 8])] {
            let pairs = ([1.5, -2.0], [0.25, 3.0]);
            let (sum, product) = target.dispatch(Dots { bytes: (u, s), pairs });
            let exact: i32 = u.iter().zip(s).map(|(&u, s)| i32::from(u) * i32::from(s)).sum();
            assert_eq!((sum, product), (exact, 1.0 + 0.375 - 6.0), "{}", isa.name());
        }
    }
}
