"""Sampling and beam search of every kind of model, against exact distributions, brute force and transformers itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models as tiny
import torch
import transformers

import mbrace
from mbrace.answers import prompt_of
from mbrace.models import beam_search, search
from mbrace.models.hypotheses import HypothesisMaker
from mbrace.models.next_ids import _intervals, draw_keys, uniforms
from mbrace.models.seq2seq import searches_fit
from mbrace.records import Record
from mbrace.sampler import Want

LONGEST = 3
LANGUAGES = ["de_DE", "en_XX"]
EDGES: dict[str, Any] = {"pad_token_id": tiny.PAD, "eos_token_id": tiny.EOS, "bos_token_id": None}
BART: dict[str, Any] = {"vocab_size": 8, "decoder_start_token_id": tiny.EOS, "dropout": 0.0} | EDGES
BART |= tiny.SHAPE | tiny.HEADS | tiny.FEET


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=8, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, pad_token_id=tiny.PAD,
        eos_token_id=tiny.EOS, decoder_start_token_id=tiny.PAD, dropout_rate=0.0,
    )  # fmt: skip
    return tiny.sharpen(transformers.T5ForConditionalGeneration, config, seed=2, std=0.6)


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=8, n_positions=64, n_embd=16, n_layer=2, n_head=2, eos_token_id=tiny.EOS, bos_token_id=None,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return tiny.sharpen(transformers.GPT2LMHeadModel, config, seed=3)


MAKE: dict[str, Callable[[], Any]] = {
    "marian": tiny.marian,
    "M2M100": lambda: tiny.sharpen(transformers.M2M100ForConditionalGeneration, transformers.M2M100Config(**BART)),
    "mBART": lambda: tiny.sharpen(transformers.MBartForConditionalGeneration, transformers.MBartConfig(**BART), seed=1),
    "T5": t5,
    "GPT-2": gpt2,
    "Llama": tiny.llama,
}
LANGUAGE = {"M2M100": "en_XX", "mBART": "en_XX"}  # id 7
CAUSAL = ["GPT-2", "Llama"]


def words(*, end: bool) -> Any:
    made = tiny.tokenizer(extra=LANGUAGES, end=end)
    made.src_lang = made.tgt_lang = None
    return made


def build(name: str, **options: Any) -> tuple[Any, Any]:
    """The model of transformers and ours around it."""
    model = MAKE[name]()
    if name in CAUSAL:
        return model, mbrace.CausalLM(model, tokenizer=words(end=False), prompt="d {source} d", **options)
    tokenizer = tiny.tokenizer() if name == "marian" else words(end=True)
    return model, mbrace.Seq2Seq(model, tokenizer=tokenizer, target_language=LANGUAGE.get(name), **options)


def counted_encoding(model: Any) -> list[int]:
    """The sizes of all batches of sources that the model encodes from now on."""
    sizes, encode = list[int](), model.encode
    model.encode = lambda rows: (sizes.append(len(rows)), encode(rows))[1]  # type: ignore[func-returns-value]
    return sizes


def exact(name: str, model: Any, source: str, keep: Any = None) -> dict[tuple[int, ...], tuple[float, float]]:
    """Ids to (probability under the truncation, log-probability), by transformers' forward pass without any cache."""
    letters = [tiny.LETTERS.index(letter) + 1 for letter in source.split()]
    start = {"marian": [tiny.PAD], "T5": [tiny.PAD]}.get(name, [tiny.EOS, 7])

    def following(ids: tuple[int, ...]) -> Any:
        with torch.inference_mode():
            if name in CAUSAL:
                logits = model(input_ids=torch.tensor([[4, *letters, 4, *ids]])).logits[0, -1]
            else:
                given = torch.tensor([[*start, *ids]])
                source_ids = torch.tensor([[*letters, tiny.EOS]])
                logits = model(input_ids=source_ids, decoder_input_ids=given, use_cache=False).logits[0, -1]
            logits[tiny.PAD :] = -torch.inf
            return logits

    return tiny.distribution(following, LONGEST, keep)


def probabilities(truth: dict[tuple[int, ...], tuple[float, float]]) -> dict[str, float]:
    """Of the texts that can be drawn."""
    found: dict[str, float] = {}
    for ids, (p, _) in truth.items():
        found[tiny.text_of(ids)] = found.get(tiny.text_of(ids), 0.0) + p
    return {text: p for text, p in found.items() if p > 0}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.marian()


