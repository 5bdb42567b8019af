//! The peak of the GPU's tensor cores: a large product by cuBLASLt, if this library is installed.

use std::error::Error;
use std::ffi::c_void;
use std::ptr;

use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver::result::{event, stream};
use cudarc::driver::sys::CUevent_flags;
use millrace_cuda::{Device, Elem};

/// Rows, columns and terms of the product.
const SIZE: usize = 8192;

/// Bytes of workspace for cuBLASLt.
const WORKSPACE: usize = 64 << 20;

const REPEATS: usize = 10;

/// Operations per second of a bf16 product with sums in f32; `None` without cuBLASLt. The current
/// context is the device's.
pub(crate) fn measure(device: &Device) -> Result<Option<f64>, Box<dyn Error>> {
    // SAFETY: the call only tries to open the library.
    if !unsafe { sys::is_culib_present() } {
        return Ok(None);
    }
    // The numbers are random: a product of zeros draws less power, and runs faster than a real one.
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        half::bf16::from_f32((state >> 8) as f32 / (1u32 << 23) as f32 - 1.0).to_le_bytes()
    };
    let a = device.upload(&(0..SIZE * SIZE).flat_map(|_| random()).collect::<Vec<u8>>())?;
    let b = device.upload(&(0..SIZE * SIZE).flat_map(|_| random()).collect::<Vec<u8>>())?;
    let d = device.allocate(Elem::BF16, SIZE * SIZE)?;
    let workspace = device.allocate(Elem::U8, WORKSPACE)?;
    device.synchronize()?;
    let at = |memory: &millrace_cuda::Memory| memory.view(Elem::U8).address() as *mut c_void;

    let n = SIZE as u64;
    let (one, zero) = (1.0f32, 0.0f32);
    let layout = lt::create_matrix_layout(sys::cudaDataType::CUDA_R_16BF, n, n, n as i64)?;
    let product =
        lt::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F)?;
    let preference = lt::create_matmul_pref()?;
    let handle = lt::create_handle()?;
    // SAFETY: handle, descriptions and memory are those made above, all of SIZE x SIZE elements,
    // and outlive the work, whose end is waited for; they end with the process.
    unsafe {
        lt::set_matmul_pref_attribute(
            preference,
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            ptr::from_ref(&WORKSPACE).cast(),
            size_of::<usize>(),
        )?;
        let found =
            lt::get_matmul_algo_heuristic(handle, product, layout, layout, layout, layout, preference)?;
        let run = || {
            lt::matmul(
                handle,
                product,
                ptr::from_ref(&one).cast(),
                ptr::from_ref(&zero).cast(),
                at(&a),
                layout,
                at(&b),
                layout,
                at(&d),
                layout,
                at(&d),
                layout,
                &found.algo,
                at(&workspace),
                WORKSPACE,
                ptr::null_mut(),
            )
        };
        let (start, end) = (
            event::create(CUevent_flags::CU_EVENT_DEFAULT)?,
            event::create(CUevent_flags::CU_EVENT_DEFAULT)?,
        );
        for _ in 0..3 {
            run()?;
        }
        event::record(start, ptr::null_mut())?;
        for _ in 0..REPEATS {
            run()?;
        }
        event::record(end, ptr::null_mut())?;
        stream::synchronize(ptr::null_mut())?;
        let seconds = f64::from(event::elapsed(start, end)?) / 1e3 / REPEATS as f64;
        Ok(Some(2.0 * (SIZE as f64).powi(3) / seconds))
    }
}
