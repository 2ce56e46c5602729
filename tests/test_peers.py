"""`mbrace mbrs-decode` against mbrs's own outputs (oracle/scores_mbrs.json, `make mbrs`), and `mbrace comet-mbr`
against its definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle_mbrs import SMALL, TIES, WHOLE, write_files

import mbrace
from mbrace.cli import main

FOLDER = Path(__file__).parent / "oracle"

ORACLE = json.loads((FOLDER / "scores_mbrs.json").read_text(encoding="utf-8"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo_rows: list[dict[str, Any]]) -> Path:
    """A folder with flat files for each size."""
    for size in (SMALL, TIES, WHOLE):
        folder = tmp_path / str(list(size))
        folder.mkdir()
        write_files(demo_rows, size, folder)
    monkeypatch.chdir(tmp_path / str(list(SMALL)))
    return tmp_path


def ours(options: str, size: list[int], here: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(here / str(size))
    assert main(["mbrs-decode", "hypotheses", "-n", str(size[1]), *options.split(), "--quiet", "-o", "out"]) == 0
    return Path("out").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("run", ORACLE["runs"], ids=lambda run: run["options"] or "plain")
def test_the_output_is_that_of_mbrs(run: dict[str, Any], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ours(run["options"], run["size"], here, monkeypatch)
    assert len(found) == len(run["lines"])
    if "pruning_mbr" in run["options"]:  # resamples differ
        same = sum(a == b for a, b in zip(found, run["lines"], strict=True))
        assert same >= 0.9 * len(found)
    elif "json" not in run["options"]:
        assert found == run["lines"]
    tied = 0
    for line, expected in zip(found, run["lines"], strict=True) if "json" in run["options"] else ():
        own, other = json.loads(line), json.loads(expected)
        assert list(own) == list(other)
        assert own.pop("expected_score") == pytest.approx(other.pop("expected_score"), abs=1e-4)
        if own != other:  # a tie, whose order is not specified there: the first one here
            assert own["selected_idx"] < other["selected_idx"] or "ter" in run["options"]
            tied += 1
    assert tied == (6 if run["size"] == list(TIES) else 0) or "ter" in run["options"]


@pytest.mark.parametrize(
    ("options", "ours"),
    [
        ("", "--utility bleu --schedule all --prune none"),
        ("--decoder pruning_mbr --decoder.alpha 0.9", "--no-shuffle --schedule 8,16,32,64,128,256 --alpha 0.9"),
        (
            "--metric comet --metric.model folder --metric.fp16 true --metric.batch_size 8 --decoder aggregate_mbr",
            "--utility comet --metric-model folder --dtype float16 --schedule all --method aggregate",
        ),
        (
            "--metric metricx --metric.cpu",
            "google/metricx-24-hybrid-xxl-v2p6 --device cpu --dtype float32 --schedule all --prune none",
        ),
        (
            "--decoder probabilistic_mbr --decoder.rank 4 --decoder.reduction_factor 16",
            "--method low-rank --method-option fraction=0.0625 --method-option rank=4",
        ),
        (
            "--metric comet --decoder centroid_mbr --decoder.kmeans.ncentroids 8 --decoder.count_weight true",
            "--method centroid --method-option centroids=8 --method-option weighted=yes",
        ),
        ("--metric comet --decoder centroid_mbr", "--method centroid --method-option centroids=8"),  # their default
    ],
)
def test_the_equivalent_command(options: str, ours: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mbrace.cli.parser import make_parser
    from mbrace.cli.peers import mbrs_words

    args = make_parser("mbrs-decode").parse_args(["mbrs-decode", "hypotheses", "-n", "16", *options.split()])
    words = mbrs_words(args)
    assert " ".join(words).endswith(ours)
    make_parser("decode").parse_args(["decode", *words])  # is understood


def test_every_option_of_mbrs_is_taken_or_refused_by_name() -> None:
    from mbrace.cli.parser import make_parser, parsers_by_command

    known = parsers_by_command(make_parser("mbrs-decode"))["mbrs-decode"]._option_string_actions
    options = [option for option in ORACLE["options"] if "config." not in option]  # of --selector diverse, refused
    assert [option for option in options if option not in known] == []


def test_truth_values_are_given_as_mbrs_documents_them() -> None:
    from mbrace.cli.parser import make_parser

    parser = make_parser("mbrs-decode")
    switches = [option for option, is_switch in ORACLE["options"].items() if is_switch and "config" not in option]
    pairs = [(no.replace("no", "", 1), no) for no in switches if "no" in no]
    pairs = [(yes, no) for yes, no in pairs if yes in switches]
    assert len(pairs) == len(switches) / 2 == 19
    for yes, no in pairs:
        read = [
            vars(parser.parse_args(["mbrs-decode", "hypotheses", "-n", "2", *words]))
            for words in ([yes], [yes, "true"], [f"{yes}=True"], [no], [yes, "false"], [f"{yes}=0"])
        ]
        assert read[0] == read[1] == read[2] != read[3] == read[4] == read[5], yes


def test_one_hypothesis_has_an_expected_score_too(here: Path) -> None:
    Path("one").write_text("a b c\na b c\n")
    Path("refs").write_text("a b c\na b d\n")
    command = "mbrs-decode one -n 2 -r refs --num_references 2 --metric chrf --format json --nbest 2 -o out --quiet"
    assert main(command.split()) == 0
    lines = [json.loads(line) for line in Path("out").read_text().splitlines()]
    expected = np.mean(mbrace.ChrF(word_order=0).pairs(["a b c"] * 2, ["a b c", "a b d"]))
    assert [(line["selected_idx"], line["rank"]) for line in lines] == [(0, 0), (1, 1)]
    assert lines[0]["expected_score"] == pytest.approx(expected)


def test_comet_mbr_leaves_each_sample_out_of_its_own_average(
    here: Path, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("torch")
    import tiny

    folder = tiny.make(tmp_path_factory.mktemp("comet"), "xlmr-sparsemax")
    command = (
        f"comet-mbr -s source -t hypotheses --num_samples {SMALL[1]} -o out --gpus 0 --batch_size 4 --model {folder}"
    )
    assert main(command.split()) == 0
    said = capsys.readouterr().err
    assert "mbrace decode --hypotheses hypotheses --num-candidates 16 --source source --utility comet" in said
    assert "exclude_self=True" in said
    utility = mbrace.Comet(str(folder), device="cpu")
    sources, lines = Path("source").read_text().splitlines(), Path("hypotheses").read_text().splitlines()
    for at, (source, found) in enumerate(zip(sources, Path("out").read_text().splitlines(), strict=True)):
        samples = lines[at * SMALL[1] : (at + 1) * SMALL[1]]
        pairs = [(a, b) for a in samples for b in samples]
        scores = utility.pairs([a for a, _ in pairs], [b for _, b in pairs], [source] * len(pairs))
        table = np.asarray(scores, dtype=np.float64).reshape(SMALL[1], SMALL[1])
        means = (table.sum(axis=1) - np.diagonal(table)) / (SMALL[1] - 1)
        assert means[samples.index(found)] == pytest.approx(means.max(), abs=1e-6)


def test_comet_mbr_refuses_reranking_and_says_what_to_do(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "comet-mbr -s source -t hypotheses --num_samples 16 -o out --rerank_top_k 3 --qe_model Q"
    assert main(command.split()) == 2
    assert "--source source --qe Q --top 3 -o OUT.jsonl, then mbrace decode OUT.jsonl" in capsys.readouterr().err
