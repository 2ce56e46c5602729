"""Errors as other processes and copies see them."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import pytest

import mbrace
from mbrace.errors import MbraceWarning, Parameter, RecordError, ServiceError, SettingError, UserError
from mbrace.records import Location
from mbrace.servers.failures import RequestError, StatusError

ERRORS = [
    UserError(f"x: give {Parameter('force', True)}"),
    ServiceError("http://x: no answer"),
    RecordError(Location("a.jsonl", 3), "hypotheses: empty"),
    RecordError("record 1", f"give {Parameter('on_error', 'skip')}"),
    SettingError("alpha", 2.0, "must be between 0 and 1"),
    SettingError("rank", ..., "no such option", group="method"),
    SettingError("method", lambda: None, "give a name"),
    MbraceWarning("careful"),
    RequestError("http://x: no", refused=True, status=400),
    StatusError("http://x: no", 401),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickle_and_copy(error: Exception) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def fail(number: int) -> None:
    mbrace.decode([], ["a"], id=number)


def test_a_pool_of_processes_gets_the_error_of_a_record() -> None:
    with (
        multiprocessing.get_context("spawn").Pool(1) as pool,
        pytest.raises(RecordError, match="record 7: hypotheses: empty"),
    ):
        pool.map_async(fail, [7]).get(timeout=120)
