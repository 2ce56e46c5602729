"""`mbr_generate`: the `generate` of a transformers model, with MBR as the decoding method; ids in, ids out.

transformers' own `generate` makes the hypotheses (by beam search) and the pseudo-references (by sampling, while a race
is open), so that any model, processor or stopping rule that works there works here. `custom_generate/` of the
repository hands this function to `model.generate(..., custom_generate=FOLDER)`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mbrace.api import decode_corpus, utility_of
from mbrace.errors import UserError, check_number, check_whole, require
from mbrace.prune import Confidence, PruningFunction
from mbrace.records import Record
from mbrace.result import Decoded
from mbrace.sampler import Draws, Want, doubling
from mbrace.utility import PairFunction, Utility


@torch.no_grad()
def mbr_generate(
    model: Any,
    inputs: Tensor | None = None,
    generation_config: Any = None,
    *,
    tokenizer: Any = None,
    num_references: int = 256,
    utility: Utility | PairFunction | str = "chrf++",
    prune: PruningFunction | None = Confidence(),  # noqa: B008  (frozen)
    forecast: float = 0.0,
    sources: Sequence[str] | None = None,
    race_seed: int = 0,
    rows: int | None = None,
    **kwargs: Any,
) -> Any:
    """The ids of the hypothesis with the highest expected utility, as `model.generate` returns them.

    `inputs` and the other arguments are those of `generate`. `num_beams` (64) hypotheses are made by beam search, and
    race against up to `num_references` samples; with `num_beams=1`, or with `do_sample=True`, the samples are the
    hypotheses too. Samples are drawn by epsilon sampling (0.02), or as `top_k`, `top_p`, `min_p`, `epsilon_cutoff` and
    `temperature` say; what the model's own generation config says about them is left out. `num_return_sequences` asks
    for the best few, and `return_dict_in_generate` for a dictionary that also has `expected_utilities` and
    `utility_calls`.

    `tokenizer` turns ids into the texts that a utility compares. `utility`, an object, a function or a name,
    `prune` and `forecast` are those of `mbrace.decode`. A utility that reads the source gets `sources`, by default the
    decoded inputs. Samples depend on torch's random state, the race's bootstrap on `race_seed`. `rows` is how many
    sequences are generated at a time. As a decoding method of `generate`, give `custom_generate=partial(mbr_generate,
    tokenizer=...)`: transformers passes no tokenizer on.
    """
    call = GenerateCall.of(model, inputs, generation_config, tokenizer, rows, kwargs)
    check_whole("num_references", num_references, least=1)
    chosen = utility_of(utility)
    batch = call.batch
    texts = call.texts_of_inputs() if sources is None else list(sources)
    if len(texts) != batch:
        raise UserError(f"sources: {len(texts)} for {batch} inputs; give one for each")
    options: dict[str, Any] = {"utility": chosen, "prune": prune, "seed": race_seed, "nbest": call.returned}
    options |= {"schedule": doubling(min(16, num_references), num_references), "window": batch, "forecast": forecast}
    if call.beams > 1:
        found = call.beam_search()
        records = [Record(each.texts, id=i, source=texts[i]) for i, each in enumerate(found)]
        answers = list(decode_corpus(records, sampler=_Samples(call), **options))
    else:
        found = call.sample(range(batch), num_references)
        records = [Record(each.texts, id=i, source=texts[i]) for i, each in enumerate(found)]
        answers = list(decode_corpus(records, **options))
    return call.output(found, answers)


class _Samples:
    """Pseudo-references of a call, drawn for the inputs whose races are open: a sampler and its own drawer."""

    def __init__(self, call: GenerateCall) -> None:
        self._call = call
        self._numbers: list[int] = []

    def start(self, records: Sequence[Record]) -> _Samples:
        self._numbers = [int(record.id) for record in records]
        return self

    def draw(self, wants: Sequence[Want]) -> list[Draws]:
        drawn: list[Draws | None] = [None] * len(wants)
        for count in sorted({want.count for want in wants}):
            mine = [index for index, want in enumerate(wants) if want.count == count]
            found = self._call.sample([self._numbers[wants[index].sentence] for index in mine], count)
            for index, outputs in zip(mine, found, strict=True):
                drawn[index] = Draws(outputs.texts)
        return [draws for draws in drawn if draws is not None]


Inputs: TypeAlias = dict[str, Any]
TRUNCATION = ("top_k", "top_p", "min_p", "typical_p", "eta_cutoff", "epsilon_cutoff", "top_h")
NOT_SUPPORTED = (
    "streamer",
    "assistant_model",
    "negative_prompt_ids",
    "negative_prompt_attention_mask",
    "inputs_embeds",
)
# Values that older versions of transformers fill in: they count as not given.
DEFAULTS = {"top_k": 50, "top_p": 1.0, "typical_p": 1.0, "eta_cutoff": 0.0, "epsilon_cutoff": 0.0, "temperature": 1.0}
DEFAULTS |= {"num_beams": 1, "num_return_sequences": 1, "do_sample": False}
# Arguments that `generate` prepares for a decoding method, and again for each of our calls.
PREPARED = ("past_key_values", "cache_position", "position_ids", "logits_to_keep", "use_cache")
ROWS = {"cuda": 1024}  # sequences generated at a time; 256 elsewhere


@dataclass(frozen=True)
class Outputs:
    """Outputs of one input: whole sequences as `generate` returns them, and their texts."""

    sequences: list[Tensor]
    texts: list[str]


@dataclass(frozen=True)
class GenerateCall:
    """One call of `generate`, parsed: what goes into each of our own calls, and what the caller wants back."""

    model: Any
    tokenizer: Any
    tensors: Inputs  # one row per input
    others: Inputs
    config: Any
    sampling: Inputs
    beams: int
    returned: int
    as_dict: bool
    rows: int

    @classmethod
    def of(
        cls, model: Any, inputs: Tensor | None, config: Any, tokenizer: Any, rows: int | None, kwargs: Inputs
    ) -> GenerateCall:
        """The call's arguments, parsed; an error says what is not supported."""
        if tokenizer is None:
            raise UserError("tokenizer: missing; utilities compare texts, so give the model's: tokenizer=...")
        for name in NOT_SUPPORTED:
            if kwargs.get(name) is not None:
                raise UserError(f"{name}: not supported with MBR; leave it out")
        kwargs = {name: value for name, value in kwargs.items() if value is not None and name not in NOT_SUPPORTED}
        if "past_key_values" in kwargs:
            inputs, config, kwargs = _as_given(model, inputs, config, kwargs)
        if inputs is not None:
            kwargs["inputs"] = inputs
        asked = {name: _take(name, config, kwargs) for name in ("num_beams", "num_return_sequences", "do_sample")}
        returned = 1 if asked["num_return_sequences"] is None else asked["num_return_sequences"]
        beams = 64 if asked["num_beams"] is None else asked["num_beams"]
        for name, value in (("num_beams", beams), ("num_return_sequences", returned)):
            check_whole(name, value, least=1)
        sampling = {name: _take(name, config, kwargs) for name in (*TRUNCATION, "temperature")}
        sampling = {name: value for name, value in sampling.items() if value is not None}
        if not any(name in sampling for name in TRUNCATION):
            sampling["epsilon_cutoff"] = 0.02
        if (epsilon := sampling.get("epsilon_cutoff")) is not None:
            check_number("epsilon_cutoff", epsilon, least=0.0, most=1.0)
        sampling = {"top_k": 0, "top_p": 1.0, "temperature": 1.0, **sampling}  # not what the model's own config says
        as_dict = bool(_take("return_dict_in_generate", config, kwargs))
        tensors = {name: value for name, value in kwargs.items() if _is_per_input(name, value)}
        if not tensors:
            raise UserError("inputs: missing; give input_ids and attention_mask, as the tokenizer returns them")
        others = {name: value for name, value in kwargs.items() if name not in tensors}
        most = ROWS.get(model.device.type, 256) if rows is None else rows
        check_whole("rows", most, least=1)
        beams = 1 if asked["do_sample"] else beams
        return cls(model, tokenizer, tensors, others, config, sampling, beams, returned, as_dict, most)

    @property
    def batch(self) -> int:
        """The number of inputs."""
        value = next(iter(self.tensors.values()))
        return len(value if isinstance(value, Tensor) else value[0])  # of the encoder's outputs, the hidden states

    def texts_of_inputs(self) -> list[str]:
        """The inputs as text; blank where they are no ids."""
        for name in ("inputs", "input_ids"):
            ids = self.tensors.get(name)
            if isinstance(ids, Tensor) and not ids.is_floating_point() and ids.ndim == 2:
                return self._decode(list(ids))
        return [""] * self.batch

    def beam_search(self) -> list[Outputs]:
        """`beams` hypotheses of each input."""
        search = {"num_beams": self.beams, "num_return_sequences": self.beams, "do_sample": False}
        return self._generate(range(self.batch), self.beams, search)

    def sample(self, numbers: Sequence[int], count: int) -> list[Outputs]:
        """`count` samples of each of these inputs."""
        search = {"num_beams": 1, "num_return_sequences": count, "do_sample": True, **self.sampling}
        return self._generate(numbers, count, search)

    def _generate(self, numbers: Sequence[int], count: int, search: Inputs) -> list[Outputs]:
        found: list[Outputs] = []
        size = max(1, self.rows // count)
        for first in range(0, len(numbers), size):
            part = torch.tensor(list(numbers[first : first + size]), dtype=torch.long)
            tensors = {name: _rows(value, part) for name, value in self.tensors.items()}
            config = copy.deepcopy(self.model.generation_config if self.config is None else self.config)
            for name in (*TRUNCATION, "temperature"):  # beam search would warn of them
                if hasattr(config, name):
                    setattr(config, name, None)
            unused = config.update(**{**self.others, **search})
            # that of the class: a model whose folder has a custom_generate has another one
            sequences = type(self.model).generate(self.model, generation_config=config, **tensors, **unused)
            for rows in sequences.split(count):
                found.append(Outputs(list(rows), self._decode([row[self._given_ids() :] for row in rows])))
        return found

    def _given_ids(self) -> int:
        """How many ids of a sequence were given: those of the prompt, or what a decoder starts with."""
        names = ("decoder_input_ids",) if self.model.config.is_encoder_decoder else ("inputs", "input_ids")
        return next((int(self.tensors[name].shape[1]) for name in names if name in self.tensors), 1)

    def _decode(self, rows: Sequence[Tensor]) -> list[str]:
        texts = self.tokenizer.batch_decode([row.tolist() for row in rows], skip_special_tokens=True)
        return [text.strip() for text in texts]

    def output(self, found: Sequence[Outputs], answers: Sequence[Decoded]) -> Any:
        """The chosen sequences, padded to the longest: (inputs x returned, ids)."""
        chosen: list[Tensor] = []
        utilities: list[float] = []
        for outputs, answer in zip(found, answers, strict=True):
            best = [*answer.nbest, *[answer.nbest[-1]] * (self.returned - len(answer.nbest))]
            for candidate in best:
                assert candidate.index is not None  # no hypothesis joined the race later
                chosen.append(outputs.sequences[candidate.index])
                utilities.append(float("nan") if candidate.utility is None else candidate.utility)
        settings = (self.others, self.config, self.model.generation_config, self.model.config)
        ends, pads = (_ids(settings, name) for name in ("eos_token_id", "pad_token_id"))
        pad = [*pads, *ends, 0][0]  # as `generate` fills short outputs
        sequences = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=pad)
        padding = (sequences.flip(1) == pad).cumprod(1).sum(1)  # at the end of each; its first id may be the end itself
        sequences = sequences[:, : sequences.shape[1] - int(padding.min()) + (pad in ends)]
        if not self.as_dict:
            return sequences
        calls = torch.tensor([answer.utility_calls for answer in answers])
        made = require("transformers.utils", extra="models").ModelOutput
        return made(sequences=sequences, expected_utilities=torch.tensor(utilities), utility_calls=calls)


