//! Modules: the kernels of one PTX text.

use std::collections::HashMap;

use crate::exec::Grid;
use crate::instruction::Kernel;
use crate::launch::{Launch, Stats};
use crate::{DeviceMemory, Fault, ParseError};

/// The kernels of one PTX text.
#[derive(Debug)]
pub struct Module {
    kernels: HashMap<String, Kernel>,
}

impl Module {
    /// Parses a PTX text.
    ///
    /// # Errors
    /// The first instruction or directive that the interpreter does not know, with its line.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let kernels = crate::parse::parse(text)?;
        Ok(Module { kernels: kernels.into_iter().map(|kernel| (kernel.name.clone(), kernel)).collect() })
    }

    /// The names of all kernels, sorted.
    pub fn kernels(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.kernels.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Runs a grid to its end.
    ///
    /// # Errors
    /// The first operation that PTX leaves undefined. Blocks that ran before have had their effect.
    pub fn launch(&self, kernel: &str, launch: &Launch, memory: &mut DeviceMemory) -> Result<Stats, Fault> {
        let mut grid = self.begin(kernel, launch)?;
        while !grid.advance(memory)? {}
        Ok(grid.stats())
    }

    /// Begins a grid, which the caller advances to its end.
    ///
    /// # Errors
    /// A kernel that does not exist, or a launch that it does not allow.
    pub fn begin<'a>(&'a self, kernel: &str, launch: &'a Launch) -> Result<Grid<'a>, Fault> {
        let Some(found) = self.kernels.get(kernel) else {
            let message = "the module has no such kernel".to_owned();
            return Err(Fault { kernel: kernel.to_owned(), block: None, thread: None, line: None, message });
        };
        Grid::new(found, launch)
    }
}
