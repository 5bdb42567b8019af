"""Trains tiny tokenizers with SentencePiece and with a byte-level trainer, encodes texts with SentencePiece and tiktoken,
and writes the files and the results to `../golden/tokenizers`."""

import base64
import io
import json
import random
import shutil
import struct
from pathlib import Path

import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2 as proto

OUT = Path(__file__).parent.parent / "golden" / "tokenizers"
TEXTS = 110

# ---- Texts -------------------------------------------------------------------------------------

WORDS = (
    "the a of and to in is that it was for on are as with his they at be this have from or one had by word but not "
    "what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could "
    "Berlin Paris café naïve Straße œuvre 中文 你好 世界 模型 日本語 한국어 привет мир שלום 12 345 2023 3.14 x=y+1; "
    "don't I'll we've foo_bar() <n> [x] abc ... --- !!! ?? ﬁne ＡＢＣ １２３ ㍿ Å é 😀 👩‍👩‍👧 🇩🇪"
).split()
# Characters that normalization, white space handling and byte fallback treat in different ways.
ODD = list("aeiouAZ019.,;:!?'\"-_/\\()[]{}<>|~^`@#$%&*+= \t\n\r\u00a0\u3000\u2003\u200b\u0301\u0308éüßñçÅøµﬁﬀＡｂ１～。、「」中文字日本語한국가나жщдшל😀👍🇩🇫\u2581\ufeff\u00ad½²ﷺ㍿①ｶﾞ")


def sentence(source):
    words = [source.choice(WORDS) for _ in range(source.randint(1, 12))]
    return "".join(word + source.choice([" "] * 8 + ["  ", "\n", ", ", ". ", "\t", ""]) for word in words)


def noise(source):
    return "".join(source.choice(ODD) for _ in range(source.randint(1, 30)))


def any_char(source):
    while True:
        code = source.choice([source.randrange(0x20, 0x300), source.randrange(0x20, 0x3000), source.randrange(0x20, 0x1F700)])
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def texts(name):
    source = random.Random(name)
    fixed = ["", " ", "   ", "a", " a", "a ", "\n", "\n\n a  b\t", "<n>", "<n>a", " <n> ", "abcabc ab", "aaaaaaaaaaaaa", "  x    y ", "▁", "▁▁a"]
    made = list(fixed)
    while len(made) < TEXTS:
        made.append([sentence, noise, lambda s: "".join(any_char(s) for _ in range(s.randint(1, 12)))][len(made) % 3](source))
    return made


def corpus(name):
    source = random.Random("corpus " + name)
    return [sentence(source) for _ in range(1500)]


# ---- SentencePiece -----------------------------------------------------------------------------

def train(name, **options):
    model = io.BytesIO()
    defaults = dict(vocab_size=340, hard_vocab_limit=False, character_coverage=0.98, num_threads=1, minloglevel=2)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus(name)), model_writer=model, **{**defaults, **options})
    message = proto.ModelProto()
    message.ParseFromString(model.getvalue())
    # The options of the training are not needed, and name paths.
    for field in ["input", "model_prefix", "accept_language"]:
        message.trainer_spec.ClearField(field)
    return message


def sentencepiece_model(message):
    return sentencepiece.SentencePieceProcessor(model_proto=message.SerializeToString())


SYMBOLS = ["<n>", "abc", "▁▁", "[x]", "中文"]
EXACT = dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
PIECES = {
    "bpe_bytes_symbols": dict(model_type="bpe", byte_fallback=True, vocab_size=600, user_defined_symbols=SYMBOLS, control_symbols=["<ctl>"], split_digits=True, **EXACT),
    "bpe_nmt": dict(model_type="bpe"),
    "bpe_no_prefix": dict(model_type="bpe", byte_fallback=True, vocab_size=600, add_dummy_prefix=False, **EXACT),
    "unigram_trimmed": dict(model_type="unigram", normalization_rule_name="identity"),
    "unigram_casefold": dict(model_type="unigram", normalization_rule_name="nfkc_cf", user_defined_symbols=["Paris", "<n>"]),
    "unigram_bytes_symbols": dict(model_type="unigram", byte_fallback=True, vocab_size=600, user_defined_symbols=SYMBOLS, add_dummy_prefix=False, **EXACT),
    "unigram_digits": dict(model_type="unigram", split_digits=True, **EXACT),
}


def write(folder, files, cases):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with open(folder / "cases.json", "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases) + "\n]\n")


