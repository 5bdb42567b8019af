//! Parses PTX texts.

mod decode;
mod hopper;
mod lexer;
mod operand;
mod parser;

use std::collections::HashMap;

use crate::hopper::HopperOp;
use crate::instruction::Kernel;
use crate::instruction::{Instruction, Op};
use crate::operand::Register;
use crate::types::Type;
use lexer::{Token, error, tokens};
use parser::{Body, Parser, Result, Variable};

/// The most registers of a kernel.
const MAX_REGISTERS: usize = 1 << 16;
/// The most bytes of a variable.
const MAX_VARIABLE: usize = 1 << 30;

/// Parses a text to its kernels.
pub(crate) fn parse(text: &str) -> Result<Vec<Kernel>> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0, dynamic: HashMap::new() };
    let mut kernels = Vec::new();
    while parser.at < tokens.len() {
        let line = parser.line();
        match parser.word()? {
            ".version" | ".target" | ".address_size" => {
                parser.word()?;
                while parser.accept(',') {
                    parser.word()?;
                }
            }
            ".visible" => {}
            ".extern" => {
                let variable = parser.variable()?;
                parser.sign(';')?;
                if variable.bytes != 0 {
                    return Err(error(line, "an external variable must be an array without size"));
                }
                parser.dynamic.insert(variable.name, variable.align);
            }
            ".entry" => kernels.push(parser.kernel()?),
            other => return Err(error(line, format!("the directive {other} is not known"))),
        }
    }
    Ok(kernels)
}

