//! Runs kernels in both orders of warps and both moments of arrival.

use millrace_ptx_interpreter::{Arrival, DeviceMemory, Fault, Launch, Module, TensorMapLayout, WarpOrder};

/// Bytes of the shared array `tile`, which lies at address 0 of shared memory.
pub(crate) const TILE_BYTES: usize = 64 << 10;
const ORDERS: [WarpOrder; 2] = [WarpOrder::Forward, WarpOrder::Reverse];
const ARRIVALS: [Arrival; 2] = [Arrival::Late, Arrival::Early];

/// A kernel's body and its input.
///
/// The body finds the thread in `%r1`, `tile` in `%r2`, mbarriers in `%r3`, the address of the data
/// in `%rd1` and of the thread's word of it in `%rd2`, the generic address of the tensor map in
/// `%rd3`, and whether the thread is the first one in `%p1`. `WAIT(n)` stands for a loop that waits
/// for the phase of parity n of the first mbarrier.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) body: String,
    pub(crate) threads: u32,
    pub(crate) data: Vec<u8>,
    /// A tensor map of the data, whose address is the number of bytes before the tensor.
    pub(crate) map: Option<TensorMapLayout<'static>>,
}

impl Case {
    pub(crate) fn new(threads: u32, words: &[u32], body: &str) -> Case {
        let data = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Case { body: body.to_owned(), threads, data, map: None }
    }

    /// The same case with another text in the place of one that occurs.
    pub(crate) fn with(&self, old: &str, new: &str) -> Case {
        assert!(self.body.contains(old), "{old} does not occur in {}", self.body);
        Case { body: self.body.replace(old, new), ..self.clone() }
    }

    fn text(&self) -> String {
        let mut body = self.body.clone();
        for (i, parity) in (0..).zip(["WAIT(0)", "WAIT(1)"]) {
            let mut count = 0;
            while body.contains(parity) {
                let label = format!("wait_{i}_{count}");
                let loop_ = format!(
                    "{label}: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r3], {i}; @!%p8 bra {label};"
                );
                body = body.replacen(parity, &loop_, 1);
                count += 1;
            }
        }
        format!(
            ".version 9.0\n.target sm_90a\n.address_size 64\n\
             .visible .entry k(.param .align 64 .b8 map[128], .param .u64 data)\n{{\n\
             .reg .pred %p<10>; .reg .b32 %r<60>; .reg .b64 %rd<20>; .reg .f32 %d<128>;\n\
             .shared .align 1024 .b8 tile[{TILE_BYTES}]; .shared .align 8 .b8 bars[64];\n\
             ld.param.u64 %rd4, [data]; cvta.to.global.u64 %rd1, %rd4; mov.u32 %r1, %tid.x;\n\
             mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd1, %rd2; mov.b64 %rd3, map; cvta.param.u64 %rd3, %rd3;\n\
             mov.u32 %r2, tile; mov.u32 %r3, bars; setp.eq.u32 %p1, %r1, 0;\n{body}\nret;\n}}\n"
        )
    }

    fn run(&self, order: WarpOrder, arrival: Arrival) -> Result<Vec<u8>, Fault> {
        let module = Module::parse(&self.text()).unwrap();
        let mut memory = DeviceMemory::new(1 << 22);
        let at = memory.allocate(self.data.len()).unwrap();
        memory.write(at, &self.data).unwrap();
        let mut params = match &self.map {
            Some(map) => {
                let layout = TensorMapLayout { address: at + map.address, ..map.clone() };
                layout.encode().unwrap().to_vec()
            }
            None => vec![0; 128],
        };
        params.extend(at.to_le_bytes());
        let launch = Launch::new([1, 1, 1], [self.threads, 1, 1])
            .with_params(&params)
            .with_order(order)
            .with_arrival(arrival)
            .with_max_steps(1_000_000);
        module.launch("k", &launch, &mut memory)?;
        let mut out = vec![0; self.data.len()];
        memory.read(at, &mut out).unwrap();
        Ok(out)
    }

    /// The data after the kernel, which must not depend on the order.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut results = Vec::new();
        for order in ORDERS {
            for arrival in ARRIVALS {
                match self.run(order, arrival) {
                    Ok(out) => results.push(out),
                    Err(fault) => panic!("{order:?} {arrival:?}: {fault}\n{}", self.text()),
                }
            }
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "the result depends on the order");
        results.swap_remove(0)
    }

    pub(crate) fn words(&self) -> Vec<u32> {
        self.bytes().chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// Asserts that the kernel is refused in every order, and with this message in at least one.
    pub(crate) fn faults(&self, message: &str) {
        let mut reported = Vec::new();
        for order in ORDERS {
            for arrival in ARRIVALS {
                match self.run(order, arrival) {
                    Ok(_) => panic!("{message}: no fault with {order:?} {arrival:?}\n{}", self.text()),
                    Err(fault) => {
                        assert!(fault.line.is_some() && fault.thread.is_some(), "{fault}");
                        reported.push(fault.to_string());
                    }
                }
            }
        }
        assert!(reported.iter().any(|fault| fault.contains(message)), "{message}: {reported:#?}");
    }
}

/// A pseudorandom number that depends on `i`.
pub(crate) fn scatter(i: u64) -> u64 {
    let x = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
}