def pieces():
    for name, options in PIECES.items():
        message = train(name, **options)
        yield name, message
    # A model with pieces that its owner took out of use.
    message = train("bpe_unused", model_type="bpe", byte_fallback=True, vocab_size=600, **EXACT)
    normal = [piece for piece in message.pieces if piece.type == proto.ModelProto.SentencePiece.NORMAL and len(piece.piece) > 1]
    for piece in random.Random(5).sample(normal, len(normal) // 4):
        piece.type = proto.ModelProto.SentencePiece.UNUSED
    yield "bpe_unused", message
    message = train("unigram_unused", model_type="unigram", **EXACT)
    normal = [piece for piece in message.pieces if piece.type == proto.ModelProto.SentencePiece.NORMAL and len(piece.piece) > 1]
    for piece in random.Random(5).sample(normal, len(normal) // 4):
        piece.type = proto.ModelProto.SentencePiece.UNUSED
    yield "unigram_unused", message


def piece_cases(name, model):
    for text in texts(name):
        ids = model.encode(text)
        known = model.unk_id() not in ids
        yield {"text": text, "ids": ids, "decoded": model.decode(ids) if known else None}


def llama2c(message):
    """Writes a model as llama2.c's tokenizer.py does."""
    texts = []
    for index, piece in enumerate(message.pieces):
        text = {1: "\n<s>\n", 2: "\n</s>\n"}.get(index, piece.piece).replace("▁", " ").encode()
        texts.append((piece.score, text))
    out = struct.pack("<I", max(len(text) for _, text in texts))
    return out + b"".join(struct.pack("<fI", score, len(text)) + text for score, text in texts)


# ---- Byte strings ------------------------------------------------------------------------------

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"|\p{N}| ", r"|\p{N}{1,3}| ")
TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])


def ranks(name, merges=350):
    """Merges the most frequent pair of each step within the words of a corpus."""
    words = [[bytes([byte]) for byte in word.encode()] for line in corpus(name)[:300] for word in (" " + line).replace("\n", " ").split(" ")]
    words += [[b" "] + word for word in words]
    known = {bytes([byte]): byte for byte in range(256)}
    for _ in range(merges):
        counts = {}
        for word in words:
            for pair in zip(word, word[1:]):
                counts[pair] = counts.get(pair, 0) + 1
        counts = {pair: count for pair, count in counts.items() if pair[0] + pair[1] not in known}
        left, right = max(counts, key=lambda pair: (counts[pair], pair))
        known[left + right] = len(known)
        for word in words:
            at = 0
            while at + 1 < len(word):
                if word[at] == left and word[at + 1] == right:
                    word[at : at + 2] = [left + right]
                at += 1
    return known


def rank_file(known):
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in known.items())


def rank_cases(name, known, pattern, offset=0, change=lambda text: text):
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=known, special_tokens={})
    for text in texts(name):
        ids = encoding.encode(change(text), disallowed_special=())
        yield {"text": text, "ids": [id + offset for id in ids], "decoded": encoding.decode(ids)}


def as_json(value):
    return json.dumps(value, indent=1).encode()


def nfc(text):
    import unicodedata

    return unicodedata.normalize("NFC", text)


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for name, message in pieces():
        files = {"tokenizer.model": message.SerializeToString(), "config.json": as_json({"model_type": "llama"})}
        write(OUT / name, files, piece_cases(name, sentencepiece_model(message)))
    message = train("llama2c", model_type="bpe", byte_fallback=True, vocab_size=600, **EXACT)
    files = {"tokenizer.bin": llama2c(message), "config.json": as_json({"model_type": "llama"})}
    write(OUT / "llama2c", files, piece_cases("llama2c", sentencepiece_model(message)))
    for name, file, model_type, pattern, change in [
        ("qwen", "qwen.tiktoken", "qwen", QWEN, nfc),
        ("glm4", "tokenizer.model", "chatglm", LLAMA3, str),
        ("llama3", "tokenizer.model", "llama", LLAMA3, str),
        ("kimi", "tiktoken.model", "kimi_k2", KIMI, str),
    ]:
        known = ranks(name)
        files = {file: rank_file(known), "config.json": as_json({"model_type": model_type})}
        write(OUT / name, files, rank_cases(name, known, pattern, change=change))
    known, specials = ranks("tekken"), 20
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for token, rank in known.items()]
    # The last tokens of the file are beyond the size of the vocabulary.
    config = {"pattern": TEKKEN, "num_vocab_tokens": len(vocab), "default_vocab_size": len(vocab) - 50 + specials, "default_num_special_tokens": specials, "version": "v3"}
    used = {token: rank for token, rank in known.items() if rank < len(vocab) - 50}
    files = {"tekken.json": as_json({"config": config, "vocab": vocab}), "config.json": as_json({"model_type": "mistral"})}
    write(OUT / "tekken", files, rank_cases("tekken", used, TEKKEN, offset=specials))


if __name__ == "__main__":
    main()
