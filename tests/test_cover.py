"""Pseudo-references in an order in which the first few cover all: against a naive formula, and what it is good for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cli_helpers import Row
from hypothesis import given
from hypothesis import strategies as st
from test_forecast import ALPHABETS, sentences

import mbrace
from mbrace._native import covering_order
from mbrace.sampler import MOST_COVERED, Listed, Want


def n_grams(texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """(texts, n-grams): 1 where an n-gram of 3 to 5 characters occurs."""
    padded = [f" {text} " for text in texts]
    grams = [{text[i : i + n] for n in (3, 4, 5) for i in range(len(text) - n + 1)} for text in padded]
    every = sorted(set().union(*grams))
    return np.array([[gram in each for gram in every] for each in grams], dtype=float).reshape(len(texts), len(every))


def check_order(texts: Sequence[str], order: Sequence[int]) -> None:
    """Each is, of those left, the one with which the average of the first ones is closest to the average of all."""
    features = n_grams(texts)
    target, total = features.sum(axis=0) / max(1, len(texts)), np.zeros(features.shape[1])
    assert sorted(order) == list(range(len(texts)))
    for position, chosen in enumerate(order):
        left = list(order[position:])
        distances = np.linalg.norm((total + features[left]) / (position + 1) - target, axis=1)
        assert distances[0] <= distances.min() + 1e-6, (texts, position)
        total += features[chosen]


@given(st.lists(st.sampled_from(ALPHABETS).flatmap(lambda letters: st.text(letters, max_size=12)), max_size=12))
def test_the_first_come_as_close_to_all_as_they_can(texts: list[str]) -> None:
    check_order(texts, covering_order(texts).tolist())


@pytest.mark.parametrize("seed", range(3))
def test_of_sentences_some_of_them_repeated(seed: int) -> None:
    texts = sentences(60, seed)
    texts += [texts[i] for i in np.random.default_rng(seed).integers(10, size=30)]
    check_order(texts, covering_order(texts).tolist())


def test_a_worked_example() -> None:
    """Of four that differ in a word, one is there twice: it comes first, the others follow, its copy among them."""
    texts = ["he saw a cat", "he saw a dog", "he saw a cat", "he saw a cow"]
    order = covering_order(texts).tolist()
    assert order[0] == 0  # the most usual one; of its copies the first
    assert texts[order[1]] != texts[order[0]]


def test_where_no_n_gram_tells_texts_apart_they_keep_their_order() -> None:
    assert covering_order([]).tolist() == []
    assert covering_order(["same"] * 5).tolist() == [0, 1, 2, 3, 4]
    assert covering_order(["a" * length for length in range(8, 12)]).tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="expected a sequence of str"):
        covering_order(["a", 1])  # type: ignore[list-item]


def test_means_over_the_first_are_closer_to_the_mean_over_all(demo_rows: list[Row]) -> None:
    """On real draws, by chrF++: 16 in this order are closer than 32 at random."""
    errors: dict[str, list[float]] = {"covering 16": [], "random 16": [], "random 32": []}
    for row in demo_rows[:6]:
        draws = row["pseudo_references"][:128]
        table = mbrace.decode(
            row["hypotheses"][:24], draws, prune=None, schedule="all", keep_utilities=True, shuffle=False
        ).utilities
        assert table is not None
        columns = {text: column for column, text in enumerate(table.pseudo_references)}
        utilities = table.utilities[:, [columns[text] for text in draws]]
        covering = covering_order(draws)
        chance = np.random.default_rng(0)
        for name, count in (("covering 16", 16), ("random 16", 16), ("random 32", 32)):
            orders = [covering] if name == "covering 16" else [chance.permutation(128) for _ in range(20)]
            off = [utilities[:, order[:count]].mean(axis=1) - utilities.mean(axis=1) for order in orders]
            errors[name].append(float(np.mean([np.var(each) for each in off])))
    covering_16, random_16, random_32 = (np.mean(errors[name]) for name in errors)
    assert covering_16 < 0.5 * random_32 < 0.5 * random_16


def order_drawn(record: mbrace.Record, seed: int) -> list[str]:
    drawer = Listed(seed=seed, shuffle=True, cover=True).start([record])
    return [text for first in (0, 7) for text in drawer.draw([Want(0, first, 7 if first == 0 else 1000)])[0].texts]


def test_a_record_draws_in_this_order() -> None:
    texts = sentences(40, 1)
    drawn = order_drawn(mbrace.Record(["x"], texts), 0)
    check_order(texts, [texts.index(text) for text in drawn])
    same = ["same one"] * 3 + ["same two"] * 3
    assert sorted(order_drawn(mbrace.Record(["x"], same), 0)) == same


def test_no_n_grams_to_go_by_leave_the_list_shuffled() -> None:
    """The first of an ordered list would be no sample."""
    texts = ["a" * length for length in range(8, 40)]
    assert order_drawn(mbrace.Record(["x"], texts), 0) == order_drawn(mbrace.Record(["x"], texts), 0) != texts
    assert order_drawn(mbrace.Record(["x"], texts), 1) != order_drawn(mbrace.Record(["x"], texts), 0)


def test_log_probabilities_go_with_their_draws() -> None:
    texts = sentences(40, 1)
    record = mbrace.Record(["x"], texts, logprobs=[-float(number) for number in range(40)])
    drawer = Listed(seed=0, shuffle=True, cover=True).start([record])
    draws = drawer.draw([Want(0, 0, 40)])[0]
    assert list(draws.texts) == order_drawn(mbrace.Record(["x"], texts), 0)
    assert draws.logprobs == [-float(texts.index(text)) for text in draws.texts]


def test_a_long_list_is_covered_as_far_as_it_is_put_in_order() -> None:
    texts = [f"{text} {number}" for number, text in enumerate(sentences(MOST_COVERED + 30, 3))]
    shuffled = Listed(seed=0, shuffle=True).start([mbrace.Record(["x"], texts)]).draw([Want(0, 0, 2000)])[0].texts
    drawn = Listed(seed=0, shuffle=True, cover=True).start([mbrace.Record(["x"], texts)]).draw([Want(0, 0, 2000)])[0]
    first = list(shuffled[:MOST_COVERED])
    assert list(drawn.texts[MOST_COVERED:]) == list(shuffled[MOST_COVERED:])
    assert list(drawn.texts[:MOST_COVERED]) == [first[position] for position in covering_order(first).tolist()] != first
