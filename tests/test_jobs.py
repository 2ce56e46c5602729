"""Runs over files from Python: any utility, pruning function and model, resumed and summed up as by the commands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import overlap

import mbrace
from mbrace.cli import decode, generate, main
from mbrace.cli.parser import make_parser
from mbrace.io.output import Output
from mbrace.io.resume import EARLY_NAMES, refuse_other_settings
from mbrace.jobs.decode import DecodeJob
from mbrace.jobs.run import run_worker
from mbrace.sampler import Draws, Want
from mbrace.settings import Race

WORDS = ["a b c", "a b", "c d", "a", "b c d"]


def write(folder: Path, count: int = 10, bad: Sequence[int] = ()) -> Path:
    """A file of records; those at the positions `bad` hold a hypothesis that `picky` refuses."""
    rows = [
        {"id": f"r{n}", "hypotheses": [*WORDS[n % 3 :], f"b {n}"], "pseudo_references": WORDS[: 2 + n % 4]}
        for n in range(count)
    ]
    for position in bad:
        rows[position]["hypotheses"] = ["poison", "a"]
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def picky(hypothesis: str, reference: str) -> float:
    if hypothesis == "poison":
        raise RuntimeError("refused")
    return overlap(hypothesis, reference)


def above_average(standings: mbrace.prune.Standings) -> Any:
    return standings.means >= standings.means.mean()


def test_a_file_is_decoded_with_a_utility_and_a_pruning_function_of_the_caller(tmp_path: Path) -> None:
    source, out = write(tmp_path), tmp_path / "out.jsonl"
    done: list[int] = []
    summary = mbrace.decode_file(
        source, out, utility=picky, prune=above_average, schedule=[1, 2, 4], nbest=2, window=3, progress=done.append
    )
    answers = []
    for row in read(source):
        answers.append(
            mbrace.decode(
                row["hypotheses"],
                row["pseudo_references"],
                utility=picky,
                prune=above_average,
                schedule=[1, 2, 4],
                nbest=2,
                id=row["id"],
            )
        )
    assert [(row["id"], row["text"], row["utility"]) for row in read(out)] == [
        (answer.id, answer.text, answer.utility) for answer in answers
    ]
    assert [[entry["text"] for entry in row["nbest"]] for row in read(out)] == [
        [candidate.text for candidate in answer.nbest] for answer in answers
    ]
    assert sum(done) == summary.sentences == 10
    assert summary.utility_calls == sum(answer.utility_calls for answer in answers)
    assert summary.pairs_scored == sum(answer.pairs_scored for answer in answers)
    sizes = [len(set(row["hypotheses"])) * min(4, len(row["pseudo_references"])) for row in read(source)]
    assert summary.standard_calls == sum(sizes) > summary.utility_calls
    assert (summary.kept, summary.skipped, summary.signal) == (0, 0, None)


def test_an_interrupted_file_goes_on_where_it_stopped_with_the_same_settings_only(tmp_path: Path) -> None:
    source, out = write(tmp_path), tmp_path / "out.jsonl"
    whole = tmp_path / "whole.jsonl"
    mbrace.decode_file(source, whole, utility=picky, prune=None)
    asked: list[str] = []
    interrupt = True

    def utility(hypothesis: str, reference: str) -> float:
        asked.append(hypothesis)
        if interrupt and hypothesis == "b 6":
            raise KeyboardInterrupt
        return picky(hypothesis, reference)

    with pytest.raises(KeyboardInterrupt):
        mbrace.decode_file(source, out, utility=utility, prune=None, window=2)
    assert out.read_bytes() == b"".join(whole.read_bytes().splitlines(keepends=True)[:6])
    interrupt, before = False, len(asked)
    with pytest.raises(mbrace.UserError, match="exists"):
        mbrace.decode_file(source, out, utility=utility, prune=None)
    for other, message in (
        ({"prune": above_average}, "prune 'none', not 'test_jobs.above_average'"),
        ({"prune": None, "utility": overlap}, "utility 'utility', not 'overlap'"),
    ):
        with pytest.raises(mbrace.UserError, match=message):
            mbrace.decode_file(source, out, **{"utility": utility, "resume": True, **other})  # type: ignore[arg-type]
    assert len(asked) == before
    summary = mbrace.decode_file(source, out, utility=utility, prune=None, resume=True)
    assert out.read_bytes() == whole.read_bytes()
    assert (summary.kept, summary.sentences) == (6, 4)
    assert "b 5" not in asked[before:]


def test_records_that_fail_stop_the_run_or_are_set_aside(tmp_path: Path) -> None:
    source, out = write(tmp_path, bad=[2, 5, 9]), tmp_path / "out.jsonl"
    with source.open("a") as file:
        file.write("{torn\n")
    with pytest.raises(mbrace.UserError, match=r"in\.jsonl:3: RuntimeError: refused"):
        mbrace.decode_file(source, out, utility=picky, window=4)
    assert [row["id"] for row in read(out)] == ["r0", "r1"]
    summary = mbrace.decode_file(source, out, utility=picky, window=4, resume=True, on_error="skip")
    assert [row["id"] for row in read(out)] == [f"r{n}" for n in range(10) if n not in (2, 5, 9)]
    assert [row["line"] for row in read(tmp_path / "out.jsonl.errors.jsonl")] == [3, 6, 10, 11]
    assert (summary.kept, summary.sentences, summary.skipped) == (2, 5, 4)


def test_one_record_object_given_twice_fails_twice() -> None:
    poison, good = mbrace.Record(["poison", "a"], ["a"], id="p"), mbrace.Record(["a", "b"], ["a"], id="g")
    worker = DecodeJob(mbrace.Pairwise(picky), Race(prune=None, window=4)).start(0)
    outcomes = list(worker([good, poison, poison, good, poison], skip=True))
    assert [bad is None for _, bad in outcomes] == [True, False, False, True, False]


def test_answers_are_on_disk_before_more_is_read_even_when_the_last_of_a_window_failed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    written: list[int] = []

    def items() -> Iterator[mbrace.Record]:
        for number in range(7):
            if number % 3 == 0:
                written.append(len(out.read_bytes().splitlines()))
            yield mbrace.Record(["poison" if number == 2 else "a", "b"], ["a"], id=number)

    with Output(str(out)) as output:
        run_worker(DecodeJob(mbrace.Pairwise(picky), Race(prune=None, window=3)).start(0), items(), output, skip=True)
    assert written == [0, 2, 5]


# --- models ---


@dataclass(frozen=True)
class Texts:
    texts: Sequence[str]


class Shifts:
    """A model of a caller: outputs of a source are its words, rotated; draws of a number depend on it alone."""

    device = SimpleNamespace(type="cpu")

    def __init__(self) -> None:
        self.searched: list[str] = []

    def beam(self, sources: Sequence[str], k: int = 256, *, alpha: float = 1.0) -> list[Texts]:
        if "poison" in sources:
            raise mbrace.UserError("refused")
        self.searched.extend(sources)
        return [Texts([self.output(source, n) for n in range(k)]) for source in sources]

    def sample(self, sources: Sequence[str], n: int, **options: Any) -> list[Draws]:
        return [
            Draws([self.output(source, 3 * i) for i in range(n)], [-float(i) for i in range(n)]) for source in sources
        ]

    def sampler(self, **options: Any) -> Any:
        return Sampler(self)

    @staticmethod
    def output(source: str, n: int) -> str:
        words = source.split()
        return " ".join(words[n % len(words) :] + words[: n % 4])


class Sampler:
    def __init__(self, model: Shifts) -> None:
        self.model, self.drawn = model, 0

    def start(self, records: Sequence[mbrace.Record]) -> Any:
        def draw(wants: Sequence[Want]) -> list[Draws]:
            self.drawn += sum(want.count for want in wants)
            sources = [records[want.sentence].source or "" for want in wants]
            numbers = [range(want.first, want.first + want.count) for want in wants]
            return [
                Draws([self.model.output(source, 3 * n) for n in some])
                for source, some in zip(sources, numbers, strict=True)
            ]

        return SimpleNamespace(draw=draw)


SOURCES = ["a b c d", "d c b", "poison", "b a d c e", "c c a"]


def test_a_file_is_translated_with_a_model_of_the_caller(tmp_path: Path) -> None:
    source, out, model = tmp_path / "s.txt", tmp_path / "out.jsonl", Shifts()
    source.write_text("".join(line + "\n" for line in SOURCES))
    options: dict[str, Any] = {"beam": 5, "utility": overlap, "schedule": [2, 8], "text": False, "window": 4}
    options["save_utilities"] = saved = tmp_path / "saved"
    with pytest.raises(mbrace.UserError, match=r"s\.txt:3: refused"):
        mbrace.translate_file(source, out, model=model, **options)
    summary = mbrace.translate_file(source, out, model=model, on_error="skip", resume=True, **options)
    assert (summary.kept, summary.sentences, summary.skipped) == (2, 2, 1)
    rows = {row["id"]: row for row in read(out)}
    assert list(rows) == [1, 2, 4, 5]
    for number, row in rows.items():
        line = SOURCES[number - 1]
        draws = [model.output(line, 3 * n) for n in range(8)]
        hypotheses = [model.output(line, n) for n in range(5)]
        want = mbrace.decode(hypotheses, iter(draws), utility=overlap, schedule=[2, 8], id=number)
        assert (row["text"], row["pseudo_references"]) == (want.text, want.pseudo_references)
        replayed = mbrace.decode(hypotheses, iter(draws), utility=mbrace.Replay(saved), schedule=[2, 8], id=number)
        assert replayed == want
    assert summary.drawn == sum(rows[number]["pseudo_references"] for number in (4, 5))
    with pytest.raises(mbrace.UserError, match="schedule 'all': a live model"):
        mbrace.translate_file(source, tmp_path / "x", model=model, schedule="all")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], {"epsilon": 0.02, "temperature": 1.0}),
        (["--epsilon", "0", "--temperature", "0.5"], {"epsilon": None, "temperature": 0.5}),
        (["--top-p", "0.9"], {"epsilon": None, "temperature": 1.0, "top_p": 0.9}),  # epsilon only where asked for
        (["--top-k", "4", "--min-p", "0.1"], {"epsilon": None, "temperature": 1.0, "top_k": 4, "min_p": 0.1}),
        (["--top-p", "0.9", "--epsilon", "0.01"], {"epsilon": 0.01, "temperature": 1.0, "top_p": 0.9}),
    ],
)
def test_sampling_options_reach_the_model(
    tmp_path: Path, given: list[str], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    class Asked(Shifts):
        def sample(self, sources: Sequence[str], n: int, **options: Any) -> list[Draws]:
            asked.append(options)
            return super().sample(sources, n, **options)

        def sampler(self, **options: Any) -> Any:
            asked.append(options)
            return super().sampler(**options)

    for command in ("generate", "translate"):
        monkeypatch.setattr(f"mbrace.jobs.{command}.load_model", lambda *_, **__: Asked())
    (tmp_path / "s.txt").write_text("a b c\n")
    for command, *more in (["generate", "--sample", "2"], ["translate", "--schedule", "2", "--utility", "chrf"]):
        assert main([command, f"{tmp_path}/s.txt", "-o", f"{tmp_path}/{command}", "--beam", "2", *more, *given]) == 0
    for options in asked:
        named = {"epsilon", "temperature", "top_k", "top_p", "min_p"}
        assert {name: value for name, value in options.items() if name in named} == expected
    assert len(asked) == 2


def test_candidates_of_a_model_of_the_caller_are_written_and_resumed(tmp_path: Path) -> None:
    source, out, model = tmp_path / "s.tsv", tmp_path / "c.jsonl", Shifts()
    rows = [f"{line}\tr{n}\n" for n, line in enumerate(SOURCES)]
    source.write_text("".join(rows[:2]))
    options: dict[str, Any] = {"model": model, "beam": 2, "sample": 3, "prefix": "t."}
    assert mbrace.generate_file(source, out, logprobs=True, **options).sentences == 2
    source.write_text("".join(rows))
    model.searched.clear()
    with pytest.raises(mbrace.UserError, match="was made with logprobs True, not False"):
        mbrace.generate_file(source, out, resume=True, **options)
    summary = mbrace.generate_file(source, out, resume=True, on_error="skip", logprobs=True, **options)
    assert (summary.kept, summary.sentences, summary.skipped) == (2, 2, 1)
    assert model.searched == SOURCES[3:]
    assert [row["id"] for row in read(out)] == ["t.1", "t.2", "t.4", "t.5"]
    assert read(out)[2] == {
        "id": "t.4",
        "source": SOURCES[3],
        "reference": "r3",
        "hypotheses": [model.output(SOURCES[3], n) for n in range(2)],
        "pseudo_references": [model.output(SOURCES[3], 3 * n) for n in range(3)],
        "logprobs": [0.0, -1.0, -2.0],
    }


# --- the command line's jobs ---

MODEL = {
    "model": "bundled", "kind": "seq2seq", "source_language": None, "target_language": None, "source_prefix": "",
    "prompt": None, "stop": None, "dtype": None, "server": None, "server_model": None, "server_kind": "chat",
    "length_alpha": 1.0, "epsilon": 0.02, "temperature": 1.0,
}  # fmt: skip
RACE = {
    "utility": "chrf++", "metric_model": None, "dtype": None, "prune": "confidence", "alpha": None, "bootstraps": None,
    "beta": None, "schedule": None, "seed": 0, "nbest": 1,
}  # fmt: skip
SAVED: dict[str, tuple[list[str], dict[str, Any]]] = {
    "decode": (
        ["c.jsonl", "--alpha", "0.5", "--schedule", "4,8", "--no-shuffle"],
        {**RACE, "alpha": 0.5, "schedule": "4,8", "no_shuffle": True, "text": False},
    ),
    "translate": (
        ["s.txt", "--epsilon", "0", "--seed", "7", "--preset", "paper"],
        {**MODEL, **RACE, "beam": 256, "epsilon": 0.0, "seed": 7, "text": True},
    ),
    "generate": (
        ["s.txt", "-o", "o", "--prefix", "t.", "--beam", "0", "--length-penalty", "0.3"],
        {**MODEL, "beam": 0, "length_alpha": 0.3, "seed": 0, "sample": 1024, "logprobs": False, "prefix": "t."},
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", SAVED)
def test_runs_begun_by_version_0_1_are_recognised(command: str) -> None:

    options, saved = SAVED[command]
    job_from = {"decode": decode.job_from, "generate": generate.job_from, "translate": generate.translate_job}[command]
    job = job_from(make_parser().parse_args([command, *options]))
    early = {EARLY_NAMES.get(name, name): value for name, value in job.describe().items()}
    settings = {name: value for name, value in early.items() if name in saved or value is not None}
    assert settings == {"command": command, **saved}  # a setting that is newer is null, as what is missing is
    refuse_other_settings({"command": command, **saved}, job.describe(), file="out", remedy="")


def test_a_job_is_sent_to_another_process_as_it_is() -> None:
    import pickle

    job = generate.translate_job(make_parser().parse_args(["translate", "s.txt", "--schedule", "4,8"]))
    assert pickle.loads(pickle.dumps(job)) == job


def test_translate_runs_torch_with_the_threads_it_was_given(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "s.txt").write_text("Ein Hund.\n")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        command = ["translate", f"{tmp_path}/s.txt", "-o", f"{tmp_path}/o", "--beam", "2", "--schedule", "2"]
        assert main([*command, "--threads", "1"]) == 0
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_generated_decoded_and_translated_records_of_one_file_have_the_ids_of_its_lines(tmp_path: Path) -> None:
    source, model = tmp_path / "s.txt", Shifts()
    source.write_text("a\nb\n")
    mbrace.generate_file(source, tmp_path / "c.jsonl", model=model, beam=2, sample=3)
    mbrace.decode_file(tmp_path / "c.jsonl", tmp_path / "d.jsonl")
    mbrace.translate_file(source, tmp_path / "t.jsonl", model=model, beam=2, schedule=[2], text=False)
    assert [[row["id"] for row in read(tmp_path / f"{name}.jsonl")] for name in "cdt"] == [[1, 2]] * 3


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_sources_with_ids_keep_them_and_a_repeated_one_is_set_aside(suffix: str, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"id": name, "source": source} for name, source in (("x", "a b"), ("y", "c"), ("x", "d"))]
    source, out = tmp_path / f"s.{suffix}", tmp_path / "c.jsonl"
    if suffix == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), source)
    else:
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(mbrace.UserError, match=rf"s\.{suffix}:3: id: 'x' is not unique"):
        mbrace.generate_file(source, out, model=Shifts(), beam=1, sample=1)
    summary = mbrace.generate_file(source, out, model=Shifts(), beam=1, sample=1, on_error="skip", force=True)
    assert (summary.sentences, summary.skipped) == (2, 1)
    assert [(row["id"], row["source"]) for row in read(out)] == [("x", "a b"), ("y", "c")]
