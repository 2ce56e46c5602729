"""Options of utilities and races, which several commands share, and the settings made of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from mbrace.cli.forecast import add_forecast, check_forecast
from mbrace.cli.messages import say
from mbrace.cli.methods import method_from, prunes
from mbrace.cli.parser import seed
from mbrace.errors import MOST_THREADS, UserError
from mbrace.jobs.presets import PRESETS
from mbrace.jobs.settings import PruneSettings, RaceSettings, UtilitySettings
from mbrace.methods.diverse import Diverse
from mbrace.sampler import Schedule, check_schedule
from mbrace.utilities.mixture import is_mixture, parse_mixture
from mbrace.utilities.named import FORMS, NAMED, check_utility, uses_model
from mbrace.utility import Cost, Utility
from mbrace.wording import counted

QE_HELP = (
    "estimates quality from the source: cometkiwi | xcomet | metricx, or the folder or hub name of such a model, or of "
    "a referenceless COMET"
)


def add_utility(parser: argparse.ArgumentParser) -> None:
    """`--utility` and its settings."""
    group = parser.add_argument_group("utility")
    group.add_argument(
        "--utility",
        default="chrf++",
        metavar="NAME",
        help=f"{' | '.join(NAMED)} | {FORMS} (default: chrf++)",
    )
    group.add_argument(
        "--utility-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the utility, such as tokenize=char for bleu or pattern=REGEX for exact; may be repeated",
    )
    group.add_argument("--threads", type=int, default=0, metavar="N", help="threads (default: all cores)")
    group.add_argument(
        "--metric-model",
        metavar="PATH_OR_NAME",
        help="model of a neural utility: a folder or hub name (comet, xcomet and metricx have a default); for "
        "`learned` also en (default) | multilingual",
    )
    add_device(group)
    group.add_argument("--judge-server", metavar="URL", help="OpenAI-compatible server for `judge`")
    group.add_argument(
        "--judge-model", metavar="NAME", help="the model's name there; the key comes from OPENAI_API_KEY"
    )
    group.add_argument(
        "--judge-prompt",
        metavar="TEXT",
        help="question with {hypothesis} and perhaps {reference} and {source}, or @FILE; the answer must be a number",
    )
    group.add_argument("--judge-budget", metavar="N", help="most requests to the judge; the run then ends")
    group.add_argument("--judge-answers", metavar="FILE", help="keeps answers in FILE, so that none is paid for twice")


def add_device(group: argparse._ArgumentGroup) -> None:
    """How a network runs: where, in which precision and in which batches."""
    group.add_argument("--device", metavar="DEVICE", help="cpu | cuda | cuda:1 ... (default: a GPU if there is one)")
    group.add_argument(
        "--dtype",
        metavar="DTYPE",
        help="precision of a network (default: bfloat16 on a GPU, else float32; auto: the faster)",
    )
    group.add_argument("--batch-tokens", type=int, metavar="N", help="tokens per batch of a network")


def add_top(group: argparse._ActionsContainer) -> None:
    """`--top`."""
    group.add_argument(
        "--top",
        type=int,
        metavar="K",
        help="write candidate records for another `mbrace decode`: the K best hypotheses of each record, and all "
        "pseudo-references",
    )


def check_threads(threads: int) -> None:
    """Refuse a number of threads that is not possible."""
    if not 0 <= threads <= MOST_THREADS:
        raise UserError(f"--threads {threads}: must be 0 (all cores) or more, and at most {MOST_THREADS:,}")


def utility_settings(args: argparse.Namespace) -> UtilitySettings:
    """The utility that was asked for, checked."""
    name, options = args.utility, _utility_options([*args.utility_option, *_judge_options(args)])
    check_threads(args.threads)
    check_utility(name, dict(options), model=args.metric_model if uses_model(name) else None)
    for option in () if uses_model(name) else _unused_options(args):
        if getattr(args, option) is not None:
            neural = ", ".join(filter(uses_model, NAMED))
            raise UserError(f"--{option.replace('_', '-')}: only valid with --utility {neural}, not {name}")
    return UtilitySettings(name, args.metric_model, args.device, args.dtype, args.batch_tokens, options)


def _unused_options(args: argparse.Namespace) -> Iterator[str]:
    """The options for neural utilities that nothing uses if `--utility` is not one."""
    yield "metric_model"
    yield from ("dtype", "batch_tokens")
    runs_model = getattr(args, "model", None) is not None and getattr(args, "runtimes", True)
    if not runs_model:  # a command that runs a model of its own takes --device for that
        yield "device"


def _utility_options(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    options: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UserError(f"--utility-option {text}: give NAME=VALUE")
        if name in options:
            raise UserError(f"--utility-option {text}: {name} was given before")
        options[name] = value
    return tuple(options.items())


def _judge_options(args: argparse.Namespace) -> Iterator[str]:
    """The `--judge-...` options as options of the utility, or of the part of a mixture."""
    front = "judge." if is_mixture(args.utility) else ""
    for flag, option in (("server", "url"), *((name, name) for name in ("model", "prompt", "answers", "budget"))):
        text = getattr(args, f"judge_{flag}")
        if text is None:
            continue
        parts = [part for part, _ in parse_mixture(args.utility)] if front else [args.utility]
        if "judge" not in parts:
            raise UserError(f"--judge-{flag}: only valid with --utility judge, not {args.utility}")
        if flag == "prompt" and text.startswith("@"):
            text = _read_prompt(text[1:])
        yield f"{front}{option}={text}"


def _read_prompt(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--judge-prompt @{path}: cannot be read ({error}); give a text file") from error


def utility_from(args: argparse.Namespace) -> Utility:
    """The utility that was asked for, loaded."""
    return utility_settings(args).load(args.threads)


def report_truncated(truncated: int) -> None:
    """Say on stderr how many strings were over a utility's length limit, if any were."""
    if truncated:
        were = "was" if truncated == 1 else "were"
        say(f"{counted(truncated, 'string')} {were} over the utility's length limit and cut there")


