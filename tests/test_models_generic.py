"""Other architectures through transformers' forward pass: exact distributions, caches, languages, prompts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import tiny_models as tiny
import torch
import transformers

import mbrace
from mbrace.models import beam_search, search
from mbrace.sampler import Want

LONGEST = 3
LANGUAGES = ["de_DE", "en_XX"]


def sharpen(model: Any, std: float = 0.2) -> Any:
    """Random weights far from flat distributions, and only the letters and </s> as outputs."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=std if "embed" in name or "shared" in name or "wte" in name else 0.3)
    size = model.get_output_embeddings().weight.shape[0]
    model.generation_config.suppress_tokens = list(range(tiny.PAD, size))
    model.generation_config.forced_eos_token_id = None
    return model.eval()


def m2m() -> Any:
    torch.manual_seed(0)
    config = transformers.M2M100Config(
        vocab_size=8, pad_token_id=tiny.PAD, eos_token_id=tiny.EOS, bos_token_id=None, decoder_start_token_id=tiny.EOS,
        dropout=0.0, **tiny.SHAPE, **tiny.HEADS, **tiny.FEET,
    )  # fmt: skip
    return sharpen(transformers.M2M100ForConditionalGeneration(config))


def mbart() -> Any:
    torch.manual_seed(1)
    config = transformers.MBartConfig(
        vocab_size=8, pad_token_id=tiny.PAD, eos_token_id=tiny.EOS, bos_token_id=None, decoder_start_token_id=tiny.EOS,
        dropout=0.0, **tiny.SHAPE, **tiny.HEADS, **tiny.FEET,
    )  # fmt: skip
    return sharpen(transformers.MBartForConditionalGeneration(config))


def t5() -> Any:
    torch.manual_seed(2)
    config = transformers.T5Config(
        vocab_size=8, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, pad_token_id=tiny.PAD,
        eos_token_id=tiny.EOS, decoder_start_token_id=tiny.PAD, dropout_rate=0.0,
    )  # fmt: skip
    return sharpen(transformers.T5ForConditionalGeneration(config), 0.6)


def gpt2() -> Any:
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=8, n_positions=64, n_embd=16, n_layer=2, n_head=2, eos_token_id=tiny.EOS, bos_token_id=None,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return sharpen(transformers.GPT2LMHeadModel(config))


def llama() -> Any:
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, eos_token_id=tiny.EOS, bos_token_id=None,
        pad_token_id=tiny.PAD,
    )  # fmt: skip
    return sharpen(transformers.LlamaForCausalLM(config))


def words(*, end: bool) -> Any:
    made = tiny.tokenizer(extra=LANGUAGES, end=end)
    made.src_lang = made.tgt_lang = None
    return made


SEQ2SEQ: dict[str, tuple[Callable[[], Any], str | None]] = {
    "M2M100 with a target language": (m2m, "en_XX"),
    "mBART with a target language": (mbart, "en_XX"),
    "T5": (t5, None),
}
CAUSAL: dict[str, Callable[[], Any]] = {"GPT-2": gpt2, "Llama": llama}


def build(name: str, **options: Any) -> tuple[Any, Any]:
    """The model of transformers and ours around it."""
    if name in CAUSAL:
        model = CAUSAL[name]()
        ours: Any = mbrace.CausalLM(model, tokenizer=words(end=False), prompt="d {source} d", **options)
        return model, ours
    make, language = SEQ2SEQ[name]
    model = make()
    return model, mbrace.Seq2Seq(model, tokenizer=words(end=True), target_language=language, **options)


def exact(name: str, model: Any, source: str, keep: Any = None) -> dict[tuple[int, ...], tuple[float, float]]:
    """All outputs, by transformers' forward pass without any cache."""
    allowed = torch.zeros(8).masked_fill_(torch.arange(8) >= tiny.PAD, -torch.inf)
    letters = [tiny.LETTERS.index(letter) + 1 for letter in source.split()]

    def following(ids: tuple[int, ...]) -> Any:
        with torch.inference_mode():
            if name in CAUSAL:
                return model(input_ids=torch.tensor([[4, *letters, 4, *ids]])).logits[0, -1] + allowed
            start = [tiny.PAD] if name == "T5" else [tiny.EOS, 7]  # 7: en_XX
            given = torch.tensor([[*start, *ids]])
            source_ids = torch.tensor([[*letters, tiny.EOS]])
            return model(input_ids=source_ids, decoder_input_ids=given, use_cache=False).logits[0, -1] + allowed

    return tiny.distribution(following, LONGEST, keep)


