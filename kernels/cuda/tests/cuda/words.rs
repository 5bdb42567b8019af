//! Signed words on the device.

use millrace_cuda::{Elem, Memory, View};

use crate::common::DEVICE;

/// Memory that holds signed words.
pub(crate) fn put_i32(values: &[i32]) -> Memory {
    DEVICE.upload(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).unwrap()
}

/// The words of a view.
pub(crate) fn get_i32(view: View<'_>) -> Vec<i32> {
    assert_eq!(view.elem(), Elem::I32);
    let bytes = DEVICE.read(view).unwrap();
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
}
