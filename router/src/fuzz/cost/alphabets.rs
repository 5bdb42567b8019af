//! The parts of which inputs consist: one alphabet for each language. A `§` in a piece is replaced
//! by a different number each time.

/// The pieces of a language.
#[derive(Debug)]
pub(super) struct Alphabet {
    pub(super) pieces: &'static [&'static str],
    /// Opening and closing pieces that belong together.
    pub(super) pairs: &'static [(&'static str, &'static str)],
}

impl Alphabet {
    /// Returns the number of patterns that repeat a single piece or nest a single pair.
    pub(super) fn plain_patterns(&self) -> u64 {
        (self.pieces.len() + self.pairs.len()) as u64
    }
}

/// The position of the growing part in a larger text, and the alphabet of that part.
#[derive(Debug, Clone, Copy)]
pub(super) struct InputFrame {
    pub(super) before: &'static str,
    /// The text between two repetitions.
    pub(super) between: &'static str,
    pub(super) after: &'static str,
    pub(super) alphabet: &'static Alphabet,
}

/// Valid and invalid JSON.
pub(super) const JSON: Alphabet = Alphabet {
    pieces: &[
        "[",
        "]",
        "{",
        "}",
        "\"",
        ":",
        ",",
        "\\",
        "\\u0041",
        "\\ud800",
        "0",
        "-",
        "1e9",
        ".",
        "null",
        " ",
        "\n",
        "é",
        "\"a\":",
        "\"k§\":1,",
        "{\"a\":",
        "\"\",",
        "{},",
        "[1],",
        "\"aaaa",
    ],
    pairs: &[("[", "]"), ("{\"a\":", "}"), ("[{\"a\":", "}]")],
};

/// The content of a JSON string.
pub(super) const STRING: Alphabet = Alphabet {
    pieces: &[
        "a",
        " ",
        "\\n",
        "\\u00e9",
        "\\ud83d\\ude00",
        "😀",
        "0",
        "<",
        "{{",
        "{%",
        "</s>",
        "<s>",
        "\\\"",
        "\\\\",
        "\u{301}",
        "word ",
        "<tool_call>",
    ],
    pairs: &[],
};

/// Plain text for a tokenizer.
pub(super) const TEXT: Alphabet = Alphabet {
    pieces: &[
        "a",
        " ",
        "\n",
        "\r\n",
        "\t",
        "é",
        "😀",
        "0",
        "<s>",
        "</s>",
        "<",
        "'s",
        "word ",
        "A",
        "\u{301}",
        "\u{200d}",
        "、",
        "\0",
        "ab",
        "  a",
        "...",
        "\u{fffd}",
        "_",
        "aA1",
        "▁",
        "<|im_start|>",
        "\u{a0}",
    ],
    pairs: &[],
};

/// Regular expressions.
pub(super) const REGEX: Alphabet = Alphabet {
    pieces: &[
        "a", "(", ")", "[", "]", "{", "}", "{1}", "{2,3}", "a{2}", "{,", "|", "*", "+", "?", "a?", "a*", ".",
        ".*", "\\", "\\d", "\\w", "\\p{L}", "\\x{", "^", "$", "[^a]", "[a-z]", "(?:", "(?i)", "&&", "\n",
        "é", "word§|", "(a|b)", "-", ",",
    ],
    pairs: &[("(", ")"), ("(?:a", ")?"), ("(", ")*"), ("[", "]"), ("{", "}")],
};

/// Lark grammars.
pub(super) const LARK: Alphabet = Alphabet {
    pieces: &[
        "a§: \"x§\"\n",
        "A§: /x§/\n",
        "a",
        "A",
        "\"x\"",
        "/x/",
        " ",
        "|",
        "&",
        "~",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "{1}",
        "*",
        "+",
        "?",
        "\n",
        ":",
        "//",
        "\"",
        "/",
        "\\",
        "%json {}",
        "%ignore /x/\n",
        "@",
        "\"x\" | ",
        "\"x\" ",
        "r§: start\n",
        "/a/ & ",
    ],
    pairs: &[("(", ")"), ("[", "]"), ("(\"x\" ", ")?")],
};