@pytest.fixture
def translator(model: Any) -> mbrace.Seq2Seq:
    return mbrace.Seq2Seq(model, tokenizer=tiny.tokenizer())


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


@pytest.mark.parametrize(("sampling", "number"), [("independent", 0), ("arithmetic", 0), ("arithmetic", 5)])
@pytest.mark.parametrize("name", TRUNCATIONS)
def test_samples_follow_the_exact_truncated_distribution(
    model: Any, translator: mbrace.Seq2Seq, name: str, sampling: str, number: int
) -> None:
    """Arithmetic draws alone: one of each of many sentences with the same text, whose shifts are independent."""
    options, keep = TRUNCATIONS[name]
    truth = exact("marian", model, "a b c", keep)
    possible = probabilities(truth)
    everything = probabilities(exact("marian", model, "a b c"))
    assert name in ("ancestral", "temperature") or len(possible) < len(everything)  # the truncation does something
    sources, each = (1, 4000) if sampling == "independent" else (2000, 1)
    options = {**options, "max_length": LONGEST, "sampling": sampling, "first": number, "seed": 1}
    texts = [text for draws in translator.sample(["a b c"] * sources, each, **options) for text in draws.texts]
    assert tiny.chi_square_fits(Counter(texts), possible, len(texts))
    if name == "epsilon":  # and the test notices a wrong one
        assert not tiny.chi_square_fits(Counter(texts), everything, len(texts))


@pytest.mark.parametrize("name", list(MAKE)[1:])
def test_samples_of_other_architectures_follow_their_exact_distribution(name: str) -> None:
    model, ours = build(name)
    possible = probabilities(exact(name, model, "a b", lambda p: torch.where((p >= 0.1) | (p == p.max()), p, 0.0)))
    draws = ours.sample(["a b", "c a d b"], 3000, epsilon=0.1, max_length=LONGEST, seed=1)[0]
    assert 3 <= len(possible) < len(probabilities(exact(name, model, "a b")))
    assert tiny.chi_square_fits(Counter(draws.texts), possible, 3000)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("name", MAKE)
def test_a_beam_as_wide_as_the_space_finds_everything_in_order(name: str, alpha: float) -> None:
    model, ours = build(name)
    truth = exact(name, model, "a b")
    beams = ours.beam(["a b", "c a d b b a c d"], k=100, alpha=alpha, max_length=LONGEST)[0]  # next to a longer source
    ranked = sorted(truth, key=lambda ids: -truth[ids][1] / len(ids) ** alpha)
    assert beams.scores == pytest.approx([truth[ids][1] / len(ids) ** alpha for ids in ranked], abs=2e-4)
    if alpha == 0.0:
        assert sum(math.exp(score) for score in beams.scores) == pytest.approx(1.0, abs=1e-3)
    known = None if name == "marian" else 10
    assert list(beams.texts)[:known] == [tiny.text_of(ids) for ids in ranked][:known]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_beam_search_equals_transformers_generate(k: int) -> None:
    model = tiny.marian(seed=4)
    with torch.no_grad():
        model.final_logits_bias[0, tiny.EOS] = 1.0  # outputs of different lengths that end by themselves
    sources, tokenizer = ["a b c", "d", "c c a b b", "b d"], tiny.tokenizer()
    ours = mbrace.Seq2Seq(model, tokenizer=tokenizer).beam(sources, k=k, max_length=30)
    for source, beams in zip(sources, ours, strict=True):
        theirs = model.generate(
            **tokenizer(source, return_tensors="pt", return_token_type_ids=False), num_beams=k, num_return_sequences=k,
            max_new_tokens=30, length_penalty=1.0, early_stopping=False, do_sample=False, return_dict_in_generate=True,
            output_scores=True,
        )  # fmt: skip
        assert list(beams.texts) == tokenizer.batch_decode(theirs.sequences, skip_special_tokens=True)
        if k > 1:
            assert beams.scores == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-5)


class OnlyLetters(transformers.LogitsProcessor):  # type: ignore[misc]
    """Masks before the softmax, as our decoders do (transformers' beam search masks after it)."""

    def __call__(self, ids: Any, scores: Any) -> Any:
        if bool((scores[:, :7] == -torch.inf).all()):
            return scores  # the forced language
        scores[:, tiny.PAD :] = -torch.inf
        return scores.log_softmax(-1)


