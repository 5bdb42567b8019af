//! The device under test, inputs, and comparisons.

use std::sync::{Arc, LazyLock};

use millrace_cuda::{Device, Elem, FiberSchedule, GpuModel, Memory, Simulated, View};

use crate::ptx::PtxDevice;

/// The device under test.
pub(crate) static DEVICE: LazyLock<Device> = LazyLock::new(own_device);

/// A device of the kind under test that no other test uses.
pub(crate) fn own_device() -> Device {
    match std::env::var("MILLRACE_TEST_DEVICE").as_deref() {
        Ok("ptx") => Device::new(Arc::new(PtxDevice::from_environment())),
        Ok("cuda") | Err(_) => Device::under_test().unwrap(),
        Ok(other) => panic!("MILLRACE_TEST_DEVICE={other}: neither `cuda` nor `ptx`"),
    }
}

/// Whether the tests run on a simulated device. If not, prints that the test is skipped, and `why`.
pub(crate) fn is_simulated(why: &str) -> bool {
    let is_simulated = std::env::var_os("MILLRACE_TEST_DEVICE").is_none();
    if !is_simulated {
        eprintln!("skipped: {why}");
    }
    is_simulated
}

/// Devices with the limits of an L40S, whose blocks have the least shared memory, and of an A100.
/// They can use memory of [`DEVICE`]. `None`, with a printed reason, if the tests run on a GPU.
pub(crate) fn small_and_large_gpu() -> Option<[Device; 2]> {
    if std::env::var("MILLRACE_TEST_DEVICE").as_deref() == Ok("ptx") {
        let device = |kib: usize| {
            Device::new(Arc::new(PtxDevice::from_environment().with_shared_per_block(kib << 10)))
        };
        return Some([99, 163].map(device));
    }
    let device = |gpu| {
        let schedule = FiberSchedule::from_environment().unwrap();
        Device::new(Arc::new(Simulated::with(schedule, GpuModel::named(gpu).unwrap()).unwrap()))
    };
    is_simulated("only simulated devices have the limits of several GPUs")
        .then(|| ["l40s", "a100"].map(device))
}

/// The types of activations.
pub(crate) const ACTIVATIONS: [Elem; 3] = [Elem::F32, Elem::F16, Elem::BF16];

/// SplitMix64 (Steele, Lea and Flood), for inputs only.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// One of `choices`.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Uniform in [-1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// `n` values in [-1, 1) as `elem` holds them.
    pub(crate) fn values(&mut self, elem: Elem, n: usize) -> Vec<f32> {
        (0..n).map(|_| round(elem, self.unit())).collect()
    }

    /// 0 to n - 1 in random order.
    #[allow(dead_code)]
    pub(crate) fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }
}

/// One of so many random cases runs on the PTX interpreter, which is slow.
const REDUCTION: u64 = 8;

/// Whether the tests run on the PTX interpreter without `MILLRACE_TEST_ALL_CASES`.
fn is_reduced() -> bool {
    std::env::var("MILLRACE_TEST_DEVICE").as_deref() == Ok("ptx")
        && std::env::var_os("MILLRACE_TEST_ALL_CASES").is_none()
}

/// Runs `case` with `cases` seeds, or with the one that `MILLRACE_TEST_SEED` names. The seed of a
/// failing case is printed.
pub(crate) fn for_seeds(cases: u64, case: impl Fn(&mut Rng)) {
    struct Report(u64);
    impl Drop for Report {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("this case again: MILLRACE_TEST_SEED={}", self.0);
            }
        }
    }
    let only = std::env::var("MILLRACE_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
    let cases = if is_reduced() { cases.div_ceil(REDUCTION) } else { cases };
    for seed in only.map_or(0..cases, |seed| seed..seed + 1) {
        let _report = Report(seed);
        case(&mut Rng(seed));
    }
}

/// The nearest value that `elem` holds.
pub(crate) fn round(elem: Elem, x: f32) -> f32 {
    match elem {
        Elem::F16 => half::f16::from_f32(x).to_f32(),
        Elem::BF16 => half::bf16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// Half a unit in the last place of `elem`, relative: the error of rounding a result to this type.
pub(crate) fn precision(elem: Elem) -> f32 {
    match elem {
        Elem::F16 => 0.5 / 1024.0,
        Elem::BF16 => 0.5 / 128.0,
        _ => 0.5 / (1u32 << 23) as f32,
    }
}

/// Memory that holds `values` as `elem`.
pub(crate) fn put(elem: Elem, values: &[f32]) -> Memory {
    let bytes: Vec<u8> = match elem {
        Elem::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Elem::F16 => values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
        Elem::BF16 => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
        other => panic!("{other:?} is not a type of activations"),
    };
    DEVICE.upload(&bytes).unwrap()
}

/// Memory that holds unsigned words.
#[allow(dead_code)]
pub(crate) fn put_u32(values: &[u32]) -> Memory {
    DEVICE.upload(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).unwrap()
}

/// Memory whose every float is NaN.
pub(crate) fn garbage(elem: Elem, len: usize) -> Memory {
    let memory = DEVICE.allocate(elem, len).unwrap();
    DEVICE.fill(memory.view(elem), 0xFF).unwrap();
    memory
}

/// The elements of `view`, widened.
pub(crate) fn get(view: View<'_>) -> Vec<f32> {
    let bytes = DEVICE.read(view).unwrap();
    match view.elem() {
        Elem::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        Elem::F16 => {
            bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes(b.try_into().unwrap()).to_f32()).collect()
        }
        Elem::BF16 => {
            bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes(b.try_into().unwrap()).to_f32()).collect()
        }
        other => panic!("{other:?} is not a type of activations"),
    }
}

/// Asserts that every element is within `relative` of its own size plus `absolute`. A NaN equals
/// only a NaN.
pub(crate) fn assert_close(what: &str, got: &[f32], want: &[f32], relative: f32, absolute: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= relative * w.abs() + absolute;
        assert!(same, "{what}: element {i} is {g}, not {w}");
    }
}
