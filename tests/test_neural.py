"""Neural utilities: the factored head, the stream of batches, the race over them, and what a user can get wrong."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mbrace
from mbrace.cli import main
from mbrace.utilities.neural import checkpoint, pretrained
from mbrace.utilities.neural.comet import Comet
from mbrace.utilities.neural.device import without_cudnn_attention
from mbrace.utilities.neural.embedding import Embedding
from mbrace.utilities.neural.encoder import Encoder
from mbrace.utilities.neural.head import Estimator, TorchKernels
from mbrace.utilities.neural.pairs import PairBlock, all_pairs

sys.path.insert(0, str(Path(__file__).parent / "oracle"))
import tiny

torch.set_num_threads(1)  # tests run beside each other: more threads than cores wait for one another


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("comet"), "xlmr-sparsemax")


@pytest.fixture(scope="module")
def comet(folder: Path) -> Comet:
    return Comet(folder, device="cpu")


@pytest.fixture(scope="module")
def records(demo_rows: list[dict[str, Any]]) -> list[mbrace.Record]:
    """Real candidates, cut to a size that a test can afford; the first sentence has nothing to race for."""
    rows = [
        mbrace.Record(row["hypotheses"][:12], row["pseudo_references"][:40], id=row["id"], source=row["source"])
        for row in demo_rows[:7]
    ]
    return [mbrace.Record(["only one"], ["a", "b"], id="lone", source="eine"), *rows]


# The head


def random_head(features: int, sizes: Sequence[int], dtype: torch.dtype, units: int = 16) -> Estimator:
    widths = [features * units, *sizes, 1]
    layers = [
        (torch.randn(size, width, dtype=dtype) / width**0.5, torch.randn(size, dtype=dtype))
        for width, size in itertools.pairwise(widths)
    ]
    return Estimator(layers, units, torch.nn.Tanh())


def plain(head: Estimator, hypotheses: torch.Tensor, references: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """COMET's `estimate` on the concatenation, in float64, pair by pair."""
    rows = []
    for h in hypotheses.double():
        for r in references.double():
            s = source.double()[0]
            parts = [h, r, h * r, (h - r).abs(), h * s, (h - s).abs()][: head.features]
            x = torch.cat(parts)
            for weight, bias in head.layers[:-1]:
                x = torch.tanh(weight.double() @ x + bias.double())
            weight, bias = head.layers[-1]
            rows.append(weight.double() @ x + bias.double())
    return torch.cat(rows).view(len(hypotheses), len(references))