@pytest.mark.parametrize("name", ["M2M100", "mBART", "T5"])
def test_beam_search_of_other_architectures_equals_transformers_generate(name: str) -> None:
    model, ours = build(name)
    beams = ours.beam(["a b c"], k=3, alpha=0.0, max_length=10)[0]
    forced = None if name == "T5" else 7
    theirs = model.generate(
        torch.tensor([[1, 2, 3, 0]]), num_beams=3, num_return_sequences=3, max_new_tokens=11 if forced else 10,
        length_penalty=0.0, forced_bos_token_id=forced, do_sample=False, early_stopping=False,
        bad_words_ids=None, suppress_tokens=None, logits_processor=transformers.LogitsProcessorList([OnlyLetters()]),
    )  # fmt: skip
    texts = words(end=True).batch_decode([[n for n in row if 1 <= n <= 4] for row in theirs.tolist()])
    assert list(beams.texts) == texts


def test_log_probabilities_are_those_of_transformers_forward_pass(model: Any, translator: mbrace.Seq2Seq) -> None:
    draws = translator.sample(["a b c"], 64, max_length=40, seed=3, epsilon=0.02)[0]
    assert draws.logprobs is not None
    for text, logprob in list(zip(draws.texts, draws.logprobs, strict=True))[:12]:
        ids = [tiny.LETTERS.index(letter) + 1 for letter in text.split()]
        ids = ids if len(ids) == 40 else [*ids, tiny.EOS]
        with torch.inference_mode():
            given = torch.tensor([[tiny.PAD, *ids[:-1]]])
            logits = model(input_ids=torch.tensor([[1, 2, 3, 0]]), decoder_input_ids=given).logits[0]
        want = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum()
        assert logprob == pytest.approx(float(want), abs=2e-4)


