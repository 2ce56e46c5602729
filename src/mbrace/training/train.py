"""Train a translation model on parallel text; the result is an ordinary Marian folder that transformers loads.

The transformer of Vaswani et al. (2017), without label smoothing, which would distort the distribution to sample from
(Cheng & Vlachos 2023, section 4). With a budget (`minutes` or `steps`) the learning rate falls linearly to zero at its
end, which helps short runs a lot; without one it falls with the inverse square root of the step until the validation
loss stops falling.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrace.errors import FORCE, SettingError, UserError
from mbrace.io.atomic import make_folder, replace_file
from mbrace.io.reading import json_line, parse_json
from mbrace.io.resume import refuse_other_settings
from mbrace.models.tokenizers import Vocabulary
from mbrace.neural.device import choose_device
from mbrace.training.loop import Corpus, Ids, SentencePairs, TrainingRun, print_on_stderr
from mbrace.training.options import SIZES, TrainingOptions
from mbrace.utility import cores

__all__ = ["TrainingOptions", "train"]


def train(
    pairs: SentencePairs,
    valid: SentencePairs,
    folder: str | Path,
    options: TrainingOptions,
    *,
    spm: bytes | None = None,
    force: bool = False,
    interrupted: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = print_on_stderr,
) -> dict[str, Any] | None:
    """Train on `pairs` until the budget ends or validation loss stops falling; write the best model to `folder`.

    The state is saved every few minutes, and when `interrupted`, which is asked after every step, says so; the run then
    ends and returns None. It is resumed by the same call; options and data must be the same (they are kept in
    `folder`/run.json until it is done). A finished model is an error; `force` replaces it when the new one, which is in
    `folder`/unfinished until then, is done. Returns the history, also written to `folder`/training.json.
    `say` is called with each message.
    """
    started, threads = time.monotonic(), options.threads or cores()
    device = choose_device(options.device)
    finished, out = Path(folder), Path(folder)
    if (finished / "training.json").exists() and not (finished / "state.pt").exists():
        out = finished / "unfinished"
        if not force and not out.exists():
            raise UserError(f"{finished}: has a finished model; use {FORCE} to train it again, or give another folder")
    settings = _run_settings(pairs, valid, options, spm)
    if not force:
        _refuse_other_run(out, settings)
    make_folder(finished)  # before anything slow
    vocabulary = _vocabulary(pairs, None if force else out / "source.spm", options, spm)
    corpora = [
        Corpus.of(
            vocabulary.encode([source for source, _ in part], threads=threads),
            vocabulary.encode([target for _, target in part], threads=threads),
            longest=options.longest,
        )
        for part in (pairs, valid)
    ]
    if not all(map(len, corpora)):
        raise UserError(
            f"no training or validation pair has at most {options.longest} pieces per side; give shorter sentences"
        )
    for name in ("training.json", "state.pt", "source.spm") if force else ():
        (out / name).unlink(missing_ok=True)
    make_folder(out)
    replace_file(out / "run.json", json_line(settings))
    vocabulary.save(out)

    def resample(indices: NDArray[np.int64]) -> tuple[list[Ids], list[Ids]]:
        alpha, chosen = options.subword_sampling, [pairs[index] for index in indices.tolist()]
        sides = [[pair[side] for pair in chosen] for side in (0, 1)]
        sources, targets = (vocabulary.encode(side, threads=threads, sampling=alpha) for side in sides)
        return sources, targets

    sampled = None if options.subword_sampling is None else resample
    run = TrainingRun(vocabulary, corpora[0], corpora[1], valid, out, options, device, started, say, sampled)
    run.log(
        f"{len(corpora[0])} pairs, {corpora[0].lengths().sum(axis=0)} ids, {run.weights() / 1e6:.1f}M weights, {device}"
    )
    history = run.train(interrupted)
    if history is not None and out != finished:
        # training.json goes last: it says that the model is complete
        for path in sorted(out.iterdir(), key=lambda path: path.name == "training.json"):
            os.replace(path, finished / path.name)
        out.rmdir()
    return history


def _run_settings(
    pairs: SentencePairs, valid: SentencePairs, options: TrainingOptions, spm: bytes | None
) -> dict[str, Any]:
    """What a run depends on, as JSON: all options except device and threads, and digests of its data."""
    chosen = {name: value for name, value in asdict(options).items() if name not in ("device", "threads")}
    pieces = None if spm is None else hashlib.sha256(spm).hexdigest()
    return {**chosen, "train": _digest(pairs), "valid": _digest(valid), "spm": pieces}


def _digest(pairs: SentencePairs) -> str:
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update("\t".join([*pair, "\n"]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _refuse_other_run(out: Path, settings: dict[str, Any]) -> None:
    """Refuse to resume a run with other options or data, or with unknown ones."""
    path = out / "run.json"
    remedy = f"another folder, or {FORCE} to start over"
    if not path.exists():
        for name in ("state.pt", "source.spm"):
            if (out / name).exists():
                raise UserError(f"{out}: has {name} but no run.json, which says what it was made with; give {remedy}")
        return
    before, data = parse_json(path.read_bytes(), path), ("train", "valid", "spm")
    made, remedy = "has an interrupted run", f"give the same options and data, {remedy}"
    refuse_other_settings(before, settings, file=out, made=made, data=data, remedy=remedy)


def _vocabulary(pairs: SentencePairs, before: Path | None, options: TrainingOptions, spm: bytes | None) -> Vocabulary:
    if spm is None and before is not None and before.exists():
        spm = before.read_bytes()  # of the run that is resumed
    if spm is None and options.initial is not None:
        first = Path(options.initial) / "source.spm"
        if not first.is_file():
            raise UserError(f"{options.initial}: has no source.spm; give a folder that mbrace train wrote")
        spm = first.read_bytes()
    if spm is not None:
        try:
            return Vocabulary(spm)
        except RuntimeError as error:
            raise SettingError(
                "spm", ..., f"not a SentencePiece model ({error}); give a .spm or .model file"
            ) from error
    size = SIZES[options.size].vocabulary if options.vocabulary is None else options.vocabulary
    lines = (line for pair in pairs for line in pair)
    return Vocabulary.train(lines, size, seed=options.seed, threads=options.threads or cores())
