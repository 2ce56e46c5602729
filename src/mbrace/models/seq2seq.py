"""Translation models of transformers: Marian with our own decoder, other architectures through their forward pass."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from mbrace.errors import UserError
from mbrace.models.beam_search import BeamOutputs
from mbrace.models.kv_cache import FIRST_ROOM
from mbrace.models.live import Limits, LiveModel, device_for
from mbrace.models.marian import MarianDecoder
from mbrace.models.marian_network import is_marian, read_network
from mbrace.models.tokenizers import Codec, MarianCodec, TokenizerCodec, Vocabulary, VocabularyCodec
from mbrace.models.transformers_decoders import Seq2SeqDecoder
from mbrace.neural import pretrained
from mbrace.neural.device import choose_dtype, first_line
from mbrace.neural.pretrained import from_pretrained

__all__ = ["BeamOutputs", "Seq2Seq"]


class Seq2Seq(LiveModel):
    """A translation model of transformers, by name or folder, or a model object with its tokenizer; by default the
    bundled translator (German to English).

    `source_language` and `target_language` are the tokenizer's codes (NLLB: deu_Latn; mBART: de_DE; M2M100: de) and
    `prefix` is put before every source (T5: "translate English to German: "). `dtype` is bfloat16 on a GPU and float32
    on a CPU unless given. `rows` is the most sequences decoded at a time. In float32 a draw is the same in any batch;
    in lower precision its random numbers are, but rounding may depend on the batch.
    """

    def __init__(
        self,
        model: Any = "bundled",
        *,
        tokenizer: Any = None,
        source_language: str | None = None,
        target_language: str | None = None,
        prefix: str = "",
        device: str | None = None,
        dtype: Any = None,
        rows: int | None = None,
    ) -> None:
        chosen_device = device_for(device, model)
        codec: Codec | None = None
        if isinstance(model, str) and model == "bundled":
            from mbrace.models.marian_network import load_bundled

            if source_language or target_language or prefix:
                raise UserError("the bundled translator is German to English: leave languages and prefix out")
            model, vocabulary = load_bundled()
            codec = VocabularyCodec(vocabulary)
        elif isinstance(model, str | Path):
            folder = find(str(model))
            if tokenizer is None and is_marian(folder):
                if (language := source_language or target_language) is not None:
                    raise UserError(f"{model}: a Marian model has no language codes; leave {language!r} out")
                model, codec = read_network(folder), MarianCodec.read(folder, prefix)
            else:
                model, tokenizer = load(folder, tokenizer, "AutoModelForSeq2SeqLM")
        forced = None
        if codec is None:
            if tokenizer is None:
                raise UserError("a model object needs its tokenizer: Seq2Seq(model, tokenizer=...)")
            forced = _languages(model, tokenizer, source_language, target_language)
            is_marians = hasattr(tokenizer, "spm_source") and hasattr(tokenizer, "separate_vocabs") and not prefix
            codec = MarianCodec.of(tokenizer) if is_marians else TokenizerCodec(tokenizer, prefix)
        self._setup(model.to(chosen_device).eval(), codec, dtype, rows, forced)

    @classmethod
    def of(cls, model: Any, vocabulary: Vocabulary, *, dtype: Any = None, rows: int | None = None) -> Seq2Seq:
        """A Marian network with our own vocabulary, on the device where it is."""
        self = cls.__new__(cls)
        self._setup(model, VocabularyCodec(vocabulary), dtype, rows, None)
        return self

    def _setup(self, model: Any, codec: Codec, dtype: Any, rows: int | None, forced: int | None) -> None:
        config = model.config
        self.device, self.codec = model.device, codec
        self.dtype = choose_dtype(dtype, self.device)
        self.pad, self.start = int(config.pad_token_id), int(config.decoder_start_token_id)
        self.ends = end_ids(model, config.eos_token_id)
        cuda = self.device.type == "cuda"
        positions = int(getattr(config, "max_position_embeddings", None) or 1024)  # T5 has no limit
        self.limits = Limits(positions, positions)
        with torch.inference_mode():
            if config.model_type == "marian" and forced is None:
                self.decoder = MarianDecoder(model, self.dtype)
                self.thread_safe = True
                self.rows = rows or (8192 if cuda else 512)
                if cuda and rows is None:
                    free = torch.cuda.mem_get_info(self.device)[0]
                    self.concurrent_beams = 2 if searches_fit(config, self.rows, free) else 1
            else:
                prefix = [self.start] if forced is None else [self.start, forced]
                self.decoder = Seq2SeqDecoder(model.to(self.dtype), prefix)
                self.rows = rows or (1024 if cuda else 256)


def searches_fit(config: Any, rows: int, free: int) -> bool:
    """Whether two beam searches of a Marian model with `rows` each, and draws with as many, fit at the same time into a
    GPU's `free` bytes: most memory of each holds the logits, and the keys and values (kv_cache.py)."""
    logits = (config.decoder_vocab_size or config.vocab_size) * 10
    past = config.decoder_layers * config.d_model * 4 * FIRST_ROOM
    return bool(rows * (logits + past) <= free * 3 // 10)


def end_ids(model: Any, default: Any) -> tuple[int, ...]:
    """The ids that end an output, from the model's generation settings."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    ids = default if ids is None else ids
    if ids is None:
        raise UserError(
            f"model type {model.config.model_type!r}: has no end of sequence id; set generation_config.eos_token_id"
        )
    return tuple(int(number) for number in (ids if isinstance(ids, list | tuple) else [ids]))


# What is fetched from the hub in addition to the files of an encoder.
FILES = ("generation_config.json", "*.spm", "target_vocab.json", "chat_template*", "*.tiktoken", "*.tiktoken.model")


def find(name: str) -> Path:
    """The folder of a model; from the hub, the one of its copy here."""
    try:
        return pretrained.find(name, more=FILES)
    except UserError as error:
        raise UserError(f"model {name!r} cannot be loaded: {error}") from error


def load(folder: Path, tokenizer: Any, kind: str) -> tuple[Any, Any]:
    """A model, by the transformers auto class `kind`, and its tokenizer."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*sacremoses.*")
            model = from_pretrained(kind, folder, extra="models")
            tokenizer = tokenizer or from_pretrained("AutoTokenizer", folder, extra="models")
    except UserError:
        raise
    except Exception as error:  # transformers raises many kinds for settings that do not fit
        raise UserError(
            f"model {str(folder)!r} cannot be loaded: {first_line(error)}; give a folder, or a name on the model hub"
        ) from error
    return model, tokenizer


