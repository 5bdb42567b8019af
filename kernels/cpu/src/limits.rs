//! Measures the limits of the machine at this moment: the throughput of the instructions that
//! products consist of, and the bandwidth of the memory.
//!
//! Benchmarks report speeds as fractions of these limits, because machines differ, and shared
//! machines vary from minute to minute.

use std::sync::LazyLock;
use std::time::Instant;

use millrace_numbers::{DType, WeightFormat};

use super::Isa;
use super::simd::{Kernel, Simd, Target};

/// Seconds since some instant: CPU time of the calling thread if it is the only one, else wall
/// time.
pub fn clock(threads: usize) -> f64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    #[cfg(target_os = "linux")]
    if threads == 1 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is valid, and every Linux has this clock.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        return time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64;
    }
    let _ = threads;
    BEGIN.elapsed().as_secs_f64()
}

/// Runs `work(i)` on `threads` threads and returns the seconds that it took.
fn on_threads(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let start = clock(threads);
    std::thread::scope(|scope| {
        let work = &work;
        for i in 1..threads {
            scope.spawn(move || work(i));
        }
        work(0);
    });
    clock(threads) - start
}

/// The instruction that a product consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// The fused multiply-add of an instruction set, in single precision.
    MultiplyAdd(Isa),
    /// The dot product of pairs of bf16 numbers of an instruction set.
    DotBf16(Isa),
    /// The dot product of four bytes of an instruction set.
    DotBytes(Isa),
    /// The product of tiles of pairs of bf16 numbers.
    TileBf16,
}

impl Instruction {
    /// Returns the fastest instruction of `isa` for weights in this format.
    pub fn of(isa: Isa, format: impl Into<WeightFormat>) -> Instruction {
        match (isa, format.into()) {
            (
                Isa::Amx,
                WeightFormat::Dense(DType::BF16)
                | WeightFormat::Fp8
                | WeightFormat::Nf4
                | WeightFormat::Codes(_),
            ) => Instruction::TileBf16,
            (
                Isa::Avx512Bf16 | Isa::NeonBf16,
                WeightFormat::Dense(DType::BF16)
                | WeightFormat::Fp8
                | WeightFormat::Nf4
                | WeightFormat::Codes(_),
            ) => Instruction::DotBf16(isa),
            (
                Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512Vnni | Isa::AvxVnni | Isa::NeonBf16 | Isa::NeonDot,
                WeightFormat::Int(_) | WeightFormat::K(_),
            ) => Instruction::DotBytes(isa),
            _ => Instruction::MultiplyAdd(isa),
        }
    }

    /// Returns the name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Instruction::MultiplyAdd(_) => "f32 multiply-add",
            Instruction::DotBf16(_) => "bf16 dot product",
            Instruction::DotBytes(_) => "dot product of bytes",
            Instruction::TileBf16 => "bf16 tile product",
        }
    }
}

/// A loop of the instruction on registers, in GFLOP/s of all threads: the best of several short
/// runs. An instruction that the machine lacks is replaced by multiply-adds of the portable set.
pub fn peak(threads: usize, instruction: Instruction) -> f64 {
    const ROUNDS: usize = 1_000_000;
    let mut best = 0f64;
    for _ in 0..5 {
        let flops = std::sync::atomic::AtomicUsize::new(0);
        let seconds = on_threads(threads, |_| {
            flops.fetch_add(spin(instruction, ROUNDS), std::sync::atomic::Ordering::Relaxed);
        });
        best = best.max(1e-9 * flops.into_inner() as f64 / seconds);
    }
    best
}