@pytest.mark.parametrize("name", [*SEQ2SEQ, *CAUSAL])
def test_samples_follow_the_exact_truncated_distribution(name: str) -> None:
    model, ours = build(name)
    expected: dict[str, float] = {}
    for ids, (p, _) in exact(name, model, "a b", lambda p: torch.where((p >= 0.1) | (p == p.max()), p, 0.0)).items():
        expected[tiny.text_of(ids)] = expected.get(tiny.text_of(ids), 0.0) + p
    possible = {text: p for text, p in expected.items() if p > 0}
    draws = ours.sample(["a b", "c a d b"], 3000, epsilon=0.1, max_length=LONGEST, seed=1)[0]
    assert 3 <= len(possible) < len(expected)
    assert tiny.chi_square_fits(Counter(draws.texts), possible, 3000)


@pytest.mark.parametrize("name", [*SEQ2SEQ, *CAUSAL])
def test_beam_search_finds_everything_in_order_beside_a_longer_source(name: str) -> None:
    model, ours = build(name)
    truth = exact(name, model, "a b")
    beams = ours.beam(["a b", "c a d b b a c d"], k=100, alpha=0.0, max_length=LONGEST)[0]
    ranked = sorted(truth, key=lambda ids: -truth[ids][1])
    assert beams.scores == pytest.approx([truth[ids][1] for ids in ranked], abs=2e-4)
    assert sum(math.exp(score) for score in beams.scores) == pytest.approx(1.0, abs=1e-3)
    assert list(beams.texts)[:10] == [tiny.text_of(ids) for ids in ranked][:10]


@pytest.mark.parametrize("name", ["marian", *SEQ2SEQ, *CAUSAL])
def test_sources_that_were_read_apart_are_drawn_for_together(name: str) -> None:
    sources = ["a b", "d", "c c a b b d d a", "b a c d a"]
    model = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer()) if name == "marian" else build(name)[1]
    expected = model.sample(sources, 12, seed=5, max_length=12)
    before = model.encoder_runs
    drawer = model.sampler(seed=5, max_length=12).start(
        [mbrace.Record(["a"], id=i, source=source) for i, source in enumerate(sources)]
    )
    found: list[list[str]] = [[] for _ in sources]
    for order in ([2], [3, 0], [1, 2], [3, 1, 0, 2], [2, 3]):
        wants = [Want(i, len(found[i]), 3) for i in order]
        for i, draws in zip(order, drawer.draw(wants), strict=True):
            found[i] += draws.texts
    assert [len(texts) for texts in found] == [6, 6, 12, 9]
    assert found == [list(draws.texts[: len(texts)]) for draws, texts in zip(expected, found, strict=True)]
    assert model.encoder_runs - before == len(sources)


@pytest.mark.parametrize("name", [*SEQ2SEQ, *CAUSAL])
def test_a_draw_is_the_same_in_any_batch_and_each_source_is_read_once(name: str) -> None:
    sources = ["a b", "d", "c c a b b d d a"]
    _, whole = build(name)
    _, small = build(name, rows=7)
    together = whole.sample(sources, 30, seed=5, max_length=12)
    alone = [small.sample([source], 30, seed=5, ids=[i], max_length=12)[0] for i, source in enumerate(sources)]
    assert [list(draws.texts) for draws in together] == [list(draws.texts) for draws in alone]
    assert whole.encoder_runs == len(sources)
    records = [mbrace.Record(list(draws.texts[:6]), id=i, source=sources[i]) for i, draws in enumerate(together)]
    before = small.encoder_runs
    list(mbrace.decode_corpus(records, sampler=small.sampler(max_length=12), schedule=[4, 8, 32], prune=None))
    racing = sum(len(set(record.hypotheses)) > 1 for record in records)
    assert small.encoder_runs - before == racing


