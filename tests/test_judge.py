"""`mbrace judge` below the browser: pairing, arranging, showing, storing, and what the server refuses."""

from __future__ import annotations

import html
import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from judge_server import BAD, GOOD, Server, write_jsonl, write_study
from starlette.testclient import TestClient

from mbrace.cli import main
from mbrace.errors import UserError
from mbrace.judge.app import Site, create_app, paragraphs
from mbrace.judge.items import PredictionPair
from mbrace.judge.store import Store, open_study

HOST = "http://127.0.0.1:8000"


def study(path: Path, count: int = 10, raters: int = 1, seed: int = 0) -> Store:
    items = [PredictionPair(f"secret-{n}", f"Satz {n}", f"{GOOD} {n}", f"{BAD} {n}") for n in range(count)]
    return open_study(str(path), items, facts={"A": "x"}, about={"name_a": "secret"}, seed=seed, raters=raters)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = study(tmp_path / "ratings.db", raters=2)
    yield store
    store.close()


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(create_app(store), base_url=HOST, follow_redirects=False, headers={"origin": HOST}) as client:
        yield client


def rate(client: TestClient, token: str, position: int, choice: str = "tie", request: str = "request-0", **more: str):
    form = {"position": str(position), "choice": choice, "request": request, **more}
    return client.post(f"/r/{token}/rate", data=form)


def ratings(store: Store) -> list[tuple[int, int, str, str]]:
    with sqlite3.connect(store.path) as sql:
        return sql.execute("SELECT rater, position, choice, comment FROM rating ORDER BY rater, position").fetchall()


def test_study_continues_with_the_same_links_and_more_raters_can_join(tmp_path: Path) -> None:
    with_two = study(tmp_path / "r.db", raters=2)
    with_two.rate(1, 0, "tie", request="request-0")
    with_two.close()
    again = study(tmp_path / "r.db", raters=3)
    assert [again.tokens[rater] for rater in (1, 2)] == list(with_two.tokens.values())
    assert len(set(again.tokens.values())) == 3
    assert [again.turn(rater).position for rater in (1, 2, 3)] == [1, 0, 0]
    again.close()
    study(tmp_path / "r.db", raters=1).close()
    assert min(len(token) for token in again.tokens.values()) >= 32
    assert stat.S_IMODE((tmp_path / "r.db").stat().st_mode) == 0o600


def test_ratings_file_of_other_inputs_or_not_ours_is_refused_untouched(tmp_path: Path) -> None:
    study(tmp_path / "r.db").close()
    with pytest.raises(UserError, match=r"holds ratings of a study with other data \(A\) and no seed, not '1'"):
        open_study(str(tmp_path / "r.db"), [], facts={"A": "y", "seed": "1"}, about={}, seed=0, raters=1)
    (tmp_path / "note.txt").write_text("not a database, but something dear to its owner")
    with pytest.raises(UserError, match=r"note\.txt"):
        study(tmp_path / "note.txt")
    assert (tmp_path / "note.txt").read_text().startswith("not a database")
    with sqlite3.connect(tmp_path / "other.db") as sql:
        sql.execute("CREATE TABLE t (x)")
    with pytest.raises(UserError, match="not a ratings file"):
        study(tmp_path / "other.db")


