"""Train the experiments' models side by side on one GPU, then write their candidates and scores.

    python experiments/train_and_generate.py DATA OUT [--only de-en tr-en en-et bundled] [--small]

DATA has train.PAIR.tsv.gz (source, target, origin), valid.PAIR.SET.tsv.gz and test.PAIR.SET.tsv.gz (source, reference).
OUT gets, for each model: NAME.spm, models/NAME, PAIR.{test,valid}.jsonl.xz, NAME.json (scores and speed) and NAME.log.
Each step is a separate command, printed when it starts, so that a model that fails does not stop the others; an
interrupted run continues. `--small` rehearses everything on a CPU in a few minutes, with tiny models.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
import threading
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mbrace.io.texts import read_pairs
from mbrace.models.tokenizers import Vocabulary

LONGEST = 300  # characters per side, in training sets of over MANY pairs: the longest 1.7% are 5% of the text
MANY = 500_000


@dataclass(frozen=True)
class Model:
    """Options for `mbrace train`. Smaller training sets get less time."""

    pair: str
    size: str
    pieces: int
    minutes: float
    dropout: float
    rate: float | None = None  # 5e-4 for base models: their post-norm layers diverge at higher rates
    origins: tuple[str, ...] = ()
    bundle: bool = False


MODELS = {
    "de-en": Model("de-en", "base", 24000, 10.5, 0.1, 5e-4),
    "tr-en": Model("tr-en", "base", 16000, 6.8, 0.2, 5e-4),
    "en-et": Model("en-et", "base", 12000, 5.25, 0.3, 5e-4),
    # the model we ship: trained on text whose licence allows it
    "bundled": Model(
        "de-en", "small", 8000, 8.4, 0.05, None, ("europarl", "tatoeba-anki", "msdocs", "mlqe-wikipedia"), bundle=True
    ),
}


@dataclass(frozen=True)
class Job:
    """One model's steps."""

    name: str
    data: Path
    out: Path
    sentences: int
    small: bool

    def run(self) -> None:
        model = MODELS[self.name]
        files = {part: self.file(part, model.pair) for part in ("train", "valid", "test")}
        spm, folder = self.out / f"{self.name}.spm", self.out / "models" / self.name
        if not spm.exists():
            learn_pieces(files["train"], model, spm, 2000 if self.small else model.pieces)
        self.command("-m", "mbrace", "train", "--train", self.training_set(files["train"]), "--valid", files["valid"],
                     "-o", folder, "--spm", spm, "--dropout", model.dropout, *self.training(model))  # fmt: skip
        for part in () if model.bundle else ("test", "valid"):
            made = self.out / f"{model.pair}.{part}.jsonl.xz"
            first = self.out / f"{model.pair}.{part}.first.tsv"
            with open(files[part], encoding="utf-8") as lines:
                first.write_text("".join(islice(lines, self.sentences)), encoding="utf-8")
            self.command("-m", "mbrace", "generate", first, "-o", made, "--resume", "--model", folder,
                         "--prefix", f"{model.pair}.{part}.", *self.counts())  # fmt: skip
        bundle = ["--bundle", self.out / "translator-de-en"] if model.bundle else []
        small = ["--small"] if self.small else []
        self.command(Path(__file__).with_name("evaluate.py"), folder, "-o", self.out / f"{self.name}.json",
                     "--test", files["test"], "--valid", files["valid"], *bundle, *small)  # fmt: skip

    def file(self, part: str, pair: str) -> Path:
        found = sorted(self.data.glob(f"{part}.{pair}.*"))
        if not found:
            raise SystemExit(f"{self.data}: no {part}.{pair}.*; see the top of {Path(__file__).name}")
        return found[0]

    def training_set(self, path: Path) -> Path:
        """The file to train on: without the longest rows if there are many, with few rows for a rehearsal."""
        rows = gzip.decompress(path.read_bytes()).decode().splitlines()
        if self.small:
            rows = rows[-2000:]  # the first rows are all of one origin
        elif len(rows) > MANY:
            rows = [row for row in rows if all(len(side) <= LONGEST for side in row.split("\t")[:2])]
        else:
            return path
        chosen = self.out / f"{self.name}.{path.name}"
        chosen.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode(), 1, mtime=0))
        return chosen

    def training(self, model: Model) -> list[object]:
        if self.small:
            return ["--size", "tiny", "--steps", 20, "--tokens", 1024, "--validate-every", 20]
        rate = ["--rate", model.rate] if model.rate else []
        origins = ["--origins", *model.origins] if model.origins else []
        return ["--size", model.size, "--minutes", model.minutes, *rate, *origins]

    def counts(self) -> list[object]:
        return ["--beam", 8, "--sample", 16] if self.small else ["--beam", 256, "--sample", 1024, "--epsilon", 0.02]

    def command(self, *words: object) -> None:
        """Run Python with these words; its output goes to the model's log."""
        print(f"{self.name}: python {' '.join(map(str, words))}", flush=True)
        with (self.out / f"{self.name}.log").open("ab") as log:
            subprocess.run([sys.executable, *map(str, words)], stdout=log, stderr=subprocess.STDOUT, check=True)


def learn_pieces(path: Path, model: Model, spm: Path, size: int) -> None:
    """Train one SentencePiece model for both languages."""
    pairs = read_pairs(path, origins=model.origins or None)
    lines = [line for pair in pairs for line in pair if len(line) < 400]
    spm.write_bytes(Vocabulary.train(lines, size, limit=400_000).model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--sentences", type=int, default=200, help="sentences per set to generate candidates for (200)")
    parser.add_argument("--small", action="store_true", help="a rehearsal on a CPU: tiny models, few steps")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    sentences = min(args.sentences, 4) if args.small else args.sentences
    failed = []

    def run_model(name: str) -> None:
        try:
            Job(name, args.data, args.out, sentences, args.small).run()
        except (Exception, SystemExit) as error:
            failed.append(name)
            print(f"{name}: FAILED ({error}); see {args.out / name}.log", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=run_model, args=(name,)) for name in args.only]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
