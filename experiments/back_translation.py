"""Back-translation (Sennrich et al. 2016) for the weakest pair: more English text, with sources that a model wrote.

Turkish training pairs are mostly software documentation and short phrases; the English side of the German pairs is much
nearer to news. A reverse model, English into Turkish, is trained for a few minutes and draws a Turkish source for each
of those English sentences. The new pairs are marked (Caswell et al. 2019), so that the translator can tell them from
sources that people wrote. They are stages of full_scale.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from shared_stages import log, one, read_rows
from translators import TrainingData, train_one

MARK = "<<"  # before each source that the reverse model wrote
# How many sources are drawn for each English sentence, by origin.
DRAWS = {"europarl": 1, "newstest2008-2016": 4, "mlqe-wikipedia": 2}
EVERY = {"europarl": 2}  # every second line
CHUNK = 16384  # sentences drawn at a time
SEED = 3


class BackTranslation:
    """English sentences of one pair's training data, translated back for another pair into the same language."""

    pair, lender, reverse = "tr-en", "de-en", "en-tr"

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.file = args, args.out / "back" / f"{self.pair}.tsv"

    def train_reverse(self) -> None:
        """Train the reverse model on the pair's own training data, turned round."""
        data = TrainingData()
        data.read(self.args, self.pair)
        turned = TrainingData([pair[::-1] for pair in data.pairs], [pair[::-1] for pair in data.valid])
        train_one(self.args, self.reverse, turned, spm=self.args.data / "tr-en.spm")

    def write(self) -> None:
        """Draw the sources, and write the marked pairs."""
        import mbrace

        if self.file.exists():
            return
        small = self.args.small
        lines = list(self.english())
        model = mbrace.Seq2Seq(str(self.args.out / "models" / self.reverse), rows=None if small else self.args.rows)
        counts = sorted(set(DRAWS.values()))
        written = []
        for count in counts:
            chosen = [line for line, drawn in lines if drawn == count][: 8 if small else None]
            for start in range(0, len(chosen), CHUNK):
                part = chosen[start : start + CHUNK]
                ids = range(start, start + len(part))
                # draws of at least a tenth of the probability: near the most likely one, but not all alike
                drawn = model.sample(part, count, epsilon=0.1, ids=list(ids), seed=SEED + count)
                for line, own in zip(part, drawn, strict=True):
                    texts = dict.fromkeys(" ".join(text.split()) for text in own.texts)
                    written += [f"{MARK} {text}\t{line}\n" for text in texts if text]
                log(f"for example: {written[-1].rstrip()}")
                log(f"{self.pair}: {count} per line, {start + len(part)} of {len(chosen)}, {len(written)} pairs")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("".join(written), encoding="utf-8")
        about = {"pairs": len(written), "lines": len(lines), "draws": DRAWS, "epsilon": 0.1, "mark": MARK}
        (self.args.out / f"back-translation.{self.pair}.json").write_text(json.dumps(about, indent=1) + "\n")

    def english(self) -> Iterator[tuple[str, int]]:
        """Each English sentence, and how many sources are drawn for it."""
        seen = set()
        for number, row in enumerate(read_rows(one(self.args.data, f"train.{self.lender}.tsv*"))):
            _, english, origin = row.split("\t")
            chosen = origin in DRAWS and number % EVERY.get(origin, 1) == 0
            if chosen and english not in seen and 20 <= len(english) <= 400:
                seen.add(english)
                yield english, DRAWS[origin]


def back_translate(args: argparse.Namespace) -> None:
    """Train the reverse model and write its pairs, unless they exist."""
    back = BackTranslation(args)
    back.train_reverse()
    back.write()
