//! Paths in code: the ones that `use` declares, and those that stand in expressions and types.

/// A path that `use` brings into a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    /// The segments, such as `["super", "cache", "KvCache"]`.
    pub(super) path: Vec<String>,
    /// The name in this module; `None` for a glob.
    pub(super) name: Option<String>,
    /// Whether the import is visible outside this module.
    pub(super) is_public: bool,
}

/// Splits `code` into its imports and the rest.
pub(super) fn imports(code: &str) -> (Vec<Import>, String) {
    let (mut imports, mut rest) = (Vec::new(), String::with_capacity(code.len()));
    let mut left = code;
    while let Some(at) = next_use(left) {
        let before = &left[..at];
        let Some(length) = left[at..].find(';') else { break };
        rest.push_str(before);
        let is_public = visibility(before);
        tree(left[at + 4..at + length].trim(), &[], is_public, &mut imports);
        left = &left[at + length + 1..];
    }
    rest.push_str(left);
    (imports, rest)
}

/// Position of the next `use ` that begins a declaration.
fn next_use(code: &str) -> Option<usize> {
    code.match_indices("use ").map(|(at, _)| at).find(|&at| {
        let before = code[..at].trim_end();
        before.is_empty() || before.ends_with([';', '}', '{', ']', ')']) || before.ends_with("pub")
    })
}

/// Whether the declaration that follows `before` is marked `pub` in any form.
fn visibility(before: &str) -> bool {
    let before = before.trim_end();
    if before.ends_with("pub") {
        return true;
    }
    before.ends_with(')') && before.rfind('(').is_some_and(|open| before[..open].ends_with("pub"))
}

/// Collects the leaves of a tree of paths.
fn tree(text: &str, prefix: &[String], is_public: bool, imports: &mut Vec<Import>) {
    let text = text.trim();
    if text.is_empty() {
        return;
    }
    if let Some(open) = text.find('{') {
        let mut path = prefix.to_vec();
        path.extend(segments(&text[..open]));
        let inner = text[open + 1..].trim_end().trim_end_matches('}');
        split(inner).into_iter().for_each(|part| tree(part, &path, is_public, imports));
        return;
    }
    let (path_text, alias) = match text.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias.trim().to_owned())),
        None => (text, None),
    };
    let mut path = prefix.to_vec();
    path.extend(segments(path_text));
    if path.last().is_some_and(|last| last == "*") {
        path.pop();
        imports.push(Import { path, name: None, is_public });
        return;
    }
    // `use a::b::{self}` imports the module itself.
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let name = alias.or_else(|| path.last().cloned());
    imports.push(Import { path, name, is_public });
}

/// Splits at the commas outside braces.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn segments(text: &str) -> impl Iterator<Item = String> {
    text.split("::").map(str::trim).filter(|segment| !segment.is_empty()).map(str::to_owned)
}

/// The paths of two segments or more in code without imports.
pub(super) fn mentioned(code: &str) -> Vec<Vec<String>> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let bytes = code.as_bytes();
    let (mut paths, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        if !is_word(bytes[at]) {
            at += 1;
            continue;
        }
        let mut path = Vec::new();
        let begins = at == 0 || !code[..at].ends_with("::");
        loop {
            let start = at;
            while at < bytes.len() && is_word(bytes[at]) {
                at += 1;
            }
            path.push(code[start..at].to_owned());
            if code[at..].starts_with("::") && bytes.get(at + 2).copied().is_some_and(is_word) {
                at += 2;
            } else {
                break;
            }
        }
        if path.len() > 1 && begins {
            paths.push(path);
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::{imports, mentioned};

    #[test]
    fn trees_of_imports_are_taken_apart() {
        let (found, rest) = imports(
            "mod a;\nuse super::{b::{C, D as E}, f::*};\npub(crate) use self::g::H;\npub use i;\nfn j() { k::l() }",
        );
        let found: Vec<String> = found
            .iter()
            .map(|i| format!("{}={} {}", i.name.as_deref().unwrap_or("*"), i.path.join("::"), i.is_public))
            .collect();
        let wanted = [
            "C=super::b::C false",
            "E=super::b::D false",
            "*=super::f false",
            "H=self::g::H true",
            "i=i true",
        ];
        assert_eq!(found, wanted);
        assert_eq!(mentioned(&rest), [["k".to_owned(), "l".to_owned()]]);
    }
}