/// Runs the loop and returns the number of floating-point operations.
fn spin(instruction: Instruction, rounds: usize) -> usize {
    let on = |isa, body| Target::new(Some(isa)).ok().map(|target| target.dispatch(Spin { body, rounds }));
    let done = match instruction {
        #[cfg(target_arch = "x86_64")]
        Instruction::TileBf16 if Isa::Amx.is_available() => return super::amx::spin(rounds),
        Instruction::TileBf16 => None,
        Instruction::DotBf16(isa) => on(isa, Body::DotBf16),
        Instruction::DotBytes(isa) => on(isa, Body::DotBytes),
        Instruction::MultiplyAdd(isa) => on(isa, Body::MultiplyAdd),
    };
    done.unwrap_or_else(|| plain(rounds))
}

/// A loop of independent chains of one instruction.
struct Spin {
    body: Body,
    rounds: usize,
}

#[derive(Clone, Copy)]
enum Body {
    MultiplyAdd,
    DotBf16,
    DotBytes,
}

impl Kernel for Spin {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> usize {
        // Enough to hide the latency, and few enough for 16 registers.
        const CHAINS: usize = 12;
        let word = std::hint::black_box(0x3c00_3c00); // two times 2^-7 in bf16, so that sums stay small
        // SAFETY: the caller guarantees the instruction set; nothing is read through pointers.
        unsafe {
            match self.body {
                Body::MultiplyAdd => {
                    let (a, b) = (S::splat(f32::from_bits(word)), S::splat(std::hint::black_box(0.001)));
                    repeat::<CHAINS, _>(self.rounds, S::splat(1.0), |sum| S::fma(sum, a, b));
                    self.rounds * CHAINS * S::LANES * 2
                }
                Body::DotBf16 => {
                    let pairs = S::splat_i(word.cast_signed());
                    repeat::<CHAINS, _>(self.rounds, S::splat(1.0), |sum| S::dot_bf16(sum, pairs, pairs));
                    self.rounds * CHAINS * S::LANES * 4
                }
                Body::DotBytes => {
                    let bytes = S::splat_i(word.cast_signed());
                    repeat::<CHAINS, _>(self.rounds, S::splat_i(1), |sum| S::dot_u8_i8(sum, bytes, bytes));
                    self.rounds * CHAINS * S::LANES * 8
                }
            }
        }
    }
}

/// Applies `step` to each chain `rounds` times.
#[inline(always)]
fn repeat<const CHAINS: usize, T: Copy>(rounds: usize, first: T, step: impl Fn(T) -> T) {
    let mut chains = [first; CHAINS];
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = step(*chain);
        }
    }
    std::hint::black_box(chains);
}

fn plain(rounds: usize) -> usize {
    let mut chains = [[1f32; 8]; 8];
    let (a, b) = (std::hint::black_box(0.999), std::hint::black_box(0.001));
    for _ in 0..rounds {
        for chain in &mut chains {
            for x in chain {
                *x = *x * a + b;
            }
        }
    }
    std::hint::black_box(chains);
    rounds * 64 * 2
}

/// A stream of reads over 400 MiB, in GB/s of all threads: the best of several runs. It reads as
/// the kernels do: whole vectors, from huge pages, with prefetching. The memory is kept for the
/// next measurement.
pub fn bandwidth(threads: usize, isa: Isa) -> f64 {
    static DATA: LazyLock<Vec<Block>> = LazyLock::new(on_huge_pages);
    let data = &DATA[..];
    let mut best = 0f64;
    for _ in 0..6 {
        let seconds = on_threads(threads, |i| {
            let size = data.len().div_ceil(threads);
            // With more threads than blocks, the last threads have nothing to read.
            let part = &data[(i * size).min(data.len())..data.len().min((i + 1) * size)];
            std::hint::black_box(read(isa, part));
        });
        best = best.max(1e-9 * size_of_val(data) as f64 / seconds);
    }
    best
}

/// A huge page of x86-64.
#[derive(Clone)]
#[repr(align(2097152))]
struct Block([u64; HUGE / 8]);

const HUGE: usize = 2 << 20;

