"""Cross-encoders: the stream of pairs, the race over it, error spans; checkpoints and settings that are refused."""

from __future__ import annotations

import itertools
import json
import pickle
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_cross
import torch

import mbrace
from mbrace.cross.metricx import MetricX
from mbrace.cross.scorer import Pieces
from mbrace.cross.xcomet import XCOMET, span_score
from mbrace.neural.comet import Referenceless
from mbrace.neural.device import prefetched
from mbrace.neural.tokens import Tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cross")


@pytest.fixture(scope="module")
def xcomet(folder: Path) -> XCOMET:
    return XCOMET(tiny_cross.make(folder, "xcomet-xl"), device="cpu")


@pytest.fixture(scope="module")
def metricx_folder(folder: Path) -> Path:
    return tiny_cross.make_metricx(folder, "metricx-24")


def linked(folder: Path, made: Path, *missing: str) -> Path:
    """A folder of links to the files of another, but for some."""
    made.mkdir()
    for file in folder.iterdir():
        if file.name not in missing:
            (made / file.name).symlink_to(file)
    return made


@pytest.fixture(scope="module")
def metricx(metricx_folder: Path) -> MetricX:
    return MetricX(metricx_folder, device="cpu")


@pytest.fixture(scope="module")
def records(demo_rows: list[dict[str, Any]]) -> list[mbrace.Record]:
    """Real candidates, cut to a size that a test can afford; the first sentence has nothing to race for."""
    rows = [
        mbrace.Record(row["hypotheses"][:8], row["pseudo_references"][:16], id=row["id"], source=row["source"])
        for row in demo_rows[:4]
    ]
    return [mbrace.Record(["only one"], ["a", "b"], id="lone", source="eine"), *rows]


def test_rows_are_joined_and_cut_as_lists_would_be() -> None:
    """Of strings that are each tokenised once, after pieces of given ids."""
    seen: Counter[str] = Counter()

    def ids_of(texts: Sequence[str]) -> Tokens:
        seen.update(texts)
        return Tokens.of([[ord(letter) for letter in text] for text in texts])

    random = np.random.default_rng(0)
    texts = ["".join(random.choice(list("abcdefg"), size=random.integers(0, 9))) for _ in range(40)]
    pieces = Pieces(ids_of, [[1, 2], []])
    for _ in range(2):  # new strings between two calls
        texts.append("zz" + texts[-1])
        rows = np.stack([np.zeros(200, dtype=np.int64), *random.choice(pieces(texts), (2, 200))], axis=1)
        kept = random.integers(0, pieces.lengths[rows] + 1)
        parts = [[[1, 2], *([*map(ord, pieces.texts[number])] for number in row[1:])] for row in rows]
        wanted = [
            [one for part, size in zip(row, sizes, strict=True) for one in part[:size]]
            for row, sizes in zip(parts, kept, strict=True)
        ]
        assert [row.tolist() for row in pieces.join(rows, kept)] == wanted
    assert set(seen.values()) == {1}


def test_an_error_in_the_thread_is_raised_where_its_items_are_used() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise mbrace.UserError("broken")

    stream = prefetched(items())
    assert next(stream) == 1
    with pytest.raises(mbrace.UserError, match="broken"):
        next(stream)


def test_a_reader_that_stops_early_ends_the_thread() -> None:
    endless = prefetched(itertools.count())
    assert next(endless) == 0
    endless.close()  # type: ignore[attr-defined]  # joins the thread: would hang


def brute_force(utility: XCOMET | MetricX, record: mbrace.Record) -> list[float]:
    references = list(record.pseudo_references)  # type: ignore[arg-type]
    sources = [record.source or ""] * len(references)
    return [float(utility.pairs([text] * len(references), references, sources).mean()) for text in record.hypotheses]


@pytest.mark.parametrize("name", ["xcomet", "metricx"])
def test_standard_mbr_is_brute_force_over_pairs(
    name: str, records: list[mbrace.Record], request: pytest.FixtureRequest
) -> None:
    utility = request.getfixturevalue(name)
    answers = list(mbrace.decode_corpus(records[1:3], utility=utility, prune=None))
    for record, answer in zip(records[1:3], answers, strict=True):
        means = brute_force(utility, record)
        assert answer.index == int(np.argmax(means))
        assert answer.utility == pytest.approx(max(means), abs=1e-5)


