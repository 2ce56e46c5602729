"""`mbrace judge`: a web page on which raters compare two systems, blind; `mbrace judge-results`: the outcome."""

from __future__ import annotations

import argparse
import re
from typing import Any

from mbrace.cli.messages import show
from mbrace.cli.parser import seed
from mbrace.errors import UserError, check_number, check_whole, require

_INSTRUCTIONS = 10_000  # characters


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "judge",
        help="ask people which of two outputs they prefer, blind, on a web page",
        description="Serve a page on which raters compare two outputs of `mbrace decode` or `mbrace answer`, not "
        "knowing which is which. Equal outputs are counted but not shown. Prints one secret link per rater.",
    )
    parser.add_argument(
        "a", metavar="A", help="output of the first system: JSON Lines with id and text, or plain lines"
    )
    parser.add_argument("b", metavar="B", help="output of the second system")
    parser.add_argument(
        "--source",
        metavar="FILE",
        help="the sources: plain lines in order, or JSON Lines with id and source (default: the prompts in A, an "
        "output of `mbrace answer`)",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="DB", help="ratings file (SQLite); continued if it exists"
    )
    parser.add_argument("--raters", type=int, default=1, metavar="N", help="number of raters (default 1)")
    parser.add_argument(
        "--items",
        type=_items,
        default=125,
        metavar="N",
        help="number of differing items to show, or `all` (default 125)",
    )
    parser.add_argument(
        "--seed", type=seed, default=0, help="seed for the sample, the orders and the sides (default 0)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only; 0.0.0.0: all)"
    )
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0: any free one (default 8000)")
    parser.add_argument("--public-url", metavar="URL", help="address of the page behind a proxy, used in the links")
    parser.add_argument(
        "--source-lang", type=_language, default="", metavar="TAG", help="e.g. de: lets screen readers choose the voice"
    )
    parser.add_argument("--target-lang", type=_language, default="", metavar="TAG", help="e.g. en")
    parser.add_argument(
        "--instructions", metavar="FILE", help="text for the raters: what to look for; empty lines separate paragraphs"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    for module in ("starlette", "uvicorn", "jinja2"):
        require(module, extra="judge")
    from mbrace.judge.app import judge

    check_whole("raters", args.raters, least=1)
    check_whole("port", args.port, least=0, most=65535)
    names = ("a", "b", "source", "output", "raters", "items", "seed", "host", "port", "public_url")
    options = {name: getattr(args, name) for name in (*names, "source_lang", "target_lang")}
    judge(**options, instructions="" if args.instructions is None else _text_of(args.instructions))
    return 0


def _text_of(path: str) -> str:
    """A short text file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_INSTRUCTIONS + 1)
    except OSError as error:
        raise UserError(f"--instructions {path}: {error.strerror}; give a text file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--instructions {path}: not UTF-8 text; give a text file") from error
    if len(text) > _INSTRUCTIONS:
        raise UserError(f"--instructions {path}: longer than {_INSTRUCTIONS:,} characters; raters will not read that")
    if not text.strip():
        raise UserError(f"--instructions {path}: has no text; leave the option out")
    return text


def _items(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number of 1 or more, or all")
    return int(text)


def _language(text: str) -> str:
    if text and not re.fullmatch(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*", text):
        raise argparse.ArgumentTypeError(f"{text}: expected a language tag such as de or pt-BR")
    return text


def add_results(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "judge-results",
        help="wins, losses and ties of `mbrace judge`, and whether they are significant",
        description="Count and test the ratings of `mbrace judge`: sign test, paired bootstrap, agreement of raters.",
    )
    parser.add_argument("ratings", metavar="DB", help="the ratings file (may be in use by a running server)")
    parser.add_argument("--level", type=float, default=0.05, help="significance level (default 0.05)")
    parser.add_argument("--name-a", metavar="NAME", help="what to call the first system (default: its file)")
    parser.add_argument("--name-b", metavar="NAME", help="what to call the second system")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with all ratings, instead of text")
    parser.set_defaults(run=run_results)


def run_results(args: argparse.Namespace) -> int:
    from mbrace.judge.results import evaluate, read_ratings, report, to_json

    check_number("level", args.level, least=0, most=1)
    study, ratings = read_ratings(args.ratings)
    given = {"name_a": args.name_a, "name_b": args.name_b}
    for key, name in given.items():
        if name is not None and not name.strip():
            raise UserError(f"--{key.replace('_', '-')}: is blank; give a name, or leave it out")
    study |= {key: " ".join(name.split()) for key, name in given.items() if name is not None}
    results = evaluate(ratings, study=study, level=args.level)
    show(to_json(results, ratings) if args.json else report(results))
    return 0
