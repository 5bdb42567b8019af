//! Wraps paragraphs of prose that have a line wider than the limit: paragraphs and list items of
//! Markdown pages, and the same in comments.

/// The widest line of a comment or of a page of docs, in columns.
pub(super) const WIDTH: usize = 100;

/// Marks that begin a line of a comment, the longest first.
const MARKS: [&str; 4] = ["///", "//!", "//", "*"];

/// Returns a page of Markdown with its wide paragraphs wrapped.
pub(super) fn page(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    joined(reflow(&lines, WIDTH), text)
}

/// Returns source code with the wide paragraphs of its comments wrapped. Comments behind code on
/// the same line stay as they are.
pub(super) fn code(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (mut out, mut at) = (Vec::new(), 0);
    let mut is_block_comment = false;
    while at < lines.len() {
        let trimmed = lines[at].trim_start();
        is_block_comment |= trimmed.starts_with("/*");
        let prefix = prefix(lines[at]).filter(|prefix| !prefix.ends_with('*') || is_block_comment);
        let Some(prefix) = prefix else {
            is_block_comment &= !trimmed.contains("*/");
            out.push(lines[at].to_owned());
            at += 1;
            continue;
        };
        let same = lines[at..].iter().take_while(|line| self::prefix(line) == Some(prefix)).count();
        let inner: Vec<&str> = lines[at..at + same].iter().map(|line| inner(line, prefix)).collect();
        let width = WIDTH.saturating_sub(prefix.chars().count() + 1);
        let with_prefix = |line: String| format!("{prefix} {line}").trim_end().to_owned();
        out.extend(reflow(&inner, width).into_iter().map(with_prefix));
        at += same;
    }
    joined(out, text)
}

/// Joins lines, with a line break at the end if the text before had one.
fn joined(lines: Vec<String>, before: &str) -> String {
    lines.join("\n") + if before.ends_with('\n') { "\n" } else { "" }
}

/// The indentation and the mark of a line that is a comment and nothing else.
fn prefix(line: &str) -> Option<&str> {
    let trimmed = line.trim_start();
    let mark = MARKS.iter().find(|mark| trimmed.starts_with(**mark))?;
    let prefix = &line[..line.len() - trimmed.len() + mark.len()];
    let rest = &line[prefix.len()..];
    (rest.is_empty() || rest.starts_with(' ')).then_some(prefix)
}

fn inner<'a>(line: &'a str, prefix: &str) -> &'a str {
    let rest = &line[prefix.len()..];
    rest.strip_prefix(' ').unwrap_or(rest)
}

/// Wraps the paragraphs that have a line wider than `width`. All other lines stay as they are.
fn reflow(lines: &[&str], width: usize) -> Vec<String> {
    let (mut out, mut at) = (Vec::new(), 0);
    let (mut fence, mut is_list, mut after_blank) = (None, false, true);
    while at < lines.len() {
        let line = lines[at];
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if let Some(mark) = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark)) {
            match fence {
                None => fence = Some(mark),
                Some(open) if open == mark => fence = None,
                Some(_) => {}
            }
        }
        let marker = marker(trimmed);
        let is_new_text = after_blank && indent == 0 && marker == 0 && !trimmed.is_empty();
        is_list = marker > 0 || is_list && !is_new_text;
        after_blank = trimmed.is_empty();
        let is_indented_code = indent >= 4 && !is_list;
        if fence.is_some() || is_indented_code || !is_text(trimmed) {
            out.push(line.to_owned());
            at += 1;
            continue;
        }
        let length = paragraph(&lines[at..], indent + marker);
        let lines = &lines[at..at + length];
        at += length;
        match lines.iter().any(|line| is_wide(line, width)) && !lines.iter().any(|line| is_aligned(line)) {
            true => out.extend(wrapped(lines, indent, marker, width)),
            false => out.extend(lines.iter().map(|line| (*line).to_owned())),
        }
    }
    out
}

