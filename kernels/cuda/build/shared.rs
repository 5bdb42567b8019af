//! Translates the declarations that kernels and host code share from the CUDA sources to Rust.
//!
//! The CUDA sources are the only place where these declarations are written. Each source file
//! becomes a Rust module of the same name. Four kinds of declarations are translated; each begins
//! at the start of a line:
//!
//! - `struct NameParams { … };`: the parameters of a kernel, or a part of them. A comment line `//
//!   Kernels: MODULE/NAME, …` in front of it names the kernels that take the struct; a name may end
//!   in `*`.
//! - `struct NameRecord { … };`: a record in device memory.
//! - `enum Name : int { … };`
//! - `EXPORT_CONSTANT int kName = …;` and `EXPORT_FUNCTION int name(int a, …) { return …; }`, which
//!   may use numbers, other exported names, `+ - * / %`, comparisons, `&&`, `||` and `? :`.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// Everything that one source file shares.
struct Module {
    name: String,
    structs: Vec<Struct>,
    enums: Vec<Enum>,
    values: Vec<Value>,
}

/// A struct with the same layout in both languages.
struct Struct {
    name: String,
    docs: Vec<String>,
    /// Alignment in bytes, where it is declared.
    align: Option<String>,
    fields: Vec<Field>,
    /// The kernels that take the struct; empty for a part of another struct and for a record.
    kernels: Vec<String>,
}

struct Field {
    name: String,
    docs: String,
    kind: FieldKind,
}

enum FieldKind {
    Pointer,
    /// A type of the language.
    Plain(&'static str),
    /// A struct or an enumeration among the shared declarations.
    Shared(String),
    TensorMap,
}

struct Enum {
    name: String,
    docs: Vec<String>,
    /// Names and docs.
    variants: Vec<(String, String)>,
}

/// A constant, or a function if there are parentheses.
struct Value {
    name: String,
    docs: Vec<String>,
    arguments: Option<Vec<String>>,
    expression: String,
}

/// Translates the declarations of `files`, which are pairs of a module's name and its source, to
/// Rust modules.
///
/// # Panics
/// If a declaration cannot be translated.
pub(crate) fn translate<'a>(files: impl IntoIterator<Item = (String, &'a PathBuf)>) -> String {
    let modules: Vec<Module> = files
        .into_iter()
        .map(|(name, file)| {
            let text = fs::read_to_string(file).expect("the file was listed");
            parse(name, &text).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
        })
        .collect();
    let mut out = String::new();
    for module in &modules {
        if !(module.structs.is_empty() && module.enums.is_empty() && module.values.is_empty()) {
            write_module(&mut out, module, &modules);
        }
    }
    out
}

fn parse(name: String, text: &str) -> Result<Module, String> {
    let mut module = Module { name, structs: Vec::new(), enums: Vec::new(), values: Vec::new() };
    let mut docs: Vec<String> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(comment) = line.strip_prefix("//") {
            docs.push(comment.trim().to_owned());
            continue;
        }
        let docs = std::mem::take(&mut docs);
        let code = after_template(line);
        if let Some(head) = code.strip_prefix("struct ").and_then(|head| head.strip_suffix(" {")) {
            let name = head.rsplit(' ').next().unwrap_or_default();
            if !head.contains(':') && (name.ends_with("Params") || name.ends_with("Record")) {
                let align = head.split_once("__align__(").and_then(|(_, rest)| rest.split_once(')'));
                let align = align.map(|(bytes, _)| bytes.to_owned());
                module.structs.push(parse_struct(name, align, docs, &mut lines)?);
            }
        } else if let Some(head) = code.strip_prefix("enum ") {
            let Some((name, rest)) = head.split_once(" : int {") else { continue };
            module.enums.push(parse_enum(name, docs, rest, &mut lines)?);
        } else if let Some(rest) = code.strip_prefix("EXPORT_CONSTANT ") {
            let whole = up_to(rest, ';', &mut lines)?;
            let (left, expression) = whole.split_once(" = ").ok_or_else(|| whole.clone())?;
            let name = left.rsplit(' ').next().unwrap_or_default().to_owned();
            module.values.push(Value { name, docs, arguments: None, expression: expression.to_owned() });
        } else if let Some(rest) = code.strip_prefix("EXPORT_FUNCTION ") {
            let whole = up_to(rest, '}', &mut lines)?;
            module.values.push(parse_function(&whole, docs).ok_or(whole)?);
        }
    }
    Ok(module)
}

