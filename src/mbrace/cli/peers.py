"""`mbrace mbrs-decode` and `mbrace comet-mbr`: other tools' commands, with their own options, files and formats.

Their options become the words of a `mbrace decode` command, which is printed once; what has no counterpart is refused
by name, with what to do instead.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mbrace.cli.messages import say
from mbrace.cli.options import race_settings, utility_settings
from mbrace.errors import UserError, counted, require
from mbrace.setting_fields import nearest
from mbrace.utilities.named import NAMED

if TYPE_CHECKING:
    from mbrace.records import Record
    from mbrace.result import Candidate, Decoded
    from mbrace.utility import Utility

HALVES = {"fp16": "float16", "bf16": "bfloat16"}
_NETWORK = {"model": "--metric-model", "fp16": "", "bf16": "", "cpu": "", "batch_size": ""}


def _same(names: str, ignored: str = "num_workers") -> dict[str, str]:
    """Options that have the same name here, and ignored ones."""
    return {name: name for name in names.split()} | dict.fromkeys(ignored.split(), "")


def _metric_names(names: str) -> dict[str, None]:
    return dict.fromkeys(f"metric.{name}" for name in names.split())


# For each metric of mbrs, its options and what they become: a flag of ours, the name of an option of the utility, or ""
# if the option is read elsewhere in this file or changes no answer.
METRICS: dict[str, dict[str, str]] = {
    "bleu": _same(
        "tokenize smooth_method smooth_value max_ngram_order effective_order lowercase", "trg_lang force num_workers"
    ),
    "chrf": _same("lowercase eps_smoothing whitespace char_order beta", "word_order fastchrf num_workers"),
    "ter": _same("normalized no_punct asian_support case_sensitive"),
    "comet": _NETWORK,
    "xcomet": _NETWORK,
    "metricx": _NETWORK,
    "bleurt": _NETWORK,
    "bertscore": {
        **_NETWORK,
        "model_type": "--metric-model",
        "num_layers": "layer",
        "score_type": "measure",
        **dict.fromkeys(("nthreads", "use_fast_tokenizer"), ""),
    },
}
MODELS = {  # the default ones there
    "comet": "Unbabel/wmt22-comet-da",
    "xcomet": "Unbabel/XCOMET-XL",
    "metricx": "google/metricx-24-hybrid-xxl-v2p6",
    "bleurt": "lucadiliello/BLEURT-20-D12",
}
DECODERS: dict[str, dict[str, str]] = {
    "mbr": {},
    "pruning_mbr": {
        "alpha": "--alpha",
        "sampling_scheduler": "--schedule",
        "num_bootstrap_samples": "--bootstraps",
        "seed": "--seed",
    },
    "aggregate_mbr": {},
    "centroid_mbr": {"kmeans.ncentroids": "centroids", "kmeans.seed": "--seed", "count_weight": "weighted"},
    "probabilistic_mbr": {"rank": "rank", "reduction_factor": "", "seed": "--seed"},
}
SELECTOR = ["diversity_lambda", "diversity_metric", "local_search_iterations", "local_search_neighbors", "seed"]
# Truth values, which are given as --x, --x true, --x=false or --nox, with the default of those that are refused.
SWITCHES: dict[str, str | None] = {
    **_metric_names("fp16 bf16 cpu use_fast_tokenizer force lowercase effective_order whitespace eps_smoothing"),
    **_metric_names("fastchrf normalized no_punct asian_support case_sensitive"),
    "metric.idf": "no",
    "metric.rescale_with_baseline": "no",
    "decoder.count_weight": None,
    "decoder.kmeans.kmeanspp": "yes",
}
TRUTH = dict.fromkeys(("true", "yes", "t", "y", "1"), True) | dict.fromkeys(("false", "no", "f", "n", "0"), False)
RESCALED = "leave it out: rescaling scores changes no decision"
REFUSED = {
    "--config_path": "give these options on the command line; `--config FILE` reads those of mbrace",
    "--plugin_dir": "give a function of your own: mbrace decode --utility file.py:function",
    **dict.fromkeys(
        (f"--selector.{name}" for name in SELECTOR),
        "use mbrace decode --nbest N --method diverse --method-option diversity=LAMBDA",
    ),
    "--decoder.regularization_weight": "leave it out: scores are scaled first, so that one weight fits every utility",
    "--decoder.niter": "leave it out: it is always 10",
    "--decoder.kmeans.niter": "leave it out: it is always 5",
    "--decoder.kmeans.kmeanspp": "leave it out: centroids always start by k-means++",
    "--metric.lang": "give the encoder: --metric.model_type MODEL",
    "--metric.idf": "give texts in a file: mbrace decode --utility bertscore --utility-option idf=FILE",
    "--metric.idf_sents": "give texts in a file: mbrace decode --utility bertscore --utility-option idf=FILE",
    "--metric.rescale_with_baseline": RESCALED,
    "--metric.baseline_path": RESCALED,
    "--report_format": "leave it out: the summary is plain text",
}
LOWER_IS_BETTER = ("ter", "metricx")  # there; here they are negated
TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}  # of sacreBLEU, by --metric.trg_lang
QUALITY = (
    "mbrace rerank --hypotheses {hypotheses} --num-candidates {n} --source {source} --qe {model}{top} -o OUT.jsonl"
)


class Switch(argparse.Action):
    """A truth value: --x, --x true, --x=false or --nox; `const` is what false and true are here."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, given: Any, flag: str | None = None) -> None:
        """Store what was given; `given` is `const` where only the flag was."""
        on = flag == self.option_strings[0]
        if given is not self.const:
            if not on or given.lower() not in TRUTH:
                raise argparse.ArgumentError(self, f"{given}: must be true or false")
            on = TRUTH[given.lower()]
        setattr(namespace, self.dest, self.const[on])


