"""`mbrace judge-results`: the outcome of `mbrace judge`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mbrace.errors import UserError


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "judge-results",
        help="wins, losses and ties of `mbrace judge`, and whether they are significant",
        description="Count and test the ratings of `mbrace judge`: sign test, paired bootstrap, agreement of raters.",
    )
    parser.add_argument("ratings", metavar="DB", help="the ratings file (may be in use by a running server)")
    parser.add_argument("--level", type=_level, default=0.05, help="significance level (default 0.05)")
    parser.add_argument("--csv", metavar="FILE", help="also write one row a rating")
    parser.add_argument("--json", metavar="FILE", help="also write the report and all ratings")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from mbrace.judge.results import evaluate, read_ratings, report, to_csv, to_json

    study, ratings = read_ratings(args.ratings)
    results = evaluate(ratings, study=study, level=args.level)
    print(report(results))
    try:
        if args.csv:
            Path(args.csv).write_text(to_csv(ratings), encoding="utf-8", newline="")
        if args.json:
            Path(args.json).write_bytes(to_json(results, ratings))
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return 0


def _level(text: str) -> float:
    level = float(text)
    if not 0 < level < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a number between 0 and 1")
    return level