/// The line without `template <…>` in front of it.
fn after_template(line: &str) -> &str {
    match line.strip_prefix("template <") {
        Some(rest) => rest.split_once("> ").map_or(rest, |(_, code)| code),
        None => line,
    }
}

/// `first` and the lines after it up to `end`, without comments and line breaks.
fn up_to<'a>(first: &str, end: char, lines: &mut impl Iterator<Item = &'a str>) -> Result<String, String> {
    let mut all = without_comment(first).to_owned();
    while !all.contains(end) {
        let next = lines.next().ok_or_else(|| format!("no {end} after {all}"))?;
        all = format!("{all} {}", without_comment(next).trim());
    }
    Ok(all.split(end).next().unwrap_or_default().trim().to_owned())
}

fn without_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

fn parse_struct<'a>(
    name: &str,
    align: Option<String>,
    docs: Vec<String>,
    lines: &mut impl Iterator<Item = &'a str>,
) -> Result<Struct, String> {
    let (listed, docs): (Vec<String>, Vec<String>) =
        docs.into_iter().partition(|line| line.starts_with("Kernels: "));
    let listed = listed.iter().flat_map(|line| line["Kernels: ".len()..].split(", "));
    let kernels = listed.map(|kernel| kernel.trim_end_matches(['.', ',']).to_owned()).collect();
    let mut fields = Vec::new();
    let mut before = String::new();
    loop {
        let line = lines.next().ok_or_else(|| format!("struct {name} has no end"))?.trim();
        if line == "};" {
            break;
        }
        let (code, comment) = line.split_once("//").unwrap_or((line, ""));
        before = format!("{before} {}", comment.trim()).trim().to_owned();
        if code.trim().is_empty() {
            continue;
        }
        let docs = std::mem::take(&mut before);
        for declaration in code.trim().trim_end_matches(';').split(';') {
            parse_fields(declaration.trim(), &docs, &mut fields).map_err(|e| format!("{name}: {e}"))?;
        }
    }
    Ok(Struct { name: name.to_owned(), docs, align, fields, kernels })
}

/// Reads `const T *a, *b` or `int a, b`.
fn parse_fields(declaration: &str, docs: &str, fields: &mut Vec<Field>) -> Result<(), String> {
    let declaration = declaration.strip_prefix("const ").unwrap_or(declaration);
    let mut depth = 0;
    let end = declaration.find(|c: char| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        c == ' ' && depth == 0
    });
    let (kind, names) = declaration.split_at(end.ok_or_else(|| format!("no field in `{declaration}`"))?);
    for name in names.split(',') {
        let name = name.trim();
        let kind = match (name.starts_with('*'), kind.split('<').next().unwrap_or_default()) {
            (true, _) => FieldKind::Pointer,
            (_, "int") => FieldKind::Plain("i32"),
            (_, "unsigned" | "uint32_t") => FieldKind::Plain("u32"),
            (_, "int64_t") => FieldKind::Plain("i64"),
            (_, "uint64_t" | "u64") => FieldKind::Plain("u64"),
            (_, "float") => FieldKind::Plain("f32"),
            (_, "double") => FieldKind::Plain("f64"),
            (_, "TensorMap") => FieldKind::TensorMap,
            (_, shared) => FieldKind::Shared(shared.to_owned()),
        };
        let name = name.trim_start_matches('*').to_owned();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!("no field in `{declaration}`"));
        }
        fields.push(Field { name, docs: docs.to_owned(), kind });
    }
    Ok(())
}

fn parse_enum<'a>(
    name: &str,
    docs: Vec<String>,
    first: &'a str,
    lines: &mut impl Iterator<Item = &'a str>,
) -> Result<Enum, String> {
    let mut variants = Vec::new();
    let mut before = String::new();
    let mut line = first;
    loop {
        let (code, comment) = line.split_once("//").unwrap_or((line, ""));
        before = format!("{before} {}", comment.trim()).trim().to_owned();
        let names = code.split('}').next().unwrap_or_default().split(',').map(str::trim);
        for variant in names.filter(|variant| !variant.is_empty()) {
            let short = variant.strip_prefix('k').filter(|short| !short.contains(' '));
            let short = short.ok_or_else(|| format!("enum {name}: names begin with k and have no value"))?;
            variants.push((short.to_owned(), std::mem::take(&mut before)));
        }
        if code.contains('}') {
            return Ok(Enum { name: name.to_owned(), docs, variants });
        }
        line = lines.next().ok_or_else(|| format!("enum {name} has no end"))?;
    }
}