SWITCH: dict[str, Any] = {"action": Switch, "nargs": "?", "const": ("no", "yes")}


def add_mbrs(commands: Any) -> None:
    parser = commands.add_parser(
        "mbrs-decode",
        help="mbrs's command of this name: its options, files and formats",
        description="Takes the options of mbrs-decode and prints the equivalent `mbrace decode` command.",
    )
    parser.add_argument("hypotheses", metavar="HYPOTHESES", help="N hypotheses per source, one per line")
    parser.add_argument("-n", "--num_candidates", type=int, required=True, metavar="N", help="hypotheses per source")
    parser.add_argument("-s", "--source", metavar="FILE", help="one source per line")
    parser.add_argument("-r", "--references", metavar="FILE", help="pseudo-references (default: the hypotheses)")
    parser.add_argument("--num_references", type=int, metavar="M", help="pseudo-references per source (default: N)")
    parser.add_argument("--reference_lprobs", metavar="FILE", help="their log-probabilities, one per line")
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="replaced if it exists; - is stdout")
    parser.add_argument("--format", default="plain", choices=("plain", "json"), help="default: plain")
    parser.add_argument("--decoder", default="mbr", metavar="NAME", help=f"{' | '.join(DECODERS)} (default: mbr)")
    parser.add_argument("--metric", default="bleu", metavar="NAME", help=f"{' | '.join(METRICS)} (default: bleu)")
    parser.add_argument("--selector", default="nbest", metavar="NAME", help="nbest")
    parser.add_argument("--nbest", type=int, default=1, metavar="N", help="write the N best (default: 1)")
    parser.add_argument("--report", metavar="FILE", help="also write the summary there")
    parser.add_argument("-w", "--width", help=argparse.SUPPRESS)
    quiet = SWITCH | {"dest": "log_level", "const": ("info", "error"), "default": argparse.SUPPRESS}
    parser.add_argument("--quiet", "--noquiet", metavar="BOOL", help="print only errors", **quiet)
    names = [f"metric.{name}" for own in METRICS.values() for name in own]
    names += [f"decoder.{name}" for own in DECODERS.values() for name in own]
    for name in dict.fromkeys([*SWITCHES, *names, *(flag[2:] for flag in REFUSED)]):
        flags = [f"--{name}", "--{}{}no{}".format(*name.rpartition("."))][: 1 + (name in SWITCHES)]
        many = {"nargs": "*"} if f"--{name}" in REFUSED or "scheduler" in name else {}
        parser.add_argument(*flags, metavar="X", help=argparse.SUPPRESS, **SWITCH if name in SWITCHES else many)
    parser.set_defaults(run=run_mbrs)


