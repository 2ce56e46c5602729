"""`mbrace answer`: prompts in, the consensus of a model's answers out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mbrace.answers import DRAWS, REGRET, VOTE_CONFIDENCE
from mbrace.cli.messages import say
from mbrace.cli.options import add_utility, utility_settings
from mbrace.cli.parser import seed
from mbrace.cli.runs import _ended, add_cluster, add_resume, check_run, run_on_cluster, run_with_output
from mbrace.errors import UserError, check_number, check_whole
from mbrace.wording import counted

if TYPE_CHECKING:
    from mbrace.jobs.answer import AnswerJob, AnswerModel, AnswerSummary
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
    parser.add_argument("-n", type=int, default=DRAWS, metavar="N", help=f"most draws per prompt ({DRAWS})")
    parser.add_argument("--window", type=int, default=64, metavar="N", help="prompts racing at once (default: 64)")
    add_resume(parser)
    add_answering(parser)
    parser.add_argument("--nbest", type=int, default=1, metavar="N", help="write the N best answers (default: 1)")
    parser.add_argument("--save-draws", metavar="FILE", help="append each paid draw to FILE, which `decode` reads too")
    parser.add_argument(
        "--max-cost-tokens", type=int, metavar="N", help="stop drawing before tokens in and out may exceed N"
    )
    add_utility(parser)
    add_cluster(parser)
    parser.set_defaults(run=run)


def add_answering(parser: argparse.ArgumentParser) -> None:
    """What answers, how it samples, and when a race is over; `mbrace serve` has them too."""
    group = parser.add_argument_group("model (default: SmolLM2 by llama.cpp in this process, with mbrace[llm])")
    group.add_argument("--server", metavar="URL", help="an OpenAI-compatible server; the key is OPENAI_API_KEY")
    group.add_argument("--server-model", metavar="M", help="the model's name there")
    group.add_argument("--server-kind", choices=("chat", "completions"), default="chat", help="which endpoint (chat)")
    group.add_argument("--model", metavar="M", help="a causal model of Hugging Face, run here: a folder or name")
    group.add_argument("--system-prompt", metavar="TEXT", help="system message of prompts that are plain text")
    group.add_argument("--max-tokens", type=int, default=512, metavar="N", help="tokens per draw (512)")
    group.add_argument("--stop", metavar="TEXT", help="an answer ends before this text")
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help="sampling temperature (1.0)")
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K most probable tokens")
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens with this total")
    group.add_argument("--min-p", type=float, metavar="P", help="least probability, as a share of the best token's")
    group.add_argument("--concurrency", type=int, default=8, metavar="N", help="requests at the same time (8)")
    group.add_argument("--timeout", type=float, default=120.0, metavar="S", help="seconds for an answer (120)")
    group.add_argument("--retries", type=int, default=6, metavar="N", help="more tries of a failed request (6)")
    race = parser.add_argument_group("race")
    race.add_argument(
        "--regret", type=float, default=REGRET, metavar="X",
        help="no more draws when the expected regret of answering now is at most X of the spread between draws "
        f"({REGRET})",
    )  # fmt: skip
    race.add_argument(
        "--confidence", type=float, default=VOTE_CONFIDENCE, metavar="P",
        help=f"with --utility exact: the vote is over when the leader is ahead with this probability "
        f"({VOTE_CONFIDENCE}; 1: only when nothing can overtake it)",
    )  # fmt: skip
    race.add_argument("--logprobs", action="store_true", help="weight draws by their log-probabilities")
    race.add_argument("--seed", type=seed, default=0, help="random seed (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Check every option, then answer."""
    from mbrace.io.candidates import checked_input
    from mbrace.jobs.answer import bound
    from mbrace.jobs.translate import source_items

    check_run(args)
    job = job_from(args)
    if args.ray is not None:
        if args.save_draws is not None or args.max_cost_tokens is not None:
            raise UserError("--save-draws and --max-cost-tokens: not with --ray, whose workers do not share them")
        say(bound(job, None))
        return run_on_cluster(job, [args.prompts], args)
    say(bound(job, _count(args.prompts)))
    items = checked_input(lambda: source_items(args.prompts, make_item=job.item), [args.prompts], output=args.output)
    summary = run_with_output(job, items, args, threads=args.threads)
    say(_cost(summary))  # type: ignore[arg-type]
    return _ended(summary, args)


def job_from(args: argparse.Namespace) -> AnswerJob:
    """The job that was asked for."""
    from mbrace.jobs.answer import AnswerJob

    check_whole("-n", args.n, least=1)
    check_whole("--nbest", args.nbest, least=1, most=args.n)
    utility = utility_of_votes(args)
    return AnswerJob(
        model_from(args), utility, args.n, args.regret, args.confidence, args.nbest, args.seed, args.window
    )


def utility_of_votes(args: argparse.Namespace) -> UtilitySettings:
    """The utility that was asked for; votes compare numbers by value."""
    utility = utility_settings(args)
    if utility.name == "exact" and "numbers" not in dict(utility.options):
        utility = type(utility)(utility.name, options=(*utility.options, ("numbers", "true")))
    return utility


def model_from(args: argparse.Namespace) -> AnswerModel:
    """The model or server that was asked for."""
    from mbrace.jobs.answer import AnswerModel

    if args.server is not None and args.server_model is None:
        raise UserError("--server: needs --server-model, the model's name there")
    if args.server is not None and args.model is not None:
        raise UserError("--server and --model: give one of them")
    if args.server is None and args.server_model is not None:
        raise UserError("--server-model: only valid with --server; --model runs a model here")
    check_number("--regret", args.regret, least=0)
    check_number("--confidence", args.confidence, least=0.5, most=1)
    check_whole("--max-tokens", args.max_tokens, least=1)
    return AnswerModel(
        server=args.server,
        model=args.server_model if args.server is not None else args.model,
        kind=args.server_kind,
        system=args.system_prompt,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        max_tokens=args.max_tokens,
        stop=args.stop,
        weighted=args.logprobs,
        device=args.device,
        dtype=args.dtype,
        concurrency=args.concurrency,
        timeout=args.timeout,
        retries=args.retries,
        save_draws=getattr(args, "save_draws", None),
        max_cost_tokens=getattr(args, "max_cost_tokens", None),
    )


def _count(path: str) -> int | None:
    from mbrace.io.reading import count_lines

    return None if path == "-" else count_lines(path)


def _cost(summary: AnswerSummary) -> str:
    """What the answers cost, and why draws stopped."""
    cost, why = summary.receipt, sorted(summary.stopped.items(), key=lambda pair: -pair[1])
    saved = 1 - summary.draws / summary.most_draws if summary.most_draws else 0.0
    reasons = ", ".join(f"{reason} ({counted(count, 'prompt')})" for reason, count in why)
    unmatched = f", {cost.unmatched:,} without an answer" if cost.unmatched else ""
    return (
        f"{counted(summary.draws, 'draw')} ({saved:.0%} saved){unmatched}, {cost.tokens_in:,} prompt + "
        f"{cost.tokens_out:,} answer tokens in {counted(cost.requests, 'request')}"
        + (f"; stopped: {reasons}" if why else "")
    )
