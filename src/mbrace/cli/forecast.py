"""`--forecast`: the option, and what it does not go with."""

from __future__ import annotations

import argparse
from typing import Any

from mbrace.errors import UserError, check_number
from mbrace.forecast import NO_PRUNING, OWN_SCHEDULE, STARTERS, clash_with
from mbrace.methods import RACE


def add_forecast(group: Any) -> None:
    """`--forecast`."""
    group.add_argument(
        "--forecast",
        type=float,
        default=None,
        metavar="X",
        help=f"start with {STARTERS} hypotheses; let another one in when its forecast improvement on the leader is "
        "more than X of the spread between hypotheses, such as 0.0005; for neural utilities (default: 0, all race)",
    )


def clash_of(args: argparse.Namespace) -> str | None:
    """The option, given or by default, that a forecast does not go with, and why; None if there is none."""
    method = getattr(args, "method", RACE)
    pruning = {"no_pruning": args.prune == "none", "own_schedule": args.prune == "halving"}
    clash = clash_with(False, False, method != RACE, **pruning)
    if clash == NO_PRUNING and args.select != "best":
        return f"--select {args.select}, which chooses among hypotheses with full scores"
    options = {
        "method": f"--method {method}, for which all hypotheses are there from the start",
        NO_PRUNING: "--prune none, which scores all hypotheses",
        OWN_SCHEDULE: "--prune halving, which shares out its budget beforehand",
    }
    return None if clash is None else options[clash]


def check_forecast(args: argparse.Namespace) -> None:
    """Refuse a forecast that makes no sense, or that does not go with another option."""
    if args.forecast is None:
        return
    check_number("--forecast", args.forecast, least=0)
    clash = clash_of(args)
    if args.forecast > 0 and clash is not None:
        raise UserError(f"--forecast {args.forecast:g}: only valid without {clash}")
