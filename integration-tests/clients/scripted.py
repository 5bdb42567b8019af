#!/usr/bin/env python3
"""Writes a checkpoint that generates scripted text: `scripted.py OUT [RULES.json]`.

Clients that call tools need a model that chooses the right tool, which no model of a few megabytes
does. This one is a real Llama checkpoint: the server loads it, runs the prompt through it and
samples from its logits, as with any other model. Its weights make each token of an answer predict
the next one, and its chat template ends the prompt with the token that begins the right answer.

RULES.json is a list of `{"when": CONDITION, "say": TEXT}`. The first rule whose condition holds
determines the answer. Without a file the rules are `DEFAULT`, below. A condition is a Jinja
expression over these variables:

    last    role of the last message ("user", "tool", …)
    text    text of the last message of the user
    result  text of the last tool result, "" if there is none
    results number of tool results after the last message of the user
    tools   the tools of the request, a list that may be empty
    messages, and all other variables of templates

Tool calls have the format of Hermes and Qwen; see `call`.

The layer adds nothing to the hidden state, because its output matrices are zero. Therefore the
hidden state is the embedding of the last token, a random vector of signs. Row j of the output
matrix is the sum of the embeddings of all tokens that token j follows. Vectors of 256 random signs
are nearly orthogonal, so the right token is far ahead of all others, even at a temperature of 1.
"""

import array
import json
import random
import struct
import sys
from pathlib import Path

TOKENIZER = Path(__file__).resolve().parent / "../../models/demo/tokenizer.json"
HIDDEN = 256
HEAD = 16
INTERMEDIATE = 32
CONTEXT = 131072
END = "<|im_end|>"
# The logit of the right token is 64, far above the noise.
SCALE = 64 / HIDDEN


def call(name, arguments):
    """Returns a tool call in the model's format."""
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


DEFAULT = [
    {"when": "last == 'tool' and 'sunny' in result", "say": "The tool says that it will be sunny in Oslo."},
    {"when": "last == 'tool'", "say": "The tool did not say what the weather will be like."},
    {"when": "tools and 'weather' in text", "say": call("weather", {"city": "Oslo", "days": 3})},
    {"when": "true", "say": "Hello! This answer was written down before, and it has a few tokens."},
]

TEMPLATE = """\
{%- set seen = namespace(text='', result='', results=0, last='') -%}
{%- if tools %}<|im_start|>system
Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- set seen.last = message['role'] -%}
{%- if message['role'] == 'user' -%}
{%- set seen.text = message['content'] or '' -%}{%- set seen.results = 0 -%}
{%- elif message['role'] == 'tool' -%}
{%- set seen.result = message['content'] or '' -%}{%- set seen.results = seen.results + 1 -%}
{%- endif -%}
{%- if message['role'] in ['system', 'user', 'assistant', 'tool'] -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- set last = seen.last -%}{%- set text = seen.text -%}{%- set result = seen.result -%}{%- set results = seen.results -%}
{%- if add_generation_prompt %}<|im_start|>assistant
CHOICE{% endif -%}
"""


def pieces(texts, taken):
    """Cuts texts into tokens of a few characters. No token occurs twice, for each must have a single successor, and none
    is `taken`: an added token that the vocabulary has already would get the id that it has there."""
    seen, cut = set(taken), []
    for text in texts:
        whole = text
        tokens = []
        while text:
            length = min(8, len(text))
            while text[:length] in seen and length < len(text):
                length += 1
            if text[:length] in seen and not tokens:
                raise ValueError(f"{whole!r} is a part of another answer: say more")
            if text[:length] in seen:
                # If the whole rest is an earlier token, it becomes part of the token before it.
                seen.discard(tokens[-1])
                tokens[-1] += text
            else:
                tokens.append(text[:length])
            seen.add(tokens[-1])
            text = text[length:]
        cut.append(tokens)
    return cut


def tensor(rows):
    return array.array("f", [value for row in rows for value in row]).tobytes()


def write_tensors(path, tensors):
    """Writes float32 tensors, `{name: (shape, bytes)}`, as safetensors."""
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def weights(vocabulary, successors):
    """Returns the tensors of a model in which each token of `successors` is followed by its
    value."""
    rng = random.Random(1)
    embeddings = [[rng.choice((-1.0, 1.0)) for _ in range(HIDDEN)] for _ in range(vocabulary)]
    output = [[0.0] * HIDDEN for _ in range(vocabulary)]
    for token, successor in successors.items():
        for i, value in enumerate(embeddings[token]):
            output[successor][i] += SCALE * value
    zeros = lambda *shape: (list(shape), bytes(4 * shape[0] * (shape[1] if len(shape) > 1 else 1)))
    ones = ([HIDDEN], tensor([[1.0] * HIDDEN]))
    layer = "model.layers.0."
    return {
        "model.embed_tokens.weight": ([vocabulary, HIDDEN], tensor(embeddings)),
        layer + "input_layernorm.weight": ones,
        layer + "self_attn.q_proj.weight": zeros(HEAD, HIDDEN),
        layer + "self_attn.k_proj.weight": zeros(HEAD, HIDDEN),
        layer + "self_attn.v_proj.weight": zeros(HEAD, HIDDEN),
        layer + "self_attn.o_proj.weight": zeros(HIDDEN, HEAD),
        layer + "post_attention_layernorm.weight": ones,
        layer + "mlp.gate_proj.weight": zeros(INTERMEDIATE, HIDDEN),
        layer + "mlp.up_proj.weight": zeros(INTERMEDIATE, HIDDEN),
        layer + "mlp.down_proj.weight": zeros(HIDDEN, INTERMEDIATE),
        "model.norm.weight": ones,
        "lm_head.weight": ([vocabulary, HIDDEN], tensor(output)),
    }


def write(folder, rules):
    """Writes the checkpoint into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads(TOKENIZER.read_text())
    size = len(tokenizer["model"]["vocab"])
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}

    def add(content, special):
        nonlocal size
        ids[content] = size
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        tokenizer["added_tokens"].append({"id": size, "content": content, **flags, "special": special})
        size += 1
        return ids[content]

    # Rules may share an answer.
    answers = list(dict.fromkeys(rule["say"] for rule in rules))
    successors = {}
    for index, tokens in enumerate(pieces(answers, tokenizer["model"]["vocab"])):
        before = add(f"<|say_{index}|>", True)
        for token in tokens:
            successors[before] = add(token, False)
            before = successors[before]
        successors[before] = ids[END]

    write_tensors(folder / "model.safetensors", weights(size, successors))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    rule = lambda rule: f"if {rule['when']} -%}}<|say_{answers.index(rule['say'])}|>"
    choices = "{%- el".join(map(rule, rules))
    template = TEMPLATE.replace("CHOICE", "{%- " + choices + "{%- endif -%}")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "vocab_size": size,
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": HEAD, "rms_norm_eps": 1e-6, "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False, "hidden_act": "silu", "eos_token_id": ids[END],
    }
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    write(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()) if len(sys.argv) == 3 else DEFAULT)
