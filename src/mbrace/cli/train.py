"""`mbrace train`: a translation model from parallel text."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from mbrace.cli.parser import seed


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command's options."""
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
    model = parser.add_argument_group("model")
    model.add_argument(
        "--size",
        default="base",
        choices=["base", "shallow", "small", "tiny"],
        help="base (default) is that of Vaswani et al.; shallow has 2 decoder layers",
    )
    model.add_argument(
        "--vocabulary", type=int, metavar="N", help="size of the SentencePiece vocabulary of both languages"
    )
    model.add_argument(
        "--spm", metavar="FILE", help="use this SentencePiece model (</s> 0, <unk> 1, no <s>) instead of learning one"
    )
    model.add_argument("--dropout", type=float, metavar="P")
    run = parser.add_argument_group("run")
    run.add_argument(
        "--minutes", type=float, metavar="M", help="time budget in minutes; the learning rate reaches zero at its end"
    )
    run.add_argument("--steps", type=int, metavar="N", help="budget in updates")
    run.add_argument("--tokens", type=int, default=16384, metavar="N", help="padded tokens per side and batch (16384)")
    run.add_argument("--rate", type=float, metavar="LR", help="highest learning rate")
    run.add_argument("--warmup", type=int, default=1000, metavar="N", help="updates to reach the highest rate (1000)")
    run.add_argument(
        "--validate-every", type=int, metavar="N", help="updates between validations (default: budget / 12, or 1000)"
    )
    run.add_argument(
        "--patience", type=int, default=10, metavar="N", help="validations without a lower loss before stopping (10)"
    )
    run.add_argument(
        "--average", type=int, default=5, metavar="K", help="average the last K checkpoints if that lowers the loss (5)"
    )
    run.add_argument("--seed", type=seed, default=0, help="random seed (default: 0)")
    run.add_argument("--device", metavar="NAME", help="cuda or cpu")
    parser.set_defaults(run=run_train)


def run_train(args: argparse.Namespace) -> int:
    """Read, train, write."""
    from mbrace.errors import UserError, require
    from mbrace.io.reading import open_input
    from mbrace.io.texts import read_pairs
    from mbrace.jobs.signals import Stop

    require("torch", extra="models")
    from mbrace.cli.messages import shows_progress
    from mbrace.training.loop import print_on_stderr
    from mbrace.training.train import TrainingOptions, train

    for name in ("train", "valid"):
        if len(getattr(args, name)) > 2:
            raise UserError(f"--{name} takes SOURCE TARGET or one TSV file")
    names = {each.name for each in fields(TrainingOptions)}
    options = TrainingOptions(**{name: value for name, value in vars(args).items() if name in names})
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