def run_mbrs(args: argparse.Namespace) -> int:
    best = args.nbest
    if best < 1:
        raise UserError(f"--nbest {best}: must be 1 or more")
    sign = -1 if args.metric in LOWER_IS_BETTER else 1
    words = mbrs_words(args)

    def lines(record: Record, answer: Decoded, utility: Utility) -> Iterator[str]:
        for rank, (index, each) in enumerate(_copies(record, answer, best)):
            if args.format == "plain":
                yield each.text
                continue
            score = sign * float(np.float32(_expected(record, each, utility)))
            found = {"rank": rank, "sentence": each.text, "selected_idx": index, "expected_score": score}
            yield json.dumps(found, ensure_ascii=False)

    summary = _decode(args, words, lines, logprobs=args.reference_lprobs)
    if args.report not in (None, "-"):
        with open(args.report, "w", encoding="utf-8") as file:
            file.write(summary + "\n")
    return 0


def mbrs_words(args: argparse.Namespace) -> list[str]:
    """The equivalent `mbrace decode` command."""
    given = {name: value for name, value in vars(args).items() if value not in (None, SWITCHES.get(name))}
    for flag, instead in REFUSED.items():
        if flag[2:] in given:
            raise UserError(f"{flag}: {instead}")
    if args.decoder == "rerank" or args.metric == "cometkiwi":
        files = {"hypotheses": args.hypotheses, "n": args.num_candidates, "source": args.source or "SOURCES"}
        model = given.get("metric.model", "Unbabel/wmt22-cometkiwi-da")
        command = QUALITY.format(**files, model=model, top=f" --nbest {args.nbest}")
        raise UserError(f"--decoder {args.decoder} --metric {args.metric}: reads no references; use {command}")
    if args.selector != "nbest":
        raise UserError(f"--selector {args.selector}: use mbrace decode --nbest N --method diverse")
    own: dict[str, dict[str, Any]] = {}
    for kind, chosen, known in (("decoder", args.decoder, DECODERS), ("metric", args.metric, METRICS)):
        if chosen not in known:
            raise UserError(f"--{kind} {chosen}: not supported{nearest(chosen, known)}")
        own[kind] = {name.partition(".")[2]: value for name, value in given.items() if name.startswith(f"{kind}.")}
        for name in own[kind]:
            if name not in known[chosen]:
                raise UserError(f"--{kind}.{name}: not an option of --{kind} {chosen}")
    words = _flat(args.hypotheses, args.num_candidates, args.source, args.references, args.num_references)
    words += ["--utility", _utility(args.metric, own["metric"]), *_metric_words(args.metric, own["metric"])]
    words += _decoder_words(args.decoder, own["decoder"], args.metric)
    return words + (["--nbest", str(args.nbest)] if args.nbest > 1 else [])


def _flat(
    hypotheses: str, count: int, source: str | None, references: str | None = None, per_source: int | None = None
) -> list[str]:
    words = ["--hypotheses", hypotheses, "--num-candidates", str(count)]
    named = {"--source": source, "--references": references, "--num-references": per_source}
    for flag, value in named.items():
        words += [] if value is None else [flag, str(value)]
    return words


def _utility(metric: str, options: dict[str, str]) -> str:
    if metric != "chrf":
        return metric
    order = options.get("word_order", "0")
    if order not in ("0", "1", "2"):
        raise UserError(f"--metric.word_order {order}: choose from 0, 1, 2")
    return "chrf" + "+" * int(order)


def _translated(options: dict[str, Any], table: dict[str, str], group: str) -> list[str]:
    """Options as they are given here."""
    words: list[str] = []
    for name, value in options.items():
        shown = ",".join(map(str, value)) if isinstance(value, list) else value
        if here := table[name]:
            words += [here, shown] if here.startswith("--") else [f"--{group}-option", f"{here}={shown}"]
    return words