/// The lines of the paragraph that begins at the first line, whose further lines are indented by
/// `indent`.
fn paragraph(lines: &[&str], indent: usize) -> usize {
    let is_break = |line: &str| line.ends_with("  ") || line.ends_with('\\');
    let continues = |pair: &[&str]| {
        let trimmed = pair[1].trim_start();
        !is_break(pair[0])
            && is_text(trimmed)
            && marker(trimmed) == 0
            && !["```", "~~~"].iter().any(|mark| trimmed.starts_with(mark))
            && pair[1].len() - trimmed.len() == indent
    };
    1 + lines.windows(2).take_while(|pair| continues(pair)).count()
}

/// Whether a line without its indentation is text that may be wrapped, and no heading, table, HTML
/// or definition of a link.
fn is_text(trimmed: &str) -> bool {
    let is_definition = trimmed.starts_with('[') && trimmed.contains("]: ");
    let is_rule = !trimmed.is_empty() && trimmed.chars().all(|c| "-=*_".contains(c));
    !(trimmed.is_empty() || trimmed.starts_with(['#', '|', '<', '>']) || is_definition || is_rule)
}

/// The width of the mark with which a list item begins, with its spaces; 0 if the line begins none.
fn marker(trimmed: &str) -> usize {
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let mark = match trimmed.as_bytes().get(digits) {
        Some(b'-' | b'*' | b'+') if digits == 0 => 1,
        Some(b'.' | b')') if (1..=9).contains(&digits) => digits + 1,
        _ => return 0,
    };
    let spaces = trimmed[mark..].bytes().take_while(|&b| b == b' ').count();
    if spaces == 0 { 0 } else { mark + spaces }
}

/// Whether the check of the language finds the line too wide.
fn is_wide(line: &str, width: usize) -> bool {
    line.chars().count() > width && !line.contains("://")
}

/// Whether a line has its words aligned by spaces, as drawings and columns have.
fn is_aligned(line: &str) -> bool {
    let text = line.trim();
    text[marker(text)..].contains("  ")
}

fn wrapped(lines: &[&str], indent: usize, marker: usize, width: usize) -> Vec<String> {
    let first = lines[0].trim_start();
    let text = std::iter::once(&first[marker..]).chain(lines[1..].iter().copied());
    let text: Vec<&str> = text.map(str::trim).collect();
    let mut line = format!("{}{}", " ".repeat(indent), &first[..marker]);
    let (mut out, mut is_empty) = (Vec::new(), true);
    for atom in atoms(&text.join(" ")) {
        if !is_empty && line.chars().count() + 1 + atom.chars().count() > width {
            out.push(std::mem::replace(&mut line, " ".repeat(indent + marker)));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(&atom);
        is_empty = false;
    }
    // A break that the paragraph ends with stays.
    let last = lines[lines.len() - 1];
    if last.ends_with("  ") {
        line.push_str("  ");
    }
    out.push(line);
    out
}

/// The parts of a text between which lines may break. Code, links and images stay whole, and no
/// line begins with a word that would begin a list, a heading, a quotation or a table there.
fn atoms(text: &str) -> Vec<String> {
    let mut atoms: Vec<String> = Vec::new();
    let mut is_open = false;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        match atoms.last_mut() {
            Some(last) if is_open || begins_block(word) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => atoms.push(word.to_owned()),
        }
        is_open = atoms.last().is_some_and(|atom| is_unfinished(atom));
    }
    // A mark that is never closed holds nothing together.
    match is_open {
        true => {
            let last = atoms.pop().unwrap_or_default();
            let words = last.split(' ').map(str::to_owned).collect::<Vec<_>>();
            for word in words {
                match atoms.last_mut() {
                    Some(before) if begins_block(&word) => *before = format!("{before} {word}"),
                    _ => atoms.push(word),
                }
            }
            atoms
        }
        false => atoms,
    }
}

