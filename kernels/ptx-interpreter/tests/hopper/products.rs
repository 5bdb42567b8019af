//! Products of a warpgroup.

use crate::common::{Case, TILE_BYTES, scatter};

/// Where operand B begins in the tile.
const B_AT: usize = 32 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    F16,
    BF16,
    TF32,
    E4M3,
    E5M2,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::F16 => "f16",
            Kind::BF16 => "bf16",
            Kind::TF32 => "tf32",
            Kind::E4M3 => "e4m3",
            Kind::E5M2 => "e5m2",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Kind::E4M3 | Kind::E5M2 => 1,
            Kind::F16 | Kind::BF16 => 2,
            Kind::TF32 => 4,
        }
    }

    /// The bits of a multiple of 1/4 in [-3.5, 3.5], which all kinds hold: sign, then the exponent
    /// and two bits of mantissa.
    fn bits(self, quarters: i32) -> u32 {
        let x = quarters as f32 / 4.0;
        let bits = x.to_bits();
        let (sign, exponent) = (bits >> 31, (bits >> 23 & 255) as i32 - 127);
        let fraction = bits << 9;
        let small = |exponent_bits: u32, mantissa_bits: u32| {
            if x == 0.0 {
                return sign << (exponent_bits + mantissa_bits);
            }
            let bias = (1 << (exponent_bits - 1)) - 1;
            sign << (exponent_bits + mantissa_bits)
                | ((exponent + bias) as u32) << mantissa_bits
                | fraction >> (32 - mantissa_bits)
        };
        match self {
            Kind::F16 => small(5, 10),
            Kind::BF16 => small(8, 7),
            Kind::TF32 => bits,
            Kind::E4M3 => small(4, 3),
            Kind::E5M2 => small(5, 2),
        }
    }
}

/// A value of a matrix in quarters, within [-2, 2] or, with two bits of mantissa, among few more.
fn quarters(matrix: u64, row: usize, k: usize) -> i32 {
    [-8, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8]
        [scatter(matrix << 40 | (row as u64) << 20 | k as u64) as usize % 16]
}

/// A layout of the section on canonical layouts in the PTX ISA, as sizes and strides in the form of
/// CUTLASS (`cute/atom/mma_traits_sm90_gmma.hpp`), in elements; T elements have 16 bytes.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// 1, 2, 4 or 8 units of 16 bytes; 1 has no swizzle.
    units: usize,
    transposed: bool,
}

impl Layout {
    const MAJOR: [Layout; 4] = Layout::all(false);
    const MINOR: [Layout; 4] = Layout::all(true);

    const fn all(transposed: bool) -> [Layout; 4] {
        [
            Layout { units: 1, transposed },
            Layout { units: 2, transposed },
            Layout { units: 4, transposed },
            Layout { units: 8, transposed },
        ]
    }

    /// Bytes between groups (leading and stride), of a matrix with this many rows, chosen so that
    /// the groups do not overlap.
    fn strides(self, rows: usize, bytes: usize) -> [usize; 2] {
        match (self.transposed, self.units) {
            // Both units of the sum lie side by side, then the groups of 8 rows.
            (false, 1) => [128, 256],
            (false, units) => [16, 8 * 16 * units],
            // Groups of 8 rows along the sum lie behind all rows.
            (true, 1) => [rows * bytes * 8, 128],
            (true, units) => [16 * 16 * units, 8 * 16 * units],
        }
    }

    /// The byte of an element before the swizzle.
    fn offset(self, row: usize, k: usize, rows: usize, bytes: usize) -> usize {
        let t = 16 / bytes;
        let [leading, stride] = self.strides(rows, bytes).map(|s| s / bytes);
        let units = self.units;
        let elements = match (self.transposed, units) {
            // ((8,m),(T,2)):((1T,SBO),(1,LBO))
            (false, 1) => row % 8 * t + row / 8 * stride + k % t + k / t * leading,
            // ((8,m),(T,2)):((units·T,SBO),(1,T))
            (false, _) => row % 8 * units * t + row / 8 * stride + k % t + k / t * t,
            // ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))
            (true, 1) => row % t + row / t * stride + k % 8 * t + k / 8 * leading,
            // ((T,units,m),(8,k)):((1,T,LBO),(units·T,SBO))
            (true, _) => {
                row % t
                    + row / t % units * t
                    + row / (t * units) * leading
                    + k % 8 * units * t
                    + k / 8 * stride
            }
        };
        elements * bytes
    }

    /// Exchanges the units of a row of 128 bytes.
    fn place(self, offset: usize) -> usize {
        let (unit, line) = (offset / 16, offset / 128);
        (unit ^ (line % self.units)) * 16 + offset % 16
    }