fn on_huge_pages() -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::with_capacity(200);
    let spare = blocks.spare_capacity_mut();
    #[cfg(target_os = "linux")]
    // SAFETY: the range was just allocated. The advice changes no contents, and its failure does no
    // harm.
    unsafe {
        libc::madvise(spare.as_mut_ptr().cast(), size_of_val(spare), libc::MADV_HUGEPAGE)
    };
    for block in spare.iter_mut() {
        // SAFETY: the block belongs to this vector, and any bits are valid numbers.
        unsafe { std::ptr::write_bytes(block.as_mut_ptr().cast::<u8>(), 1, HUGE) };
    }
    let len = spare.len();
    // SAFETY: all blocks have been written.
    unsafe { blocks.set_len(len) };
    blocks
}

fn read(isa: Isa, part: &[Block]) -> u64 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx if isa.is_available() => {
            // SAFETY: the machine has the instruction set.
            unsafe { read_avx512(part) }
        }
        _ => part.iter().map(|block| sum(&block.0)).fold(0, u64::wrapping_add),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn read_avx512(part: &[Block]) -> u64 {
    use std::arch::x86_64::*;
    /// The distance in lines between a read and its prefetch.
    const AHEAD: usize = 32;
    let mut sums = [_mm512_setzero_si512(); 4];
    for block in part {
        let lines = block.0.as_ptr().cast::<__m512i>();
        for at in (0..HUGE / 64).step_by(4) {
            for (i, sum) in sums.iter_mut().enumerate() {
                _mm_prefetch::<_MM_HINT_T0>(lines.wrapping_add(at + i + AHEAD).cast());
                // SAFETY: the line is inside the block.
                *sum = _mm512_add_epi64(*sum, unsafe { _mm512_load_si512(lines.add(at + i)) });
            }
        }
    }
    let [a, b, c, d] = sums;
    _mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d))) as u64
}

/// Adds in several independent sums, so that additions do not wait for each other.
fn sum(part: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in part.chunks_exact(32) {
        for (s, x) in sums.iter_mut().zip(chunk) {
            *s = s.wrapping_add(*x);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_numbers::IntFormat;

    #[test]
    fn every_instruction_and_every_set_is_measured() {
        for isa in Isa::ALL {
            let formats = [DType::F32.into(), DType::BF16.into(), WeightFormat::Int(IntFormat::Q8_0)];
            for instruction in formats.map(|format: WeightFormat| Instruction::of(isa, format)) {
                assert!(spin(instruction, 10) >= 10, "{instruction:?}");
            }
        }
        let blocks = &on_huge_pages()[..3];
        let sum = 0x0101_0101_0101_0101_u64.wrapping_mul((size_of_val(blocks) / 8) as u64);
        for isa in Isa::ALL {
            assert_eq!(read(isa, blocks), sum, "{isa:?}");
        }
    }

    #[test]
    fn weights_have_the_instruction_of_their_format() {
        let of = |isa, dtype: DType| Instruction::of(isa, dtype).name();
        assert_eq!(of(Isa::Amx, DType::BF16), "bf16 tile product");
        assert_eq!(of(Isa::Avx512Bf16, DType::BF16), "bf16 dot product");
        assert_eq!(of(Isa::Avx512Bf16, DType::F16), "f32 multiply-add");
        assert_eq!(of(Isa::Avx512, DType::BF16), "f32 multiply-add");
        let of = |isa| Instruction::of(isa, WeightFormat::Int(IntFormat::Int8)).name();
        for isa in [Isa::Avx512Vnni, Isa::AvxVnni, Isa::NeonBf16, Isa::NeonDot] {
            assert_eq!(of(isa), "dot product of bytes", "{isa:?}");
        }
        assert_eq!([of(Isa::Avx512), of(Isa::Neon)], ["f32 multiply-add"; 2]);
    }

    #[test]
    fn more_threads_than_blocks_read_everything_once() {
        let speed = bandwidth(300, Isa::Portable);
        assert!(speed > 0.0 && speed.is_finite(), "{speed}");
    }
}
