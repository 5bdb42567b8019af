//! The capabilities of devices and of the links between them.

use millrace_numbers::DType;

/// The assumed share of the memory bandwidth that kernels reach.
pub const MEMORY_FRACTION: f64 = 0.8;

/// The assumed share of a device's peak that matrix products reach.
pub const COMPUTE_FRACTION: f64 = 0.6;

/// The assumed share of a link's bandwidth that collectives reach.
pub const LINK_FRACTION: f64 = 0.8;

/// The share of a device's memory that weights, workspace and KV cache may take. The driver and its
/// libraries need the rest.
pub const MEMORY_SHARE: f64 = 0.9;

/// Seconds per collective if the link is unknown.
pub const DEFAULT_LINK_LATENCY: f64 = NVLINK_LATENCY;

/// Assumed seconds of a small all-reduce over NVLink, its launch included. No vendor publishes this
/// number.
const NVLINK_LATENCY: f64 = 10e-6;

/// Assumed seconds of a small all-reduce over PCIe.
const PCIE_LATENCY: f64 = 30e-6;

/// The known numbers of a device and its link.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Hardware {
    /// Size of the memory in bytes.
    pub memory: Option<usize>,
    /// Peak bandwidth of the memory in bytes per second.
    pub memory_bandwidth: Option<f64>,
    /// Peak floating-point operations per second, in the element type of the weights.
    pub compute: Option<f64>,
    /// Peak bandwidth of the link to the other devices, in bytes per second and in one direction.
    pub link_bandwidth: Option<f64>,
    /// Seconds of a collective beside the transfer of its bytes.
    pub link_latency: Option<f64>,
}

impl Hardware {
    /// Fills in unknown numbers from `other`.
    #[must_use]
    pub fn or(self, other: Hardware) -> Hardware {
        Hardware {
            memory: self.memory.or(other.memory),
            memory_bandwidth: self.memory_bandwidth.or(other.memory_bandwidth),
            compute: self.compute.or(other.compute),
            link_bandwidth: self.link_bandwidth.or(other.link_bandwidth),
            link_latency: self.link_latency.or(other.link_latency),
        }
    }
}

/// A link between the devices of one host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuLink {
    /// Name of the link.
    pub name: &'static str,
    /// 10⁹ bytes per second in one direction. Vendors often quote the sum of both directions.
    pub gigabytes: f64,
    /// Seconds per collective.
    pub latency: f64,
}

const fn nvlink(name: &'static str, gigabytes: f64) -> GpuLink {
    GpuLink { name, gigabytes, latency: NVLINK_LATENCY }
}

const fn pcie(name: &'static str, gigabytes: f64) -> GpuLink {
    GpuLink { name, gigabytes, latency: PCIE_LATENCY }
}

const NVLINK_3: GpuLink = nvlink("NVLink 3", 300.0);
const NVLINK_4: GpuLink = nvlink("NVLink 4", 450.0);
const NVLINK_5: GpuLink = nvlink("NVLink 5", 900.0);
const PCIE_4: GpuLink = pcie("PCIe 4.0 x16", 32.0);
const PCIE_5: GpuLink = pcie("PCIe 5.0 x16", 64.0);

/// The published numbers of a GPU. None of them was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuModel {
    /// The name on the command line.
    pub name: &'static str,
    /// Memory in whole GiB, about as the driver reports it. This is less than the round number in
    /// the name.
    pub gibibytes: usize,
    /// Memory bandwidth in 10⁹ bytes per second.
    pub gigabytes: f64,
    /// Peak in 10¹² operations per second, on 16-bit numbers that are summed in single precision,
    /// without sparsity.
    pub teraflops: f64,
    /// The link to other GPUs.
    pub link: GpuLink,
}

const fn gpu(
    name: &'static str,
    gibibytes: usize,
    gigabytes: f64,
    teraflops: f64,
    link: GpuLink,
) -> GpuModel {
    GpuModel { name, gibibytes, gigabytes, teraflops, link }
}

/// The GPUs that are known by name. Bandwidths and peaks are from NVIDIA's data sheets, halved
/// where these count sparsity. GPUs that have NVLink only through a bridge between pairs (H100
/// PCIe) count as connected by PCIe.
pub static GPUS: [GpuModel; 11] = [
    gpu("b200", 178, 8000.0, 2250.0, NVLINK_5),
    gpu("h200", 140, 4800.0, 989.0, NVLINK_4),
    gpu("h100-sxm", 79, 3350.0, 989.0, NVLINK_4),
    gpu("h100-pcie", 79, 2000.0, 756.0, PCIE_5),
    gpu("a100-80g", 79, 2039.0, 312.0, NVLINK_3),
    gpu("a100-40g", 39, 1555.0, 312.0, NVLINK_3),
    gpu("l40s", 44, 864.0, 362.0, PCIE_4),
    gpu("l4", 22, 300.0, 121.0, PCIE_4),
    gpu("a10", 22, 600.0, 125.0, PCIE_4),
    gpu("rtx-5090", 31, 1792.0, 209.5, PCIE_5),
    gpu("rtx-4090", 23, 1008.0, 165.2, PCIE_4),
];

impl GpuModel {
    /// Returns the numbers for weights of this type. The peak is only known for 16-bit types.
    pub fn hardware(&self, dtype: DType) -> Hardware {
        let of_16_bits = dtype.size() == 2;
        Hardware {
            memory: Some(self.gibibytes << 30),
            memory_bandwidth: Some(self.gigabytes * 1e9),
            compute: of_16_bits.then_some(self.teraflops * 1e12),
            link_bandwidth: Some(self.link.gigabytes * 1e9),
            link_latency: Some(self.link.latency),
        }
    }
}