fn begins_block(word: &str) -> bool {
    let is_list = marker(&format!("{word} ")) > 0;
    is_list || !is_text(word) || word.starts_with("```") || word.starts_with("~~~")
}

/// Whether a code span, or a link, is open at the end of the text.
fn is_unfinished(text: &str) -> bool {
    let (mut code, mut brackets, mut before) = (false, 0_i32, ' ');
    let mut target = 0_i32;
    for character in text.chars() {
        match character {
            '`' => code = !code,
            _ if code => {}
            '(' if target > 0 || before == ']' => target += 1,
            ')' if target > 0 => target -= 1,
            '[' => brackets += 1,
            ']' => brackets = (brackets - 1).max(0),
            _ => {}
        }
        before = character;
    }
    code || brackets > 0 || target > 0
}

#[cfg(test)]
mod tests {
    use super::{code, page};

    /// Wraps, and checks that wrapping again changes nothing.
    fn wrap(how: fn(&str) -> String, text: &str) -> String {
        let once = how(text);
        assert_eq!(how(&once), once, "wrapping is not idempotent");
        once
    }

    fn words(count: usize) -> String {
        vec!["word"; count].join(" ")
    }

    #[test]
    fn paragraphs_and_items_of_pages_are_wrapped() {
        let wide = words(21);
        let text = format!("# {wide}\n\n{wide}\nend\n\n- a\n- {wide}\n  end\n\n  1. {wide}\n");
        let (twenty, item, nested) = (words(20), words(19), words(18));
        let wanted = format!(
            "# {wide}\n\n{twenty}\nword end\n\n- a\n- {item}\n  word word end\n\n  1. {nested} word\n     word word\n"
        );
        assert_eq!(wrap(page, &text), wanted);
    }

    #[test]
    fn code_tables_links_drawings_and_narrow_text_stay() {
        let wide = words(21);
        let text = format!(
            "a\nb\n\n| {wide} |\n\n```sh\n{wide}\n```\n\n    {wide}\n\n[{wide}]: there.md\n\n\
             <p>{wide}</p>\n\nsee https://{wide}\n\none   column {wide}\n"
        );
        assert_eq!(wrap(page, &text), text);
    }

    #[test]
    fn code_spans_and_links_are_not_broken_and_lines_begin_no_block() {
        let text =
            format!("{} `a b` c\n\n{} [d e](f.md) g\n\n{} - 1. # g\n", words(19), words(19), words(20));
        let wanted = format!(
            "{} `a b`\nc\n\n{}\n[d e](f.md) g\n\n{}\nword - 1. # g\n",
            words(19),
            words(19),
            words(19)
        );
        assert_eq!(wrap(page, &text), wanted);
        // An apostrophe of code that is never closed does not keep the rest together.
        assert!(wrap(page, &format!("`{}\n", words(40))).lines().all(|line| line.len() <= 100));
    }

    #[test]
    fn comments_keep_their_marks_and_indentation() {
        let wide = words(21);
        let text = format!(
            "    /// {wide}\n    ///\n    /// - {wide}\n    fn f() {{\n        // a\n        // b\n        \
             let x = 1; // {wide}\n    }}\n/**\n * {wide}\n */\n"
        );
        let wanted = format!(
            "    /// {}\n    /// word word word\n    ///\n    /// - {}\n    ///   word word word\n    fn f() {{\n        \
             // a\n        // b\n        let x = 1; // {wide}\n    }}\n/**\n * {}\n * word word\n */\n",
            words(18),
            words(18),
            words(19)
        );
        assert_eq!(wrap(code, &text), wanted);
    }

    #[test]
    fn code_in_doc_comments_and_products_are_no_prose() {
        let wide = words(21);
        let text = format!("/// ```\n/// {wide}\n/// ```\nlet x = a\n    * f({wide});\n");
        assert_eq!(wrap(code, &text), text);
    }
}
