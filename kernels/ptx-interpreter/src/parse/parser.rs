//! The position in a text that is parsed, and the declarations so far.

use std::collections::HashMap;

use super::lexer::{Located, Token, error};
use crate::ParseError;
use crate::instruction::Instruction;
use crate::operand::Register;
use crate::types::Type;

/// The result of parsing a part of a text.
pub(super) type Result<T> = std::result::Result<T, ParseError>;

/// The tokens of a text, and the position of the next one.
pub(super) struct Parser<'t, 'a> {
    pub(super) tokens: &'t [Located<'a>],
    pub(super) at: usize,
    /// Dynamic shared arrays and their alignment.
    pub(super) dynamic: HashMap<&'a str, usize>,
}

/// A declared variable.
pub(super) struct Variable<'a> {
    pub(super) name: &'a str,
    pub(super) align: usize,
    pub(super) bytes: usize,
}

/// The declarations in the body of a kernel.
pub(super) struct Body<'a> {
    /// Registers with their types, by scope, the innermost last.
    pub(super) scopes: Vec<HashMap<String, (Register, Type)>>,
    pub(super) registers: usize,
    /// Addresses of variables.
    pub(super) symbols: HashMap<&'a str, u64>,
    pub(super) labels: HashMap<&'a str, usize>,
    pub(super) instructions: Vec<Instruction>,
    /// Branches: instruction, label and line.
    pub(super) jumps: Vec<(usize, &'a str, u32)>,
    /// The mask of the next load.
    pub(super) used_bytes: u64,
}

impl<'a> Parser<'_, 'a> {
    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| *token)
    }

    pub(super) fn accept(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    pub(super) fn sign(&mut self, sign: char) -> Result<()> {
        if self.accept(sign) { Ok(()) } else { Err(error(self.line(), format!("{sign} is missing"))) }
    }

    pub(super) fn word(&mut self) -> Result<&'a str> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            found => Err(error(self.line(), format!("a word is missing before {found:?}"))),
        }
    }

    pub(super) fn number(&mut self) -> Result<usize> {
        let line = self.line();
        let word = self.word()?;
        word.parse().map_err(|_| error(line, format!("{word} is not a number")))
    }
}

impl Body<'_> {
    pub(super) fn register(&self, name: &str) -> Option<(Register, Type)> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name)).copied()
    }
}