@pytest.mark.parametrize("features", [4, 6])
@pytest.mark.parametrize("sizes", [(40, 20), (24,), (32, 16, 8)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.08)])
@pytest.mark.parametrize("together", [False, True])
def test_factored_head_is_the_plain_concatenation(
    features: int, sizes: Sequence[int], dtype: torch.dtype, tolerance: float, together: bool
) -> None:
    torch.manual_seed(0)
    head = random_head(features, sizes, dtype)
    blocks, expected = [], []
    for rows, columns in ((5, 7), (1, 3), (70, 2)):
        h, r, s = (torch.randn(n, 16, dtype=dtype) for n in (rows, columns, 1))
        names = np.arange(rows), 1000 + np.arange(columns)
        blocks.append(PairBlock(h, head.prepare(h, s), r, names))
        expected.append(plain(head, h, r, s))
    found = head.score_together(blocks) if together else head.score(blocks)
    for table, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(table.double(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("features", [4, 6])
def test_mirrored_pairs_share_their_part_and_keep_their_own_score(features: int) -> None:
    torch.manual_seed(1)
    head = random_head(features, (24, 8), torch.float32)
    bank, s = torch.randn(30, 16), torch.randn(1, 16)
    some, others, few = np.arange(5, 25), np.random.default_rng(0).permutation(np.arange(0, 22)), np.arange(25, 30)
    sides = [(some, others), (few, some), (others, others), (few, few[::-1].copy())]
    blocks = [PairBlock(bank[h], head.prepare(bank[h], s), bank[r], (h, r)) for h, r in sides]
    for found in (head.score(blocks), head.score_together(blocks)):
        for table, (h, r) in zip(found, sides, strict=True):
            torch.testing.assert_close(table.double(), plain(head, bank[h], bank[r], s), atol=1e-5, rtol=1e-5)
    pairs = 20 * 22 + 5 * 20 + 22 * 22 + 5 * 5
    spared = sum(both * (both - 1) // 2 for both in (17, 0, 22, 5))  # strings on both sides of a block
    assert len(all_pairs(blocks).rows) == pairs - spared


# Embedding: each string once, in any company


class Counting:
    """Counts the strings that a utility's encoder is given."""

    def __init__(self, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        embed = encoder.embed

        def counted(texts: Sequence[str]) -> torch.Tensor:
            self.seen.update(texts)
            return embed(texts)

        monkeypatch.setattr(encoder, "embed", counted)


def test_no_string_is_embedded_twice_and_none_after_its_race(
    comet: Comet, records: list[mbrace.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(comet.encoder, monkeypatch)
    answers = list(mbrace.decode_corpus(records, utility=comet, schedule=[4, 8, 16, 40], window=8))
    assert max(counting.seen.values()) == 1
    assert "only one" not in counting.seen  # nothing to race for
    used = sum(answer.pseudo_references for answer in answers[1:])
    offered = sum(len(record.pseudo_references) for record in records[1:])  # type: ignore[arg-type]
    assert used < offered  # else this test could not fail
    hypotheses = {text for record in records[1:] for text in record.hypotheses}
    sources = {record.source for record in records[1:]}
    assert len(counting.seen.keys() - hypotheses - sources) <= used


@pytest.mark.parametrize("variant", ["xlmr-sparsemax", "bert-softmax-norm"])
@pytest.mark.parametrize("prune", [None, mbrace.Confidence()])
def test_window_and_batch_size_change_no_bit(
    variant: str, prune: Any, tmp_path: Path, records: list[mbrace.Record]
) -> None:
    made = tiny.make(tmp_path, variant)
    results = []
    for window, batch_tokens in ((1, None), (3, 64), (64, 100_000)):
        utility = Comet(made, device="cpu", batch_tokens=batch_tokens)
        answers = mbrace.decode_corpus(records, utility=utility, schedule=[4, 8, 16, 40], window=window, prune=prune)
        results.append(list(answers))
    assert results[0] == results[1] == results[2]  # utilities are compared as floats, exactly


def test_threads_change_no_bit(comet: Comet, records: list[mbrace.Record]) -> None:
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(list(mbrace.decode_corpus(records[:3], utility=comet, schedule=[2, 8], prune=None)))
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1]


def test_standard_mbr_is_brute_force_over_pairs(comet: Comet, records: list[mbrace.Record]) -> None:
    record = records[1]
    references = list(record.pseudo_references)  # type: ignore[arg-type]
    answer = mbrace.decode(record.hypotheses, references, utility=comet, prune=None, source=record.source)
    means = [
        comet.pairs([text] * len(references), references, [record.source or ""] * len(references)).mean()
        for text in record.hypotheses
    ]
    assert answer.index == int(np.argmax(means))
    assert answer.utility == pytest.approx(max(means), abs=1e-5)


def test_hypotheses_as_their_own_references_score_as_pairs(comet: Comet, records: list[mbrace.Record]) -> None:
    texts = list(dict.fromkeys(records[2].hypotheses))
    sentence = mbrace.utility.Sentence(0, "Quelle", texts)
    ask = mbrace.utility.Ask(0, np.arange(len(texts)), texts)
    table = comet.start([sentence]).score([ask])[0]
    hypotheses, references = np.repeat(texts, len(texts)).tolist(), texts * len(texts)
    expected = comet.pairs(hypotheses, references, ["Quelle"] * len(references))
    np.testing.assert_allclose(table.ravel(), expected, atol=1e-5)


def test_truncated_strings_are_counted(folder: Path) -> None:
    comet = Comet(folder, device="cpu")
    with pytest.warns(UserWarning, match="36 tokens"):
        comet.pairs(["word " * 50, "short"], ["b", "c " * 60], ["a", "a"])
    assert comet.truncated == 2


def test_a_gpu_out_of_memory_is_halved_and_said_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"some text number {number}" for number in range(30)]
    expected = Comet(folder, device="cpu").encoder.embed(texts)
    encoder = Comet(folder, device="cpu").encoder
    forward = encoder._forward

    def small_only(rows: list[list[int]]) -> torch.Tensor:
        if len(rows) > 3:
            raise torch.cuda.OutOfMemoryError("no room")
        return forward(rows)

    monkeypatch.setattr(encoder, "_forward", small_only)
    with pytest.warns(UserWarning, match="out of memory") as caught:
        found = encoder.embed(texts)
    assert len(caught) == 1
    assert torch.equal(found, expected)
    longest = max(map(len, encoder.tokenize(texts)))
    assert encoder.batch_tokens == 2 * longest  # 20 rows, 10, 5, then 2 and 3, which fit


def test_a_head_without_memory_for_all_pairs_takes_fewer_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    head = random_head(6, (24, 8), torch.float32)
    vectors, s, names = torch.randn(60, 16), torch.randn(1, 16), np.arange(60)
    block = PairBlock(vectors, head.prepare(vectors, s), vectors, (names, names))
    shared, most = TorchKernels.shared, 200

    def small_only(
        self: TorchKernels, h: torch.Tensor, r: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
    ) -> Any:
        if len(rows) > most:
            raise torch.cuda.OutOfMemoryError("no room")
        return shared(self, h, r, rows, columns)

    monkeypatch.setattr(TorchKernels, "shared", small_only)
    with pytest.warns(UserWarning, match="out of memory") as caught:
        tables = [*head.score([block]), *head.score([block])]
    assert len(caught) == 1
    for table in tables:
        torch.testing.assert_close(table.double(), plain(head, vectors, vectors, s), atol=1e-5, rtol=1e-5)
    most = 0
    with pytest.raises(mbrace.UserError, match="out of memory for"):
        head.score([block])


def test_embedding_is_the_cosine_of_mean_pooled_states() -> None:
    transformers = pytest.importorskip("transformers")
    left, right = ["A man rides a horse.", "the cat"], ["Someone is riding.", "a dog, perhaps"]
    place = pretrained.find(pretrained.MINILM)
    model = transformers.AutoModel.from_pretrained(str(place)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(place))
    expected = []
    with torch.no_grad():
        for pair in zip(left, right, strict=True):
            sides = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in pair]
            expected.append(torch.nn.functional.cosine_similarity(*sides, dim=0).item())
    np.testing.assert_allclose(Embedding(device="cpu").pairs(left, right), expected, atol=1e-5)


# Wrong input


def edit(folder: Path, **changes: Any) -> None:
    """Change settings and weights of a checkpoint in place; None removes a weight."""
    path = folder / "checkpoints" / "model.ckpt"
    saved = torch.load(path, weights_only=True)
    settings = {"class_identifier": "regression_metric", **saved["hyper_parameters"], **changes.pop("settings", {})}
    state = {key: value for key, value in {**saved["state_dict"], **changes}.items() if value is not None}
    tiny.write(folder, settings, state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"class_identifier": "unified_metric"}}, "unified_metric is not supported"),
        ({"settings": {"class_identifier": "xcomet_metric"}}, "xcomet_metric is not supported"),
        ({"settings": {"class_identifier": "referenceless_regression_metric"}}, "has no reference"),
        ({"settings": {"class_identifier": "my_metric"}}, "my_metric is not known"),
        ({"settings": {"encoder_model": "T5"}}, "encoder_model T5: not one of"),
        ({"settings": {"activations": "Loud"}}, "activation Loud"),
        ({"settings": {"activations": "Linear"}}, "activation Linear"),
        ({"settings": {"activations": "MultiheadAttention"}}, "activation MultiheadAttention"),
        ({"settings": {"activations": None}}, "activations None: must be a name"),
        ({"settings": {"final_activation": 3}}, "final_activation 3: must be a name or null"),
        ({"settings": {"pretrained_model": None}}, "pretrained_model None: must be a name"),
        ({"settings": {"encoder_model": ["BERT"]}}, "encoder_model .'BERT'.: must be a name"),
        ({"settings": {"class_identifier": ["regression_metric"]}}, "is not known; give a regression_metric"),
        ({"settings": {"hidden_sizes": None}}, "hidden_sizes None: must be a list of numbers"),
        ({"settings": {"hidden_sizes": [40, "16"]}}, "hidden_sizes .40, '16'.: must be a list of numbers"),
        ({"settings": {"hidden_sizes": [40, 17]}}, "estimator.ff.3.weight has shape"),
        ({"settings": {"hidden_sizes": [40]}}, "unexpected weights .estimator.ff.6.bias"),
        ({"settings": {"layer": 9}}, "unexpected weights .layerwise_attention.gamma"),
        ({"encoder.model.encoder.layer.1.output.dense.bias": None}, "1 missing weights"),
        ({"layerwise_attention.gamma": None}, "missing weights .layerwise_attention.gamma"),
        ({"layerwise_attention.gamma": torch.ones(4)}, r"layerwise_attention.gamma has shape \(4,\), not \(1,\)"),
        ({"layerwise_attention.gamma": torch.tensor(1.0)}, r"layerwise_attention.gamma has shape \(\), not \(1,\)"),
        ({"layerwise_attention.scalar_parameters.0": torch.ones(2)}, r"scalar_parameters.0 has shape \(2,\)"),
        ({"layerwise_attention.gamma": torch.tensor([float("nan")])}, "layerwise_attention.gamma holds nan or inf"),
        ({"estimator.ff.6.bias": torch.tensor([float("inf")])}, "estimator.ff.6.bias holds nan or inf"),
        ({"decoder.weight": torch.zeros(1)}, "unexpected weights .decoder.weight"),
    ],
)
def test_a_checkpoint_that_cannot_be_served_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = tiny.make(tmp_path, "xlmr-sparsemax")
    edit(made, **changes)
    with pytest.raises(mbrace.UserError, match=message):
        Comet(made, device="cpu")


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"state_dict": [1, 2]}, "has no `state_dict` of weights by name"),
        ({"state_dict": {"gamma": "x"}}, "has no `state_dict` of weights by name"),
        ({"state_dict": {7: torch.ones(1)}, "hyper_parameters": {}}, "1 unexpected weights .7."),
        ({"state_dict": {}, "hyper_parameters": [1]}, "its hyper_parameters must be settings by name"),
        ([], "has no `state_dict` of weights by name"),
        (b"", "cannot be read as a checkpoint of weights"),
        (b"PK\x03\x04 and no more", "cannot be read as a checkpoint of weights"),
        (b"text", "cannot be read as a checkpoint of weights"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(saved: Any, message: str, tmp_path: Path) -> None:
    path = tiny.make(tmp_path, "xlmr-sparsemax") / "checkpoints" / "model.ckpt"
    if isinstance(saved, bytes):
        path.write_bytes(saved)
    else:
        torch.save(saved, path)
    with pytest.raises(mbrace.UserError, match=f"model.ckpt: {message}"):
        Comet(path, device="cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "tiny-xlmr: has no config.json; copy or download"),
        ("", "config.json: cannot be read as JSON"),
        ('{"vocab_size": 160', "config.json: cannot be read as JSON"),
        ("[]", "config.json: must hold a JSON object"),
        ('{"hidden_size": "many"}', "config.json: cannot be read as XLMRobertaConfig"),
    ],
)
def test_a_broken_configuration_of_the_encoder_is_named(text: str | None, message: str, tmp_path: Path) -> None:
    made = tiny.make(tmp_path, "xlmr-sparsemax")
    path = made / "tiny-xlmr" / "config.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(mbrace.UserError, match=message):
        Comet(made, device="cpu")


