//! The declarations that kernels and host code share: parameters, records in device memory,
//! enumerations, tile sizes.
//!
//! `build/shared.rs` translates the declarations from the CUDA sources, a module for each source
//! file; the modules of headers end in `_h`.

#![allow(dead_code, missing_docs, unreachable_pub, unused_imports, clippy::all, reason = "generated")]

/// The types that the generated modules name.
mod imports {
    pub(super) use crate::TensorMap;
    pub(super) use crate::params::{DevicePtr, KernelParams, ParamsLayout, PointerField};
}

include!(concat!(env!("OUT_DIR"), "/shared.rs"));

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::activation_h::ActivationKind;
    use super::attention_plain::PlainAttentionParams;
    use super::sample_row_h::{COLUMNS, SampleColumn};
    use super::{attention_h, decode_h, prefill_h, sm90_prefill, tile_h};
    use crate::params::KernelParams;

    /// The numbers were computed by hand from the CUDA sources. They cover constants of other
    /// files, calls, nested conditions and conditions in parentheses.
    #[test]
    fn functions_have_the_values_of_the_cuda_sources() {
        assert_eq!([16, 80, 128, 129].map(decode_h::decode_features), [64, 96, 128, 256]);
        assert_eq!(decode_h::decode_shared_bytes(128, 2, 8), 65_536 + 4 * 8 * (132 * 4 + 8));
        assert_eq!(decode_h::decode_ring_bytes(128, 1), 4 * 4 * 2 * (16 * 128 + 16 * 4));
        assert_eq!(prefill_h::prefill_shared_bytes(128), (128 + 2 * 32) * 136 * 2);
        assert_eq!(sm90_prefill::hopper_shared_bytes(256), (128 + 4 * 64) * 256 * 2 + 128);
        assert_eq!(tile_h::tile_shared_bytes(4, 16, 4), 4 * (4096 + 1024 + 2048));
        assert_eq!(tile_h::tile_shared_bytes(16, 128, 3), 3 * (16_384 + 16_384));
    }

    #[test]
    fn enumerations_count_from_zero() {
        assert_eq!([ActivationKind::Silu, ActivationKind::Relu].map(|kind| kind as i32), [0, 3]);
        assert_eq!(SampleColumn::GreenBias as usize + 1, COLUMNS);
    }

    #[test]
    fn pointers_of_parts_are_listed() {
        let pointers = PlainAttentionParams::LAYOUT.pointers;
        let prefix = pointers.iter().find(|pointer| pointer.name == c"sequences.prefix").unwrap();
        let part = offset_of!(PlainAttentionParams, sequences);
        assert_eq!(prefix.offset, part + offset_of!(attention_h::SequenceParams, prefix));
        assert_eq!(pointers.len(), 6 + 4 + 2);
    }
}
