//! The parts into which patterns split texts with digits, capital letters and marks.

use millrace_formats::vocabulary::split_expressions;

fn parts(expression: &str, text: &str) -> Vec<String> {
    use tokenizers::{PreTokenizedString, PreTokenizer, SplitDelimiterBehavior, pre_tokenizers::split::*};
    let split =
        Split::new(SplitPattern::Regex(expression.into()), SplitDelimiterBehavior::Isolated, false).unwrap();
    let mut text = PreTokenizedString::from(text);
    split.pre_tokenize(&mut text).unwrap();
    let parts = text.get_splits(tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
    parts.iter().map(|(part, ..)| (*part).to_owned()).collect()
}

#[test]
fn patterns_differ_in_digits_capitals_and_han() {
    let parts = |name: &str, text: &str| match split_expressions(name) {
        Some([expression]) => parts(expression, text),
        other => panic!("{other:?}"),
    };
    assert_eq!(parts("gpt-2", "It's 12345"), ["It", "'s", " 12345"]);
    assert_eq!(parts("llama3", "It'S 12345"), ["It", "'S", " ", "123", "45"]);
    assert_eq!(parts("qwen2", "a 123\n\nb"), ["a", " ", "1", "2", "3", "\n\n", "b"]);
    let marked = "cafe\u{301}s 1";
    assert_eq!(parts("qwen2", marked), ["cafe", "\u{301}s", " ", "1"]);
    assert_eq!(parts("qwen35", marked), ["cafe\u{301}s", " ", "1"]);
    assert_eq!(parts("kimi-k2", "中文English混合 itsHere's"), ["中文", "English", "混合", " its", "Here's"]);
    assert_eq!(parts("tekken", "itsHere 12"), ["its", "Here", " ", "1", "2"]);
}
