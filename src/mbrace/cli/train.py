"""`mbrace train`: a translation model from parallel text; `mbrace train-metric`: a learned utility from human
judgements."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from mbrace.cli.messages import show, shows_progress, tell
from mbrace.cli.options import add_settings, given
from mbrace.cli.parser import seed
from mbrace.errors import UserError, check_whole, require, visible
from mbrace.training.options import TrainingOptions


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser("train", help="train a translation model (Marian) on parallel text")
    data = parser.add_argument_group("data (plain, .gz, .xz, .bz2 or .zst)")
    data.add_argument(
        "--train", nargs="+", required=True, metavar="FILE", help="SOURCE TARGET, or a TSV: source, target[, origin]"
    )
    data.add_argument("--valid", nargs="+", required=True, metavar="FILE", help="like --train")
    data.add_argument("--origins", nargs="+", metavar="NAME", help="train on the TSV rows of these origins only")
    data.add_argument("--reverse", action="store_true", help="swap source and target")
    data.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="the model's folder; an interrupted run is continued"
    )
    data.add_argument("--force", action="store_true", help="start over if the folder already has a model or a run")
    data.add_argument(
        "--spm", metavar="FILE", help="use this SentencePiece model (</s> 0, <unk> 1, no <s>) instead of learning one"
    )
    add_settings(parser.add_argument_group("training"), TrainingOptions)
    parser.set_defaults(run=run_train)


def run_train(args: argparse.Namespace) -> int:
    from mbrace.io.reading import open_input
    from mbrace.io.texts import read_pairs
    from mbrace.jobs.terminal import Stop

    require("torch", extra="models")
    from mbrace.training.loop import print_on_stderr
    from mbrace.training.train import train

    for name in ("train", "valid"):
        if len(getattr(args, name)) > 2:
            raise UserError(f"--{name} takes SOURCE TARGET or one TSV file")
    options = TrainingOptions(**given(args, TrainingOptions))
    spm = None
    if args.spm is not None:
        with open_input(args.spm) as file:
            spm = file.read()
    pairs, valid = read_pairs(*args.train, origins=args.origins), read_pairs(*args.valid)
    if args.reverse:
        pairs, valid = [(b, a) for a, b in pairs], [(b, a) for a, b in valid]
    with Stop() as stop:
        how: dict[str, Any] = {"spm": spm, "force": args.force, "interrupted": lambda: stop.signal is not None}
        how["say"] = print_on_stderr if shows_progress() else lambda message: None
        train(pairs, valid, args.output, options, **how)
    return 0 if stop.signal is None else 128 + stop.signal


def add_metric(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "train-metric",
        help="train a learned utility from human judgements",
        description="Train COMET's estimator head on a frozen encoder, for --utility learned --metric-model DIR.",
    )
    parser.add_argument(
        "judgements",
        nargs="+",
        metavar="JUDGEMENTS.tsv",
        help="columns lp, mt, ref or pe, z (.gz, .xz, .bz2, .zst)",
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the checkpoint's folder")
    parser.add_argument(
        "--encoder",
        metavar="PATH_OR_NAME",
        help="frozen encoder (default: all-MiniLM-L6-v2)",
    )
    parser.add_argument(
        "--target", default="en", metavar="LANG", help="keep pairs into this language, or `any` (default: en)"
    )
    parser.add_argument(
        "--hold-out", default="", metavar="PAIRS", help="pairs for evaluation only, such as de-en,tr-en"
    )
    parser.add_argument("--epochs", type=int, default=None, metavar="N", help="maximum number of epochs (default: 12)")
    parser.add_argument("--seed", type=seed, default=0, help="random seed (default: 0)")
    parser.add_argument("--device", metavar="DEVICE", help="device for the encoder (default: a GPU if there is one)")
    parser.add_argument("--force", action="store_true", help="replace DIR's checkpoint if it exists")
    parser.set_defaults(run=run_metric)


def run_metric(args: argparse.Namespace) -> int:
    if Path(args.output, "checkpoints", "model.ckpt").exists() and not args.force:
        raise UserError(f"{args.output}: has a checkpoint already; give another folder, or --force to replace it")
    if args.epochs is not None:
        check_whole("epochs", args.epochs, least=1)
    require("torch", extra="neural")
    from mbrace.neural.pretrained import MINILM
    from mbrace.training.metric import Recipe, train_metric
    from mbrace.training.metric_data import read_judgements

    target = None if args.target == "any" else args.target
    judgements = [row for path in args.judgements for row in read_judgements(path, target=target)]
    found = train_metric(
        judgements,
        args.output,
        hold_out=[pair for pair in args.hold_out.split(",") if pair],
        encoder=args.encoder or MINILM,
        recipe=Recipe() if args.epochs is None else Recipe(epochs=args.epochs),
        seed=args.seed,
        device=args.device,
        say=_say,
    )
    show(f"trained on {found.judgements:,} judgements; validation Pearson {found.validation:.3f} (epoch {found.epoch})")
    for pair, metrics in found.held_out.items():
        for name, (r, tau) in metrics.items():
            show(f"held out {pair}  {name:8} Pearson {r:.3f}  Kendall {tau:.3f}")
    return 0


def _say(message: str) -> None:
    """Print a message; on a terminal, each message about the progress of embedding replaces the one before."""
    if not shows_progress():
        return
    is_terminal = sys.stderr.isatty()
    end = "\r" if is_terminal and message.startswith("embedding") else "\n"
    tell("\r\x1b[K" * is_terminal + f"mbrace: {visible(message)}", end)