def test_older_files_with_position_numbers_and_a_pooler_load(tmp_path: Path) -> None:
    made = tiny.make(tmp_path, "xlmr-sparsemax")
    before = Comet(made, device="cpu").pairs(["a"], ["b"], ["c"])
    extra = {"encoder.model.embeddings.position_ids": torch.arange(40)[None]}
    edit(made, **extra, **{"encoder.model.pooler.dense.weight": torch.zeros(24, 24)})
    assert Comet(made, device="cpu").pairs(["a"], ["b"], ["c"]) == before
    path = made / "checkpoints" / "model.ckpt"
    torch.save(torch.load(path, weights_only=True), path, _use_new_zipfile_serialization=False)
    assert Comet(made, device="cpu").pairs(["a"], ["b"], ["c"]) == before


def test_a_checkpoint_finds_its_settings_and_encoder_beside_it(tmp_path: Path, comet: Comet) -> None:
    """Given as a folder or as the file; what lies a folder up belongs to something else."""
    made = tiny.make(tmp_path / "up", "xlmr-sparsemax")
    flat = made / "flat"
    flat.mkdir()
    for name in ("hparams.yaml", "tiny-xlmr", "checkpoints/model.ckpt"):
        (made / name).rename(flat / Path(name).name)
    (made / "hparams.yaml").write_text("class_identifier: unified_metric")
    saved = torch.load(flat / "model.ckpt", weights_only=True)
    torch.save({"state_dict": saved["state_dict"]}, flat / "model.ckpt")  # all settings are in hparams.yaml
    for given in (flat, flat / "model.ckpt"):
        assert Comet(given, device="cpu").pairs(["a"], ["b"], ["c"]) == comet.pairs(["a"], ["b"], ["c"])
    (flat / "hparams.yaml").unlink()
    (made / "hparams.yaml").unlink()
    with pytest.raises(mbrace.UserError, match=r"has no hyper_parameters, and hparams.yaml is neither"):
        Comet(flat, device="cpu")


