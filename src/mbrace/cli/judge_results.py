"""`mbrace judge-results`: the outcome of `mbrace judge`."""

from __future__ import annotations

import argparse
import os
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
    parser.add_argument(
        "--name-a", metavar="NAME", help="what to call the first system (default: as `mbrace judge` did)"
    )
    parser.add_argument("--name-b", metavar="NAME", help="what to call the second system")
    parser.add_argument("--csv", metavar="FILE", help="also write one row per rating")
    parser.add_argument("--json", metavar="FILE", help="also write the report and all ratings")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from mbrace.io.atomic import write_file
    from mbrace.judge.results import evaluate, read_ratings, report, to_csv, to_json

    _check_targets(args)
    study, ratings = read_ratings(args.ratings)
    given = {"name_a": args.name_a, "name_b": args.name_b}
    for key, name in given.items():
        if name is not None and not name.strip():
            raise UserError(f"--{key.replace('_', '-')}: is blank; give a name, or leave it out")
    study |= {key: " ".join(name.split()) for key, name in given.items() if name is not None}
    results = evaluate(ratings, study=study, level=args.level)
    print(report(results))
    for path, made in ((args.csv, to_csv(ratings).encode()), (args.json, to_json(results, ratings))):
        if path:
            write_file(path, made)
    return 0


def _check_targets(args: argparse.Namespace) -> None:
    """Refuse to overwrite files without --force, and never overwrite the ratings: they cannot be made again."""
    if args.force and not (args.csv or args.json):
        raise UserError("--force: only valid with --csv or --json")
    ratings = [args.ratings, f"{args.ratings}-wal", f"{args.ratings}-shm"]
    for option, path in (("--csv", args.csv), ("--json", args.json)):
        if not path:
            continue
        if any(_same(path, file) for file in ratings):
            raise UserError(f"{option} {path}: belongs to the ratings, which are read; give another file")
        if os.path.isfile(path) and not args.force:
            raise UserError(f"{path}: exists; give another file, or --force to replace it")
    if args.csv and args.json and _same(args.csv, args.json):
        raise UserError(f"--csv and --json: both write {args.csv}; give each its own file")


def _same(one: str, other: str) -> bool:
    if os.path.exists(one) and os.path.exists(other):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def _level(text: str) -> float:
    try:
        level = float(text)
    except ValueError:
        level = 0.0
    if not 0 < level < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a number between 0 and 1")
    return level
