//! Products with bf16 weights for few rows.

use millrace_cuda::Elem;
use millrace_cuda::ops::gemv::gemv;

use crate::cost;
use crate::harness::{Bench, Result};
use crate::products::{Room, WEIGHTS, few_rows, sized};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    for (name, inputs, outputs) in WEIGHTS {
        let (inputs, outputs) = sized(bench.is_simulated(), inputs, outputs);
        let weight = bench.device.allocate(Elem::BF16, inputs * outputs)?;
        bench.device.fill(weight.view(Elem::U8), 0)?;
        for &rows in few_rows(bench.is_simulated()) {
            let room = Room::new(&bench.device, rows, inputs, outputs)?;
            let cost = cost::gemv(Elem::BF16, rows, inputs, outputs);
            bench.measure(&format!("gemv bf16 {rows} x {name}"), cost, |device| {
                gemv(device, weight.view(Elem::BF16), &room.product(), &room.workspace())
            })?;
        }
    }
    Ok(())
}