def test_cudnn_attention_is_off_while_a_model_decodes_and_as_it_was_afterwards(
    translator: mbrace.Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend, switch = torch.nn.functional.scaled_dot_product_attention, torch.backends.cuda.cudnn_sdp_enabled
    inside: set[bool] = set()

    def watched(*args: Any, **options: Any) -> Any:
        inside.add(switch())
        return attend(*args, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    for use in (lambda: translator.beam(["a b"], k=2), lambda: translator.sample(["a b"], 2)):
        inside.clear()
        assert switch()
        use()
        assert inside == {False}
        assert switch()


def test_scores_of_excluded_padding_are_renormalised_as_sampling_does() -> None:
    """transformers' beam search masks bad_words_ids after the softmax, ours before it, so that scores are
    log-probabilities of a distribution: the difference is log(1 - p(padding)) a step."""
    model = tiny.marian()
    with torch.no_grad():
        model.final_logits_bias.zero_()
    model.generation_config.bad_words_ids = [[tiny.PAD]]
    ours = mbrace.Seq2Seq(model, tokenizer=tiny.tokenizer()).beam(["a b c"], k=100, alpha=0.0, max_length=LONGEST)
    assert sum(math.exp(score) for score in ours[0].scores) == pytest.approx(1.0, abs=1e-4)


# draws


@pytest.mark.parametrize(("name", "sampling"), [*((name, "independent") for name in MAKE), ("marian", "arithmetic")])
def test_a_draw_is_the_same_in_any_batch_and_each_source_is_read_once(name: str, sampling: str) -> None:
    sources = ["a b", "d", "c c a b b d d a", "b a c d a"]
    options: dict[str, Any] = {"seed": 5, "max_length": 12, "sampling": sampling}
    _, whole = build(name)
    _, small = build(name, rows=7)
    encoded = counted_encoding(whole)
    expected = [list(draws.texts) for draws in whole.sample(sources, 30, **options)]
    assert sum(encoded) == len(sources)
    assert [list(small.sample([s], 30, ids=[i], **options)[0].texts) for i, s in enumerate(sources)] == expected
    assert [list(draws.texts) for draws in small.sample(sources, 15, first=10, **options)] == [
        texts[10:25] for texts in expected
    ]
    assert list(whole.sample(sources, 30, **{**options, "seed": 6})[0].texts) != expected[0]
    # sources that were read apart are drawn for together
    encoded = counted_encoding(small)
    records = [Record(["a"], id=i, source=source) for i, source in enumerate(sources)]
    drawer = small.sampler(**options).start(records)
    found: list[list[str]] = [[] for _ in sources]
    for order in ([2], [3, 0], [1, 2], [3, 1, 0, 2], [2, 3]):
        wants = [Want(i, len(found[i]), 3) for i in order]
        for i, draws in zip(order, drawer.draw(wants), strict=True):
            found[i] += draws.texts
    assert [len(texts) for texts in found] == [6, 6, 12, 9]
    assert found == [texts[: len(mine)] for texts, mine in zip(expected, found, strict=True)]
    assert sum(encoded) == len(sources)


@pytest.mark.parametrize("name", MAKE)
def test_rows_that_are_kept_though_not_in_use_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where rows are counted every fourth step only."""
    model = build(name)[1]
    sources = ["a b", "d", "c c a b b d d a"]

    def outputs() -> list[Any]:
        drawn = [list(draws.texts) for draws in model.sample(sources, 9, seed=5, max_length=14)]
        beams = [*model.beam(sources, 7, max_length=14), *model.beam(sources, 9, max_length=14)]
        return drawn + [list(beam.texts) for beam in beams]

    exact_rows = outputs()
    plain, step, sizes = search.Search.__init__, beam_search._Beam.step, set()

    def counted_seldom(self: Any, *arguments: Any) -> None:
        plain(self, *arguments)
        self.check_every = 4

    def counted(self: Any) -> None:
        step(self)
        if len(self.parent_rows) > int(self.offsets[-1]):
            sizes.add(len(self.parent_rows))

    monkeypatch.setattr(search.Search, "__init__", counted_seldom)
    monkeypatch.setattr(search.Search, "keeps_rows", lambda self: True)
    monkeypatch.setattr(beam_search._Beam, "step", counted)
    assert outputs() == exact_rows
    assert sizes  # there were rows that are not in use


def test_random_streams_are_uniform_and_independent_of_each_other() -> None:
    keys = draw_keys(torch.tensor([[5], [6]]), torch.arange(20000))
    first, second = uniforms(keys, 0), uniforms(keys, 1)
    for part in (first, second):
        counts = torch.histc(part.float(), bins=20, min=0, max=1)
        assert float(((counts - 2000) ** 2 / 2000).sum()) < 50  # chi-square, 19 degrees: 50 is p = 1e-4
    correlation = torch.corrcoef(torch.stack([first[0], first[1], second[0], second[1]])).fill_diagonal_(0)
    assert float(correlation.abs().max()) < 0.03


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
    assert _intervals(weights, u)[0].tolist() == want


def test_arithmetic_samples_of_a_sentence_are_spread_evenly_and_estimate_with_less_variance(
    model: Any, translator: mbrace.Seq2Seq
) -> None:
    """The first id of 16, 32, ... draws comes as often as its probability says, to one or two draws; independent draws
    miss it by the root of their number."""
    first_ids: Counter[str] = Counter()
    possible = probabilities(exact("marian", model, "a b c"))
    for text, p in possible.items():
        first_ids[text[:1]] += p  # type: ignore[assignment]
    truth = sum(p * len(text) for text, p in possible.items())
    missed, errors = {"arithmetic": 0.0, "independent": 0.0}, {}
    for sampling in missed:
        options: dict[str, Any] = {"epsilon": None, "max_length": LONGEST, "seed": 5, "sampling": sampling}
        samples = translator.sample(["a b c"] * 60, 64, **options)
        for draws in samples[:20]:
            for size in (16, 32, 64):
                counts = Counter(text[:1] for text in draws.texts[:size])
                worst = max(abs(counts[letter] - size * p) for letter, p in first_ids.items())
                missed[sampling] = max(missed[sampling], worst)
        means = torch.tensor([sum(map(len, draws.texts[:32])) / 32 for draws in samples])
        errors[sampling] = float(((means - truth) ** 2).mean())
    assert missed["arithmetic"] <= 2.0
    assert missed["independent"] > 4.0
    assert errors["arithmetic"] < 0.7 * errors["independent"], errors


def test_the_lowest_temperature_samples_the_most_probable_ids(translator: mbrace.Seq2Seq) -> None:
    (greedy,) = translator.sample(["a b c"], 1, top_k=1)
    (cold,) = translator.sample(["a b c"], 8, epsilon=None, temperature=1e-6)
    assert set(cold.texts) == set(greedy.texts)


# races


def _records(translator: mbrace.Seq2Seq, sources: list[str]) -> list[Record]:
    beams = translator.beam(sources, k=8, max_length=8)
    return [Record(list(beam.texts), id=i, source=sources[i]) for i, beam in enumerate(beams)]


def test_the_race_draws_no_more_than_it_uses_unless_ahead_and_answers_alike(translator: mbrace.Seq2Seq) -> None:
    sources = ["a b c", "d", "c c a b b"]
    records = _records(translator, sources)
    encoded, found = counted_encoding(translator), []
    for ahead in (0, 16):
        sampler = translator.sampler(seed=2, ahead=ahead)
        race: dict[str, Any] = {"schedule": [4, 8, 16, 256], "prune": mbrace.Bottom(0.6), "window": 2}
        found.append(list(mbrace.decode_corpus(records, sampler=sampler, **race)))
        used = sum(answer.pseudo_references for answer in found[-1])
        assert sampler.drawn >= 16 * len(sources) if ahead else sampler.drawn == used
    assert found[0] == found[1]
    assert sum(encoded) == 2 * len(sources)
    assert any(answer.pseudo_references < 256 for answer in found[0])  # some race ended early


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
    record = Record(["a", "b"], id=0, source="a b c")
    assert translator.sampler().start([record]).draw([Want(0, 0, 4)])[0].logprobs is None
    draws = translator.sampler(weighted=True).start([record]).draw([Want(0, 0, 4)])[0]
    assert draws.logprobs is not None
    assert len(draws.logprobs) == 4


def test_a_source_without_text_stays_without(translator: mbrace.Seq2Seq) -> None:
    sources = ["", "a b", "  "]
    assert [answer.text == "" for answer in translator.translate(sources, beam=3)] == [True, False, True]
    draws = translator.sample(sources, 5)
    assert list(draws[0].texts) == [""] * 5
    assert draws[1] == translator.sample(["a b"], 5, ids=[1])[0]


# batches, prompts, and what is refused


def test_batches_are_of_similar_length_and_hold_no_more_rows_than_asked() -> None:
    translator = build("marian", rows=8)[1]
    rows = [[1] * length for length in (3, 20, 9, 1, 0, 4, 2, 10)]
    assert list(translator.parts(rows, [3, 3, 3, 3, 0, 3, 3, 3])) == [[1, 7], [2, 5], [0, 6], [3]]
    assert list(translator.parts(rows, [9] * 8)) == [[1], [7], [2], [5], [0], [6], [3], [4]]


def test_two_searches_at_once_where_three_fit_into_the_memory() -> None:
    """By hand: 1,000 rows of 100 ids take 1,000 x 10 x 100 bytes, and 64 time steps 64 x 1,000 x 2 x 8 x 4 bytes."""
    config = SimpleNamespace(decoder_vocab_size=None, vocab_size=100, decoder_layers=2, d_model=8)
    least = -(-(1_000_000 + 64 * 64_000) * 10 // 3)  # each may take three tenths
    assert searches_fit(config, 1000, least)
    assert not searches_fit(config, 1000, least - 4)


def test_a_chat_template_makes_the_prompt() -> None:
    tokenizer = words(end=False)
    tokenizer.chat_template = "{% for m in messages %}c {{ m['content'] }} {% endfor %}d"
    model = tiny.llama()
    chat = mbrace.CausalLM(model, tokenizer=tokenizer, prompt="a {source}", system="b b")
    assert chat.codec.encode(["d"]) == [[3, 2, 2, 3, 1, 4, 4]]
    turn, own = {"role": "user", "content": "a"}, {"role": "system", "content": "d"}
    assert chat.codec.fill(prompt_of([turn], 0)) == "c b b c a d"
    assert chat.codec.fill(prompt_of([own, turn], 0)) == "c d c a d"
    plain = mbrace.CausalLM(model, tokenizer=tokenizer, prompt="a {source}", chat=False)
    assert plain.codec.encode(["d"]) == [[1, 4]]


def test_stop_ends_an_output_before_the_string() -> None:
    _, ours = build("Llama", stop="c")
    assert set(ours.ends) == {tiny.EOS, 3}
    draws = ours.sample(["a b"], 200, epsilon=None, max_length=10)[0]
    assert not any("c" in text for text in draws.texts)


def test_a_model_needs_its_own_tokenizer_and_languages() -> None:
    with pytest.raises(mbrace.UserError, match="needs its tokenizer"):
        mbrace.Seq2Seq(tiny.marian())
    with pytest.raises(mbrace.UserError, match="'xx': unknown"):
        mbrace.Seq2Seq(MAKE["M2M100"](), tokenizer=words(end=True), target_language="xx")
