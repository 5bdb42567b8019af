"""Renders the chat templates of `templates/` with transformers and writes
`../golden/templates.json`."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
BOS, EOS = "<s>", "</s>"


def message(role, content, **more):
    return {"role": role, "content": content, **more}


USER = message("user", "  What is 2 < 3 & 'ü' \"€😀\"?\n")
ANSWER = message("assistant", " True.\t")
SYSTEM = message("system", "Be brief.")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a café's <place>",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 0.5}},
            "required": ["place"],
        },
    },
}
OTHER = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "abcdef123", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Köln", "days": 2, "deep": [1.5, None, True]}}}
SECOND = {"id": "fedcba321", "type": "function", "function": {"name": "now", "arguments": {}}}
DOCUMENTS = [{"title": "One", "text": "First text."}, {"title": "Two", "text": "Second\ntext."}]

# The conversations. Each is rendered with and without a generation prompt.
CONVERSATIONS = {
    "one": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER, ANSWER, message("user", "And 3 < 2?")]},
    "ends_with_answer": {"messages": [USER, ANSWER]},
    "out_of_turn": {"messages": [ANSWER, USER, USER]},
    "tools": {"messages": [SYSTEM, USER], "tools": [TOOL, OTHER]},
    "called": {
        "messages": [
            USER,
            message("assistant", "", tool_calls=[CALL]),
            message("tool", "17 degrees", tool_call_id="abcdef123", name="get_weather"),
        ],
        "tools": [TOOL],
    },
    # In the form in which the routes assemble it from items and blocks: text and calls in one
    # message, and results that name their tool.
    "answered": {
        "messages": [
            SYSTEM,
            USER,
            message("assistant", "I look.", tool_calls=[CALL, SECOND]),
            message("tool", "17 degrees", tool_call_id="abcdef123", name="get_weather"),
            message("tool", "", tool_call_id="fedcba321", name="now"),
            message("user", "So?"),
        ],
        "tools": [TOOL, OTHER],
    },
    "documents": {"messages": [USER], "documents": DOCUMENTS},
    "thought": {"messages": [USER, message("assistant", "<think>\nHm.\n</think>\n\nYes."), message("user", "Sure?")]},
    "variables": {
        "messages": [USER],
        "documents": DOCUMENTS[:1],
        "tools": [OTHER],
        "more": {
            "enable_thinking": False,
            "tools_in_user_message": False,
            "citation_mode": "accurate",
            "controls": "short",
        },
    },
    "marks": {"messages": [USER, message("assistant", "no", hidden=True), message("user", "end\there", name="end"), ANSWER]},
}

# A fixed date, so that no result depends on the day.
FIXED = {"date_string": "26 Jul 2024"}


def render(tokenizer, template, conversation, add_generation_prompt):
    more = {**FIXED, **conversation.get("more", {})}
    try:
        return {
            "text": tokenizer.apply_chat_template(
                conversation["messages"],
                chat_template=template,
                tools=conversation.get("tools"),
                documents=conversation.get("documents"),
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **more,
            )
        }
    except Exception as error:  # The template's own errors, and operations that Python refuses.
        return {"error": str(error)}


def main():
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0})), bos_token=BOS, eos_token=EOS
    )
    written = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        template = path.read_text()
        cases = []
        for name, conversation in CONVERSATIONS.items():
            for prompt in (False, True):
                cases.append({"conversation": name, "add_generation_prompt": prompt, **render(tokenizer, template, conversation, prompt)})
        written.append({"name": path.stem, "template": template, "cases": cases})
    conversations = {name: {**c, "more": {**FIXED, **c.get("more", {})}} for name, c in CONVERSATIONS.items()}
    golden = {"bos_token": BOS, "eos_token": EOS, "conversations": conversations, "templates": written}
    target = HERE.parent / "golden" / "templates.json"
    target.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    texts = sum("text" in case for template in written for case in template["cases"])
    print(f"{len(written)} templates, {texts} texts, {sum(len(t['cases']) for t in written) - texts} refusals")


if __name__ == "__main__":
    main()
