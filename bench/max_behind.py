"""What a beam that gives up (`--max-behind`) saves, and what it leaves of plain beam search's hypotheses, on a CPU.

    python bench/max_behind.py [--sentences 48]

Sources of newstest2017 de-en, the bundled translator, 256 hypotheses; writes bench/results/max_behind.md.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import mbrace
from mbrace.io.candidates import read_records
from mbrace.models import beam_search, marian

HERE = Path(__file__).parent
CANDIDATES = HERE.parent / "experiments" / "candidates" / "de-en.valid.jsonl.xz"
K = 256


class Seen:
    """Rows that the decoder ran, and those that were on the way to a hypothesis."""

    def __init__(self) -> None:
        self.rows = self.useful = 0

    def __enter__(self) -> Seen:
        step, finished, seen = marian.MarianState.step, beam_search._Beam.finished, self

        def counted(state: Any, ids: torch.Tensor) -> Any:
            seen.rows += len(ids)
            return step(state, ids)

        def traced(search: Any) -> Any:
            found = finished(search)
            seen.useful += useful_rows(search)
            return found

        self._patches = [
            mock.patch.object(marian.MarianState, "step", counted),
            mock.patch.object(beam_search._Beam, "finished", traced),
        ]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()


def useful_rows(search: Any) -> int:
    """Open paths from which one of the finished ones goes on, in all steps of a search, the first included."""
    scores, ended = search.all_ended
    size, useful = search.k * search.vocabulary, len(ended)
    for source in range(len(ended)):
        there = scores[source] > -torch.inf
        times, parents = ended[source][there] // size, ended[source][there] % size // search.vocabulary
        for moment in range(int(times.max()), 0, -1):
            paths = torch.unique(parents[times >= moment])
            useful += len(paths)
            going_on = search.extensions[moment - 1, source] // search.vocabulary
            parents = torch.where(times >= moment, going_on[parents], parents)
    return useful


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=48)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    records = [record for record, _ in zip(read_records(str(CANDIDATES)), range(args.sentences), strict=False)]
    sources = [record.source or "" for record in records]
    model = mbrace.Seq2Seq("bundled", device="cpu")
    model.beam(sources[:2], K)
    lines, plain = [], None
    for behind in (None, 7.0, 6.0, 5.0, 4.0):
        with Seen() as seen:
            started = time.perf_counter()
            found = [list(dict.fromkeys(outputs.texts)) for outputs in model.beam(sources, K, max_behind=behind)]
            seconds = time.perf_counter() - started
        if plain is None:
            plain, rows, whole, share = found, seen.rows, seconds, seen.useful / seen.rows
        kept = [len(set(mine) & set(theirs)) / len(theirs) for mine, theirs in zip(found, plain, strict=True)]
        length = statistics.mean(
            statistics.mean(map(len, mine)) / statistics.mean(map(len, theirs))
            for mine, theirs in zip(found, plain, strict=True)
        )
        counts = [len(texts) for texts in found]
        cells = ["(none)" if behind is None else f"{behind:g}", f"{seen.rows / rows:.2f}", f"{seconds / whole:.2f}"]
        cells += [f"{statistics.mean(kept):.0%}", f"{min(kept):.0%}", f"{statistics.mean(counts):.0f}"]
        cells += [f"{min(counts)}", f"{length:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    text = [
        "# A beam that gives up",
        "",
        f"`python bench/max_behind.py`: {len(sources)} sentences of newstest2017 de-en, the bundled translator, {K} "
        f"hypotheses; {platform.machine()}, {torch.get_num_threads()} cores, one run each. Of the rows that plain beam "
        f"search runs, {share:.0%} are on the way to one of its hypotheses. *Kept*: the share of plain beam search's "
        "hypotheses that are found, on average and for the sentence that keeps fewest. *Length*: of hypotheses, in "
        "characters, against plain beam search's.",
        "",
        "| `--max-behind` | rows | time | kept | least | hypotheses | fewest | length |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *lines,
    ]
    (args.out / "max_behind.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