/// Properties in a JSON schema of an object.
pub(super) const SCHEMA: Alphabet = Alphabet {
    pieces: &[
        "\"k§\":{}",
        "\"k§\":{\"type\":\"string\"}",
        "\"k§\":{\"enum\":[\"a\",\"b\"]}",
        "\"k§\":{\"pattern\":\"a{1,9}\"}",
        "\"k§\":{\"pattern\":\"{{{{{{{{\"}",
        "\"k§\":{\"$ref\":\"#\"}",
        "\"k§\":{\"anyOf\":[{},{}]}",
        "\"k§\":{\"allOf\":[{\"type\":\"string\"},{\"minLength\":1}]}",
        "\"k§\":{\"minimum\":1}",
        "\"same\":{}",
    ],
    pairs: &[],
};

/// Schemas with names and references in all forms.
pub(super) const REFERENCES: Alphabet = Alphabet {
    pieces: &[
        "\"k§\":{\"$ref\":\"#/%24defs/k§\"}",
        "\"k§\":{\"$ref\":\"#a§\"}",
        "\"k§\":{\"$ref\":\"b§\"}",
        "\"k§\":{\"$ref\":\"#/$defs/k~1§\"}",
        "\"k§\":{\"$anchor\":\"a§\"}",
        "\"k§\":{\"$id\":\"b§\"}",
        "\"k/§\":{\"items\":{\"$ref\":\"#\"}}",
    ],
    pairs: &[("\"k\":{\"items\":{\"$id\":\"b/\",\"$defs\":{", "}}}")],
};

/// Grammars in GBNF.
pub(super) const GBNF: Alphabet = Alphabet {
    pieces: &[
        "root ::= ",
        "a§ ::= ",
        "a§ ",
        "a ",
        "\"x\" ",
        "\"\\x41\" ",
        "[a-z] ",
        "[^\\n] ",
        ". ",
        "| ",
        "* ",
        "+ ",
        "? ",
        "{1,2} ",
        "{2,} ",
        "\n",
        "# comment\n",
        " ",
        "\"",
        "[",
        "(",
        ")",
        "\na§ ::= root a§\n",
        "::=",
    ],
    pairs: &[("(", ")"), ("(\"x\" ", ")*"), ("[", "]")],
};

/// Members of an enumeration in a JSON schema.
pub(super) const MEMBERS: Alphabet =
    Alphabet { pieces: &["\"v§\"", "\"a\"", "1", "§", "null", "[§]", "\"{\"", "\"\\u0000\""], pairs: &[] };

/// Schemas in a list.
pub(super) const SCHEMAS: Alphabet = Alphabet {
    pieces: &[
        "{\"const\":\"v§\"}",
        "{\"const\":§}",
        "{\"type\":\"object\"}",
        "{\"required\":[\"k§\"]}",
        "{\"pattern\":\"a§\"}",
        "{}",
        "{\"maxLength\":§}",
        "true",
        "{\"$ref\":\"#/$defs/a\"}",
    ],
    pairs: &[],
};

/// Chat templates.
pub(super) const TEMPLATE: Alphabet = Alphabet {
    pieces: &[
        "a",
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "{{ m }}",
        "{{ a ~ ",
        "{% if a %}",
        "{% for m in messages %}",
        "\n",
        " ",
        "{%- set x = 1 %}",
        "{{ 'a' }}",
        "'",
        "\"",
        "|trim",
        "a.b",
        "[0]",
        "{% raw %}",
        "{% generation %}",
        "é",
        "{{ messages|tojson }}",
    ],
    pairs: &[
        ("{% if a %}", "{% endif %}"),
        ("{% for m in messages %}", "{% endfor %}"),
        ("{{ (", ") }}"),
        ("(", ")"),
        ("{% generation %}", "{% endgeneration %}"),
    ],
};