def _languages(model: Any, tokenizer: Any, source: str | None, target: str | None) -> int | None:
    """Set the tokenizer's languages; returns the id that outputs must begin with for the target language, if any."""
    for attribute, language in (("src_lang", source), ("tgt_lang", target)):
        if language is not None:
            if not hasattr(tokenizer, attribute):
                raise UserError(f"{type(tokenizer).__name__} has no language codes; leave {language!r} out")
            _language_id(tokenizer, language)
            setattr(tokenizer, attribute, language)
    if target is not None:
        return _language_id(tokenizer, target)
    forced = getattr(model.generation_config, "forced_bos_token_id", None)
    return None if forced is None else int(forced)


def _language_id(tokenizer: Any, language: str) -> int:
    if hasattr(tokenizer, "get_lang_id"):  # M2M100: "de" is the token __de__
        known = tokenizer.lang_code_to_id
        if language not in known:
            raise UserError(f"language {language!r}: unknown; choose from {', '.join(sorted(known))}")
        return int(tokenizer.get_lang_id(language))
    number = tokenizer.convert_tokens_to_ids(language)
    if number is None or number == tokenizer.unk_token_id:
        raise UserError(f"language {language!r}: unknown to {type(tokenizer).__name__}; give a code such as deu_Latn")
    return int(number)
