"""Sampling and beam search of live models, against exact distributions, brute force and transformers itself."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models as tiny
import torch

import mbrace
from mbrace.models.hypotheses import HypothesisMaker
from mbrace.models.next_ids import choose, draw_keys, uniforms
from mbrace.models.seq2seq import steps_that_fit
from mbrace.records import Record
from mbrace.sampler import Want

SOURCE, SOURCE_IDS = "a b c", [1, 2, 3, 0]
LONGEST = 3


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.marian()


@pytest.fixture
def translator(model: Any) -> mbrace.Seq2Seq:
    return mbrace.Seq2Seq(model, tokenizer=tiny.tokenizer())


def exact(model: Any, keep: Any = None) -> dict[str, tuple[float, float]]:
    """Text to (probability under the truncation, probability under the model)."""
    found: dict[str, tuple[float, float]] = {}
    logits = tiny.seq2seq_logits(model, SOURCE_IDS, [tiny.PAD])
    for ids, (p, logp) in tiny.distribution(logits, LONGEST, keep).items():
        old = found.get(tiny.text_of(ids), (0.0, 0.0))
        found[tiny.text_of(ids)] = old[0] + p, old[1] + math.exp(logp)
    return found


def nucleus(p: Any) -> Any:
    ordered, where = p.sort(descending=True)
    count = int((ordered.cumsum(0) < 0.7).sum()) + 1
    out = torch.zeros_like(p)
    out[where[:count]] = ordered[:count]
    return out


TRUNCATIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "epsilon": ({"epsilon": 0.15}, lambda p: torch.where((p >= 0.15) | (p == p.max()), p, 0.0)),
    "ancestral": ({"epsilon": None}, None),
    "top-k": ({"epsilon": None, "top_k": 2}, lambda p: torch.where(p >= p.sort().values[-2], p, 0.0)),
    "top-p": ({"epsilon": None, "top_p": 0.7}, nucleus),
    "min-p": ({"epsilon": None, "min_p": 0.3}, lambda p: torch.where(p >= 0.3 * p.max(), p, 0.0)),
    "temperature": ({"epsilon": None, "temperature": 0.5}, lambda p: p**2),
    "epsilon after temperature": (
        {"epsilon": 0.1, "temperature": 2.0},
        lambda p: torch.where(p.sqrt() / p.sqrt().sum() >= 0.1, p.sqrt(), 0.0),
    ),
}


@pytest.mark.parametrize("name", TRUNCATIONS)
def test_samples_follow_the_exact_truncated_distribution(model: Any, translator: mbrace.Seq2Seq, name: str) -> None:
    options, keep = TRUNCATIONS[name]
    truth = exact(model, keep)
    possible = {text: p for text, (p, _) in truth.items() if p > 0}
    assert name == "ancestral" or name == "temperature" or len(possible) < len(truth)  # the truncation does something
    draws = translator.sample([SOURCE], 4000, seed=1, max_length=LONGEST, **options)[0]
    assert tiny.chi_square_fits(Counter(draws.texts), possible, 4000)


def test_the_chi_square_test_notices_a_wrong_epsilon(model: Any, translator: mbrace.Seq2Seq) -> None:
    wrong = {text: p for text, (p, _) in exact(model).items()}
    draws = translator.sample([SOURCE], 4000, seed=1, max_length=LONGEST, epsilon=0.15)[0]
    assert not tiny.chi_square_fits(Counter(draws.texts), wrong, 4000)


def test_log_probabilities_are_those_of_transformers_forward_pass(model: Any, translator: mbrace.Seq2Seq) -> None:
    draws = translator.sample([SOURCE], 64, max_length=40, seed=3, epsilon=0.02)[0]
    assert draws.logprobs is not None
    for text, logprob in list(zip(draws.texts, draws.logprobs, strict=True))[:12]:
        ids = [tiny.LETTERS.index(letter) + 1 for letter in text.split()]
        ids = ids if len(ids) == 40 else [*ids, tiny.EOS]
        with torch.inference_mode():
            given = torch.tensor([[tiny.PAD, *ids[:-1]]])
            logits = model(input_ids=torch.tensor([SOURCE_IDS]), decoder_input_ids=given).logits[0]
        want = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum()
        assert logprob == pytest.approx(float(want), abs=2e-4)


def test_training_pass_equals_transformers_forward_pass(model: Any) -> None:
    from mbrace.models.marian_network import forward

    source = torch.tensor([[1, 2, 3, 0], [4, 0, tiny.PAD, tiny.PAD]])
    target = torch.tensor([[2, 2, 0], [1, 0, tiny.PAD]])
    with torch.inference_mode():
        ours = forward(model, source, target, pad=tiny.PAD)
        shifted = torch.tensor([[tiny.PAD, 2, 2], [tiny.PAD, 1, 0]])
        mask = (source != tiny.PAD).long()
        theirs = model(input_ids=source, attention_mask=mask, decoder_input_ids=shifted).logits
    real = target != tiny.PAD
    letters = slice(0, tiny.PAD)  # transformers adds final_logits_bias, which only padding has
    assert torch.allclose(ours[real][:, letters], theirs[real][:, letters], atol=1e-4)


def test_cudnn_attention_is_off_while_a_model_decodes_and_as_it_was_afterwards(
    translator: mbrace.Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend, switch = torch.nn.functional.scaled_dot_product_attention, torch.backends.cuda.cudnn_sdp_enabled
    inside: set[bool] = set()

    def watched(*args: Any, **options: Any) -> Any:
        inside.add(switch())
        return attend(*args, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    for use in (lambda: translator.beam([SOURCE], k=2), lambda: translator.sample([SOURCE], 2)):
        inside.clear()
        assert switch()
        use()
        assert inside == {False}
        assert switch()


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_as_wide_as_the_space_finds_everything_in_order(
    model: Any, translator: mbrace.Seq2Seq, alpha: float
) -> None:
    logits = tiny.seq2seq_logits(model, SOURCE_IDS, [tiny.PAD])
    truth = tiny.distribution(logits, LONGEST)
    ranked = sorted(truth, key=lambda ids: -truth[ids][1] / len(ids) ** alpha)
    beams = translator.beam([SOURCE, "d"], k=100, alpha=alpha, max_length=LONGEST)[0]
    assert beams.scores == pytest.approx([truth[ids][1] / len(ids) ** alpha for ids in ranked], abs=1e-4)
    assert list(beams.texts) == [tiny.text_of(ids) for ids in ranked]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_beam_search_equals_transformers_generate(k: int) -> None:
    model = tiny.marian(seed=4)
    with torch.no_grad():
        model.final_logits_bias[0, tiny.EOS] = 1.0  # outputs of different lengths that end by themselves
    translator = mbrace.Seq2Seq(model, tokenizer=tiny.tokenizer())
    sources = ["a b c", "d", "c c a b b", "b d"]
    ours = translator.beam(sources, k=k, max_length=30)
    for source, beams in zip(sources, ours, strict=True):
        theirs = model.generate(
            **translator.codec._tokenizer(source, return_tensors="pt", return_token_type_ids=False),  # type: ignore[attr-defined]
            num_beams=k,
            num_return_sequences=k,
            max_new_tokens=30,
            length_penalty=1.0,
            early_stopping=False,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        texts = translator.codec._tokenizer.batch_decode(theirs.sequences, skip_special_tokens=True)  # type: ignore[attr-defined]
        assert list(beams.texts) == texts
        if k > 1:
            assert beams.scores == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-5)


def test_scores_of_excluded_padding_are_renormalised_as_sampling_does(model: Any) -> None:
    """transformers' beam search masks bad_words_ids after the softmax, ours before it, so that scores are
    log-probabilities of a distribution: the difference is log(1 - p(padding)) a step."""
    open_model = tiny.marian()
    with torch.no_grad():
        open_model.final_logits_bias.zero_()
    open_model.generation_config.bad_words_ids = [[tiny.PAD]]
    ours = mbrace.Seq2Seq(open_model, tokenizer=tiny.tokenizer()).beam([SOURCE], k=100, alpha=0.0, max_length=LONGEST)
    total = sum(math.exp(score) for score in ours[0].scores)
    assert total == pytest.approx(1.0, abs=1e-4)


def test_a_draw_is_the_same_in_any_batch(model: Any) -> None:
    sources = ["a b c", "d", "c c a b b d d a", "b"]
    whole = mbrace.Seq2Seq(model, tokenizer=tiny.tokenizer()).sample(sources, 40, seed=7)
    small = mbrace.Seq2Seq(model, tokenizer=tiny.tokenizer(), rows=7)
    alone = [small.sample([source], 40, seed=7, ids=[i])[0] for i, source in enumerate(sources)]
    later = small.sample(sources, 15, seed=7, first=25)
    for mine, other, last in zip(whole, alone, later, strict=True):
        assert list(mine.texts) == list(other.texts)
        assert list(mine.texts[25:]) == list(last.texts)
    assert whole[0].texts != mbrace.Seq2Seq(model, tokenizer=tiny.tokenizer()).sample(sources, 40, seed=8)[0].texts


def test_random_streams_are_uniform_and_independent_of_each_other() -> None:
    keys = draw_keys(torch.tensor([[5], [6]]), torch.arange(20000))
    first, second = uniforms(keys, 0), uniforms(keys, 1)
    for part in (first, second):
        counts = torch.histc(part.float(), bins=20, min=0, max=1)
        assert float(((counts - 2000) ** 2 / 2000).sum()) < 50  # chi-square, 19 degrees: 50 is p = 1e-4
    correlation = torch.corrcoef(torch.stack([first[0], first[1], second[0], second[1]])).fill_diagonal_(0)
    assert float(correlation.abs().max()) < 0.03


def test_the_race_draws_no_more_than_it_uses_and_encodes_each_source_once(translator: mbrace.Seq2Seq) -> None:
    sources = ["a b c", "d", "c c a b b"]
    records = _records(translator, sources)
    before = translator.encoder_runs
    sampler = translator.sampler(seed=2)
    answers = list(
        mbrace.decode_corpus(records, sampler=sampler, schedule=[4, 8, 16, 256], prune=mbrace.Bottom(0.6), window=2)
    )
    assert sampler.drawn == sum(answer.pseudo_references for answer in answers)
    assert translator.encoder_runs - before == len(sources)
    assert any(answer.pseudo_references < 256 for answer in answers)  # some race ended early


def test_drawing_ahead_gives_the_same_answers_and_draws_for_all(translator: mbrace.Seq2Seq) -> None:
    sources = ["a b c", "d", "c c a b b"]
    records = _records(translator, sources)
    lazy = list(mbrace.decode_corpus(records, sampler=translator.sampler(seed=2), schedule=[4, 8, 64]))
    sampler = translator.sampler(seed=2, ahead=16)
    ahead = list(mbrace.decode_corpus(records, sampler=sampler, schedule=[4, 8, 64]))
    assert ahead == lazy
    assert sampler.drawn >= 16 * len(sources)


def test_hypotheses_are_made_a_window_at_a_time() -> None:
    asked: list[list[str]] = []

    def make(sources: Any, ids: Any) -> list[list[str]]:
        asked.append(list(sources))
        return [[f"{source} {number}"] for source, number in zip(sources, ids, strict=True)]

    records = HypothesisMaker(make, window=2).records(["a", "b", "c", "d", "e"])
    assert asked == []
    assert next(records).hypotheses == ["a 1"]
    assert asked == [["a", "b"]]
    assert [record.hypotheses for record in records] == [["b 2"], ["c 3"], ["d 4"], ["e 5"]]
    assert asked == [["a", "b"], ["c", "d"], ["e"]]


def test_translate_is_beam_search_sampling_and_a_race(translator: mbrace.Seq2Seq) -> None:
    sources = ["a b c", "d", "c c a b b"]
    options: dict[str, Any] = {"schedule": [4, 16], "seed": 2}
    beams = translator.beam(sources, k=6)
    records = [Record(list(found.texts), id=i + 1, source=sources[i]) for i, found in enumerate(beams)]
    want = list(mbrace.decode_corpus(records, sampler=translator.sampler(seed=2), **options))
    assert list(translator.translate(sources, beam=6, window=2, **options)) == want


def test_a_live_race_weights_by_counts_unless_asked_for_the_models_probabilities(translator: mbrace.Seq2Seq) -> None:
    record = Record(["a", "b"], id=0, source=SOURCE)
    assert translator.sampler().start([record]).draw([Want(0, 0, 4)])[0].logprobs is None
    draws = translator.sampler(weighted=True).start([record]).draw([Want(0, 0, 4)])[0]
    assert draws.logprobs is not None
    assert len(draws.logprobs) == 4


def test_choosing_among_few_ids_equals_the_plain_inverse_cdf() -> None:
    torch.manual_seed(0)
    weights = torch.rand(200, 50).softmax(-1)
    weights[torch.rand(200, 50) < 0.7] = 0.0
    weights[:, 3] += 1e-3  # no row is empty
    u = torch.rand(200, dtype=torch.float64)
    want = []
    for row, point in zip(weights, u, strict=True):
        whole = [int(float(w) * 2**40) for w in row]
        sums = [sum(whole[: n + 1]) for n in range(50)]
        want.append(next(n for n, total in enumerate(sums) if total > int(float(point) * sums[-1])))
    assert choose(weights, u).tolist() == want


def test_a_source_without_text_stays_without(translator: mbrace.Seq2Seq) -> None:
    sources = ["", "a b", "  "]
    assert [answer.text == "" for answer in translator.translate(sources, beam=3)] == [True, False, True]
    draws = translator.sample(sources, 5)
    assert list(draws[0].texts) == [""] * 5
    assert draws[1] == translator.sample(["a b"], 5, ids=[1])[0]


def test_a_source_longer_than_the_model_takes_is_refused(translator: mbrace.Seq2Seq) -> None:
    with pytest.raises(mbrace.UserError, match="split it into sentences"):
        translator.beam([" ".join("a" * 100)], k=2)


def _records(translator: mbrace.Seq2Seq, sources: list[str]) -> list[Record]:
    beams = translator.beam(sources, k=8, max_length=8)
    return [Record(list(beam.texts), id=i, source=sources[i]) for i, beam in enumerate(beams)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature 0.0: must be"),
        ({"temperature": -1.0}, "temperature -1.0: must be"),
        ({"temperature": 1e-40}, "temperature 1e-40: must be"),
        ({"temperature": math.nan}, "temperature nan: must be"),
        ({"top_p": 0.0}, "top_p 0.0: must be more than 0"),
        ({"top_p": 1.5}, "top_p 1.5: must be more than 0"),
        ({"top_k": -1}, "top_k -1: must be 1 or more"),
        ({"epsilon": -0.1}, "epsilon -0.1: must be from 0 to 1"),
        ({"min_p": 2.0}, "min_p 2.0: must be from 0 to 1"),
        ({"ids": [1]}, "ids: 1 for 2 sources"),
        ({"first": -1}, "first -1: must be 0 or more"),
    ],
)
def test_sampling_options_that_cannot_be_are_named(
    translator: mbrace.Seq2Seq, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(mbrace.UserError, match=message):
        translator.sample(["a", "b"], 4, **options)


def test_the_lowest_temperature_samples_the_most_probable_ids(translator: mbrace.Seq2Seq) -> None:
    (greedy,) = translator.sample([SOURCE], 1, top_k=1)
    (cold,) = translator.sample([SOURCE], 8, epsilon=None, temperature=1e-6)
    assert set(cold.texts) == set(greedy.texts)


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.beam("Hallo", k=2),
        lambda model: model.sample("Hallo", 2),
        lambda model: model.translate("Hallo", beam=2),
        lambda model: mbrace.Server("http://127.0.0.1:9", "m", retries=0).candidates("Hallo", 2),
    ],
)
def test_a_string_is_not_taken_for_its_letters(translator: mbrace.Seq2Seq, ask: Any) -> None:
    with pytest.raises(mbrace.UserError, match=r"sources: a string, 'Hallo'; give a list, \[source\] for one"):
        ask(translator)


@pytest.mark.parametrize("number", [0, 5])
@pytest.mark.parametrize("name", TRUNCATIONS)
def test_an_arithmetic_sample_alone_follows_the_exact_distribution(
    model: Any, translator: mbrace.Seq2Seq, name: str, number: int
) -> None:
    """One draw each of many sentences with the same text: their shifts, and so the draws, are independent."""
    options, keep = TRUNCATIONS[name]
    possible = {text: p for text, (p, _) in exact(model, keep).items() if p > 0}
    options = {**options, "max_length": LONGEST, "sampling": "arithmetic"}
    draws = translator.sample([SOURCE] * 2000, 1, first=number, seed=1, **options)
    assert tiny.chi_square_fits(Counter(each.texts[0] for each in draws), possible, 2000)


def test_arithmetic_samples_of_a_sentence_are_spread_evenly(model: Any, translator: mbrace.Seq2Seq) -> None:
    """The first id of 16, 32, ... draws comes as often as its probability says, to one or two draws; independent draws
    miss it by the root of their number."""
    first_ids: Counter[str] = Counter()
    for text, (p, _) in exact(model).items():
        first_ids[text[:1]] += p
    options: dict[str, Any] = {"epsilon": None, "max_length": LONGEST, "seed": 3}
    missed = {"arithmetic": 0.0, "independent": 0.0}
    for sampling in missed:
        for draws in translator.sample([SOURCE] * 20, 64, sampling=sampling, **options):
            for size in (16, 32, 64):
                counts = Counter(text[:1] for text in draws.texts[:size])
                worst = max(abs(counts[letter] - size * p) for letter, p in first_ids.items())
                missed[sampling] = max(missed[sampling], worst)
    assert missed["arithmetic"] <= 2.0
    assert missed["independent"] > 4.0


def test_arithmetic_samples_estimate_an_expectation_with_less_variance(model: Any, translator: mbrace.Seq2Seq) -> None:
    truth = sum(p * len(text) for text, (p, _) in exact(model).items())
    options: dict[str, Any] = {"epsilon": None, "max_length": LONGEST, "seed": 5}
    errors = {}
    for sampling in ("arithmetic", "independent"):
        samples = translator.sample([SOURCE] * 60, 32, sampling=sampling, **options)
        means = torch.tensor([sum(map(len, draws.texts)) / 32 for draws in samples])
        errors[sampling] = float(((means - truth) ** 2).mean())
    assert errors["arithmetic"] < 0.7 * errors["independent"], errors


def test_an_arithmetic_draw_does_not_depend_on_its_batch(translator: mbrace.Seq2Seq) -> None:
    whole = translator.sample(["a b", "c", "b b d e"], 12, sampling="arithmetic", seed=2)
    for index, source in enumerate(["a b", "c", "b b d e"]):
        options: dict[str, Any] = {"ids": [index], "sampling": "arithmetic", "seed": 2}
        parts = [translator.sample([source], 4, first=first, **options)[0] for first in (0, 4, 8)]
        assert [text for part in parts for text in part.texts] == list(whole[index].texts)
    with pytest.raises(mbrace.UserError, match="sampling 'even': unknown; choose independent or arithmetic"):
        translator.sample(["a"], 1, sampling="even")


def test_batches_are_wider_where_outputs_are_short() -> None:
    translator = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer(), rows=8)
    rows = [[1] * length for length in (3, 20, 9, 1, 0, 4, 2, 10)]
    counts = [3, 3, 3, 3, 0, 3, 3, 3]
    assert list(translator.parts(rows, counts)) == [[1, 7], [2, 5], [0, 6], [3]]
    translator.wider = 13, 2 * 9 + 32  # as outputs of a source of nine pieces have at most
    assert list(translator.parts(rows, counts)) == [[1, 7], [2, 5, 0, 6], [3]]
    assert list(translator.parts(rows, counts, 50)) == [[1, 7, 2, 5], [0, 6, 3]]
    assert list(translator.parts(rows, counts, 51)) == [[1, 7], [2, 5], [0, 6], [3]]
    assert list(translator.parts(rows, [9] * 8)) == [[1], [7], [2], [5], [0], [6], [3], [4]]


def test_more_rows_where_three_searches_fit_into_the_memory() -> None:
    """By hand: 1,000 rows of 100 ids take 1,000 x 10 x 100 bytes, and each time step 1,000 x 2 x 8 x 4 bytes."""
    config = SimpleNamespace(decoder_vocab_size=None, vocab_size=100, decoder_layers=2, d_model=8)
    for steps, copied in ((64, 64), (128, 192), (256, 384), (512, 768)):
        least = -(-(1_000_000 + copied * 64_000) * 10 // 3)  # each may take three tenths
        assert steps_that_fit(config, 1000, least) == steps
        assert steps_that_fit(config, 1000, least - 4) == (steps // 2 if steps > 64 else 0)


def test_the_bundled_translator_takes_no_languages() -> None:
    for options in ({"source_language": "de"}, {"target_language": "en"}, {"prefix": "translate: "}):
        with pytest.raises(mbrace.UserError, match="bundled translator is German to English"):
            mbrace.Seq2Seq(**options)  # type: ignore[arg-type]
