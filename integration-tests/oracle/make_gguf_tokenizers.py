"""Writes the tokenizer of an XLM-RoBERTa as a GGUF file, and the ids that transformers gives.

    python3 make_gguf_tokenizers.py

`../golden-gguf/tokenizers/xlm_roberta.gguf` has the keys that the converter of llama.cpp writes for a
SentencePiece model of XLM-RoBERTa: a unigram model with the special tokens in fairseq's order, and
SentencePiece's table of characters. `xlm_roberta.json` beside it has texts and pairs of texts with
their ids, and the `tokenizer.json` of transformers. The table is made of a few rules, because the
usual one has 240 kB.
"""

import io
import json
import random
import tempfile
from pathlib import Path

import gguf
import sentencepiece
import transformers
from sentencepiece import sentencepiece_model_pb2 as proto

from make_tokenizers import corpus, texts

OUT = Path(__file__).resolve().parent.parent / "golden-gguf" / "tokenizers"
# What becomes of characters: compatibility forms, kinds of white space, a letter with a mark, and nothing.
RULES = {
    "ﬁ": "fi", "ﬀ": "ff", "㍿": "株式会社", "½": "1⁄2", "²": "2", "①": "1", "～": "~", "\u212b": "\u00c5", "e\u0301": "\u00e9", "u\u0308": "\u00fc",
    "\u00a0": " ", "\u3000": " ", "\u2003": " ", "\t": " ", "\n": " ", "\r": " ", "\u200b": " ", "\ufeff": "", "\u00ad": "",
    "ｶﾞ": "ガ", **{chr(code): chr(code - 0xFEE0) for code in range(0xFF10, 0xFF5B)},
}


def trained(folder):
    """A SentencePiece model with these rules."""
    rules, model = folder / "rules.tsv", io.BytesIO()
    points = lambda text: " ".join(f"{ord(char):X}" for char in text)
    rules.write_text("".join(f"{points(old)}\t{points(new)}\n" for old, new in RULES.items()))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus("xlm_roberta")), model_writer=model, model_type="unigram", vocab_size=340,
        hard_vocab_limit=False, character_coverage=0.98, num_threads=1, minloglevel=2, normalization_rule_tsv=str(rules),
    )
    message = proto.ModelProto()
    message.ParseFromString(model.getvalue())
    return message


def write(message):
    """The keys of the converter. The first three pieces of SentencePiece are in another order."""
    pieces = message.pieces[3:]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(piece.piece for piece in pieces), "<mask>"]
    kinds = [3, 3, 3, 2, *(piece.type for piece in pieces), 3]
    scores = [0.0] * 4 + [piece.score for piece in pieces] + [0.0]
    # Rows of the embedding that no token has.
    unused = range(3)
    writer = gguf.GGUFWriter(OUT / "xlm_roberta.gguf", "bert")
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens + [f"[PAD{len(tokens) + index}]" for index in unused])
    writer.add_token_scores(scores + [-10000.0 for _ in unused])
    writer.add_token_types(kinds + [5 for _ in unused])
    writer.add_add_space_prefix(message.normalizer_spec.add_dummy_prefix)
    writer.add_token_type_count(1)
    writer.add_remove_extra_whitespaces(message.normalizer_spec.remove_extra_whitespaces)
    writer.add_precompiled_charsmap(message.normalizer_spec.precompiled_charsmap)
    for name, token in (("bos", 0), ("eos", 2), ("unk", 3), ("sep", 2), ("pad", 1), ("mask", len(tokens) - 1)):
        getattr(writer, f"add_{name}_token_id")(token)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        message = trained(folder)
        (folder / "sentencepiece.bpe.model").write_bytes(message.SerializeToString())
        (folder / "config.json").write_text(json.dumps({"model_type": "xlm-roberta"}))
        tokenizer = transformers.XLMRobertaTokenizer.from_pretrained(folder)
        tokenizer.save_pretrained(folder / "saved")
        saved = json.loads((folder / "saved" / "tokenizer.json").read_text())
    write(message)
    source = random.Random(7)
    cases = texts("xlm_roberta") + ["<mask> a", "a <mask>b", "</s><s>", "e\u0301u\u0308x", "ガｶﾞ"]
    pairs = [source.sample(cases, 2) for _ in range(10)]
    content = {
        "texts": [{"text": text, "ids": tokenizer(text)["input_ids"]} for text in cases],
        "pairs": [{"texts": pair, "ids": tokenizer(*pair)["input_ids"]} for pair in pairs],
        "tokenizer": saved,
    }
    (OUT / "xlm_roberta.json").write_text(json.dumps(content, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