impl<'a> Parser<'_, 'a> {
    /// `.space? .align n? .type name [n]?`
    fn variable(&mut self) -> Result<Variable<'a>> {
        let line = self.line();
        let (mut align, mut ty) = (None, None);
        loop {
            let word = self.word()?;
            match word {
                ".align" => align = Some(self.number()?),
                ".shared" | ".param" | ".local" => {}
                _ => match word.strip_prefix('.') {
                    Some(name) => {
                        let found = Type::parse(name);
                        ty = Some(found.ok_or_else(|| error(line, format!("no type {word}")))?);
                    }
                    None => {
                        let ty = ty.ok_or_else(|| error(line, "a variable has no type"))?;
                        let mut count = 1;
                        if self.accept('[') {
                            count = if self.accept(']') { 0 } else { self.number()? };
                            if count != 0 {
                                self.sign(']')?;
                            }
                        }
                        let align = align.unwrap_or(ty.bytes());
                        let bytes = count.checked_mul(ty.bytes()).filter(|b| *b <= MAX_VARIABLE);
                        let bytes = bytes.ok_or_else(|| error(line, "a variable is too large"))?;
                        if !align.is_power_of_two() || align > 4096 {
                            return Err(error(line, format!("alignment {align} is not possible")));
                        }
                        return Ok(Variable { name: word, align, bytes });
                    }
                },
            }
        }
    }

    fn kernel(&mut self) -> Result<Kernel> {
        let name = self.word()?.to_owned();
        let mut symbols = HashMap::new();
        let mut param_bytes = 0usize;
        if self.accept('(') && !self.accept(')') {
            loop {
                place(self.variable()?, &mut param_bytes, &mut symbols);
                if !self.accept(',') {
                    break;
                }
            }
            self.sign(')')?;
        }
        let mut max_threads = None;
        while !self.accept('{') {
            let line = self.line();
            match self.word()? {
                ".maxntid" => {
                    let mut size = [self.number()? as u32, 1, 1];
                    for extent in &mut size[1..] {
                        if self.accept(',') {
                            *extent = self.number()? as u32;
                        }
                    }
                    max_threads = Some(size);
                }
                ".minnctapersm" => _ = self.number()?,
                other => return Err(error(line, format!("the directive {other} is not known"))),
            }
        }
        let shared_bytes = self.shared_variables(&mut symbols)?;
        let mut body = Body {
            scopes: vec![HashMap::new()],
            registers: 0,
            symbols,
            labels: HashMap::new(),
            instructions: Vec::new(),
            jumps: Vec::new(),
            used_bytes: u64::MAX,
        };
        self.body(&mut body)?;
        for (instruction, label, line) in std::mem::take(&mut body.jumps) {
            let at = body.labels.get(label).ok_or_else(|| error(line, format!("no label {label}")))?;
            body.instructions[instruction].op = Op::Branch { target: *at };
        }
        let waits_for_grid = body.instructions.iter().any(|i| matches!(i.op, Op::GridWait));
        let has_products = body.instructions.iter().any(|i| matches!(i.op, Op::Hopper(HopperOp::Product(_))));
        Ok(Kernel {
            name,
            instructions: body.instructions,
            registers: body.registers,
            param_bytes,
            shared_bytes,
            max_threads,
            waits_for_grid,
            has_products,
        })
    }

    /// Places the shared variables of the body that begins here, and dynamic shared memory behind
    /// them.
    fn shared_variables(&mut self, symbols: &mut HashMap<&'a str, u64>) -> Result<usize> {
        let start = self.at;
        let (mut depth, mut bytes) = (1, 0);
        while depth > 0 {
            match self.peek() {
                Some(Token::Sign('{')) => depth += 1,
                Some(Token::Sign('}')) => depth -= 1,
                Some(Token::Word(".shared")) => {
                    place(self.variable()?, &mut bytes, symbols);
                    continue;
                }
                Some(_) => {}
                None => return Err(error(self.line(), "a kernel has no end")),
            }
            self.at += 1;
        }
        self.at = start;
        let align = self.dynamic.values().copied().max().unwrap_or(1);
        bytes = bytes.next_multiple_of(align);
        symbols.extend(self.dynamic.keys().map(|name| (*name, bytes as u64)));
        Ok(bytes)
    }

    fn body(&mut self, body: &mut Body<'a>) -> Result<()> {
        loop {
            let line = self.line();
            if self.accept('{') {
                body.scopes.push(HashMap::new());
                continue;
            }
            if self.accept('}') {
                body.scopes.pop();
                if body.scopes.is_empty() {
                    return Ok(());
                }
                continue;
            }
            if self.accept(';') {
                continue;
            }
            if self.peek() == Some(Token::Sign('@')) {
                self.instruction(body)?;
                continue;
            }
            match self.word()? {
                ".reg" => self.registers(body)?,
                ".shared" => {
                    self.variable()?;
                    self.sign(';')?;
                }
                ".pragma" => self.pragma(body)?,
                word if word.starts_with('.') => {
                    return Err(error(line, format!("the directive {word} is not known")));
                }
                label if self.accept(':') => {
                    if body.labels.insert(label, body.instructions.len()).is_some() {
                        return Err(error(line, format!("the label {label} occurs twice")));
                    }
                }
                _ => {
                    self.at -= 1;
                    self.instruction(body)?;
                }
            }
        }
    }

    fn pragma(&mut self, body: &mut Body<'a>) -> Result<()> {
        let line = self.line();
        if let Some(Token::Text(text)) = self.peek() {
            self.at += 1;
            if let Some(mask) = text.strip_prefix("used_bytes_mask ") {
                let number = operand::integer(mask.trim());
                body.used_bytes = number.ok_or_else(|| error(line, format!("{mask} is not a mask")))?;
            }
        }
        self.sign(';')
    }

    fn registers(&mut self, body: &mut Body<'a>) -> Result<()> {
        let line = self.line();
        let word = self.word()?;
        let ty = word.strip_prefix('.').and_then(Type::parse);
        let ty = ty.ok_or_else(|| error(line, format!("no type {word}")))?;
        loop {
            let name = self.word()?;
            let names: Vec<String> = if self.accept('<') {
                let count = self.number()?;
                self.sign('>')?;
                if count > MAX_REGISTERS {
                    return Err(error(line, "too many registers"));
                }
                (0..count).map(|i| format!("{name}{i}")).collect()
            } else {
                vec![name.to_owned()]
            };
            if body.registers + names.len() > MAX_REGISTERS {
                return Err(error(line, "too many registers"));
            }
            let scope = body.scopes.last_mut().expect("a body has a scope");
            for name in names {
                scope.insert(name, (body.registers as Register, ty));
                body.registers += 1;
            }
            if !self.accept(',') {
                return self.sign(';');
            }
        }
    }

    fn instruction(&mut self, body: &mut Body<'a>) -> Result<()> {
        let line = self.line();
        let mut guard = None;
        if self.accept('@') {
            let negated = self.accept('!');
            let name = self.word()?;
            let (register, _) = body.register(name).ok_or_else(|| error(line, format!("no {name}")))?;
            guard = Some((register, negated));
        }
        let opcode = self.word()?;
        let mut operands = Vec::new();
        while !self.accept(';') {
            operands.push(self.operand(body)?);
            if !self.accept(',') && self.peek() != Some(Token::Sign(';')) {
                return Err(error(self.line(), "; is missing"));
            }
        }
        let words: Vec<&str> = opcode.split('.').collect();
        let mut registers: Vec<Register> = guard.iter().map(|(register, _)| *register).collect();
        operands.iter().for_each(|operand| operand.collect_registers(&mut registers));
        let registers = registers.into_boxed_slice();
        if let (["bra"] | ["bra", "uni"], [operand::Operand::Label(label)]) = (&words[..], &operands[..]) {
            body.jumps.push((body.instructions.len(), label, line));
            body.instructions.push(Instruction { line, guard, op: Op::Exit, registers });
            return Ok(());
        }
        let used_bytes = body.used_bytes;
        let op = decode::decode(&words, &operands, used_bytes)
            .ok_or_else(|| error(line, format!("{opcode} with these operands is not supported")))?;
        if matches!(op, Op::Load(_)) {
            body.used_bytes = u64::MAX;
        }
        body.instructions.push(Instruction { line, guard, op, registers });
        Ok(())
    }
}

fn place<'a>(variable: Variable<'a>, bytes: &mut usize, symbols: &mut HashMap<&'a str, u64>) {
    let at = bytes.next_multiple_of(variable.align);
    symbols.insert(variable.name, at as u64);
    *bytes = at + variable.bytes;
}