def test_commits_wait_for_the_disk(store: Store) -> None:
    assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_a_commit_that_fails_is_undone_and_the_next_rating_is_saved(store: Store) -> None:
    sql = store._connection
    sql.execute("PRAGMA foreign_keys=ON")
    sql.execute("CREATE TABLE late (item REFERENCES item (item) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(sqlite3.IntegrityError), store._transaction():
        sql.execute("INSERT INTO late VALUES (99)")  # refused by COMMIT, not here
    assert not sql.in_transaction
    assert store.rate(1, 0, "tie", request="request-0") == "saved"


def test_choice_is_saved_as_the_system_that_was_on_that_side(store: Store) -> None:
    for position in range(10):
        turn = store.turn(1)
        assert store.rate(1, position, "left" if turn.a_left else "right", request=f"request-{position}") == "saved"
    assert {choice for _, _, choice, _ in ratings(store)} == {"A"}
    assert store.turn(1).item is None
    assert store.rate(1, 10, "left", request="request-10") == "ahead"


def test_rating_undone_is_not_brought_back_by_a_late_copy_of_its_request(store: Store) -> None:
    assert store.rate(1, 0, "left", comment="hm", request="request-1") == "saved"
    assert store.undo(1, 0, request="request-2") == "saved"
    assert store.rate(1, 0, "left", request="request-1") == "repeated"
    assert store.undo(1, 0, request="request-2") == "repeated"
    assert ratings(store) == []
    assert store.turn(1).comment == "hm"  # offered again
    assert store.undo(1, 0, request="request-3") == "ahead"
    with sqlite3.connect(store.path) as sql:
        assert [row[0] for row in sql.execute("SELECT action FROM event ORDER BY event")] == ["rate", "undo"]


def test_request_sent_twice_and_second_answer_to_an_item_count_once(store: Store, client: TestClient) -> None:
    token = store.tokens[1]
    assert rate(client, token, 0, "tie", comment=" so\r\nso ").headers["location"] == f"/r/{token}/rate"
    assert rate(client, token, 0, "tie").status_code == 303
    second = rate(client, token, 0, "skip", "request-2")
    assert second.headers["location"].endswith("?stale")
    assert "first one stands" in client.get(second.headers["location"]).text
    assert rate(client, token, 5, "tie", "request-3").status_code == 409  # not shown yet
    assert ratings(store) == [(1, 0, "tie", "so\nso")]


def test_link_shows_the_start_first_and_later_the_item_that_is_next(store: Store, client: TestClient) -> None:
    token = store.tokens[1]
    assert "Begin" in client.get(f"/r/{token}").text
    rate(client, token, 0)
    assert client.get(f"/r/{token}").headers["location"] == f"/r/{token}/rate"
    assert "Item 2" in client.get(f"/r/{token}/rate").text
    assert "Item 1" in client.get(f"/r/{store.tokens[2]}/rate").text  # the other rater's own place


@pytest.mark.parametrize("forge", [lambda real: "", lambda real: "A" * 32, lambda real: real[:-1], str.swapcase,
                                   lambda real: real + "%00", lambda real: "%C3%A9"])  # fmt: skip
def test_forged_and_missing_tokens_are_refused(store: Store, client: TestClient, forge: Callable[[str], str]) -> None:
    token = forge(store.tokens[1])
    for path in (f"/r/{token}", f"/r/{token}/rate"):
        assert client.get(path).status_code == 404
    assert rate(client, token, 0).status_code in (404, 405)
    assert client.post(f"/r/{token}/undo", data={"position": "0", "request": "request-1"}).status_code in (404, 405)
    assert ratings(store) == []


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:8001", "", None])
def test_form_from_another_origin_or_none_is_refused(store: Store, origin: str | None) -> None:
    client = TestClient(create_app(store), base_url=HOST, headers={} if origin is None else {"origin": origin})
    assert rate(client, store.tokens[1], 0).status_code == 403
    assert ratings(store) == []


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "192.168.0.7", "", "["),
        *("127.0.0.1/static/", "evil.example@127.0.0.1", "127.0.0.1?", "127.0.0.1:x"),
    ],
)
def test_other_host_names_are_refused_on_loopback(client: TestClient, store: Store, host: str) -> None:
    assert client.get(f"/r/{store.tokens[1]}", headers={"host": host}).status_code == 421


def test_addresses_but_not_unknown_names_are_served_when_not_on_loopback(store: Store) -> None:
    site = Site(hosts=["judge.example.org"], any_address=True, origins=["https://judge.example.org"])
    client = TestClient(create_app(store, site), follow_redirects=False)
    path = f"/r/{store.tokens[1]}"
    for host, status in (("192.168.0.7:8000", 200), ("[fe80::1]:8000", 200), ("evil.example", 421)):
        assert client.get(path, headers={"host": host}).status_code == status
    client.headers.update({"host": "judge.example.org", "origin": "https://judge.example.org"})
    assert rate(client, store.tokens[1], 0).status_code == 303


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"choice": "both"}, 400),
        ({"position": "-1"}, 400),
        ({"position": "x"}, 400),
        ({"request": ""}, 400),
        ({"request": "a" * 65}, 400),
        ({"comment": "c" * 2_001}, 400),
        ({"comment": "c" * 100_000}, 413),
    ],
)
def test_form_that_is_not_ours_changes_nothing(
    store: Store, client: TestClient, form: dict[str, str], status: int
) -> None:
    whole = {"position": "0", "choice": "tie", "request": "request-0", **form}
    assert client.post(f"/r/{store.tokens[1]}/rate", data=whole).status_code == status
    assert ratings(store) == []


