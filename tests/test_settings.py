"""Settings: each field once, with its default, range, conflicts and flag; presets; what was removed."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import mbrace
from mbrace import Confidence, Record, decode, decode_corpus
from mbrace.errors import SettingError, UserError
from mbrace.setting_fields import REMOVED, Settings, defaults_of, flag_of, options_table, settings_from, table_of
from mbrace.settings import (
    PRESETS,
    ModelSettings,
    Network,
    NetworkOptions,
    Race,
    RaceOptions,
    Sampling,
    SamplingOptions,
    with_preset,
)

CLASSES = (Race, Sampling, Network, ModelSettings)


def test_a_race_is_the_papers_by_default() -> None:
    race = Race()
    assert race.pruning_function() == mbrace.Confidence(0.99, 500)
    assert race.made_method() is None
    assert (race.schedule, race.seed, race.nbest, race.chosen()) == (None, 0, 1, {})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Race(qe_top=3), "qe_top: was removed: `mbrace rerank"),  # type: ignore[call-arg]
        (lambda: Race(alhpa=0.9), "alhpa: no such setting; did you mean alpha?"),  # type: ignore[call-arg]
        (lambda: Sampling(length_alpha=1.0), "length_alpha: is called length_penalty now"),  # type: ignore[call-arg]
        (lambda: Race(rank=8), 'rank: is an option of the method now: method_options={"rank": 8}'),  # type: ignore[call-arg]
        (lambda: Network(model=3), "model 3: must be text"),  # type: ignore[arg-type]
        (lambda: Race(nbest=True), "nbest True: must be a whole number"),  # equal to the default, 1
        (lambda: Race(forecast=False), "forecast False: must be a number"),
        (lambda: Race(shuffle=0), "shuffle 0: must be True or False"),  # type: ignore[arg-type]
        (lambda: Race(prune=Confidence), "prune <class 'mbrace.prune.Confidence'>: give a pruning function such as"),
        (lambda: Race(method_options=["rank=8"]), "method_options ['rank=8']: give a dict"),  # type: ignore[arg-type]
        (lambda: Sampling(sampling=None), "sampling None: choose from independent, arithmetic"),  # type: ignore[arg-type]
        (lambda: Race.from_dict([]), "Race.from_dict: expected what to_dict returned, got list"),  # type: ignore[arg-type]
        (lambda: decode(["a"], utilty="chrf"), "utilty: no such setting; did you mean utility?"),  # type: ignore[call-arg]
        (lambda: decode(["a"], metric_model="m"), "metric_model: is given to the utility: utility=mbrace.Comet(MODEL)"),  # type: ignore[call-arg]
        (lambda: decode(["a"], race={"alpha": 0.9}), "race {'alpha': 0.9}: give mbrace.Race(...)"),  # type: ignore[arg-type]
        ({"alpha": 2}, "alpha 2: must be between 0 and 1"),
        ({"alpha": "x"}, "alpha 'x': must be a number"),
        ({"bootstraps": 0}, "bootstraps 0: must be 1 or more"),
        ({"nbest": 1.5}, "nbest 1.5: must be a whole number"),
        ({"regret": -0.1}, "regret -0.1: must be 0 or more"),
        ({"window": 0}, "window 0: must be 1 or more"),
        ({"cover": "no"}, "cover 'no': must be True or False"),
        ({"seed": 0.5}, "seed 0.5: must be a whole number"),
        ({"schedule": [3, 2]}, "schedule [3, 2]: sizes must increase"),
        ({"schedule": "some"}, 'schedule \'some\': give growing whole numbers, or "all"'),
        ({"prune": "confidense"}, "prune 'confidense': unknown; did you mean confidence?"),
        ({"prune": 3}, "prune 3: give a pruning function such as mbrace.Confidence(), or a name"),
        ({"prune": "bottom"}, "prune 'bottom': needs beta"),
        ({"prune": "halving"}, "prune 'halving': needs budget"),
        ({"beta": 0.5}, 'beta 0.5: only valid with prune="bottom"'),
        ({"budget": 100}, 'budget 100: only valid with prune="halving"'),
        ({"prune": None, "alpha": 0.9}, 'alpha 0.9: only valid with prune="confidence"'),
        ({"prune": mbrace.Confidence(), "alpha": 0.9}, "alpha 0.9: only valid with the name of a pruning function"),
        ({"forecast": None}, "forecast None: must be a number"),
        ({"forecast": True}, "forecast True: must be a number"),
        ({"forecast": float("nan")}, "forecast nan: must be 0 or more, and finite"),
        ({"forecast": 0.1, "prune": None}, 'forecast 0.1: only valid without prune="none", which scores all'),
        ({"forecast": 0.1, "prune": mbrace.Halving(99)}, 'without prune="halving", which shares out its budget'),
        ({"forecast": 0.1, "method": "low-rank"}, 'forecast 0.1: only valid without method="low-rank", for which'),
        ({"forecast": 0.1, "exclude_self": True}, "forecast 0.1: only valid without exclude_self=True"),
        ({"cover": True, "shuffle": False}, "cover True: only valid without shuffle=False"),
        ({"method": "low-rang"}, "method 'low-rang': unknown; did you mean low-rank?"),
        ({"method": "low-rank", "prune": "bottom", "beta": 0.5}, "only valid without method="),
        ({"method": "low-rank", "alpha": 0.9}, 'alpha 0.9: only valid without method="low-rank", which prunes none'),
        ({"method": "centroid", "exclude_self": True}, 'exclude_self True: only valid without method="centroid"'),
        ({"method": "low-rank", "method_options": {"rang": 3}}, "rang: no option of method low-rank; did you mean"),
        ({"method": "low-rank", "method_options": {"rank": "x"}}, "rank 'x': expected a whole number"),
        ({"method": "low-rank", "method_options": {"rank": 0}}, "rank 0: must be 1 or more"),
        ({"method_options": {"rank": 3}}, "method_options: only valid with method"),
        ({"method": "diverse"}, "method 'diverse': chooses several; give nbest=2 or more"),
        ({"method": "diverse", "nbest": 2, "method_options": {"diversity": -1}}, "diversity -1: must be 0 or more"),
    ],
)  # fmt: skip
def test_settings_of_a_wrong_name_type_or_value_are_refused_in_one_sentence(
    make: Callable[[], object] | dict[str, Any], message: str
) -> None:
    """A dictionary is the fields of a `Race`."""
    with pytest.raises(UserError, match=re.escape(message)) as error:
        make() if callable(make) else Race(**make)
    assert isinstance(error.value, SettingError) or "from_dict" in message
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


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
    with pytest.raises(SettingError, match="nbset: no such setting; did you mean nbest"):
        race.replace(nbset=4)


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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"alhpa": 0.9}, "alhpa: no such setting; did you mean alpha?"),
        ({"preset": "fast"}, "preset: is for the command line; give the settings themselves, such as regret=0.04"),
        ({"version": 2}, "version 2: of another mbrace; this one reads versions 1 to 1"),
        ({"coarse": "chrf"}, "coarse: was removed"),
    ],
)
def test_other_dictionaries_are_refused(values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as error:
        Race.from_dict(values)
    assert str(error.value).startswith(message)


def test_an_object_of_your_own_is_not_written() -> None:
    with pytest.raises(SettingError, match="an object of your own cannot be written"):
        Race(prune=lambda standings: standings.means > 0).to_dict()


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
    with pytest.raises(SettingError, match=r"nbest 2: give it or race=, not both"):
        settings_from(Race, race, {"nbest": 2})
    with pytest.raises(SettingError, match="coarse: was removed"):
        settings_from(Race, None, {"coarse": "chrf"})


def test_typed_keywords_are_the_fields() -> None:
    for kind, options in ((Race, RaceOptions), (Sampling, SamplingOptions), (Network, NetworkOptions)):
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
    with pytest.raises(SettingError, match="sampling 'arithmetical': unknown; did you mean arithmetic"):
        Sampling(sampling="arithmetical")


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
        {"regret": 0.03, "forecast": 0.0005, "schedule": (8, 12, 18, 27, 40, 60, 90, 135, 200, 256)},
    ),
    ("server", "string", {}, {"regret": 0.04}),
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