def _metric_words(metric: str, options: dict[str, str]) -> list[str]:
    if metric in MODELS:
        options = {"model": MODELS[metric], **options}
    if metric == "bleu" and "tokenize" not in options and options.get("trg_lang") in TOKENIZERS:
        options = {**options, "tokenize": TOKENIZERS[options["trg_lang"]]}
    words = _translated(options, METRICS[metric], "utility")
    if "cpu" not in METRICS[metric]:
        return words
    if "--metric-model" not in words:
        raise UserError("--metric bertscore: give the encoder: --metric.model_type MODEL")
    half = next((dtype for name, dtype in HALVES.items() if options.get(name) == "yes"), "float32")
    if options.get("cpu") == "yes":
        return [*words, "--device", "cpu", "--dtype", "float32"]
    return [*words, "--dtype", half]


def _decoder_words(decoder: str, options: dict[str, Any], metric: str) -> list[str]:
    if decoder == "pruning_mbr":
        options = {"sampling_scheduler": [8, 16, 32, 64, 128, 256], **options}
        return ["--no-shuffle", *_translated(options, DECODERS[decoder], "method")]
    words = ["--schedule", "all"]
    if decoder == "centroid_mbr":
        options = {"kmeans.ncentroids": "8", **options}  # the default there
    if decoder == "mbr":
        return [*words, "--prune", "none"]
    if decoder == "aggregate_mbr" and NAMED[_utility(metric, {})].kind == "string":
        raise UserError(f"--decoder aggregate_mbr --metric {metric}: exact pairs take no longer; use --decoder mbr")
    words += ["--method", {"aggregate_mbr": "aggregate", "centroid_mbr": "centroid"}.get(decoder, "low-rank")]
    if decoder == "probabilistic_mbr":
        words += ["--method-option", f"fraction={_share(options.pop('reduction_factor', '8')):g}"]
    return words + _translated(options, DECODERS[decoder], "method")


def _share(reduction: str) -> float:
    """The share of pairs that are scored."""
    try:
        return 1 / float(reduction)
    except (ValueError, ZeroDivisionError):
        raise UserError(f"--decoder.reduction_factor {reduction}: must be a number, at least 1") from None


