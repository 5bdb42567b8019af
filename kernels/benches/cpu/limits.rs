//! What the machine can do at this moment.

use std::sync::LazyLock;
use std::time::Instant;

use millrace_kernels::cpu::Isa;

/// Seconds since some instant: processor time of the calling thread when it is the only one, else wall time.
pub(crate) fn clock(threads: usize) -> f64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    #[cfg(target_os = "linux")]
    if threads == 1 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is valid; the clock exists on every Linux.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        return time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64;
    }
    let _ = threads;
    BEGIN.elapsed().as_secs_f64()
}

/// Runs `work(i)` on `threads` threads, and returns the seconds it took.
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

/// Fused products on registers, in GFLOP/s of all threads: the best of several short runs.
pub(crate) fn peak(threads: usize, isa: Isa) -> f64 {
    const TURNS: usize = 1_000_000;
    let mut best = 0f64;
    for _ in 0..5 {
        let flops = std::sync::atomic::AtomicUsize::new(0);
        let seconds = on_threads(threads, |_| {
            flops.fetch_add(spin(isa, TURNS), std::sync::atomic::Ordering::Relaxed);
        });
        best = best.max(1e-9 * flops.into_inner() as f64 / seconds);
    }
    best
}

/// Runs the loop; returns the floating point operations done.
fn spin(isa: Isa, turns: usize) -> usize {
    match isa {
        // SAFETY: the backend runs with this set, so the machine has it.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512(turns) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2(turns) },
        _ => plain(turns),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(turns: usize) -> usize {
    use std::arch::x86_64::*;
    let mut chains = [_mm512_set1_ps(1.0); 16];
    let (a, b) = (_mm512_set1_ps(std::hint::black_box(0.999)), _mm512_set1_ps(std::hint::black_box(0.001)));
    for _ in 0..turns {
        for chain in &mut chains {
            *chain = _mm512_fmadd_ps(*chain, a, b);
        }
    }
    std::hint::black_box(chains);
    turns * 16 * 32
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(turns: usize) -> usize {
    use std::arch::x86_64::*;
    let mut chains = [_mm256_set1_ps(1.0); 12];
    let (a, b) = (_mm256_set1_ps(std::hint::black_box(0.999)), _mm256_set1_ps(std::hint::black_box(0.001)));
    for _ in 0..turns {
        for chain in &mut chains {
            *chain = _mm256_fmadd_ps(*chain, a, b);
        }
    }
    std::hint::black_box(chains);
    turns * 12 * 16
}

fn plain(turns: usize) -> usize {
    let mut chains = [[1f32; 8]; 8];
    let (a, b) = (std::hint::black_box(0.999), std::hint::black_box(0.001));
    for _ in 0..turns {
        for chain in &mut chains {
            for x in chain {
                *x = *x * a + b;
            }
        }
    }
    std::hint::black_box(chains);
    turns * 64 * 2
}

/// A stream of reads over 400 MiB, in GB/s of all threads: the best of several runs.
pub(crate) fn bandwidth(threads: usize) -> f64 {
    static DATA: LazyLock<Vec<u64>> = LazyLock::new(|| vec![1; 50 << 20]);
    let data = &DATA[..];
    let mut best = 0f64;
    for _ in 0..4 {
        let seconds = on_threads(threads, |i| {
            let size = data.len().div_ceil(threads);
            std::hint::black_box(sum(&data[i * size..data.len().min((i + 1) * size)]));
        });
        best = best.max(8e-9 * data.len() as f64 / seconds);
    }
    best
}

/// Several sums at once, so that additions do not wait for one another.
fn sum(part: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in part.chunks_exact(32) {
        for (s, x) in sums.iter_mut().zip(chunk) {
            *s = s.wrapping_add(*x);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}