/// Answers that call tools, in all formats.
pub(super) const CALLS: Alphabet = Alphabet {
    pieces: &[
        " ",
        "\n",
        "a",
        "é",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        ",",
        ":",
        ";",
        "<",
        "<tool_call>",
        "</tool_call>",
        "<tool_call",
        "</tool_call",
        "<function=",
        "<function=get>",
        "<parameter=",
        "<parameter=s>",
        "</parameter>",
        "</parameter",
        "</function>",
        "[TOOL_CALLS]",
        "[TOOL_CALLS",
        "[ARGS]",
        "[CALL_ID]",
        "get",
        "<|python_tag|>",
        "{\"name\":",
        "{\"name\": \"get\", \"arguments\": {\"s\": \"",
        "\"arguments\": ",
        "\"parameters\": ",
        "<tool_call>{\"name\": \"get\", \"arguments\": {}}</tool_call>",
        "<tool_call>\n<function=get>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>",
        "[TOOL_CALLS]get[ARGS]{}",
        "{\"name\": \"get\", \"parameters\": {}};",
        "\t\u{a0}",
    ],
    pairs: &[
        ("[", "]"),
        ("{\"a\":", "}"),
        ("<tool_call>", "</tool_call>"),
        ("<function=get>", "</function>"),
    ],
};

/// Answers that consist of messages with headers, in all formats.
pub(super) const CHANNELS: Alphabet = Alphabet {
    pieces: &[
        " ",
        "\n",
        "a",
        "é",
        "{",
        "}",
        "\"",
        "<",
        "<|",
        ">",
        "&quot;",
        "<|start|>",
        "assistant",
        "<|channel|>",
        "<|channel|>analysis",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        " to=functions.get",
        " to=self",
        " to=get<|message|>",
        "<|eom|>",
        "<atem:function_calls>",
        "<atem:invoke name=\"get\">",
        "<atem:parameter name=\"s\">",
        "</atem:parameter>",
        "</atem:invoke",
        "<|open|>",
        "<|close|>",
        "<|sep|>",
        "<|open|>think<|sep|>",
        "<|open|>tools<|sep|>",
        "<|open|>call tool=\"get\" index=\"1\"<|sep|>",
        "<|open|>argument key=\"s\" type=\"string\"<|sep|>",
        "<|open|>argument key=\"n\" type=\"number\"<|sep|>",
        "<|close|>argument<|sep|>",
        "<|open|>json type=\"object\"<|sep|>",
        ">>>",
        ">>>get\n",
        "all\n",
        "ge",
    ],
    pairs: &[
        ("{\"a\":", "}"),
        ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        (" to=get<|message|><atem:function_calls>", "</atem:function_calls><|eom|><|start|>assistant"),
    ],
};

/// Fewer pieces of answers that call tools, for slower targets.
pub(super) const ANSWER: Alphabet = Alphabet {
    pieces: &[
        "a",
        " ",
        "\n",
        "é",
        "<",
        "\"",
        "\\",
        "<tool_call>",
        "<tool_call",
        "{\"name\": \"get\", \"arguments\": {\"s\": \"",
        "<tool_call>{\"name\": \"get\", \"arguments\": {}}</tool_call>",
    ],
    pairs: &[("<tool_call>{\"name\": \"get\", \"arguments\": [", "]"), ("{\"a\":", "}")],
};

/// Header values.
pub(super) const HEADER: Alphabet = Alphabet {
    pieces: &["a", "Bearer ", "bearer", " ", "\t", ",", ";", "=", "-", "00", "\"", "~"],
    pairs: &[],
};

