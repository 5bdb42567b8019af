//! All-reduce in a group of one, where nothing crosses a link: the cost of the kernels without the
//! links, for Llama 70B's messages.

use std::time::Duration;

use millrace_cuda::Elem;
use millrace_cuda::ops::allreduce::{
    AllGatherColumns, AllReduceForm, AllReduceNorm, PeerGroup, all_gather, all_reduce, all_reduce_norm,
};

use crate::cost;
use crate::harness::{Bench, Result};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let (elem, cols) = (Elem::BF16, 8192);
    let sizes: &[usize] = if bench.is_simulated() { &[1] } else { &[1, 64, 512] };
    let capacity = sizes.iter().max().copied().unwrap_or(1) * cols * 2;
    let device = bench.device.clone();
    let region = device.upload(&vec![0; PeerGroup::region_bytes(capacity)])?;
    let regions = device.upload(&region.view(Elem::U8).address().to_le_bytes())?;
    let state = device.upload(&[0; PeerGroup::STATE * 4])?;
    let group = PeerGroup {
        rank: 0,
        world: 1,
        regions: regions.view(Elem::U64),
        state: state.view(Elem::U32),
        capacity,
        timeout: Duration::from_secs(1),
    };
    for &rows in sizes {
        let len = rows * cols;
        let (x, residual) = (device.allocate(elem, len)?, device.allocate(elem, len)?);
        let weight = device.allocate(Elem::F32, cols)?;
        let (part, whole) = (device.allocate(Elem::F32, len / 2)?, device.allocate(Elem::F32, len / 2)?);
        for form in [AllReduceForm::OneShot, AllReduceForm::TwoShot] {
            let cost = cost::all_reduce(elem, form, 1, len);
            bench.measure(&format!("all_reduce {form:?} alone {rows} x {cols}"), cost, |device| {
                all_reduce(device, &group, form, x.view(elem), len)
            })?;
        }
        let n = AllReduceNorm {
            rows,
            cols,
            eps: 1e-5,
            x: x.view(elem),
            residual: residual.view(elem),
            weight: weight.view(Elem::F32),
            out: x.view(elem),
        };
        // There are half as many numbers of twice the size, so as many bytes as above.
        let columns = AllGatherColumns {
            rows,
            part_cols: cols / 2,
            whole_cols: cols / 2,
            part: part.view(Elem::F32),
            whole: whole.view(Elem::F32),
        };
        bench.measure(
            &format!("all_gather alone {rows} x {}", cols / 2),
            cost::all_reduce(Elem::F32, AllReduceForm::OneShot, 1, len / 2),
            |device| all_gather(device, &group, &columns),
        )?;
        bench.measure(
            &format!("all_reduce + add_rms_norm alone {rows} x {cols}"),
            cost::all_reduce(elem, AllReduceForm::OneShot, 1, 2 * len),
            |device| all_reduce_norm(device, &group, &n),
        )?;
    }
    Ok(())
}