fn parse_function(text: &str, docs: Vec<String>) -> Option<Value> {
    let (head, body) = text.split_once(") {")?;
    let (name, arguments) = head.strip_prefix("int ")?.split_once('(')?;
    let expression = body.trim().strip_prefix("return ")?.strip_suffix(';')?.to_owned();
    let arguments: Option<Vec<String>> =
        arguments.split(", ").map(|argument| argument.strip_prefix("int ").map(str::to_owned)).collect();
    Some(Value { name: name.to_owned(), docs, arguments: Some(arguments?), expression })
}

fn write_module(out: &mut String, module: &Module, all: &[Module]) {
    let mut body = String::new();
    for value in &module.values {
        let expression = Translator { module, all }.expression(&tokens(&value.expression));
        docs(&mut body, &value.docs);
        match &value.arguments {
            None => line(&mut body, &format!("pub const {}: usize = {expression};", constant(&value.name))),
            Some(arguments) => {
                let list: Vec<String> = arguments.iter().map(|a| format!("{a}: usize")).collect();
                let head = format!("pub const fn {}({}) -> usize", value.name, list.join(", "));
                line(&mut body, &format!("{head} {{ {expression} }}"));
            }
        }
    }
    for shared in &module.enums {
        docs(&mut body, &shared.docs);
        line(&mut body, "#[derive(Debug, Clone, Copy, PartialEq, Eq)]\n#[repr(i32)]");
        line(&mut body, &format!("pub enum {} {{", shared.name));
        for (name, doc) in &shared.variants {
            docs(&mut body, std::slice::from_ref(doc));
            line(&mut body, &format!("{name},"));
        }
        line(&mut body, "}");
    }
    for shared in &module.structs {
        write_struct(&mut body, shared, module, all);
    }
    line(out, &format!("pub mod {} {{\nuse super::imports::*;\n{body}}}", module.name));
}

fn write_struct(out: &mut String, shared: &Struct, module: &Module, all: &[Module]) {
    let Struct { name, align, fields, kernels, .. } = shared;
    docs(out, &shared.docs);
    let align = align.as_ref().map_or(String::new(), |bytes| format!(", align({bytes})"));
    line(out, &format!("#[derive(Debug, Clone, Copy)]\n#[repr(C{align})]\npub struct {name} {{"));
    for field in fields {
        let kind = match &field.kind {
            FieldKind::Pointer => "DevicePtr".to_owned(),
            FieldKind::Plain(kind) => (*kind).to_owned(),
            FieldKind::TensorMap => "TensorMap".to_owned(),
            FieldKind::Shared(other) => path(other, module, all, |m| {
                m.structs.iter().any(|s| s.name == *other) || m.enums.iter().any(|e| e.name == *other)
            }),
        };
        docs(out, std::slice::from_ref(&field.docs));
        line(out, &format!("pub {}: {kind},", field.name));
    }
    line(out, "}");
    if kernels.is_empty() {
        return;
    }
    let mut pointers = String::new();
    for name in pointer_fields(shared, all, "") {
        write!(
            pointers,
            "PointerField {{ name: c\"{name}\", offset: std::mem::offset_of!(Self, {name}) }}, "
        )
        .expect("strings take all");
    }
    line(out, "// SAFETY: the layout and the kernels' names come from the struct that the kernels take.");
    line(out, &format!("unsafe impl KernelParams for {name} {{"));
    line(out, &format!("const LAYOUT: &'static ParamsLayout = &ParamsLayout {{ name: c\"{name}\","));
    line(out, &format!("bytes: size_of::<Self>(), pointers: &[{pointers}] }};"));
    line(out, &format!("const KERNELS: &'static [&'static str] = &{kernels:?};\n}}"));
}

/// The names of all pointers in the struct, those of parts as `part.pointer`.
fn pointer_fields(shared: &Struct, all: &[Module], before: &str) -> Vec<String> {
    let mut names = Vec::new();
    for field in &shared.fields {
        let name = format!("{before}{}", field.name);
        match &field.kind {
            FieldKind::Pointer => names.push(name),
            FieldKind::Shared(other) => {
                let part = all.iter().flat_map(|m| &m.structs).find(|s| s.name == *other);
                names.extend(part.map_or(Vec::new(), |part| pointer_fields(part, all, &format!("{name}."))));
            }
            FieldKind::Plain(_) | FieldKind::TensorMap => {}
        }
    }
    names
}