def add_comet_mbr(commands: Any) -> None:
    parser = commands.add_parser(
        "comet-mbr",
        help="unbabel-comet's command of this name: its options, files and formats; no GPU needed",
        description="Takes the options of comet-mbr and prints the equivalent `mbrace decode` command. As there, each "
        "sample is left out of its own average.",
    )
    parser.add_argument("-s", "--sources", required=True, metavar="FILE", help="one source per line")
    parser.add_argument(
        "-t", "--translations", required=True, metavar="FILE", help="N samples per source, one per line"
    )
    parser.add_argument("--num_samples", type=int, required=True, metavar="N", help="samples per source")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="replaced if it exists")
    parser.add_argument("--model", default="Unbabel/wmt22-comet-da", metavar="MODEL", help="default: %(default)s")
    parser.add_argument("--model_storage_path", metavar="DIR", help="where models from the hub are stored")
    parser.add_argument("--gpus", type=int, default=1, metavar="G", help="0: compute on the CPU")
    parser.add_argument("--batch_size", type=int, metavar="B", help="accepted; batches are by tokens")
    parser.add_argument("--rerank_top_k", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--qe_model", default="Unbabel/wmt22-cometkiwi-da", help=argparse.SUPPRESS)
    parser.set_defaults(run=run_comet_mbr)


def run_comet_mbr(args: argparse.Namespace) -> int:
    if args.rerank_top_k:
        files = {"hypotheses": args.translations, "n": args.num_samples, "source": args.sources}
        command = QUALITY.format(**files, model=args.qe_model, top=f" --top {args.rerank_top_k}")
        raise UserError(
            f"--rerank_top_k: use {command}, then mbrace decode OUT.jsonl --utility comet --prune none, which "
            "compares the best with all samples"
        )
    if args.model_storage_path is not None:
        os.environ["HF_HUB_CACHE"] = args.model_storage_path
    words = _flat(args.translations, args.num_samples, args.sources)
    words += ["--utility", "comet", "--metric-model", args.model]
    torch = require("torch", extra="neural")
    if args.gpus and torch.cuda.is_available():
        words += ["--dtype", "float16"]  # as there
    elif not args.gpus:
        words += ["--device", "cpu"]
    words += ["--schedule", "all", "--prune", "none"]
    _decode(args, words, lambda record, answer, utility: iter([answer.text]), exclude_self=True)
    return 0


def _decode(
    args: argparse.Namespace, words: list[str], lines: Any, *, logprobs: str | None = None, exclude_self: bool = False
) -> str:
    """Print our command, run it, and write `lines` of each answer; returns the summary."""
    from mbrace.api import decode_corpus
    from mbrace.cli.parser import make_parser
    from mbrace.io.atomic import replacing

    shown = shlex.join(["mbrace", "decode", *words, "-o", args.output, *([] if "--nbest" in words else ["--text"])])
    note = ", with `logprobs` in its records" if logprobs else ""
    note += ", with exclude_self=True in Python" if exclude_self else ""
    say(f"mbrace: the same as: {shown}{note}")
    ours = make_parser("decode").parse_args(["decode", *words])
    race, _ = race_settings(ours, "decode")
    if exclude_self:
        race = race.replace(exclude_self=True)
    utility = utility_settings(ours).load(0)
    began, sentences, calls = time.perf_counter(), 0, 0
    records: list[Record] = []  # those whose answers are still to come

    def noted() -> Iterator[Record]:
        for record in _records(ours, logprobs):
            records.append(record)
            yield record

    def write(file: Any) -> None:
        nonlocal sentences, calls
        for answer in decode_corpus(noted(), utility=utility, race=race):
            for line in lines(records.pop(0), answer, utility):
                file.write(line + "\n")
            sentences += 1
            calls += answer.utility_calls

    if args.output == "-":
        write(sys.stdout)
    else:
        with replacing(os.path.realpath(args.output)) as path, open(path, "w", encoding="utf-8", newline="\n") as file:
            write(file)
    seconds = time.perf_counter() - began
    summary = f"mbrace: {counted(sentences, 'sentence')} in {seconds:.2f} s; {counted(calls, 'utility call')}"
    say(summary)
    return summary


def _records(args: argparse.Namespace, logprobs: str | None) -> Iterator[Record]:
    """The records of flat files, without whitespace around the lines, as both tools read them."""
    from mbrace.io.candidates import read_flat
    from mbrace.io.reading import read_lines
    from mbrace.records import Record

    sizes = {"num_candidates": args.num_candidates, "num_references": args.num_references}
    weights = None if logprobs is None else read_lines(logprobs)
    for record in read_flat(args.hypotheses, args.references, source=args.source, **sizes):
        hypotheses = [line.strip() for line in record.hypotheses]
        given = record.pseudo_references if args.references else None
        references = None if given is None else [line.strip() for line in given]  # type: ignore[union-attr]
        yield Record(
            hypotheses,
            references,  # None: the hypotheses, so that each can be left out of its own average
            id=record.id,
            source=None if record.source is None else record.source.strip(),
            logprobs=None
            if weights is None
            else [_number(logprobs, next(weights, None)) for _ in references or hypotheses],
            location=record.location,
        )
    if weights is not None and any(line.strip() for line in weights):
        raise UserError(f"{logprobs}: has more lines than there are pseudo-references")


def _number(path: str | None, line: str | None) -> float:
    if line is None:
        raise UserError(f"{path}: ends early; give a log-probability for each pseudo-reference")
    try:
        return float(line)
    except ValueError:
        raise UserError(f"{path}: {line!r} is no log-probability") from None


def _copies(record: Record, answer: Decoded, most: int) -> list[tuple[int, Candidate]]:
    """The best hypotheses with the index of each copy: equal ones, which race as one here, are listed apart there."""
    where: dict[str, list[int]] = {}
    for index, text in enumerate(record.hypotheses):
        where.setdefault(text, []).append(index)
    return [(index, each) for each in answer.nbest for index in where[each.text]][:most]


def _expected(record: Record, each: Candidate, utility: Utility) -> float:
    """The expected utility of a hypothesis; of one that won without a race it is computed now."""
    if each.utility is not None:
        return each.utility
    references = list(record.pseudo_references or record.hypotheses)  # type: ignore[arg-type]
    sources = None if record.source is None else [record.source] * len(references)
    scores = np.asarray(utility.pairs([each.text] * len(references), references, sources), dtype=np.float64)
    return float(scores.mean())