macro_rules! items {
    ($($(#[$about:meta])* $name:ident = $($piece:literal),+;)*) => {
        $($(#[$about])* pub(super) const $name: Alphabet = Alphabet { pieces: &[$($piece),+], pairs: &[] };)*
    };
}

items! {
    /// Messages of a conversation.
    MESSAGES = r##"{"role":"user","content":"a"}"##, r##"{"role":"assistant","content":"a b"}"##,
        r##"{"role":"assistant","content":null,"tool_calls":[{"id":"c§","type":"function","function":{"name":"f","arguments":"{}"}}]}"##,
        r##"{"role":"tool","content":"a","tool_call_id":"c§"}"##, r##"{"role":"user","content":[{"type":"text","text":"a"}]}"##,
        "1", "{}";
    /// Messages of Anthropic's API.
    TURNS = r##"{"role":"user","content":"a"}"##, r##"{"role":"assistant","content":"b"}"##,
        r##"{"role":"assistant","content":[{"type":"tool_use","id":"c§","name":"f","input":{}}]}"##,
        r##"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c§","content":"a"}]}"##,
        r##"{"role":"system","content":"a"}"##, r##"{"role":"assistant","content":[{"type":"thinking","thinking":"a"}]}"##,
        r##"{"role":"user","content":[{"type":"document","title":"a","source":{"type":"text","data":"b"}}]}"##, "{}";
    /// Items of the input of `/v1/responses`.
    ITEMS = r##"{"role":"user","content":"a"}"##, r##"{"type":"function_call","call_id":"c§","name":"f","arguments":"{}"}"##,
        r##"{"type":"function_call_output","call_id":"c§","output":"a"}"##,
        r##"{"role":"user","content":[{"type":"input_text","text":"a"}]}"##, "{}";
    /// Calls in one message of OpenAI's API.
    CHAT_CALLS = r##"{"id":"c§","type":"function","function":{"name":"f","arguments":"{}"}}"##,
        r##"{"id":"c§","type":"function","function":{"name":"f","arguments":""}}"##,
        r##"{"function":{"name":"f","arguments":{"a":[§]}}}"##, r##"{"custom":{"name":"f","input":"a"}}"##;
    /// Small messages that chat completions and Anthropic's API take.
    SMALL_MESSAGES = r##"{"role":"user","content":"a"}"##, r##"{"role":"assistant","content":"b"}"##,
        r##"{"role":"system","content":"a"}"##, r##"{"role":"assistant","content":""}"##;
    /// Calls, their reasoning and their outputs in the input of `/v1/responses`.
    CALL_ITEMS = r##"{"type":"function_call","call_id":"c§","name":"f","arguments":"{}"}"##,
        r##"{"type":"reasoning","summary":[{"type":"summary_text","text":"a"}]}"##,
        r##"{"type":"custom_tool_call","call_id":"c§","name":"f","input":"a"}"##, r##"{"role":"system","content":"a"}"##,
        r##"{"role":"user","content":"a"}"##, r##"{"role":"developer","content":"a"}"##;
    /// Blocks in a message of Anthropic's API.
    CALL_BLOCKS = r##"{"type":"tool_use","id":"c§","name":"f","input":{}}"##, r##"{"type":"thinking","thinking":"a"}"##,
        r##"{"type":"text","text":"a"}"##, r##"{"type":"tool_use","id":"c","name":"f","input":{"a":[§]}}"##;
    /// Parts of a message.
    PARTS = r##"{"type":"text","text":"a"}"##, r##"{"type":"text","text":""}"##, "{}";
    /// Tools of OpenAI's API.
    TOOLS = r##"{"type":"function","function":{"name":"f§","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}"##,
        r##"{"type":"function","function":{"name":"f§"}}"##, "{}";
    /// Tools of Anthropic's API and of `/v1/responses`.
    BARE_TOOLS = r##"{"name":"f§","input_schema":{"type":"object"}}"##, r##"{"type":"t§","name":"f§"}"##,
        r##"{"type":"function","name":"f§","parameters":{"type":"object"}}"##, "{}";
    /// Strings in a list.
    TEXTS = "\"s§\"", "\"a\"", "\"\"", "\"<s>\"";
    /// Numbers and strings in a list.
    VALUES = "1", "97", "\"a\"", "[1]", "70000", "1.5";
    /// Fields of an object.
    FIELDS = "\"x§\":1", "\"§\":1", "\"x\":1", "\"priority\":\"high\"", "\"x§\":[[[[]]]]";
    /// Tensors of KServe's protocol.
    TENSORS = r##"{"name":"i§","datatype":"BYTES","data":["a"]}"##, r##"{"name":"i","data":[97]}"##, "{}";
    /// Instances of Vertex AI.
    INSTANCES = r##"{"inputs":"a"}"##, r##"{"messages":[{"role":"user","content":"a"}]}"##, "{}";
}