@pytest.mark.parametrize("name", ["marian", *SEQ2SEQ, *CAUSAL])
def test_rows_that_are_kept_though_not_in_use_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where rows are counted every fourth step only."""
    model = mbrace.Seq2Seq(tiny.marian(), tokenizer=tiny.tokenizer()) if name == "marian" else build(name)[1]
    sources = ["a b", "d", "c c a b b d d a"]

    def outputs() -> list[Any]:
        drawn = [list(draws.texts) for draws in model.sample(sources, 9, seed=5, max_length=14)]
        beams = [*model.beam(sources, 7, max_length=14), *model.beam(sources, 9, max_length=14)]
        return drawn + [list(beam.texts) for beam in beams]

    exact_rows = outputs()
    plain, sizes = search.Search.__init__, set()

    def counted_seldom(self: Any, *arguments: Any) -> None:
        plain(self, *arguments)
        self.check_every = 4

    def counted(self: Any) -> None:
        step(self)
        if len(self.came_from) > int(self.offsets[-1]):
            sizes.add(len(self.came_from))

    step = beam_search._Beam.step
    monkeypatch.setattr(search.Search, "__init__", counted_seldom)
    monkeypatch.setattr(search.Search, "keeps_rows", lambda self: True)
    monkeypatch.setattr(beam_search._Beam, "step", counted)
    assert outputs() == exact_rows
    assert sizes  # there were rows that are not in use


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_beam_search_equals_transformers_generate(name: str) -> None:
    model, ours = build(name)
    beams = ours.beam(["a b c"], k=3, alpha=0.0, max_length=10)[0]
    forced = None if name == "T5" else 7
    theirs = model.generate(
        torch.tensor([[1, 2, 3, 0]]), num_beams=3, num_return_sequences=3, max_new_tokens=11 if forced else 10,
        length_penalty=0.0, forced_bos_token_id=forced, do_sample=False, early_stopping=False,
        bad_words_ids=None, suppress_tokens=None, logits_processor=_only_letters(),
    )  # fmt: skip
    texts = words(end=True).batch_decode([[n for n in row if 1 <= n <= 4] for row in theirs.tolist()])
    assert list(beams.texts) == texts


def _only_letters() -> Any:
    """Masks before the softmax, as our decoders do (transformers' beam search masks after it)."""

    class Renormalised(transformers.LogitsProcessor):  # type: ignore[misc]
        def __call__(self, ids: Any, scores: Any) -> Any:
            if bool((scores[:, :7] == -torch.inf).all()):
                return scores  # the forced language
            scores[:, tiny.PAD :] = -torch.inf
            return scores.log_softmax(-1)

    return transformers.LogitsProcessorList([Renormalised()])


def test_a_chat_template_makes_the_prompt() -> None:
    tokenizer = words(end=False)
    tokenizer.chat_template = "{% for m in messages %}c {{ m['content'] }} {% endfor %}d"
    model = llama()
    chat = mbrace.CausalLM(model, tokenizer=tokenizer, prompt="a {source}", system="b b")
    assert chat.codec.encode(["d"]) == [[3, 2, 2, 3, 1, 4, 4]]
    plain = mbrace.CausalLM(model, tokenizer=tokenizer, prompt="a {source}", chat=False)
    assert plain.codec.encode(["d"]) == [[1, 4]]
    with pytest.raises(mbrace.UserError, match="no chat template"):
        mbrace.CausalLM(model, tokenizer=words(end=False), prompt="{source}", chat=True)


def test_stop_ends_an_output_before_the_string() -> None:
    _, ours = build("Llama", stop="c")
    assert set(ours.ends) == {tiny.EOS, 3}
    draws = ours.sample(["a b"], 200, epsilon=None, max_length=10)[0]
    assert not any("c" in text for text in draws.texts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mbrace.CausalLM(llama(), tokenizer=words(end=False), prompt="no place"), "has no {source}"),
        (lambda: mbrace.Seq2Seq(m2m()), "needs its tokenizer"),
        (lambda: mbrace.Seq2Seq(m2m(), tokenizer=words(end=True), target_language="xx"), "language 'xx': unknown"),
        (lambda: mbrace.Seq2Seq(t5(), tokenizer=tiny.tokenizer(), target_language="en_XX"), "no language codes"),
        (lambda: mbrace.Seq2Seq("/nowhere/at/all"), "cannot be loaded"),
        (lambda: mbrace.Seq2Seq(t5(), tokenizer=tiny.tokenizer(), dtype="int7"), "dtype 'int7': unknown"),
    ],
)
def test_what_is_wrong_is_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(mbrace.UserError, match=message):
        make()
