//! Finds the operation of an opcode that only Hopper has.

use super::operand::Operand;
use crate::hopper::{
    BulkCopy, HopperOp, MbarrierKind, MbarrierOp, PhaseOperand, Product, ProductElement, ProductOperand,
    TensorCopy,
};
use crate::operand::{Register, Source};
use crate::types::Type;

/// `None` if the form is not known.
pub(super) fn decode(words: &[&str], operands: &[Operand<'_>]) -> Option<HopperOp> {
    match (words, operands) {
        (["mbarrier", rest @ ..], _) => mbarrier(rest, operands).map(HopperOp::Mbarrier),
        (["cp", "async", "bulk", rest @ ..], _) => copy(rest, operands),
        (["wgmma", "fence", "sync", "aligned"], []) => Some(HopperOp::ProductFence),
        (["wgmma", "commit_group", "sync", "aligned"], []) => Some(HopperOp::ProductCommit),
        (["wgmma", "wait_group", "sync", "aligned"], [Operand::Immediate(n)]) => {
            Some(HopperOp::ProductWait(usize::try_from(*n).ok()?))
        }
        (["wgmma", "mma_async", "sync", "aligned", shape, "f32", x, y], _) if x == y => {
            product(shape, x, operands).map(HopperOp::Product)
        }
        (["setmaxnreg", kind @ ("inc" | "dec"), "sync", "aligned", "u32"], [Operand::Immediate(n)]) => {
            let count = u32::try_from(*n).ok().filter(|n| (24..=256).contains(n) && n % 8 == 0)?;
            Some(HopperOp::SetRegisters { count, increases: *kind == "inc" })
        }
        (["elect", "sync"], [Operand::Pair(d, p), mask]) => {
            Some(HopperOp::Elect { d: *d, p: *p, mask: mask.source(Type::U32)? })
        }
        (["mapa", "shared::cluster", "u32" | "u64"], [d, a, rank]) => Some(HopperOp::MapToBlock {
            d: d.register()?,
            a: a.source(Type::U64)?,
            rank: rank.source(Type::U32)?,
        }),
        _ => None,
    }
}

fn mbarrier(rest: &[&str], operands: &[Operand<'_>]) -> Option<MbarrierOp> {
    let [name, modifiers @ .., "b64"] = rest else { return None };
    let (mut orders, mut parity, mut expects, mut must_not_complete, mut in_shared) =
        (true, false, false, false, false);
    for modifier in modifiers {
        match *modifier {
            "relaxed" => orders = false,
            "release" | "acquire" | "cta" | "cluster" => {}
            "shared" | "shared::cta" | "shared::cluster" => in_shared = true,
            "parity" => parity = true,
            "expect_tx" => expects = true,
            "noComplete" => must_not_complete = true,
            _ => return None,
        }
    }
    let u32_ = |operand: &Operand<'_>| operand.source(Type::U32);
    let is_wait = matches!(*name, "test_wait" | "try_wait");
    let is_arrival = matches!(*name, "arrive" | "arrive_drop");
    let fits = in_shared && (is_wait || !parity) && (is_arrival || !(expects || must_not_complete));
    if !fits || expects && must_not_complete {
        return None;
    }
    let (kind, address) = match (*name, operands) {
        ("init", [address, count]) => (MbarrierKind::Init { count: u32_(count)? }, address),
        ("inval", [address]) => (MbarrierKind::Invalidate, address),
        ("arrive" | "arrive_drop", [state, address, counts @ ..]) => {
            let state = match state {
                Operand::Nothing => None,
                state => Some(state.register()?),
            };
            let given = match counts {
                [] => None,
                [count] => Some(u32_(count)?),
                _ => return None,
            };
            let one = Source::Immediate(1);
            // An arrival that expects bytes names them, any other one the number of arrivals.
            let (count, bytes) = if expects { (one, Some(given?)) } else { (given.unwrap_or(one), None) };
            let drops = *name == "arrive_drop";
            (MbarrierKind::Arrive { state, count, expects: bytes, drops, must_not_complete }, address)
        }
        ("expect_tx", [address, bytes]) => (MbarrierKind::Expect { bytes: u32_(bytes)? }, address),
        ("complete_tx", [address, bytes]) => (MbarrierKind::Complete { bytes: u32_(bytes)? }, address),
        ("test_wait", [p, address, phase]) | ("try_wait", [p, address, phase] | [p, address, phase, _]) => {
            let phase = if parity {
                PhaseOperand::Parity(u32_(phase)?)
            } else {
                PhaseOperand::State(phase.source(Type::U64)?)
            };
            (MbarrierKind::Test { p: p.register()?, phase }, address)
        }
        _ => return None,
    };
    // Transactions have no order of their own.
    let orders = orders && !matches!(kind, MbarrierKind::Expect { .. } | MbarrierKind::Complete { .. });
    Some(MbarrierOp { kind, address: address.address()?, orders })
}

fn copy(rest: &[&str], operands: &[Operand<'_>]) -> Option<HopperOp> {
    let to_shared = |space: &str| matches!(space, "shared::cluster" | "shared::cta");
    match (rest, operands) {
        (
            ["tensor", dimensions, space, "global", "tile", "mbarrier::complete_tx::bytes"],
            [to, Operand::Tensor(map, at), barrier],
        )
        | (
            ["tensor", dimensions, space, "global", "mbarrier::complete_tx::bytes"],
            [to, Operand::Tensor(map, at), barrier],
        ) if to_shared(space) && *dimensions == format!("{}d", at.len()) => {
            Some(HopperOp::CopyTensor(TensorCopy {
                to: to.address()?,
                map: *map,
                at: at.clone().into(),
                barrier: barrier.address()?,
            }))
        }
        ([space, "global", "mbarrier::complete_tx::bytes"], [to, from, bytes, barrier])
            if to_shared(space) =>
        {
            Some(HopperOp::CopyBulk(BulkCopy {
                to: to.address()?,
                from: from.address()?,
                bytes: bytes.source(Type::U32)?,
                barrier: barrier.address()?,
            }))
        }
        _ => None,
    }
}

fn registers(operand: &Operand<'_>) -> Option<Vec<Register>> {
    operand.elements().iter().map(Operand::register).collect()
}

fn product(shape: &str, element: &str, operands: &[Operand<'_>]) -> Option<Product> {
    let (element, k) = match element {
        "f16" => (ProductElement::F16, 16),
        "bf16" => (ProductElement::BF16, 16),
        "tf32" => (ProductElement::TF32, 8),
        "e4m3" => (ProductElement::E4M3, 32),
        "e5m2" => (ProductElement::E5M2, 32),
        _ => return None,
    };
    let n: usize = shape.strip_prefix("m64n")?.strip_suffix(&format!("k{k}"))?.parse().ok()?;
    let [d, a, b, adds, negates_a, negates_b, transposes @ ..] = operands else { return None };
    let d = registers(d)?;
    if !(8..=256).contains(&n) || !n.is_multiple_of(8) || d.len() != n / 2 {
        return None;
    }
    let a = match a {
        Operand::List(_) => ProductOperand::Registers(registers(a)?.try_into().ok()?),
        a => ProductOperand::Descriptor(a.source(Type::U64)?),
    };
    let negates = |operand: &Operand<'_>| match operand {
        Operand::Immediate(1) => Some(false),
        Operand::Immediate(u64::MAX) => Some(true),
        _ => None,
    };
    let flag = |operand: &Operand<'_>| match operand {
        Operand::Immediate(n @ (0 | 1)) => Some(*n == 1),
        _ => None,
    };
    let in_shared = matches!(a, ProductOperand::Descriptor(_));
    // Only elements of 16 bits can be transposed, and of A only a matrix in shared memory.
    let (transposes_a, transposes_b) = match (element.bytes() == 2, in_shared, transposes) {
        (true, true, [a, b]) => (flag(a)?, flag(b)?),
        (true, false, [b]) => (false, flag(b)?),
        (false, _, []) => (false, false),
        _ => return None,
    };
    Some(Product {
        element,
        n,
        d: d.into(),
        a,
        b: b.source(Type::U64)?,
        adds: adds.source(Type::Pred)?,
        negates_a: negates(negates_a)?,
        negates_b: negates(negates_b)?,
        transposes_a,
        transposes_b,
    })
}
