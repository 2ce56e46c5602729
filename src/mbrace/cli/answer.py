"""`mbrace answer`: prompts in, the consensus of a model's answers out."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, cast

from mbrace.answers import Answering
from mbrace.cli.messages import say
from mbrace.cli.options import add_model, add_settings, add_utility, given, model_settings, utility_settings
from mbrace.cli.runs import _ended, add_cluster, add_resume, check_run, run_on_cluster, run_with_output
from mbrace.errors import UserError, counted
from mbrace.settings import LOCAL, ModelSettings, Sampling

if TYPE_CHECKING:
    from mbrace.jobs.answer import AnswerJob, AnswerSummary
    from mbrace.jobs.decode import UtilitySettings


def add(commands: Any) -> None:
    """The options of `mbrace answer`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "answer",
        help="answer prompts by the consensus of a language model's draws",
        description="Draw answers to each prompt while the race between them is open, and write the one that agrees "
        "best with the others (self-consistency, best of n by minimum Bayes risk).",
    )
    parser.add_argument("prompts", metavar="PROMPTS", help="one prompt per line, or .jsonl with `prompt` or `messages`")
    parser.add_argument("-o", "--output", default="-", metavar="OUT.jsonl", help="JSON Lines; - is stdout")
    add_resume(parser)
    parser.add_argument("--save-draws", metavar="FILE", help="append each paid draw to FILE, which `decode` reads too")
    parser.add_argument(
        "--max-cost-tokens", type=int, metavar="N", help="stop drawing before tokens in and out may exceed N"
    )
    add_answering(parser)
    add_cluster(parser)
    parser.set_defaults(run=run)


def add_answering(parser: argparse.ArgumentParser, *, without: Collection[str] = ()) -> None:
    """When a race is over, its utility, and what answers; `mbrace serve` has them too."""
    from mbrace.jobs.answer import NOT_FOR_ANSWERS

    add_settings(parser.add_argument_group("race"), Answering, without=without)
    add_utility(parser)
    title = "model (default: SmolLM2 by llama.cpp in this process, with mbrace[llm])"
    add_model(parser, title=title, without=NOT_FOR_ANSWERS)


def run(args: argparse.Namespace) -> int:
    """Check every option, then answer."""
    from mbrace.io.candidates import checked_input
    from mbrace.io.output import OutputFiles
    from mbrace.io.reading import count_lines
    from mbrace.jobs import run as runs
    from mbrace.jobs.answer import bound
    from mbrace.jobs.translate import source_items

    check_run(args)
    runs.check_run(threads=args.threads, resume=args.resume, force=args.force, on_error=args.on_error)
    job = job_from(args)
    if args.ray is not None:
        if args.save_draws is not None or args.max_cost_tokens is not None:
            raise UserError("--save-draws and --max-cost-tokens: not with --ray, whose workers do not share them")
        say(bound(job, None))
        return run_on_cluster(job, [args.prompts], args)
    items = checked_input(lambda: source_items(args.prompts, make_item=job.item), [args.prompts], output=args.output)
    if not (args.resume or args.force):
        OutputFiles(args.output).refuse_existing()
    say(bound(job, None if args.prompts == "-" else count_lines(args.prompts)))
    summary = run_with_output(job, items, args, threads=args.threads)
    status = _ended(summary, args)
    if why := sorted(cast("AnswerSummary", summary).stopped.items(), key=lambda pair: -pair[1]):
        say("stopped: " + ", ".join(f"{reason} ({counted(count, 'prompt')})" for reason, count in why))
    return status


def job_from(args: argparse.Namespace) -> AnswerJob:
    """The job that was asked for."""
    from mbrace.jobs.answer import AnswerJob

    model, candidates, settings = answering(args)
    return AnswerJob(model, utility_of_votes(args), settings, candidates, args.save_draws, args.max_cost_tokens)


def answering(args: argparse.Namespace, **defaults: Any) -> tuple[ModelSettings, Sampling, Answering]:
    """What answers, how it samples and how its answers race; `defaults` are those of the command for the server."""
    from mbrace.jobs.answer import PROMPT

    if args.server is None and args.model is None:
        defaults["server"] = LOCAL
    model = model_settings(args, prompt=PROMPT, **defaults)
    return model, Sampling(**given(args, Sampling)), Answering(**given(args, Answering))


def utility_of_votes(args: argparse.Namespace) -> UtilitySettings:
    """The utility that was asked for; votes compare numbers by value."""
    utility = utility_settings(args)
    if utility.name == "exact" and "numbers" not in dict(utility.options):
        utility = type(utility)(utility.name, options=(*utility.options, ("numbers", "true")))
    return utility