    fn descriptor(self, at: usize, rows: usize, bytes: usize) -> u64 {
        let [leading, stride] = self.strides(rows, bytes);
        let swizzle = match self.units {
            1 => 0,
            2 => 3,
            4 => 2,
            _ => 1,
        };
        (at >> 4) as u64 | ((leading >> 4) as u64) << 16 | ((stride >> 4) as u64) << 32 | swizzle << 62
    }
}

/// One product: [64, k] times [k, n].
#[derive(Debug, Clone, Copy)]
struct Product {
    kind: Kind,
    n: usize,
    /// `None` for registers.
    a: Option<Layout>,
    b: Layout,
    adds: bool,
    signs: [i32; 2],
}

impl Product {
    fn k(self) -> usize {
        32 / self.kind.bytes()
    }

    /// The tile, and behind it the room for the result.
    fn data(self) -> Vec<u8> {
        let bytes = self.kind.bytes();
        let mut data = vec![0xff; TILE_BYTES + 128 * self.n / 2 * 4];
        let mut put = |matrix: u64, at: usize, layout: Layout, rows: usize| {
            for row in 0..rows {
                for k in 0..self.k() {
                    let to = at + layout.place(layout.offset(row, k, rows, bytes));
                    let bits = self.kind.bits(quarters(matrix, row, k)).to_le_bytes();
                    data[to..to + bytes].copy_from_slice(&bits[..bytes]);
                }
            }
        };
        if let Some(a) = self.a {
            put(0, 0, a, 64);
        }
        put(1, B_AT, self.b, self.n);
        if self.a.is_none() {
            // The registers of each thread: rows g and g + 8, columns 2t or 4t and onward.
            let per_register = 4 / bytes;
            for thread in 0..128 {
                let (warp, lane) = (thread / 32, thread % 32);
                for r in 0..4 {
                    for i in 0..per_register {
                        let row = 16 * warp + lane / 4 + 8 * (r % 2);
                        let k = per_register * (lane % 4) + 4 * per_register * (r / 2) + i;
                        let bits = self.kind.bits(quarters(0, row, k)).to_le_bytes();
                        let to = thread * 16 + r * 4 + i * bytes;
                        data[to..to + bytes].copy_from_slice(&bits[..bytes]);
                    }
                }
            }
        }
        data
    }

    fn case(self) -> Case {
        let bytes = self.kind.bytes();
        let d: Vec<String> = (0..self.n / 2).map(|i| format!("%d{i}")).collect();
        let d = d.join(", ");
        let ones: String = (0..self.n / 2).map(|i| format!("mov.f32 %d{i}, 0f3F800000; ")).collect();
        let stores: String =
            (0..self.n / 2).map(|i| format!("st.global.f32 [%rd11+{}], %d{i}; ", i * 4)).collect();
        let (a, a_bits) = match self.a {
            Some(a) => ("%rd5", a.descriptor(0, 64, bytes)),
            None => ("{%r40, %r41, %r42, %r43}", 0),
        };
        let transposes = match (bytes, self.a) {
            (2, Some(a)) => format!(", {}, {}", u8::from(a.transposed), u8::from(self.b.transposed)),
            (2, None) => format!(", {}", u8::from(self.b.transposed)),
            _ => String::new(),
        };
        let body = format!(
            "@%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
             bar.sync 0;
             @!%p1 bra wait;
             mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {TILE_BYTES};
             cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], {TILE_BYTES}, [%r3];
             wait: WAIT(0)
             mul.wide.u32 %rd10, %r1, 16; add.s64 %rd10, %rd10, %rd1;
             ld.global.v4.u32 {{%r40, %r41, %r42, %r43}}, [%rd10];
             mul.wide.u32 %rd11, %r1, {}; add.s64 %rd11, %rd11, %rd1; add.s64 %rd11, %rd11, {TILE_BYTES};
             mov.b64 %rd5, {a_bits}; mov.b64 %rd6, {}; mov.pred %p4, {};
             {ones}
             wgmma.fence.sync.aligned;
             wgmma.mma_async.sync.aligned.m64n{}k{}.f32.{kind}.{kind} {{{d}}}, {a}, %rd6, %p4, {}, {}{transposes};
             wgmma.commit_group.sync.aligned;
             wgmma.wait_group.sync.aligned 0;
             {stores}",
            self.n * 2,
            self.b.descriptor(B_AT, self.n, bytes),
            u8::from(self.adds),
            self.n,
            self.k(),
            self.signs[0],
            self.signs[1],
            kind = self.kind.name(),
        );
        Case { body, threads: 128, data: self.data(), map: None }
    }

    fn check(self) {
        let out = self.case().bytes();
        for thread in 0..128 {
            let (warp, lane) = (thread / 32, thread % 32);
            for i in 0..self.n / 2 {
                let (row, column) =
                    (16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2);
                let sum: i32 = (0..self.k()).map(|k| quarters(0, row, k) * quarters(1, column, k)).sum();
                let sign = self.signs[0] * self.signs[1];
                let want = f32::from(u8::from(self.adds)) + (sign * sum) as f32 / 16.0;
                let at = TILE_BYTES + (thread * self.n / 2 + i) * 4;
                let got = f32::from_le_bytes(out[at..at + 4].try_into().unwrap());
                assert_eq!(got, want, "{self:?}: row {row}, column {column}");
            }
        }
    }
}

