"""Fuzz the kernel with sacreBLEU as oracle (`make fuzz`): random strings in every layout, every option; and what we
read from strangers: records, manifests, run files, config files,
answers of servers and checkpoints (fuzz_inputs.py).

python native/fuzz.py -max_total_time=60
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["sacrebleu.metrics"]):
    from sacrebleu.metrics import CHRF

with atheris.instrument_imports(include=["mbrace"]):
    import fuzz_inputs

import numpy as np

from mbrace import _native
from mbrace.metrics.chrf import ChrF
from mbrace.utility import Ask, Sentence

ALPHABETS = [
    *("ab", "ab .", "abcdefgh ,.()'", "aé ß\xa0", "аб вг", "中文 字。"),
    *("a😀 \u0301\ud800\u2003", "\x00a \x1c\x85"),
]


def texts(data: atheris.FuzzedDataProvider, most: int) -> list[str]:
    out = []
    for _ in range(data.ConsumeIntInRange(1, most)):
        if data.ConsumeBool():
            out.append(data.ConsumeUnicode(data.ConsumeIntInRange(0, 40)))
        else:
            letters = ALPHABETS[data.ConsumeIntInRange(0, len(ALPHABETS) - 1)]
            picks = data.ConsumeBytes(data.ConsumeIntInRange(0, 80))
            out.append("".join(letters[pick % len(letters)] for pick in picks))
    return out


def check_likeness(raw: bytes) -> None:
    """How alike texts are, by n-grams in sets; a covering order has each once; and a forecast with any numbers lets
    each in once at most."""
    data = atheris.FuzzedDataProvider(raw)
    given = texts(data, 12)
    padded = [f" {text} " for text in given]
    grams = [{text[i : i + n] for n in (3, 4, 5) for i in range(len(text) - n + 1)} for text in padded]
    every = sorted(set().union(*grams))
    features = np.array([[gram in each for gram in every] for each in grams], dtype=float)
    features = features.reshape(len(given), len(every))
    features -= features.mean(axis=0)
    expected = features @ features.T
    if np.trace(expected) > 1e-9:
        expected *= len(given) / np.trace(expected)
    assert np.allclose(_native.likeness(given), expected, rtol=1e-5, atol=1e-5), given
    assert sorted(_native.covering_order(given).tolist()) == list(range(len(given))), given
    forecast = _native.Forecast(given)
    entered = forecast.start(data.ConsumeIntInRange(1, 6)).tolist()
    while len(entered) < len(given):
        means = np.array([data.ConsumeFloat() for _ in entered])
        new = forecast.next(means, data.ConsumeFloat(), data.ConsumeProbability(), 3).tolist()
        entered += new
        if not new:
            break
    assert len(set(entered)) == len(entered), (given, entered)


TARGETS = (
    check_likeness,
    fuzz_inputs.check_record,
    lambda raw: fuzz_inputs.check_record(fuzz_inputs.mutated(fuzz_inputs.START, raw)),
    fuzz_inputs.check_manifest,
    lambda raw: fuzz_inputs.check_manifest(fuzz_inputs.mutated(fuzz_inputs.MANIFEST, raw)),
    fuzz_inputs.check_run_file,
    fuzz_inputs.check_config,
    fuzz_inputs.check_server_answer,
    lambda raw: fuzz_inputs.check_checkpoint(fuzz_inputs.mutated(fuzz_inputs.checkpoint(), raw)),
)


def check(raw: bytes) -> None:
    """The first byte chooses: half of the time the kernel, else one of the inputs."""
    if raw and raw[0] >= 128:
        TARGETS[raw[0] % len(TARGETS)](raw[1:])
    else:
        check_kernel(raw[1:])


def check_kernel(raw: bytes) -> None:
    """Scores in every layout and instruction set are sacreBLEU's."""
    data = atheris.FuzzedDataProvider(raw)
    options = {
        "char_order": data.ConsumeIntInRange(0, 9),
        "word_order": data.ConsumeIntInRange(0, 3),
        "beta": data.ConsumeIntInRange(0, 5),
        "lowercase": data.ConsumeBool(),
        "whitespace": data.ConsumeBool(),
        "eps_smoothing": data.ConsumeBool(),
    }
    if options["char_order"] + options["word_order"] == 0:
        return
    variant = data.PickValueInList(_native.simd_variants())
    hypotheses, references = texts(data, 5), texts(data, 10)
    utility, oracle = ChrF(**options, threads=1), CHRF(**options)
    scorer = utility.start([Sentence(0, None, hypotheses)])
    ask = Ask(0, np.arange(len(hypotheses)), references)
    table = scorer.score([ask])[0]
    forced = _native.score_window(
        _native.build_indexes(
            [utility._prepared(hypotheses)],
            **{name: options[name] for name in ("char_order", "word_order", "whitespace")},
        ),
        [ask.hypotheses],
        [utility._prepared(references)],
        beta=options["beta"],
        eps_smoothing=options["eps_smoothing"],
        simd=variant,
    )[0][0]
    assert forced.tobytes() == table.tobytes(), (variant, options, hypotheses, references)
    for row, hypothesis in zip(table, hypotheses, strict=True):
        for score, reference in zip(row, references, strict=True):
            expected = oracle.sentence_score(hypothesis, [reference]).score
            assert abs(score - expected) < 1e-4, (options, hypothesis, reference, float(score), expected)


if __name__ == "__main__":
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
