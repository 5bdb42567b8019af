//! Writes rules as Lark.

use super::parse::{Alternatives, Atom, Element, Repeat, Rules};

/// Translates rules to Lark.
///
/// # Errors
/// The text says which part has no translation.
pub(super) fn write(grammar: &Rules) -> Result<String, String> {
    let terminals = terminals(grammar);
    let mut writer = Writer { terminals: &terminals, parts: String::new(), count: 0 };
    let mut lark = format!("start: {}\n", writer.name(grammar.root));
    for index in used(grammar) {
        let body = match terminals[index] {
            true => writer.expression(&grammar.rules[index]),
            false => writer.alternatives(&grammar.rules[index]),
        };
        lark += &format!("{}: {body}\n", writer.name(index));
    }
    Ok(lark + &writer.parts)
}

/// Returns the indices of the rules to which the root refers, itself included.
fn used(grammar: &Rules) -> Vec<usize> {
    let mut is_used = vec![false; grammar.rules.len()];
    let mut left = vec![grammar.root];
    while let Some(index) = left.pop() {
        if !std::mem::replace(&mut is_used[index], true) {
            references(&grammar.rules[index], &mut left);
        }
    }
    (0..is_used.len()).filter(|&index| is_used[index]).collect()
}

/// Adds the rules to which alternatives refer.
fn references(alternatives: &Alternatives, to: &mut Vec<usize>) {
    for element in alternatives.iter().flatten() {
        match &element.atom {
            Atom::Rule(index) => to.push(*index),
            Atom::Group(inner) => references(inner, to),
            Atom::Text(_) | Atom::Class(_) => {}
        }
    }
}

/// Returns which rules are regular: those that refer only to regular rules.
fn terminals(grammar: &Rules) -> Vec<bool> {
    let count = grammar.rules.len();
    // The rules that refer to each rule, and the number of references that are not regular so far.
    let (mut users, mut open) = (vec![Vec::new(); count], vec![0; count]);
    for (index, rule) in grammar.rules.iter().enumerate() {
        let mut referenced = Vec::new();
        references(rule, &mut referenced);
        open[index] = referenced.len();
        referenced.into_iter().for_each(|other| users[other].push(index));
    }
    let mut is_terminal = vec![false; count];
    let mut regular: Vec<usize> = (0..count).filter(|&index| open[index] == 0).collect();
    while let Some(index) = regular.pop() {
        is_terminal[index] = true;
        for &user in &users[index] {
            open[user] -= 1;
            if open[user] == 0 {
                regular.push(user);
            }
        }
    }
    is_terminal
}

struct Writer<'a> {
    terminals: &'a [bool],
    /// The terminals for parts of rules.
    parts: String,
    /// The number of these terminals.
    count: usize,
}

impl Writer<'_> {
    /// Returns the name of a rule in Lark, where terminals have upper case.
    fn name(&self, index: usize) -> String {
        match self.terminals[index] {
            true => format!("T{index}"),
            false => format!("r{index}"),
        }
    }

    fn is_regular(&self, element: &Element) -> bool {
        match &element.atom {
            Atom::Text(_) | Atom::Class(_) => true,
            Atom::Rule(index) => self.terminals[*index],
            Atom::Group(inner) => inner.iter().flatten().all(|element| self.is_regular(element)),
        }
    }

    /// Writes alternatives, all of which are regular, as a terminal.
    fn expression(&self, alternatives: &Alternatives) -> String {
        let sequence = |elements: &Vec<Element>| match elements.is_empty() {
            true => "\"\"".to_owned(),
            false => {
                let elements = elements.iter().map(|element| self.regular_element(element));
                elements.collect::<Vec<_>>().join(" ")
            }
        };
        alternatives.iter().map(sequence).collect::<Vec<_>>().join(" | ")
    }

    fn regular_element(&self, element: &Element) -> String {
        let atom = match &element.atom {
            Atom::Text(text) => quoted(text),
            Atom::Class(class) => format!("/{class}/"),
            Atom::Rule(index) => self.name(*index),
            Atom::Group(inner) => format!("({})", self.expression(inner)),
        };
        repeated(&atom, element.repeat)
    }

    /// Writes alternatives as a rule.
    fn alternatives(&mut self, alternatives: &Alternatives) -> String {
        let mut written = Vec::with_capacity(alternatives.len());
        for elements in alternatives {
            written.push(self.sequence(elements));
        }
        written.join(" | ")
    }

    fn sequence(&mut self, elements: &[Element]) -> String {
        let mut written = Vec::new();
        let mut rest = elements;
        while let Some(element) = rest.first() {
            let regular = rest.iter().take_while(|element| self.is_regular(element)).count();
            if regular == 0 {
                written.push(self.element(element));
                rest = &rest[1..];
                continue;
            }
            written.push(self.part(&rest[..regular]));
            rest = &rest[regular..];
        }
        match written.is_empty() {
            true => "\"\"".to_owned(),
            false => written.join(" "),
        }
    }

    /// Writes regular elements in a row as one terminal.
    fn part(&mut self, elements: &[Element]) -> String {
        if let [Element { atom: Atom::Text(_) | Atom::Rule(_), repeat: Repeat::ONCE }] = elements {
            return self.regular_element(&elements[0]);
        }
        let name = format!("P{}", self.count);
        self.count += 1;
        self.parts += &format!("{name}: {}\n", self.expression(&vec![elements.to_vec()]));
        name
    }

    fn element(&mut self, element: &Element) -> String {
        let atom = match &element.atom {
            Atom::Rule(index) => self.name(*index),
            Atom::Group(inner) => format!("({})", self.alternatives(inner)),
            Atom::Text(_) | Atom::Class(_) => self.regular_element(element),
        };
        repeated(&atom, element.repeat)
    }
}

/// Returns a text as a string of Lark.
fn quoted(text: &str) -> String {
    // JSON writes this character as it is, and Lark has it only as an escape.
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Writes the repetitions of an atom.
fn repeated(atom: &str, repeat: Repeat) -> String {
    match (repeat.min, repeat.max) {
        (1, Some(1)) => atom.to_owned(),
        (0, Some(0)) => "\"\"".to_owned(),
        (0, Some(1)) => format!("{atom}?"),
        (0, None) => format!("{atom}*"),
        (1, None) => format!("{atom}+"),
        (min, None) => format!("{atom}{{{min},}}"),
        (min, Some(max)) => format!("{atom}{{{min},{max}}}"),
    }
}