const PLAIN: Product = Product {
    kind: Kind::BF16,
    n: 64,
    a: Some(Layout { units: 8, transposed: false }),
    b: Layout { units: 8, transposed: false },
    adds: false,
    signs: [1, 1],
};

#[test]
fn every_layout_of_both_operands() {
    for layout in Layout::MAJOR.into_iter().chain(Layout::MINOR) {
        // A row of units must divide the rows.
        Product { a: Some(layout), ..PLAIN }.check();
        Product { b: layout, ..PLAIN }.check();
        Product { b: layout, n: 128, kind: Kind::F16, ..PLAIN }.check();
        Product { b: layout, a: None, ..PLAIN }.check();
    }
}

#[test]
fn every_element_and_some_widths() {
    for kind in [Kind::F16, Kind::BF16, Kind::TF32, Kind::E4M3, Kind::E5M2] {
        for n in [8, 24, 256] {
            Product { kind, n, ..PLAIN }.check();
            Product { kind, n, a: None, ..PLAIN }.check();
        }
    }
}

#[test]
fn products_are_added_and_negated() {
    for signs in [[1, 1], [-1, 1], [1, -1], [-1, -1]] {
        Product { signs, adds: true, ..PLAIN }.check();
        Product { signs, a: None, ..PLAIN }.check();
    }
}

/// Two groups: the older one may be read while the newer one is in flight.
#[test]
fn groups_end_in_their_order() {
    let case = PLAIN.case();
    let product = case.body.split_once("wgmma.mma_async").unwrap().1.split_once(';').unwrap().0.to_owned();
    let other = product.replace("%d", "%e");
    let declared = case.with("mov.b64 %rd5", ".reg .f32 %e<32>; mov.b64 %rd5").with(
        "wgmma.wait_group.sync.aligned 0;",
        &format!(
            "wgmma.mma_async{other}; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1; \
                 add.f32 %d0, %d0, %d0; wgmma.wait_group.sync.aligned 0; add.f32 %d0, %d0, %e0;"
        ),
    );
    let (once, thrice) = (case.bytes(), declared.bytes());
    let first = |out: &[u8]| f32::from_le_bytes(out[TILE_BYTES..TILE_BYTES + 4].try_into().unwrap());
    assert_eq!(first(&thrice), 3.0 * first(&once));
    declared
        .with("add.f32 %d0, %d0, %d0;", "add.f32 %d0, %d0, %e0;")
        .faults("register of a product in flight");
    declared.with("wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 2;").faults("in flight");
}

#[test]
fn registers_of_products_are_left_alone() {
    let case = PLAIN.case();
    let in_flight = "accesses a register of a product in flight";
    case.with("wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;").faults(in_flight);
    case.with("wgmma.wait_group.sync.aligned 0;", "").faults(in_flight);
    case.with("wgmma.commit_group.sync.aligned;", "").faults(in_flight);
    case.with("wgmma.commit_group", "mov.f32 %d3, %d4; wgmma.commit_group").faults(in_flight);
    case.with("wgmma.fence.sync.aligned;", "").faults("without a wgmma.fence");
    let late = "accessed after the last wgmma.fence";
    case.with("wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned; mov.f32 %d3, %d3;").faults(late);
    let registers = Product { a: None, ..PLAIN }.case();
    registers.with("wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned; mov.u32 %r40, 0;").faults(late);
    registers.with("wgmma.commit_group", "mov.u32 %r40, 0; wgmma.commit_group").faults(in_flight);
    let stores = case.body.find("st.global.f32").unwrap();
    let endless = Case { body: case.body[..stores].replace("wgmma.wait_group.sync.aligned 0;", ""), ..case };
    endless.faults("ends with products in flight");
}