@pytest.mark.parametrize("name", ["xcomet", "metricx"])
def test_window_and_batch_size_change_no_bit(
    name: str, records: list[mbrace.Record], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    utility, results = request.getfixturevalue(name), []
    for window, batch_tokens in ((1, 64), (3, 2048), (8, 100_000)):
        monkeypatch.setattr(utility.stream, "batch_tokens", batch_tokens)
        results.append(list(mbrace.decode_corpus(records, utility=utility, schedule=[4, 8, 16], window=window)))
    assert results[0] == results[1] == results[2]  # utilities are compared as floats, exactly


def test_no_input_runs_twice_and_none_after_its_race(xcomet: XCOMET) -> None:
    random, letters = np.random.default_rng(3), list("abcdefghij")
    texts = ["".join(random.choice(letters, size=12)) for _ in range(100)]  # short: none is cut to be as another
    given = [(texts[20 * n : 20 * n + 8], texts[20 * n + 4 : 20 * n + 20]) for n in range(4)]
    records = [mbrace.Record(h, r, id=n, source=f"source {n}") for n, (h, r) in enumerate(given)]
    records.insert(0, mbrace.Record(["only one"], ["a", "b"], id="lone", source="eine"))
    seen: Counter[tuple[int, ...]] = Counter()
    model = xcomet.network.model

    def watch(_: Any, __: Any, given: dict[str, Any]) -> None:
        seen.update(map(tuple, np.unique(given["input_ids"].numpy(), axis=0).tolist()))  # repeated rows are padding

    hook = model.register_forward_pre_hook(watch, with_kwargs=True)
    try:
        answers = list(mbrace.decode_corpus(records, utility=xcomet, schedule=[2, 4, 8, 16], window=8))
    finally:
        hook.remove()
    hypotheses = sum(len(set(record.hypotheses)) for record in records[1:])
    pairs = sum(answer.pairs_scored for answer in answers)
    assert max(seen.values()) == 1
    assert hypotheses + pairs < seen.total() <= hypotheses + 2 * pairs  # (mt, src) once per hypothesis
    assert pairs < sum(len(set(r.hypotheses)) * len(set(r.pseudo_references)) for r in records)  # type: ignore[arg-type]


def test_a_pair_given_twice_is_scored_once(metricx: MetricX) -> None:
    before = metricx.stream.strings
    found = metricx.pairs(["a b", "c", "a b"], ["d", "e", "d"], ["s", "s", "s"])
    assert metricx.stream.strings - before == 2
    assert found[0] == found[2] != found[1]
    assert len(metricx.pairs([], [], [])) == 0


def test_metricx_is_clamped_and_negated(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    made = tiny_cross.make_metricx(tmp_path, "metricx-23")
    state = load_file(made / "model.safetensors")
    found = []
    for factor in (1000.0, -1000.0):
        changed = state | {"lm_head.weight": state["lm_head.weight"] * factor}
        save_file(changed, made / "model.safetensors", metadata={"format": "pt"})
        found += MetricX(made, device="cpu").pairs(["a horse"], ["the horse"]).tolist()
    assert found == [-25.0, 0.0]


def test_truncated_inputs_are_counted(folder: Path) -> None:
    utility = XCOMET(tiny_cross.make(folder, "unite-mt-ref"), device="cpu")
    with pytest.warns(UserWarning, match="limit of 88 tokens"):
        utility.pairs(["x" * 200, "short"], ["b", "c" * 80], None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        utility.pairs(["x" * 200], ["other"], None)
    assert utility.truncated == 5  # in each call the long segment, and all three joined inputs


def naive_score(labels: list[int]) -> float:
    """Spans by hand: one opens at an error, closes at the next token without, and counts by its first label."""
    penalty, opened = 0, 0
    for label in labels:
        if label and not opened:
            opened = label
        elif not label and opened:
            penalty += {1: 1, 2: 5, 3: 10}[opened]
            opened = 0
    return (25 - min(25, penalty)) / 25


def test_span_scores_are_those_of_a_walk_over_the_labels() -> None:
    random = np.random.default_rng(2)
    rows = [random.choice(4, p=[0.5, 0.2, 0.2, 0.1], size=size).tolist() for size in (0, 1, 1, 2, *range(3, 60))]
    rows += [[0, 1, 1], [1, 2, 0], [3, 0, 3, 0, 3, 0], [2], [0]]
    for row in rows:
        labels = np.eye(4, dtype=np.float32)[np.array(row, dtype=np.int64)]
        np.testing.assert_allclose(span_score(labels), naive_score(row))


def test_a_quality_utility_scores_a_hypothesis_with_its_source_once(folder: Path) -> None:
    kiwi = XCOMET(tiny_cross.make(folder, "kiwi-xlmr"), device="cpu")
    assert isinstance(kiwi, mbrace.QualityUtility)
    found = kiwi.quality(["a", "b", "a"], ["s", "s", "s"])
    assert kiwi.stream.strings == 2
    assert found[0] == found[2]


def quality_utilities(folder: Path) -> Iterator[Any]:
    yield XCOMET(tiny_cross.make(folder, "kiwi-xlmr"), device="cpu")
    yield Referenceless(tiny_cross.make(folder, "referenceless-xlmr"), device="cpu")
    yield MetricX(tiny_cross.make_metricx(folder, "metricx-23-qe"), device="cpu")


def test_quality_utilities_are_refused_in_a_race(tmp_path: Path) -> None:
    for utility in quality_utilities(tmp_path):
        with pytest.raises(mbrace.UserError, match=r"reads no reference, so it cannot be .*rerank"):
            mbrace.decode(["a", "b"], ["c"], utility=utility, source="s")
        if isinstance(utility, mbrace.Utility):
            with pytest.raises(mbrace.UserError, match="reads no reference"):
                utility.pairs(["a"], ["b"], ["c"])


@pytest.mark.parametrize("name", ["xcomet", "metricx"])
def test_a_missing_source_is_named(name: str, request: pytest.FixtureRequest) -> None:
    utility = request.getfixturevalue(name)
    with pytest.raises(mbrace.UserError, match="source: missing"):
        mbrace.decode(["a", "b"], ["c", "d"], utility=utility)
    with pytest.raises(mbrace.UserError, match="give sources"):
        utility.pairs(["a"], ["b"])
    with pytest.raises(mbrace.UserError, match="1 hypotheses but 2 sources; give one for each"):
        utility.pairs(["a"], ["b"], ["c", "d"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"settings": {"class_identifier": "regression_metric"}},
            "embeds each text on its own; give it to mbrace.Comet",
        ),
        ({"settings": {"class_identifier": "ranking_metric"}}, "ranking_metric is not supported"),
        ({"settings": {"class_identifier": "other"}}, "other is not known; give a unified_metric or xcomet_metric"),
        ({"settings": {"class_identifier": "unified_metric", "input_segments": ["mt"]}}, "has neither src nor ref"),
        ({"settings": {"class_identifier": "unified_metric", "input_segments": ["a"]}}, "input_segments .'a'.: must"),
        ({"settings": {"error_labels": ["minor"]}}, "error_labels .'minor'.: XCOMET's are"),
        ({"settings": {"word_layer": 9}}, "word_layer 9: give a number from 0 to 3"),
        ({"settings": {"sent_layer": 9}}, "unexpected weights .layerwise_attention.gamma"),
        ({"settings": {"hidden_sizes": [40, 17]}}, "estimator.ff.3.weight has shape"),
        ({"hidden2tag.weight": None}, "1 missing weights .hidden2tag.weight"),
        ({"hidden2tag.bias": torch.zeros(3)}, r"hidden2tag.bias has shape \(3,\), not \(4,\)"),
        ({"hidden2tag.bias": torch.full((4,), float("nan"))}, "hidden2tag.bias holds nan or inf"),
        ({"estimator.ff.0.weight": torch.zeros(40, 48)}, r"estimator.ff.0.weight has shape \(40, 48\), not \(40, 24\)"),
        ({"encoder.model.encoder.LayerNorm.bias": None}, "missing weights .encoder.model.encoder.LayerNorm.bias"),
        ({"decoder.weight": torch.zeros(1)}, "unexpected weights .decoder.weight"),
    ],
)
def test_a_unified_checkpoint_that_cannot_be_served_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = tiny_cross.make(tmp_path, "xcomet-xl")
    tiny.edit(made, **changes)
    with pytest.raises(mbrace.UserError, match=message):
        XCOMET(made, device="cpu")


def test_a_checkpoint_of_another_class_opens_as_that_or_names_it(xcomet: XCOMET, folder: Path, tmp_path: Path) -> None:
    opened = mbrace.Comet(folder / "xcomet-xl", device="cpu")
    assert isinstance(opened, XCOMET)
    assert opened.name == xcomet.name
    assert pickle.loads(pickle.dumps(opened)).name == xcomet.name
    with pytest.raises(mbrace.UserError, match=r"kiwi-xlmr.*unified_metric is not supported.*mbrace.XCOMET"):
        Referenceless(tiny_cross.make(tmp_path, "kiwi-xlmr"), device="cpu")
    with pytest.raises(
        mbrace.UserError, match=r"referenceless_regression_metric is not supported.*mbrace.Referenceless"
    ):
        mbrace.Comet(tiny_cross.make(tmp_path, "referenceless-xlmr"), device="cpu")


def test_a_checkpoint_with_code_is_refused(tmp_path: Path) -> None:
    class Run:
        def __reduce__(self) -> Any:
            return print, ("run",)

    made = tiny_cross.make(tmp_path, "kiwi-xlmr")
    torch.save({"state_dict": {}, "hyper_parameters": {"x": Run()}}, made / "checkpoints" / "model.ckpt")
    with pytest.raises(mbrace.UserError, match="cannot be read as a checkpoint of weights and plain values only"):
        XCOMET(made, device="cpu")
    there = tiny_cross.make_metricx(tmp_path, "metricx-24", safetensors=False)
    torch.save({"shared.weight": Run()}, there / "pytorch_model.bin")
    with pytest.raises(mbrace.UserError, match=r"pytorch_model.bin: cannot be read as weights by name"):
        MetricX(there, device="cpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "t5"}, "config.json: model_type 't5': MetricX-23 and -24 are of type mt5"),
        ({"feed_forward_proj": "relu"}, "feed_forward_proj 'relu': mT5's is gated-gelu"),
        ({"vocab_size": 1000}, "vocab_size 1000: MetricX scores with token 250089"),
        ({"d_model": "many"}, "d_model 'many': must be a whole number, 1 or more"),
        ({"num_layers": 3}, "missing weights .encoder.block.2"),
        ({"num_decoder_layers": 1}, "unexpected weights .decoder.block.1"),
        ({"d_ff": 13}, r"DenseReluDense.wi_0.weight has shape \(12, 8\), not \(13, 8\)"),
    ],
)
def test_a_metricx_configuration_that_does_not_fit_is_refused_by_name(
    settings: dict[str, Any], message: str, metricx_folder: Path, tmp_path: Path
) -> None:
    made = linked(metricx_folder, tmp_path / "metricx-24", "config.json")
    config = json.loads((metricx_folder / "config.json").read_text()) | settings
    (made / "config.json").write_text(json.dumps(config))
    with pytest.raises(mbrace.UserError, match=message):
        MetricX(made, device="cpu")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no weights .model.safetensors, pytorch_model.bin"),
    ],
)
def test_a_missing_file_of_metricx_is_named(missing: str, message: str, metricx_folder: Path, tmp_path: Path) -> None:
    made = linked(metricx_folder, tmp_path / "metricx-24", missing)
    with pytest.raises(mbrace.UserError, match=message):
        MetricX(made, device="cpu")


