//! Finds the operation of an opcode and its operands.

use super::operand::Operand;
use crate::exec::alu;
use crate::hopper::HopperOp;
use crate::instruction::{
    AtomicOp, Conversion, Element, Load, Mma, Op, Rounding, Shuffle, ShuffleMode, VoteMode,
};
use crate::operand::Source;
use crate::types::{Space, Type};

/// `None` if the form is not known.
pub(super) fn decode(words: &[&str], operands: &[Operand<'_>], used_bytes: u64) -> Option<Op> {
    match (words, operands) {
        (["ret" | "exit"], []) => Some(Op::Exit),
        (["trap"], []) => Some(Op::Trap),
        (["griddepcontrol", "wait"], []) => Some(Op::GridWait),
        (["griddepcontrol", "launch_dependents"], []) | (["membar", "gl" | "cta" | "sys"], []) => {
            Some(Op::Nothing)
        }
        (["ld", rest @ ..], [d, address]) => load(rest, d, address, used_bytes),
        (["st", rest @ ..], [address, values]) => store(rest, address, values),
        (["atom", rest @ ..], [d, address, values @ ..]) => atomic(rest, d, address, values),
        (["mov", _], _) => mov(words, operands),
        (["cvta", "to", space, "u64"], [d, a]) => {
            Some(Op::ToSpace { space: Space::parse(space)?, d: d.register()?, a: a.source(Type::U64)? })
        }
        (["cvta", space, "u64"], [d, a]) => {
            let b = Source::Immediate(Space::parse(space)?.window());
            let f = alu::binary("add", &[], Type::U64)?;
            Some(Op::Binary { f, d: d.register()?, a: a.source(Type::U64)?, b, divides: None })
        }
        (["cvt", rest @ ..], [_, _]) => convert(rest, operands),
        (["cvt", "rn", ty @ ("f16x2" | "bf16x2"), "f32"], [d, a, b]) => pair(ty, d, a, b),
        (["bfi", "b32"], [d, a, b, c, e]) => Some(Op::BitFieldInsert {
            d: d.register()?,
            operands: [
                a.source(Type::B32)?,
                b.source(Type::B32)?,
                c.source(Type::B32)?,
                e.source(Type::B32)?,
            ],
        }),
        (["bar" | "shfl" | "vote", ..], _) => meeting(words, operands),
        (["cp", "async", "bulk", ..], _)
        | (["mbarrier" | "wgmma" | "setmaxnreg" | "elect" | "mapa", ..], _) => {
            super::hopper::decode(words, operands).map(Op::Hopper)
        }
        (["fence", "proxy", "async"], [])
        | (["fence", "proxy", "async", "shared::cta" | "shared::cluster"], []) => {
            Some(Op::Hopper(HopperOp::ProxyFence))
        }
        (["fence", "proxy", "async", "global"], [])
        | (["fence", "mbarrier_init", "release", "cluster"], [])
        | (["fence", "acq_rel" | "sc", "cta" | "cluster" | "gpu" | "sys"], []) => Some(Op::Nothing),
        (["prefetch", "tensormap"], [Operand::Address(_)]) => Some(Op::Nothing),
        (["cp", "async", ..], _) => copy(words, operands),
        (["ldmatrix" | "movmatrix" | "mma", ..], _) => matrix(words, operands),
        _ => arithmetic(words, operands),
    }
}

/// The operand of a shift, a selection or a comparison may have another type than the rest.
fn arithmetic(words: &[&str], operands: &[Operand<'_>]) -> Option<Op> {
    let [name, modifiers @ .., ty] = words else { return None };
    let ty = Type::parse(ty)?;
    match operands {
        [d, a] => Some(Op::Unary { f: alu::unary(name, modifiers, ty)?, d: d.register()?, a: a.source(ty)? }),
        [d, a, b] => Some(Op::Binary {
            f: alu::binary(name, modifiers, ty)?,
            d: d.register()?,
            a: a.source(ty)?,
            b: b.source(if matches!(*name, "shl" | "shr") { Type::U32 } else { ty })?,
            divides: (matches!(*name, "div" | "rem") && !ty.is_float()).then_some(ty),
        }),
        [d, a, b, c] => Some(Op::Ternary {
            f: alu::ternary(name, modifiers, ty)?,
            d: d.register()?,
            a: a.source(ty)?,
            b: b.source(ty)?,
            c: c.source(if *name == "selp" { Type::Pred } else { ty })?,
        }),
        _ => None,
    }
}

fn pair(ty: &str, d: &Operand<'_>, a: &Operand<'_>, b: &Operand<'_>) -> Option<Op> {
    let f = alu::convert_pair(Type::parse(ty)?)?;
    let (a, b) = (a.source(Type::F32)?, b.source(Type::F32)?);
    Some(Op::Binary { f, d: d.register()?, a, b, divides: None })
}

fn mov(words: &[&str], operands: &[Operand<'_>]) -> Option<Op> {
    let ty = Type::parse(words[1])?;
    match operands {
        [Operand::List(parts), a] => {
            let parts: Option<Vec<_>> = parts
                .iter()
                .map(|part| match part {
                    Operand::Nothing => Some(None),
                    part => part.register().map(Some),
                })
                .collect();
            let parts = parts?.into_boxed_slice();
            let bits = ty.bits() / u32::try_from(parts.len()).ok().filter(|n| *n > 0)?;
            Some(Op::Unpack { parts, a: a.source(ty)?, bits })
        }
        [d, Operand::List(parts)] => {
            let bits = ty.bits() / u32::try_from(parts.len()).ok().filter(|n| *n > 0)?;
            let parts: Option<Vec<_>> = parts.iter().map(|part| part.source(ty)).collect();
            Some(Op::Pack { d: d.register()?, parts: parts?.into(), bits })
        }
        [_, Operand::Immediate(value)] if ty == Type::Pred => {
            let a = Source::Immediate(u64::from(*value != 0));
            Some(Op::Unary { f: alu::unary("mov", &[], ty)?, d: operands[0].register()?, a })
        }
        _ => arithmetic(words, operands),
    }
}

fn convert(rest: &[&str], operands: &[Operand<'_>]) -> Option<Op> {
    let [modifiers @ .., to, from] = rest else { return None };
    let (to, from) = (Type::parse(to)?, Type::parse(from)?);
    let (mut rounding, mut saturate) = (Rounding::None, false);
    for modifier in modifiers {
        match *modifier {
            "rn" => rounding = Rounding::Nearest,
            "rni" => rounding = Rounding::NearestInteger,
            "rzi" => rounding = Rounding::ZeroInteger,
            "sat" if to == Type::F32 => saturate = true,
            _ => return None,
        }
    }
    let known = match (to.is_float(), from.is_float()) {
        (true, true) => {
            let narrows = to.bits() < from.bits();
            (rounding == Rounding::Nearest) == narrows && (to != from || saturate)
        }
        (true, false) => rounding == Rounding::Nearest && to.bits() >= 32,
        (false, true) => {
            matches!(rounding, Rounding::NearestInteger | Rounding::ZeroInteger) && to.bits() >= 32
        }
        (false, false) => rounding == Rounding::None,
    };
    let is_value = |ty: Type| !matches!(ty, Type::Pred | Type::F16x2 | Type::BF16x2);
    let Operand::Register(d, d_type) = operands[0] else { return None };
    let conversion = Conversion { to, from, rounding, saturate };
    let a = operands[1].source(from)?;
    (known && is_value(to) && is_value(from)).then_some(Op::Convert {
        conversion,
        d,
        d_bits: d_type.bits(),
        a,
    })
}

/// The space, type and number of elements behind the cache hints of a load or store.
fn access(rest: &[&str], hints: &[&str]) -> Option<(Space, Type, usize)> {
    let [modifiers @ .., ty] = rest else { return None };
    let (mut space, mut count) = (Space::Generic, 1);
    for modifier in modifiers {
        match *modifier {
            "v2" => count = 2,
            "v4" => count = 4,
            hint if hints.contains(&hint) => {}
            other => space = Space::parse(other)?,
        }
    }
    Some((space, Type::parse(ty)?, count))
}

fn load(rest: &[&str], d: &Operand<'_>, address: &Operand<'_>, used_bytes: u64) -> Option<Op> {
    let hints =
        ["cg", "ca", "nc", "L1::no_allocate", "L2::128B", "acquire", "relaxed", "volatile", "sys", "gpu"];
    let (space, ty, count) = access(rest, &hints)?;
    let d: Option<Vec<_>> = d
        .elements()
        .iter()
        .map(|part| match part {
            Operand::Register(register, ty) => Some(Some((*register, ty.bits()))),
            Operand::Nothing => Some(None),
            _ => None,
        })
        .collect();
    let d = d.filter(|d| d.len() == count)?.into();
    let read_only = rest.contains(&"nc");
    Some(Op::Load(Load { space, ty, d, address: address.address()?, used_bytes, read_only }))
}

fn store(rest: &[&str], address: &Operand<'_>, values: &Operand<'_>) -> Option<Op> {
    let (space, ty, count) = access(rest, &["cg", "wb", "release", "relaxed", "volatile", "sys", "gpu"])?;
    let values: Option<Vec<_>> = values.elements().iter().map(|value| value.source(ty)).collect();
    let values = values.filter(|values| values.len() == count)?.into();
    Some(Op::Store { space, ty, address: address.address()?, values })
}

fn atomic(rest: &[&str], d: &Operand<'_>, address: &Operand<'_>, values: &[Operand<'_>]) -> Option<Op> {
    // Blocks run one after the other, so every order of memory is the strongest.
    let ([space, op, ty] | ["relaxed" | "acquire" | "release" | "acq_rel", "gpu", space, op, ty]) = rest
    else {
        return None;
    };
    let ty = Type::parse(ty).filter(|ty| ty.bits() >= 32 && !ty.is_float())?;
    let f = match *op {
        "add" => AtomicOp::Add,
        "min" => AtomicOp::Min,
        "max" => AtomicOp::Max,
        "and" => AtomicOp::And,
        "or" => AtomicOp::Or,
        "xor" => AtomicOp::Xor,
        "exch" => AtomicOp::Exchange,
        _ => return None,
    };
    let [value] = values else { return None };
    let space = Space::parse(space)?;
    Some(Op::Atomic { space, ty, f, d: d.register()?, address: address.address()?, value: value.source(ty)? })
}

fn meeting(words: &[&str], operands: &[Operand<'_>]) -> Option<Op> {
    let u32_ = Type::U32;
    Some(match (words, operands) {
        (["bar", "sync"], [id]) => Op::Barrier { id: id.source(u32_)?, threads: None, arrive_only: false },
        (["bar", kind @ ("sync" | "arrive")], [id, threads]) => Op::Barrier {
            id: id.source(u32_)?,
            threads: Some(threads.source(u32_)?),
            arrive_only: *kind == "arrive",
        },
        (["bar", "red", op @ ("or" | "and"), "pred"], [d, id, p]) => Op::BarrierReduce {
            any: *op == "or",
            d: d.register()?,
            id: id.source(u32_)?,
            p: p.source(Type::Pred)?,
        },
        (["bar", "warp", "sync"], [mask]) => Op::WarpBarrier { mask: mask.source(u32_)? },
        (["vote", "sync", mode, _], [d, p, mask]) => {
            let mode = match *mode {
                "all" => VoteMode::All,
                "any" => VoteMode::Any,
                "ballot" => VoteMode::Ballot,
                _ => return None,
            };
            Op::Vote { mode, d: d.register()?, p: p.source(Type::Pred)?, mask: mask.source(u32_)? }
        }
        (["shfl", "sync", mode, "b32"], [d, a, lane, clamp, mask]) => {
            let mode = match *mode {
                "up" => ShuffleMode::Up,
                "down" => ShuffleMode::Down,
                "bfly" => ShuffleMode::Butterfly,
                "idx" => ShuffleMode::Index,
                _ => return None,
            };
            let (d, in_range) = match d {
                Operand::Pair(Some(d), p) => (*d, Some(*p)),
                d => (d.register()?, None),
            };
            let [a, lane, clamp, mask] = [a, lane, clamp, mask].map(|operand| operand.source(u32_));
            Op::Shuffle(Shuffle { mode, d, in_range, a: a?, lane: lane?, clamp: clamp?, mask: mask? })
        }
        _ => return None,
    })
}

fn copy(words: &[&str], operands: &[Operand<'_>]) -> Option<Op> {
    Some(match (words, operands) {
        (["cp", "async", "commit_group"], []) => Op::CopyCommit,
        (["cp", "async", "wait_group"], [Operand::Immediate(n)]) => Op::CopyWait(usize::try_from(*n).ok()?),
        (
            ["cp", "async", kind @ ("ca" | "cg"), "shared", "global"],
            [to, from, Operand::Immediate(n), rest @ ..],
        ) => {
            let bytes =
                usize::try_from(*n).ok().filter(|n| *n == 16 || (*kind == "ca" && matches!(n, 4 | 8)))?;
            let source_bytes = match rest {
                [] => Source::Immediate(*n),
                [source_bytes] => source_bytes.source(Type::U32)?,
                _ => return None,
            };
            Op::CopyAsync { bytes, to: to.address()?, from: from.address()?, source_bytes }
        }
        _ => return None,
    })
}

fn matrix(words: &[&str], operands: &[Operand<'_>]) -> Option<Op> {
    fn sources<const N: usize>(operand: &Operand<'_>) -> Option<[Source; N]> {
        let all: Option<Vec<_>> = operand.elements().iter().map(|part| part.source(Type::B32)).collect();
        all?.try_into().ok()
    }
    Some(match (words, operands) {
        (["ldmatrix", "sync", "aligned", "m8n8", count, rest @ .., "b16"], [d, address]) => {
            let transposed = match rest {
                ["shared"] => false,
                ["trans", "shared"] => true,
                _ => return None,
            };
            let d: Option<Vec<_>> = d.elements().iter().map(Operand::register).collect();
            let d = d.filter(|d| *count == format!("x{}", d.len()) && matches!(d.len(), 1 | 2 | 4))?.into();
            Op::LoadMatrices { d, address: address.address()?, transposed }
        }
        (["movmatrix", "sync", "aligned", "m8n8", "trans", "b16"], [d, a]) => {
            Op::TransposeMatrix { d: d.register()?, a: a.source(Type::B32)? }
        }
        (["mma", "sync", "aligned", shape, "row", "col", "f32", x, y, "f32"], [d, a, b, c]) if x == y => {
            let element = match (*shape, *x) {
                ("m16n8k16", "f16") => Element::F16,
                ("m16n8k16", "bf16") => Element::BF16,
                ("m16n8k32", "e4m3") => Element::E4M3,
                _ => return None,
            };
            let d: Option<Vec<_>> = d.elements().iter().map(Operand::register).collect();
            let d = d?.try_into().ok()?;
            Op::Mma(Mma { element, d, a: sources(a)?, b: sources(b)?, c: sources(c)? })
        }
        _ => return None,
    })
}