def _as_given(model: Any, ids: Tensor | None, config: Any, kwargs: Inputs) -> tuple[Tensor | None, Any, Inputs]:
    """The arguments as they were before `generate` prepared them for a decoding method: rows not repeated, no cache."""
    config = copy.deepcopy(config)
    config.max_new_tokens = None  # max_length says it
    repeated = max(config.num_beams or 1, config.num_return_sequences or 1)
    kept = {name: value for name, value in kwargs.items() if name not in PREPARED}
    given = {name: value[::repeated] if isinstance(value, Tensor) else value for name, value in kept.items()}
    if "encoder_outputs" in given:
        given["encoder_outputs"] = _rows(given["encoder_outputs"], slice(None, None, repeated))
    ids = ids if ids is None else ids[::repeated]
    if not model.config.is_encoder_decoder:
        return ids, config, given
    given["decoder_input_ids"] = ids
    return None, config, given


def _rows(value: Any, which: Any) -> Any:
    """Some rows of a tensor, or of the tensors of a model's output."""
    if isinstance(value, Tensor):
        return value[which.to(value.device) if isinstance(which, Tensor) else which]
    return type(value)(**{name: _rows(part, which) for name, part in value.items() if isinstance(part, Tensor)})


def _is_per_input(name: str, value: Any) -> bool:
    return (isinstance(value, Tensor) and value.ndim > 0) or name == "encoder_outputs"


def _take(name: str, config: Any, kwargs: Inputs) -> Any:
    """An option that was given, out of the arguments or from a generation config that was."""
    if name in kwargs:
        return kwargs.pop(name)
    value = getattr(config, name, None)
    return None if name in DEFAULTS and value == DEFAULTS[name] else value


def _ids(settings: Sequence[Any], name: str) -> list[int]:
    """The ids of the first settings that have a special token; none if no settings do."""
    for each in settings:
        found = each.get(name) if isinstance(each, dict) else getattr(each, name, None)
        if found is not None:
            values = found.tolist() if isinstance(found, Tensor) else found
            return [int(value) for value in values] if isinstance(values, Sequence) else [int(values)]
    return []