def test_a_checkpoint_is_found_from_inside_its_folder(
    folder: Path, comet: Comet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "checkpoints")
    assert Comet("model.ckpt", device="cpu").pairs(["a"], ["b"], ["c"]) == comet.pairs(["a"], ["b"], ["c"])


def test_a_checkpoint_with_code_in_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    torch.save({"state_dict": {}, "hyper_parameters": {"run": Path}}, path)
    with pytest.raises(mbrace.UserError, match="weights and plain values only"):
        Comet(path)


def test_missing_models_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(mbrace.UserError, match="no such file or folder"):
        Comet("/nowhere/at/all/model.ckpt")
    with pytest.raises(mbrace.UserError, match=r"has no checkpoints/model.ckpt"):
        Comet(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(mbrace.UserError, match="the model hub could not give it"):
        Comet("Unbabel/wmt22-comet-da")


def test_a_missing_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(mbrace.UserError, match=r"pip install 'mbrace\[neural\]'"):
        Comet("anything")


def test_no_source_for_a_metric_that_reads_it_is_an_error(comet: Comet) -> None:
    with pytest.raises(mbrace.UserError, match="source: missing"):
        mbrace.decode(["a", "b"], ["a", "c"], utility=comet)
    with pytest.raises(mbrace.UserError, match="give sources"):
        comet.pairs(["a"], ["b"])


def test_the_switch_of_attention_is_put_back_by_the_last_thread() -> None:
    switches = torch.backends.cuda
    assert switches.cudnn_sdp_enabled()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with without_cudnn_attention():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with without_cudnn_attention():
        thread.start()
        assert entered.wait(10)
    assert not switches.cudnn_sdp_enabled()  # the other thread is inside
    leave.set()
    thread.join()
    assert switches.cudnn_sdp_enabled()


def test_wrong_device_and_dtype_are_named(folder: Path) -> None:
    with pytest.raises(mbrace.UserError, match="device gpu7"):
        Comet(folder, device="gpu7")
    with pytest.raises(mbrace.UserError, match="dtype int3"):
        Comet(folder, dtype="int3")


def test_sparsemax_is_the_projection_onto_the_simplex() -> None:
    """Worked by hand: for (1, 0.6, -1) the threshold is (1 + 0.6 - 1) / 2 = 0.3."""
    found = checkpoint.sparsemax(torch.tensor([1.0, 0.6, -1.0]))
    torch.testing.assert_close(found, torch.tensor([0.7, 0.3, 0.0]))


# The command line


def test_decode_and_score_take_a_comet_checkpoint(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = '{"source": "x y", "hypotheses": ["a b", "c d", "a c"], "pseudo_references": ["a b", "a c", "a d", "e"]}\n'
    candidates, out = tmp_path / "c.jsonl", tmp_path / "o.jsonl"
    candidates.write_text(line * 2)
    options = ["--utility", "comet", "--metric-model", str(folder), "--device", "cpu", "--threads", "1"]
    assert main(["decode", str(candidates), "-o", str(out), *options]) == 0
    assert len(out.read_text().splitlines()) == 2
    for name, text in (("h", "a b\n"), ("r", "a c\n"), ("s", "x y\n")):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / "h"), str(tmp_path / "r")]
    assert main(["score", *files, "--source", str(tmp_path / "s"), *options]) == 0
    expected = Comet(folder, device="cpu").pairs(["a b"], ["a c"], ["x y"])[0]
    assert f"{expected:.4f}" in capsys.readouterr().out
    assert main(["score", *files, *options]) == 2
    assert main(["decode", str(candidates), "--utility", "comet"]) == 2
    assert "--metric-model" in capsys.readouterr().err
