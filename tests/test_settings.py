"""Settings: each field once, with its default, range, conflicts and flag; presets; what was removed."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import mbrace
from mbrace import Record, decode_corpus
from mbrace.errors import SettingError
from mbrace.setting_fields import REMOVED, Settings, defaults_of, flag_of, options_table, settings_from, table_of
from mbrace.settings import (
    PRESETS,
    Connection,
    ConnectionOptions,
    ModelSettings,
    Network,
    NetworkOptions,
    Race,
    RaceOptions,
    Sampling,
    SamplingOptions,
    with_preset,
)

CLASSES = (Race, Sampling, Network, Connection, ModelSettings)


def test_a_race_is_the_papers_by_default() -> None:
    race = Race()
    assert race.pruning_function() == mbrace.Confidence(0.99, 500)
    assert race.made_method() is None
    assert (race.schedule, race.seed, race.nbest, race.chosen()) == (None, 0, 1, {})


def test_names_and_objects_give_the_same_race() -> None:
    assert Race(alpha=0.9, regret=0.1).pruning_function() == mbrace.Confidence(0.9, regret=0.1)
    assert Race(prune="bottom", beta=0.5).pruning_function() == mbrace.Bottom(0.5)
    assert Race(prune="halving", budget=99).pruning_function() == mbrace.Halving(99)
    assert Race(prune=None).pruning_function() is Race(prune="none").pruning_function() is None
    assert Race(method="low-rank").pruning_function() is None
    assert Race(method="low-rank", method_options={"rank": "4"}).made_method() == mbrace.LowRank(rank=4)
    diverse = Race(method="diverse", nbest=3, method_options={"diversity": 2})
    assert (diverse.made_method(), diverse.pruning_function()) == (mbrace.Diverse(2), None)


def test_a_schedule_is_read_once() -> None:
    assert Race(schedule=iter([8, 16])).schedule == (8, 16)
    assert Race(schedule=np.array([8, 16])).schedule == (8, 16)
    assert Race(schedule="all").schedule == "all"


def test_settings_are_frozen_pickle_and_hash() -> None:
    race = Race(alpha=0.9, schedule=[4, 8], method_options=None)
    assert pickle.loads(pickle.dumps(race)) == race
    assert len({race, Race(alpha=0.9, schedule=(4, 8)), Race()}) == 2
    with pytest.raises(AttributeError):
        race.alpha = 0.5  # type: ignore[misc]
    assert race.replace(nbest=4) == Race(alpha=0.9, schedule=[4, 8], nbest=4)


@pytest.mark.parametrize(
    "race",
    [
        Race(),
        Race(alpha=0.9, nbest=4, schedule=[8, 16], shuffle=False),
        Race(prune=None, exclude_self=True),
        Race(method="low-rank", method_options={"rank": 3}),
        Race(prune=mbrace.Confidence(0.9)),
        Race(prune=mbrace.Bottom(0.5)),
    ],
)
def test_a_dictionary_gives_the_same_race_again(race: Race) -> None:
    values = race.to_dict()
    assert values["version"] == 1
    again = Race.from_dict(values)
    assert (again.pruning_function(), again.describe()) == (race.pruning_function(), race.describe())


def test_the_description_has_what_older_ones_had_and_more_only_if_chosen() -> None:
    older = {"prune", "alpha", "bootstraps", "beta", "regret", "budget", "schedule", "seed", "nbest", "no_shuffle"}
    assert {name for name, value in Race().describe().items() if value is not None} <= older
    assert Race(window=3).describe() == Race().describe()
    assert Race(prune=mbrace.Confidence(0.9)).describe() == Race(alpha=0.9).describe()
    found = Race(cover=True, forecast=0.1, exclude_self=False).describe()
    assert {name for name in found if name not in older and found[name] is not None} == {"cover", "forecast"}
    assert Race(schedule=[8, 16]).describe()["schedule"] == "8,16"
    method = Race(method="low-rank", method_options={"rank": "3"}).describe()
    assert (method["prune"], method["method"]) == ("none", "low-rank rank=3 fraction=0.125")


def test_keywords_or_an_object_and_not_both() -> None:
    race = Race(nbest=2)
    assert settings_from(Race, None, {}) == Race()
    assert settings_from(Race, race, {}) is race
    assert settings_from(Race, None, {"nbest": 2}) == race


def test_typed_keywords_are_the_fields() -> None:
    kinds = (Race, RaceOptions), (Sampling, SamplingOptions), (Network, NetworkOptions), (Connection, ConnectionOptions)
    for kind, options in kinds:
        typed = {name: hint.__forward_arg__ for name, hint in options.__annotations__.items()}
        assert typed == {each.name: each.type for each in fields(kind) if (kind, each.name) != (Network, "model")}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_setting_has_help_and_its_conditions_name_settings(kind: type[Settings]) -> None:
    table = table_of(kind)
    kind()  # the defaults are valid
    for name, known in table.items():
        assert known.help, name
        others = [other for other, *_ in (*known.excludes, *([known.needs] if known.needs else []))]
        assert set(others) <= set(table), name
        if known.choices and isinstance(defaults_of(kind)[name], str):
            assert defaults_of(kind)[name] in known.choices
    flags = [flag for name, known in table.items() if (flag := flag_of(name, known))]
    assert len(set(flags)) == len(flags)
    assert options_table(kind).count("\n") == len(table) + 1


def test_epsilon_is_the_default_unless_another_truncation_is_chosen() -> None:
    assert Sampling().options() == {"epsilon": 0.02, "temperature": 1.0, "sampling": "independent"}
    assert Sampling(top_k=5).options()["epsilon"] is None
    assert Sampling(top_k=5, epsilon=0.1).options() == {
        "epsilon": 0.1,
        "temperature": 1.0,
        "sampling": "independent",
        "top_k": 5,
    }
    assert Sampling(epsilon=0).describe()["epsilon"] == 0


PRESET_CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("decode", "string", {}, {"regret": 0.04}),
    ("decode", "pair", {}, {"regret": 0.04}),
    ("decode", "encoder", {}, {"regret": 0.04, "forecast": 0.0005, "cover": True}),
    ("decode", "encoder", {"shuffle": False}, {"shuffle": False, "regret": 0.04, "forecast": 0.0005}),
    ("decode", "encoder", {"forecast": 0.0}, {"forecast": 0.0, "regret": 0.04}),
    ("decode", "encoder", {"prune": "none"}, {"prune": "none"}),
    ("decode", "encoder", {"method": "low-rank"}, {"method": "low-rank"}),
    ("decode", "string", {"regret": 0.1}, {"regret": 0.1}),
    ("decode", "string", {"prune": "bottom", "beta": 0.5}, {"prune": "bottom", "beta": 0.5}),
    ("translate", "string", {}, {"regret": 0.04, "schedule": (64, 128, 256)}),
    ("translate", "string", {"schedule": (8,)}, {"regret": 0.04, "schedule": (8,)}),
    ("translate", "pair", {}, {"regret": 0.04}),
    (
        "translate",
        "encoder",
        {},
        {"regret": 0.04, "forecast": 0.0005, "schedule": (64, 96, 144, 216, 256)},
    ),
    ("server", "string", {}, {"regret": 0.04}),
    ("server", "encoder", {}, {"regret": 0.04, "forecast": 0.0005}),
    ("rerank", "string", {}, {}),
]


@pytest.mark.parametrize(("command", "kind", "given", "expected"), PRESET_CASES)
def test_fast_sets_what_was_not_given_and_goes_with_it(
    command: str, kind: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    race, sampling = with_preset("fast", command, kind, given)
    assert race == expected
    assert sampling == ({"sampling": "arithmetic"} if command == "translate" else {})
    assert with_preset("paper", command, kind, given) == (given, {})


def test_a_preset_leaves_sampling_as_given() -> None:
    assert with_preset("fast", "translate", "string", {}, {"sampling": "independent"})[1] == {"sampling": "independent"}
    with pytest.raises(SettingError, match="preset 'fats': unknown; did you mean fast"):
        with_preset("fats", "decode", "string", {})
    assert set(PRESETS) == {"paper", "fast"}


def test_what_was_removed_is_no_setting() -> None:
    for kind in (Race, Sampling):
        assert not set(REMOVED) & {name for name, known in table_of(kind).items() if flag_of(name, known)}


def test_numbers_of_numpy_are_written_as_those_of_python() -> None:
    race = Race(alpha=np.float32(0.5), seed=np.int64(3), nbest=np.int16(2), shuffle=np.False_)
    assert json.loads(json.dumps(race.to_dict())) == race.to_dict()
    assert json.loads(json.dumps(race.describe())) == race.describe()
    assert race == Race(alpha=0.5, seed=3, nbest=2, shuffle=False)


def test_a_corpus_may_be_lists_of_lists() -> None:
    samples = [["a b c", "a b d", "x y"], ["u v", "u w", "u w z"]]
    records = [Record(each, id=n) for n, each in enumerate(samples)]
    assert list(decode_corpus(samples)) == list(decode_corpus(records)) == list(decode_corpus([samples[0], records[1]]))
