//! Measures the host's part of loading weights: from a mapped file in the page cache into upload
//! buffers.

use std::fs::{self, File};
use std::io::Write;
use std::time::Instant;

use half::bf16;
use memmap2::Mmap;
use millrace_backend::staging::{Packer, upload_ranges};
use millrace_numbers::{DType, HostTensor, Part};

/// The size of the file: larger than any CPU cache, small enough for the page cache.
const FILE: usize = 1 << 30;
/// The size of the CUDA backend's upload buffers.
const BUFFER: usize = 16 << 20;

/// Prints a line for each conversion, and compares with memory that was mapped before.
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
                    // SAFETY: the file has no name any more, so nobody can shorten it.
                    let map = unsafe { Mmap::map(&file) }.unwrap();
                    if touched {
                        map.iter().step_by(4096).for_each(|byte| _ = std::hint::black_box(*byte));
                    }
                    let tensor =
                        HostTensor::dense(DType::BF16, FILE / 2 / cols, cols, bytes::Bytes::from_owner(map));
                    let part = Part { cols: 0..width, ..Part::whole(tensor) };
                    let since = Instant::now();
                    for (index, range) in upload_ranges(&part, dtype, BUFFER).enumerate() {
                        let to = &mut buffers[index % 3 * BUFFER..][..range.len() * dtype.size()];
                        packer.pack(&part, range.start, dtype, to);
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