def test_hostile_texts_are_escaped_named_and_complete(tmp_path: Path) -> None:
    item = PredictionPair("1", "</p><script>s()</script>", '<img src=x onerror="a()">\u202e', "x" * 10_000)
    with_item = open_study(str(tmp_path / "r.db"), [item], facts={}, about={}, seed=0, raters=1)
    page = TestClient(create_app(with_item), base_url=HOST).get(f"/r/{with_item.tokens[1]}/rate").text
    with_item.close()
    assert not re.search("<script>s|<img|\u202e", page)
    assert "x" * 10_000 in page
    plain = html.unescape(re.sub(r"<[^>]*>", "", page))
    assert item.source in plain
    assert '<img src=x onerror="a()">U+202E' in plain


def test_browser_is_told_no_system_no_id_and_nothing_to_run(store: Store, client: TestClient) -> None:
    token = store.tokens[1]
    answers = [client.get(f"/r/{token}"), client.get(f"/r/{token}/rate"), client.get("/r/x"), client.get("/"),
               rate(client, token, 0), client.get("/static/judge.js"), client.get("/static/judge.css"),
               client.get("/static/../app.py"), client.get("/favicon.ico")]  # fmt: skip
    for answer in answers:
        everything = answer.text + str(answer.headers)
        assert "secret" not in everything
        assert "set-cookie" not in answer.headers
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son\w+=", answer.text)
    assert store.tokens[2] not in "".join(answer.text for answer in answers)


def test_results_have_the_names_of_the_files_or_those_that_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *files = write_study(tmp_path, 3)
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/a\x1b\xff.jsonl")
    os.rename(first, odd)
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)  # up to the moment it would serve
    assert main(["judge", odd, *files, "--port", "0"]) == 0
    for options, names in (
        ([], "A = a\\x1b\\xff.jsonl, B = secret-b.jsonl"),
        (["--name-a", "standard MBR", "--name-b", "race"], "A = standard MBR, B = race"),
    ):
        capsys.readouterr()
        assert main(["judge-results", files[-1], *options]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert (shown[0], shown[-1]) == (names, "No ratings yet.")
    assert main(["judge-results", files[-1], "--name-b", ""]) == 2
    assert "--name-b: is blank" in capsys.readouterr().err


def test_raters_can_read_the_instructions_at_the_start_and_at_every_item(store: Store) -> None:
    site = Site(instructions=paragraphs("Meaning first.\nThen style.\n\n<b>Not</b> length.\r\n"))
    assert site.instructions == ("Meaning first.\nThen style.", "<b>Not</b> length.")
    with TestClient(create_app(store, site), base_url=HOST) as client:
        for page in ("", "/rate"):
            shown = client.get(f"/r/{store.tokens[1]}{page}").text
            assert "Meaning first.\nThen style." in shown
            assert "&lt;b&gt;Not&lt;/b&gt; length." in shown
    with TestClient(create_app(store), base_url=HOST) as client:
        assert "Instructions" not in client.get(f"/r/{store.tokens[1]}").text


def test_answers_are_called_answers_and_their_sources_prompts(store: Store) -> None:
    with TestClient(create_app(store, Site(things=("answer", "Prompt"))), base_url=HOST) as client:
        start, rate = (client.get(f"/r/{store.tokens[1]}{page}").text for page in ("", "/rate"))
    assert '<h1 tabindex="-1">Which answer is better?</h1>' in start
    assert "<legend>Which answer is better?</legend>" in rate
    assert ">Prompt</h2>" in rate
    assert "translation" not in start + rate


def test_the_command_needs_no_sources_of_answers(tmp_path: Path) -> None:
    rows = [{"id": n, "prompt": f"What is {n}?", "text": f"A {n}"} for n in range(3)]
    a = write_jsonl(tmp_path / "a.jsonl", rows)
    b = write_jsonl(tmp_path / "b.jsonl", [row | {"text": f"B {row['id']}"} for row in rows])
    with Server([a, b, "-o", str(tmp_path / "r.db")]) as server:
        assert "Which answer is better?" in httpx.get(server.links[0]).text
        assert "What is " in httpx.get(f"{server.links[0]}/rate").text
