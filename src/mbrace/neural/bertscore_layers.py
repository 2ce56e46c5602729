"""Which layer BERTScore reads of well-known encoders: the one that correlates best with WMT16's human judgements, as
chosen by the original (bert-score 0.3.13)."""

from __future__ import annotations

LAYERS = {
    "albert-base-v1": 10,
    "albert-large-v1": 17,
    "albert-xlarge-v1": 16,
    "albert-xxlarge-v1": 8,
    "albert-base-v2": 9,
    "albert-large-v2": 14,
    "albert-xlarge-v2": 13,
    "albert-xxlarge-v2": 8,
    "allenai/scibert_scivocab_cased": 9,
    "allenai/scibert_scivocab_uncased": 8,
    "bert-base-chinese": 8,
    "bert-base-multilingual-cased": 9,
    "bert-base-uncased": 9,
    "bert-large-uncased": 18,
    "dbmdz/bert-base-turkish-cased": 10,
    "distilbert-base-multilingual-cased": 5,
    "distilbert-base-uncased": 5,
    "distilroberta-base": 5,
    "google/electra-base-discriminator": 9,
    "google/electra-large-discriminator": 14,
    "google/electra-small-discriminator": 11,
    "microsoft/deberta-base": 9,
    "microsoft/deberta-base-mnli": 9,
    "microsoft/deberta-large": 16,
    "microsoft/deberta-large-mnli": 18,
    "microsoft/deberta-v2-xlarge": 10,
    "microsoft/deberta-v2-xlarge-mnli": 17,
    "microsoft/deberta-v2-xxlarge": 21,
    "microsoft/deberta-v2-xxlarge-mnli": 22,
    "microsoft/deberta-v3-base": 9,
    "microsoft/deberta-v3-large": 12,
    "microsoft/deberta-v3-small": 4,
    "microsoft/deberta-v3-xsmall": 10,
    "microsoft/deberta-xlarge": 18,
    "microsoft/deberta-xlarge-mnli": 40,
    "microsoft/mdeberta-v3-base": 10,
    "microsoft/mpnet-base": 8,
    "princeton-nlp/sup-simcse-bert-base-uncased": 10,
    "princeton-nlp/sup-simcse-roberta-large": 16,
    "roberta-base": 10,
    "roberta-large": 17,
    "roberta-large-mnli": 19,
    "xlm-roberta-base": 9,
    "xlm-roberta-large": 17,
}
# Organisations in the current hub names of models whose names used to have none.
ORGANISATIONS = ("google-bert/", "FacebookAI/", "distilbert/", "albert/")


def known_layer(name: str) -> int | None:
    """The layer for a hub name; None if the original has no choice for it."""
    bare = next((name.removeprefix(prefix) for prefix in ORGANISATIONS if name.startswith(prefix)), name)
    return LAYERS.get(bare)
