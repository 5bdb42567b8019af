//! Weights on their way to a device, as far as the host takes part: from a mapped file into buffers, from the page cache.

use std::fs::{self, File};
use std::io::Write;
use std::time::Instant;

use half::bf16;
use memmap2::Mmap;
use millrace_kernels::staging::{Packer, loads};
use millrace_kernels::{DType, HostTensor, Part};

/// A file of as many bytes: more than any cache, little enough for the page cache.
const FILE: usize = 1 << 30;
/// The buffers of the CUDA backend.
const BUFFER: usize = 16 << 20;

/// Compares with a copy of memory that was touched before, and prints a line for each conversion.
pub(crate) fn staging(threads: usize) {
    let path = std::env::temp_dir().join(format!("millrace-staging-{}", std::process::id()));
    let mut file = File::create_new(&path).unwrap();
    let one: Vec<u8> = (0..BUFFER / 2).flat_map(|i| bf16::from_f32((i % 100) as f32).to_le_bytes()).collect();
    (0..FILE / BUFFER).for_each(|_| file.write_all(&one).unwrap());
    let file = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let packer = Packer::new(threads).unwrap();
    let mut buffers = vec![0u8; 3 * BUFFER];
    let cols = 4096;
    for (what, width) in [("whole rows", cols), ("half of each row", cols / 2)] {
        for dtype in [DType::BF16, DType::F16, DType::F32] {
            let mut best = |touched: bool| {
                let rates = (0..3).map(|_| {
                    // SAFETY: the file has no name any more, so nobody shortens it.
                    let map = unsafe { Mmap::map(&file) }.unwrap();
                    if touched {
                        map.iter().step_by(4096).for_each(|byte| _ = std::hint::black_box(*byte));
                    }
                    let tensor = HostTensor { dtype: DType::BF16, rows: FILE / 2 / cols, cols, bytes: &map };
                    let part = Part { cols: 0..width, ..Part::whole(tensor) };
                    let since = Instant::now();
                    for (index, load) in loads(&part, dtype, BUFFER).enumerate() {
                        let to = &mut buffers[index % 3 * BUFFER..][..load.len() * dtype.size()];
                        packer.pack(&part, load.start, dtype, to);
                    }
                    1e-9 * (FILE * width / cols) as f64 / since.elapsed().as_secs_f64()
                });
                rates.fold(0.0, f64::max)
            };
            let (fresh, touched) = (best(false), best(true));
            println!(
                "staging  bfloat16 to {:8} {what:16} {fresh:5.2} GB/s from the page cache, {touched:5.2} once it is mapped",
                dtype.name()
            );
        }
    }
}