def cost_text(cost: Cost) -> str:
    """The requests of a utility to a server, in words."""
    tokens = f"{cost.prompt_tokens:,} + {counted(cost.completion_tokens, 'token')}"
    return f"{counted(cost.requests, 'request')} ({tokens}), {counted(cost.kept_answers, 'answer')} kept from before"


def report_cost(cost: Cost) -> None:
    """Say on stderr what a utility requested from a server, if it uses one."""
    if cost != Cost():
        say(cost_text(cost))


def add_race(parser: argparse.ArgumentParser, *, preset: str = "paper") -> None:
    """`--prune`, `--schedule` and the other options of a race."""
    group = parser.add_argument_group("race")
    group.add_argument("--prune", default=None, metavar="RULE", help="confidence (default) | bottom | halving | none")
    group.add_argument("--alpha", type=float, default=None, help="confidence threshold (default: 0.99)")
    group.add_argument("--bootstraps", type=int, default=None, metavar="N", help="bootstrap resamples (default: 500)")
    group.add_argument("--beta", type=float, default=None, help="proportion `--prune bottom` drops each step")
    group.add_argument(
        "--budget", type=int, default=None, metavar="N", help="maximum utility calls per record of `--prune halving`"
    )
    group.add_argument(
        "--regret",
        type=float,
        default=None,
        metavar="X",
        help="end a race when the expected regret of answering now is at most X of the spread between hypotheses "
        "(default: 0: never, as in the paper)",
    )
    add_forecast(group)
    group.add_argument(
        "--preset",
        choices=list(PRESETS),
        default=preset,
        help="paper: the paper's settings; fast: less time, shown to be as good. Other options override it "
        f"(default: {preset})",
    )
    group.add_argument(
        "--schedule",
        default=None,
        metavar="SIZES",
        help="growing sample sizes, such as 16,32,64,128,256, or `all` to continue to the last pseudo-reference",
    )
    group.add_argument("--seed", type=seed, default=0, help="random seed (default: 0)")
    group.add_argument("--nbest", type=int, default=1, metavar="N", help="keep and write the N best (default: 1)")
    group.add_argument(
        "--select",
        choices=("best", "diverse"),
        default="best",
        help="which N: the best (default), or a diverse set; without pruning",
    )
    group.add_argument(
        "--diversity",
        type=float,
        metavar="LAMBDA",
        help=f"weight of similarity in `--select diverse` (default: {Diverse.diversity})",
    )


def race_settings(args: argparse.Namespace) -> RaceSettings:
    """The race that was asked for, checked."""
    method = method_from(args)
    set_default_prune(args)
    check_forecast(args)
    return RaceSettings(
        _prune_settings(args),
        _schedule(args),
        seed=args.seed,
        nbest=args.nbest,
        window=args.window,
        select=args.select,
        diversity=args.diversity,
        method=method,
        forecast=args.forecast or 0.0,
    )


def set_default_prune(args: argparse.Namespace) -> None:
    """Set `--prune` where it was not given: by default nothing is pruned where full scores are needed."""
    if args.prune is None:
        args.prune = "confidence" if args.select == "best" and prunes(args) else "none"


def _prune_settings(args: argparse.Namespace) -> PruneSettings:
    if args.prune not in ("confidence", "bottom", "halving", "none"):
        raise UserError(f"--prune {args.prune}: unknown; choose from confidence, bottom, halving, none")
    rules = {"alpha": "confidence", "bootstraps": "confidence", "regret": "confidence"}
    rules |= {"beta": "bottom", "budget": "halving"}
    for option, rule in rules.items():
        if getattr(args, option) is not None and args.prune != rule:
            raise UserError(f"--{option}: only valid with --prune {rule}, not --prune {args.prune}")
    if args.prune == "bottom" and args.beta is None:
        raise UserError("--prune bottom: needs --beta, the proportion to drop each step, such as --beta 0.5")
    if args.prune == "halving" and args.budget is None:
        raise UserError("--prune halving: needs --budget, the most utility calls per record, such as --budget 8192")
    settings = PruneSettings(args.prune, args.alpha, args.bootstraps, args.beta, args.regret, args.budget)
    settings.load()  # refuses numbers out of range
    return settings


def _schedule(args: argparse.Namespace) -> Schedule:
    """The sample sizes that were asked for, or "all"; None: the utility's own."""
    if args.schedule is None or args.schedule == "all":
        return args.schedule  # type: ignore[no-any-return]
    try:
        sizes = [int(size) for size in args.schedule.split(",")]
    except ValueError:
        raise UserError(f"--schedule {args.schedule}: give whole numbers, such as 16,32,64,128,256, or all") from None
    return check_schedule(sizes)