/// Where `name` is declared: in this module, or else in the only other one that `has` it.
fn path(name: &str, module: &Module, all: &[Module], has: impl Fn(&Module) -> bool) -> String {
    if has(module) {
        return name.to_owned();
    }
    let found: Vec<&Module> = all.iter().filter(|m| has(m)).collect();
    match found[..] {
        [other] => format!("super::{}::{name}", other.name),
        _ => panic!("{}: {name} is exported by {} files", module.name, found.len()),
    }
}

/// Translates expressions of a module.
struct Translator<'a> {
    module: &'a Module,
    all: &'a [Module],
}

impl Translator<'_> {
    fn expression(&self, tokens: &[String]) -> String {
        let mut depth = 0;
        let mut pending = 0;
        let mut question = None;
        for (i, token) in tokens.iter().enumerate() {
            match token.as_str() {
                "(" => depth += 1,
                ")" => depth -= 1,
                "?" if depth == 0 && question.is_none() => question = Some(i),
                "?" if depth == 0 => pending += 1,
                ":" if depth == 0 && pending > 0 => pending -= 1,
                ":" if depth == 0 => {
                    let q = question.expect("a colon follows a question mark");
                    let [condition, yes, no] = [&tokens[..q], &tokens[q + 1..i], &tokens[i + 1..]];
                    let [condition, yes, no] = [condition, yes, no].map(|part| self.expression(part));
                    return format!("if {condition} {{ {yes} }} else {{ {no} }}");
                }
                _ => {}
            }
        }
        self.operators(tokens)
    }

    /// An expression without `? :` outside of parentheses.
    fn operators(&self, tokens: &[String]) -> String {
        let mut out = String::new();
        let mut i = 0;
        while i < tokens.len() {
            let token = &tokens[i];
            if token == "(" {
                let end = i + closing(&tokens[i..]);
                let arguments = tokens[i + 1..end].split(|token| token == ",");
                let arguments: Vec<String> = arguments.map(|part| self.expression(part)).collect();
                write!(out, "({})", arguments.join(", ")).expect("strings take all");
                i = end;
            } else {
                let is_call = tokens.get(i + 1).is_some_and(|next| next == "(");
                out += &self.token(token, is_call);
                out += if is_call { "" } else { " " };
            }
            i += 1;
        }
        out.trim().to_owned()
    }

    fn token(&self, token: &str, is_call: bool) -> String {
        let has = |m: &Module| m.values.iter().any(|value| value.name == token);
        let is_constant =
            token.starts_with('k') && token.chars().nth(1).is_some_and(|c| c.is_ascii_uppercase());
        if is_constant {
            let path = path(token, self.module, self.all, has);
            return path.replace(token, &constant(token));
        }
        let is_name = token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if is_call && is_name { path(token, self.module, self.all, has) } else { token.to_owned() }
    }
}

/// The place of the parenthesis that closes the first token.
fn closing(tokens: &[String]) -> usize {
    let mut depth = 0;
    let place = tokens.iter().position(|token| {
        depth += i32::from(token == "(") - i32::from(token == ")");
        depth == 0
    });
    place.expect("parentheses are closed")
}

fn tokens(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut adjacent = false;
    for c in text.chars() {
        if c.is_whitespace() {
            adjacent = false;
            continue;
        }
        let joins = |last: &String| {
            let last_is_word = last.chars().all(is_word);
            adjacent
                && (is_word(c) && last_is_word
                    || matches!((last.as_str(), c), ("<" | ">" | "=" | "!", '=') | ("&", '&') | ("|", '|')))
        };
        match all.last_mut().filter(|last| joins(last)) {
            Some(last) => last.push(c),
            None => all.push(c.to_string()),
        }
        adjacent = true;
    }
    all
}

/// `kMaxRanks` as `MAX_RANKS`.
fn constant(name: &str) -> String {
    let mut out = String::new();
    for (i, c) in name[1..].chars().enumerate() {
        if c.is_ascii_uppercase() && i > 0 {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

fn docs(out: &mut String, lines: &[String]) {
    for text in lines.iter().filter(|text| !text.is_empty()) {
        line(out, &format!("#[doc = {:?}]", format!(" {text}")));
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}
