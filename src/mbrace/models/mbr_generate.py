"""`mbr_generate`: the `generate` of a transformers model, with MBR as the decoding method; ids in, ids out.

transformers' own `generate` makes the hypotheses (by beam search) and the pseudo-references (by sampling, while a race
is open), so that any model, processor or stopping rule that works there works here. `custom_generate/` of the
repository hands this function to `model.generate(..., custom_generate=FOLDER)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mbrace.api import decode_corpus
from mbrace.errors import UserError, check_whole
from mbrace.models.generate_call import GenerateCall
from mbrace.prune import Confidence, PruningFunction
from mbrace.records import Record
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
    chosen = _utility(utility)
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


def _utility(utility: Utility | PairFunction | str) -> Utility | PairFunction:
    if not isinstance(utility, str):
        return utility
    from mbrace.utilities.named import make_utility

    return make_utility(utility)
