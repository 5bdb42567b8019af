//! Operands of instructions.

use super::lexer::{Token, error};
use super::parser::{Body, Parser, Result};
use crate::operand::{Address, Register, Source, Special};
use crate::types::Type;

/// An operand as it is written.
#[derive(Debug)]
pub(super) enum Operand<'a> {
    Register(Register, Type),
    /// A number, or the address of a variable.
    Immediate(u64),
    Special(Special),
    List(Vec<Operand<'a>>),
    Address(Address),
    /// The address of a tensor map, and coordinates.
    Tensor(Address, Vec<Source>),
    /// `d|p`; `_|p` has no first register.
    Pair(Option<Register>, Register),
    /// `_`
    Nothing,
    Label(&'a str),
}

impl Operand<'_> {
    /// The operand as a source of an instruction of this type.
    pub(super) fn source(&self, ty: Type) -> Option<Source> {
        match self {
            Operand::Register(register, _) => Some(Source::Register(*register)),
            Operand::Immediate(value) => Some(Source::Immediate(ty.cut(*value))),
            Operand::Special(special) => Some(Source::Special(*special)),
            _ => None,
        }
    }

    pub(super) fn register(&self) -> Option<Register> {
        match self {
            Operand::Register(register, _) => Some(*register),
            _ => None,
        }
    }

    pub(super) fn address(&self) -> Option<Address> {
        match self {
            Operand::Address(address) => Some(*address),
            _ => None,
        }
    }

    /// Adds the registers that occur in the operand.
    pub(super) fn collect_registers(&self, all: &mut Vec<Register>) {
        let from_source = |source: &Source| match source {
            Source::Register(register) => Some(*register),
            _ => None,
        };
        match self {
            Operand::Register(register, _) => all.push(*register),
            Operand::List(elements) => elements.iter().for_each(|e| e.collect_registers(all)),
            Operand::Address(address) => all.extend(from_source(&address.base)),
            Operand::Tensor(map, at) => {
                all.extend(from_source(&map.base));
                all.extend(at.iter().filter_map(from_source));
            }
            Operand::Pair(first, second) => {
                all.extend(*first);
                all.push(*second);
            }
            Operand::Immediate(_) | Operand::Special(_) | Operand::Nothing | Operand::Label(_) => {}
        }
    }

    /// The elements of a list, or the operand alone.
    pub(super) fn elements(&self) -> &[Self] {
        match self {
            Operand::List(elements) => elements,
            _ => std::slice::from_ref(self),
        }
    }
}

/// A number, also a float as its bits.
pub(super) fn integer(word: &str) -> Option<u64> {
    if let Some(hex) = word.strip_prefix("0f").or_else(|| word.strip_prefix("0d")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    let word = word.strip_suffix('U').unwrap_or(word);
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

fn special(word: &str) -> Option<Special> {
    let (name, axis) = word.rsplit_once('.').unwrap_or((word, ""));
    let axis = match axis {
        "x" => 0,
        "y" => 1,
        "z" => 2,
        _ => 3,
    };
    Some(match (name, axis) {
        ("%tid", 0..3) => Special::Thread(axis),
        ("%ntid", 0..3) => Special::ThreadCount(axis),
        ("%ctaid", 0..3) => Special::Block(axis),
        ("%nctaid", 0..3) => Special::BlockCount(axis),
        ("%laneid", _) => Special::Lane,
        ("%warpid", _) => Special::Warp,
        ("%globaltimer", _) => Special::GlobalTimer,
        ("%cluster_ctarank", _) => Special::Constant(0),
        ("%cluster_nctarank", _) => Special::Constant(1),
        _ => return None,
    })
}

impl<'a> Parser<'_, 'a> {
    pub(super) fn operand(&mut self, body: &Body<'a>) -> Result<Operand<'a>> {
        if self.accept('{') {
            let mut elements = Vec::new();
            while !self.accept('}') {
                elements.push(self.operand(body)?);
                self.accept(',');
            }
            return Ok(Operand::List(elements));
        }
        if self.accept('[') {
            return self.address(body);
        }
        let line = self.line();
        if self.accept('-') {
            let word = self.word()?;
            let value = integer(word).ok_or_else(|| error(line, format!("{word} is not a number")))?;
            return Ok(Operand::Immediate(value.wrapping_neg()));
        }
        let word = self.word()?;
        if word == "_" {
            return match self.accept('|') {
                true => Ok(Operand::Pair(None, self.second_of_pair(body)?)),
                false => Ok(Operand::Nothing),
            };
        }
        if let Some((register, ty)) = body.register(word) {
            if self.accept('|') {
                return Ok(Operand::Pair(Some(register), self.second_of_pair(body)?));
            }
            return Ok(Operand::Register(register, ty));
        }
        if let Some(found) = special(word) {
            return Ok(Operand::Special(found));
        }
        if let Some(at) = body.symbols.get(word) {
            return Ok(Operand::Immediate(*at));
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let value = integer(word).ok_or_else(|| error(line, format!("{word} is not a number")))?;
            return Ok(Operand::Immediate(value));
        }
        if word.starts_with('%') {
            return Err(error(line, format!("the register {word} is not declared or not supported")));
        }
        Ok(Operand::Label(word))
    }

    fn second_of_pair(&mut self, body: &Body<'a>) -> Result<Register> {
        let line = self.line();
        let name = self.word()?;
        let (register, _) = body.register(name).ok_or_else(|| error(line, format!("no register {name}")))?;
        Ok(register)
    }

    fn address(&mut self, body: &Body<'a>) -> Result<Operand<'a>> {
        let line = self.line();
        let base = self.operand(body)?.source(Type::B64);
        let base = base.ok_or_else(|| error(line, "an address is not known"))?;
        let mut offset = 0i64;
        if self.accept('+') {
            let negative = self.accept('-');
            let word = self.word()?;
            let value = integer(word).and_then(|value| i64::try_from(value).ok());
            let value = value.ok_or_else(|| error(line, format!("{word} is not an offset")))?;
            offset = if negative { -value } else { value };
        }
        let address = Address { base, offset };
        let coordinates = if self.accept(',') {
            let coordinates = self.operand(body)?;
            let all: Option<Vec<_>> = coordinates.elements().iter().map(|e| e.source(Type::B32)).collect();
            Some(all.ok_or_else(|| error(line, "coordinates must be registers or numbers"))?)
        } else {
            None
        };
        if self.peek() != Some(Token::Sign(']')) {
            return Err(error(line, "this form of address is not supported"));
        }
        self.sign(']')?;
        Ok(match coordinates {
            Some(at) => Operand::Tensor(address, at),
            None => Operand::Address(address),
        })
    }
}
