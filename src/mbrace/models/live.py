"""What all models share: beam search for hypotheses, reproducible sampling for pseudo-references.

`Seq2Seq` and `CausalLM` bring a decoder (see search.py) and a codec (see tokenizers.py); everything else is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mbrace.api import decode_corpus, utility_of
from mbrace.errors import SettingError, UserError
from mbrace.models import gpu, search
from mbrace.models.beam_search import BeamOutputs, beam_outputs
from mbrace.models.hypotheses import live_candidates
from mbrace.models.next_ids import DrawOptions, DrawSettings
from mbrace.models.sampling import EncodedSources, ModelSampler
from mbrace.models.tokenizers import Codec, texts_of
from mbrace.neural.device import choose_device, without_cudnn_attention
from mbrace.result import Decoded
from mbrace.sampler import Draws, Want, ids_of, refuse_one_string
from mbrace.setting_fields import settings_from
from mbrace.settings import Race, RaceOptions, Sampling
from mbrace.utility import PairFunction, Utility

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Limits:
    """The most ids that a model can take: `source` in a source or prompt, `target` in an output."""

    source: int
    target: int
    both: int | None = None  # in a prompt and its output together, for decoder-only models


class LiveModel:
    """A model that makes hypotheses and pseudo-references for sources."""

    device: Any
    dtype: Any
    codec: Codec
    decoder: search.StepDecoder
    limits: Limits
    rows: int  # the most sequences decoded at a time
    start: int  # the id that every output starts from (not part of it)
    ends: tuple[int, ...]  # the ids that end an output
    pad: int
    pad_left = False
    thread_safe = False  # whether two threads may run the model, such as one that draws during beam search on a GPU
    concurrent_beams = 1  # beam searches that may run at the same time

    @torch.inference_mode()
    @without_cudnn_attention()  # every batch and every step has a new shape
    def beam(
        self,
        sources: Sequence[str],
        k: int = 256,
        *,
        alpha: float = 1.0,
        max_length: int | None = None,
    ) -> list[BeamOutputs]:
        """The k best outputs of each source by beam search of width k, scored log p / length ** alpha.

        A source without text has one output without text.
        """
        refuse_one_string(sources)
        if k < 1:
            raise UserError(f"beam {k}: must be 1 or more")
        return beam_outputs(self, sources, k, alpha, max_length)

    def sample(
        self,
        sources: Sequence[str],
        n: int,
        *,
        first: int = 0,
        ids: Sequence[str | int] | None = None,
        **options: Unpack[DrawOptions],
    ) -> list[Draws]:
        """Draws number first .. first + n - 1 of each source, with their log-probabilities under the full model.

        A draw depends only on (seed, id of the sentence, number of the draw); ids are 0, 1, ... unless given.
        `epsilon` (0.02) drops ids that are less probable; `epsilon=None` samples from the model itself (ancestral
        sampling). `sampling="arithmetic"` spreads the draws of a source evenly over the model's distribution (Vilnis et
        al. 2023): each alone is drawn as before, but fewer of them give as good an estimate.
        """
        settings, names = DrawSettings.of(**options), ids_of(sources, ids)
        if n < 0 or first < 0:
            raise UserError(f"n {n}, first {first}: must be 0 or more")
        return EncodedSources(self, list(sources), names, settings).draw(
            [Want(i, first, n) for i in range(len(sources))]
        )

    def sampler(
        self, *, ahead: int | Sequence[int] = 0, weighted: bool = False, **options: Unpack[DrawOptions]
    ) -> ModelSampler:
        """A live source of pseudo-references for `decode_corpus`; options are those of `sample`.

        They are drawn step by step while a race is open or, with `ahead`, that many in one batch; several growing
        numbers are the ends of blocks that are drawn in one batch when a race gets there. `weighted` gives their
        log-probabilities to the race, which then weights them by the model (Jinnai et al., 2024).
        """
        return ModelSampler(self, DrawSettings.of(**options), ahead=ahead, weighted=weighted)

    def translate(
        self,
        sources: Iterable[str],
        *,
        beam: int = 256,
        utility: Utility | PairFunction | str | None = None,
        epsilon: float | None = None,
        sampling: str = "independent",
        race: Race | None = None,
        **settings: Unpack[RaceOptions],
    ) -> Iterator[Decoded]:
        """Text in, MBR decisions out: `beam` hypotheses, pseudo-references by epsilon sampling, and a race per source.

        `sampling` is as for `sample`, `race` and its fields as keywords as for `decode`.
        """
        refuse_one_string(sources)
        chosen = utility_of(utility)
        if beam < 1:
            raise SettingError("beam", beam, "must be 1 or more")
        candidates = Sampling(beam=beam, epsilon=epsilon, sampling=sampling)
        races = settings_from(Race, race, settings, LiveModel.translate)
        hypotheses, sampler = live_candidates(self, candidates, chosen, races)
        records = hypotheses.records(sources, name="sources")
        return decode_corpus(records, utility=chosen, sampler=sampler, race=races)

    # what a batch needs

    def encode(self, rows: Sequence[Sequence[int]]) -> search.Memory:
        """The decoder's memory of some sources (encoded) or prompts (read), padded to a multiple of 8 ids."""
        width = -(-max(map(len, rows)) // 8) * 8
        fill = [[self.pad] * (width - len(row)) for row in rows]
        pairs = zip(rows, fill, strict=True)
        padded = torch.tensor([[*rest, *row] if self.pad_left else [*row, *rest] for row, rest in pairs])
        lengths = torch.tensor([len(row) for row in rows])[:, None]
        columns = torch.arange(width)
        mask = columns >= width - lengths if self.pad_left else columns < lengths
        with gpu.exclusive_start(self.device):
            return self.decoder.encode(padded.to(self.device), mask.to(self.device))

    def lengths(self, rows: Sequence[Sequence[int]], max_length: int | None) -> Tensor:
        """The most ids of an output, (sources,): by the length of its own source, never of the batch."""
        longest = [min(max_length or 2 * len(row) + 32, self.limits.target) for row in rows]
        if self.limits.both is not None:
            longest = [min(most, self.limits.both - len(row)) for most, row in zip(longest, rows, strict=True)]
        return torch.tensor(longest, device=self.device)

    def parts(self, rows: Sequence[Sequence[int]], counts: Sequence[int]) -> Iterator[list[int]]:
        """The sources (indices) of each batch: of similar length, longest first, at most `self.rows` sequences in all.

        `counts` is the number of sequences per source; sources with 0 are left out.
        """
        for row in rows:
            if len(row) > self.limits.source:
                raise UserError(
                    f"a source has {len(row)} pieces; the model takes {self.limits.source}: split it into sentences"
                )
        part: list[int] = []
        widest = 0
        for i in sorted((i for i, count in enumerate(counts) if count), key=lambda i: (-len(rows[i]), i)):
            if part and (len(part) + 1) * max(widest, counts[i]) > self.rows:
                yield part
                part, widest = [], 0
            part.append(i)
            widest = max(widest, counts[i])
        if part:
            yield part

    def texts(self, ids: Tensor) -> list[str]:
        """The text of each row of ids; equal rows are decoded once."""
        return texts_of(self.codec, ids.cpu().numpy())


def device_for(device: str | None, model: Any) -> Any:
    """The requested torch device; by default a model object's own, and for a model by name a GPU if there is one."""
    return choose_device(device) if device is not None or isinstance(model, str | Path) else model.device