def test_weights_in_several_files_are_read_by_their_index(
    metricx: MetricX, metricx_folder: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    made = linked(metricx_folder, tmp_path / "metricx-24", "model.safetensors")
    state = load_file(metricx_folder / "model.safetensors")
    parts = {f"pytorch_model-0000{part + 1}-of-00002.bin": dict(list(state.items())[part::2]) for part in (0, 1)}
    for name, part in parts.items():
        torch.save(part, made / name)
    index = {"weight_map": {key: name for name, part in parts.items() for key in part}}
    (made / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    columns = ["a horse"], ["the horse"], ["ein Pferd"]
    np.testing.assert_array_equal(MetricX(made, device="cpu").pairs(*columns), metricx.pairs(*columns))
    (made / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(mbrace.UserError, match=r"00002-of-00002.bin: missing, though the index names it"):
        MetricX(made, device="cpu")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mine", {}, "mine: version: not in the model's name; give version='24'"),
        ("metricx-25", {}, "version 25: is not supported"),
        ("metricx-24", {"version": "22"}, "version 22: is not supported"),
        ("metricx-24", {"qe": True}, "qe: only for version 23"),
        ("metricx-24", {"dtype": "int8"}, "dtype 'int8': unknown"),
        ("metricx-24", {"batch_tokens": 0}, "batch_tokens 0: must be 1 or more"),
    ],
)
def test_settings_of_metricx_that_cannot_be_served_are_refused(
    name: str, settings: dict[str, Any], message: str, metricx_folder: Path, tmp_path: Path
) -> None:
    made = tmp_path / name
    made.symlink_to(metricx_folder, target_is_directory=True)
    with pytest.raises(mbrace.UserError, match=message):
        MetricX(made, device="cpu", **settings)


def test_names_say_what_a_score_is(xcomet: XCOMET, metricx: MetricX) -> None:
    assert xcomet.name == "xcomet|xcomet-xl|encoder:float32"
    assert metricx.name == "metricx-24|metricx-24|negated|float32"
    assert isinstance(xcomet, mbrace.Utility)
    assert isinstance(metricx, mbrace.QualityUtility)