#[test]
fn all_warps_of_a_group_take_part() {
    let case = PLAIN.case();
    case.with("wgmma.fence", "setp.gt.u32 %p5, %r1, 95; @%p5 bra out; wgmma.fence")
        .with("wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 0; out:")
        .faults("not all warps of the warpgroup");
    Case { threads: 96, ..case.clone() }.faults("less than four warps");
    Case { threads: 112, ..case.clone() }.faults("lanes have ended");
    case.with("wgmma.fence", "setp.gt.u32 %p5, %r1, 95; @%p5 add.s64 %rd6, %rd6, 2; wgmma.fence")
        .faults("different descriptors");
    case.with("wgmma.fence", "cvt.u64.u32 %rd7, %r1; add.s64 %rd6, %rd6, %rd7; wgmma.fence")
        .faults("lanes give different descriptors");
    case.with(
        "wgmma.commit_group.sync.aligned;",
        "setp.gt.u32 %p5, %r1, 95; @%p5 bra skip; wgmma.commit_group.sync.aligned; skip: ",
    )
    .faults("warps of a warpgroup execute different instructions");
}

#[test]
fn descriptors_are_checked() {
    let case = PLAIN.case();
    let moved = |by: &str| case.with("wgmma.fence", &format!("add.s64 %rd6, %rd6, {by}; wgmma.fence"));
    // Behind the tile lie mbarriers and the end of shared memory.
    moved("1984").faults("where an mbarrier lies");
    moved("2304").faults("of shared memory, which has");
    moved("16384").faults("bits outside of its fields");
    moved("562949953421312").faults("base offset");
    // Another place within the tile is legal, but not the matrix: the result tells.
    assert_ne!(moved("2").bytes(), case.bytes());
}

/// Threads write the operand themselves.
fn written() -> Case {
    PLAIN.case().with(
        "wait: WAIT(0)",
        "wait: WAIT(0) bar.sync 0;
         mad.lo.s32 %r4, %r1, 16, %r2; add.u32 %r4, %r4, 32768;
         ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r4];
         st.shared.v4.u32 [%r4], {%r5, %r6, %r7, %r8};
         fence.proxy.async.shared::cta;
         bar.sync 1, 128;",
    )
}

#[test]
fn bytes_that_threads_write_are_published() {
    let case = written();
    assert_eq!(case.bytes(), PLAIN.case().bytes());
    let unpublished = "fence.proxy.async and a barrier must come between";
    case.with("fence.proxy.async.shared::cta;", "").faults(unpublished);
    // Without the barrier a product of one warp meets the write of another one in either order.
    case.with("bar.sync 1, 128;", "").faults("which a product of warp");
    case.with("bar.sync 1, 128;", "bar.sync 1, 128; st.shared.u32 [%r4], %r5; bar.sync 2, 128;")
        .faults(unpublished);
    case.with("fence.proxy.async.shared::cta;", "@%p1 fence.proxy.async.shared::cta;").faults(unpublished);
    // A fence of a reader behind the barrier publishes too.
    let behind = case
        .with("fence.proxy.async.shared::cta;", "")
        .with("bar.sync 1, 128;", "bar.sync 1, 128; fence.proxy.async.shared::cta;");
    assert_eq!(behind.bytes(), case.bytes());
}

#[test]
fn operands_stay_until_the_wait() {
    let case = PLAIN.case();
    let reads = "which a product of warp";
    let overwrite = "add.u32 %r4, %r2, 32768; st.shared.u32 [%r4], 0;";
    case.with("wgmma.commit_group", &format!("bar.sync 0; {overwrite} wgmma.commit_group")).faults(reads);
    // The own products have ended, but those of other warps may not have.
    let wait = "wgmma.wait_group.sync.aligned 0;";
    let last = format!("{wait} setp.lt.u32 %p5, %r1, 96; @%p5 bra out; {overwrite} out:");
    case.with(wait, &last).faults("shared memory at 0x8000");
    let ordered = case.with(wait, &format!("{wait} bar.sync 0; {overwrite}"));
    assert_eq!(ordered.bytes(), case.bytes());
    let copy = "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+32768], [%rd1], 16, [%r3];";
    let again = format!("{copy} @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 16; WAIT(1)");
    case.with(wait, &format!("{wait} {again}")).faults(reads);
    assert_eq!(case.with(wait, &format!("{wait} bar.sync 0; {again}")).bytes(), case.bytes());
}

/// Memory that nobody has written is not an operand.
#[test]
fn operands_are_written() {
    let case = PLAIN.case().with("[%rd1], 65536, [%r3]", "[%rd1], 32768, [%r3]");
    case.with("[%r3], 65536;", "[%r3], 32768;").faults("was not written");
}
