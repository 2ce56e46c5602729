"""`--forecast`: the option, and what it does not go with."""

from __future__ import annotations

import argparse
from typing import Any

from mbrace.errors import UserError, check_number
from mbrace.forecast import STARTERS
from mbrace.method_names import RACE


def add_forecast(group: Any) -> None:
    """`--forecast`."""
    group.add_argument(
        "--forecast",
        type=float,
        default=None,
        metavar="X",
        help=f"begin with {STARTERS} hypotheses; let another one in when its forecast improvement on the leader is "
        "more than X of the spread between hypotheses, such as 0.0005; for neural utilities (default: 0, all race)",
    )


def clash_of(args: argparse.Namespace) -> str | None:
    """The option that was given, or is the default, with which there is no forecast, and why; None if there is none."""
    method = getattr(args, "method", RACE)
    clashes = {
        "--pool, where draws enter": args.pool,
        "--exclude-self": args.exclude_self,
        f"--method {method}, for which all hypotheses are there from the start": method != RACE,
        f"--select {args.select}, which chooses among hypotheses with full scores": args.select != "best",
        "--prune none, which scores all hypotheses": args.prune == "none",
        "--prune halving, which shares out its budget beforehand": args.prune == "halving",
    }
    return next((text for text, given in clashes.items() if given), None)


def check_forecast(args: argparse.Namespace) -> None:
    """Refuse a forecast that makes no sense, or does not go with another option."""
    if args.forecast is None:
        return
    check_number("--forecast", args.forecast, least=0)
    clash = clash_of(args)
    if args.forecast > 0 and clash is not None:
        raise UserError(f"--forecast {args.forecast:g}: only valid without {clash}")
