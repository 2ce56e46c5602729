"""What was removed, and what to do instead, for one release. CHANGELOG.md names the last commit that had it.

Keys are keywords of Python, which are also the names of flags and the keys of OUT.run.json.
"""

from __future__ import annotations

_POOL = (
    "was removed: hypotheses drawn during a race scored lower by metrics that nothing was decoded with; leave it out, "
    "or use `mbrace answer`, where each draw is a hypothesis"
)
_COARSE = (
    "was removed: shortlists lost more than they saved; write one with `mbrace decode --top K` and decode that file"
)
_BEAM = "was removed: it gained little; leave it out for the plain beam search"
_OPTION = "is an option of the method now: --method-option"
_JUDGE = "is an option of the utility now: --utility-option"
_SERVED = "is an option of the server now: --server-option"
_RAY = "is an option of --ray now: --ray-option"
_STUDY = "was removed: the study was run once, and its findings are in results/"
REMOVED: dict[str, str] = {
    "methods": f"{_STUDY}METHODS.md",
    "timed": f"{_STUDY}METHODS.md",
    "drawn": f"{_STUDY}METHODS.md",
    "strings": f"{_STUDY}STRINGS.md",
    "states": _BEAM,
    "recombine": _BEAM,
    "max_behind": _BEAM,
    "draw": "was removed: draws are made as they are needed",
    "pool": _POOL,
    "start": _POOL,
    "coarse": _COARSE,
    "coarse_top": _COARSE,
    "coarse_model": _COARSE,
    "qe": "was removed here: `mbrace rerank --qe MODEL --top K` writes a candidate file that `mbrace decode` reads",
    "qe_top": "was removed: `mbrace rerank --qe MODEL --top K` writes a candidate file that `mbrace decode` reads",
    "select": "is a method now: method diverse chooses a diverse n-best list; medoids were removed",
    "diversity": f"{_OPTION} diversity=LAMBDA with --method diverse",
    "aggregates": f"{_OPTION} aggregates=N",
    "centroids": f"{_OPTION} centroids=K",
    "centroid_weights": f"{_OPTION} weighted=yes",
    "rank": f"{_OPTION} rank=R",
    "fraction": f"{_OPTION} fraction=F",
    "fine_top": "was removed with aggregate-to-fine: the race itself drops hypotheses early",
    "judge_server": f"{_JUDGE} url=URL",
    "judge_model": f"{_JUDGE} model=NAME",
    "judge_prompt": f"{_JUDGE} prompt=TEXT, or prompt=@FILE",
    "judge_budget": f"{_JUDGE} budget=N",
    "judge_answers": f"{_JUDGE} answers=FILE",
    "kind": "is not needed now: a model with --prompt is decoder-only (causal), one without is not",
    "server_kind": f"{_SERVED} kind=completions",
    "server_beam_search": f"{_SERVED} beam_search=yes",
    "samples_per_request": f"{_SERVED} samples_per_request=N",
    "system_prompt": f"{_SERVED} system_prompt=TEXT",
    "retries": f"{_SERVED} retries=N",
    "workers": f"{_RAY} workers=N",
    "gpus_per_worker": f"{_RAY} gpus_per_worker=G",
    "shard_size": f"{_RAY} shard_size=N",
    "retry_errors": "is --resume --on-error retry now",
    "json": "is --no-text now",
    "minutes": "was removed: `timeout 60m mbrace ...` ends a run after the current window, and --resume continues it",
    "limit": "was removed: `head -n N SOURCES` makes a shorter file",
    "saved_utilities": "was removed: --utility replay --utility-option tables=DIR races over saved utilities",
    "races": "was removed: the report shows the races of 12 sentences of each file",
    "csv": "was removed: --json FILE has every rating",
    "name_a": "is an option of `mbrace judge-results` now",
    "name_b": "is an option of `mbrace judge-results` now",
    "exclude_self": "is for Python alone now: mbrace.decode(..., exclude_self=True)",
    "length_alpha": "is called --length-penalty now",
}
REMOVED_VALUES: dict[tuple[str, str], str] = {
    ("method", "aggregate-to-fine"): REMOVED["fine_top"],
    ("method", "medoids"): REMOVED["select"],
    ("qe", "learned"): "was removed: a random shortlist was better",
}
