"""`mbrace judge` as raters meet it: the real command, a real browser, a server that is killed."""

from __future__ import annotations

import http.client
import re
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from accessibility import WIDTHS, findings_of
from cli_helpers import until
from conftest import no_browser
from judge_server import GOOD, Server, post, write_study

from mbrace.judge.results import evaluate, read_ratings


class Rater:
    """A person at a browser window, who remembers what the browser complained of and received."""

    def __init__(self, browser: Any, link: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)
        self.page.clock.install()
        self.link = link
        self.complaints: list[str] = []
        self.received: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.on("response", self._remember)

    def _remember(self, response: Any) -> None:
        self.received.append(f"{response.url} {response.headers}")

    def __enter__(self) -> Rater:
        self.page.goto(self.link)
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()

    def begin(self) -> None:
        self.page.get_by_role("link", name="Begin").click()
        self.at(0)

    def at(self, done: int) -> None:
        """Wait until the page shows `done` items done and takes the next answer."""
        self.page.wait_for_selector(f'progress[value="{done}"]')
        self.page.clock.fast_forward(400)  # the pause in which the page takes no answer
        self.page.wait_for_selector(f'main[data-ready] progress[value="{done}"]')
        self.received.append(self.page.content())

    def good_side(self) -> int:
        """0: the good translation is on the left; 1: on the right."""
        return [GOOD in text for text in self.page.locator(".card .text").all_inner_texts()].index(True)


@pytest.mark.browser
def test_rater_answers_ten_items_by_mouse_and_keyboard_undoes_one_reloads_and_finishes(
    browser: Any, tmp_path: Path
) -> None:
    with Server([*write_study(tmp_path, count=10, equal=30), "--items", "10"]) as server:
        assert "40 pairs of predictions: 30 equal (75.0%, not shown), 10 different" in server.printed
        with Rater(browser, server.links[0]) as rater:
            page = rater.page
            rater.begin()
            assert page.evaluate("document.activeElement.tagName") == "BODY"
            page.clock.pause_at(time.time() + 3600)  # however slow the machine, the second click comes within the pause
            for done in range(4):  # by mouse
                name = ("Left better", "Right better")[rater.good_side()]
                page.get_by_role("button", name=name).dblclick()  # the second click is not an answer to the next item
                rater.at(done + 1)
                assert page.evaluate("document.activeElement.tagName") == "H1"  # so that it is read out
            assert page.locator("#status").inner_text() == "Saved: 4 of 10 items done"
            page.clock.resume()
            for done in range(4, 7):  # by keyboard
                page.keyboard.press(str(rater.good_side() + 1))
                rater.at(done + 1)
            page.keyboard.press("3")  # a mistake
            rater.at(8)
            page.keyboard.press("u")
            rater.at(7)
            page.reload()
            rater.at(7)
            page.keyboard.press("c")
            page.keyboard.type("3 s u: clearly better")  # none of these is a shortcut in a comment
            page.keyboard.press("Escape")
            page.keyboard.press(str(rater.good_side() + 1))
            rater.at(8)
            page.goto(rater.link)  # the link continues
            rater.at(8)
            page.keyboard.press("s")
            rater.at(9)
            page.keyboard.press("3")
            page.get_by_role("heading", name="All done").wait_for()
            assert rater.complaints == []
            assert "secret" not in "".join(rater.received)
    study, ratings = read_ratings(str(tmp_path / "ratings.db"))
    counts = evaluate(ratings, study=study).ratings
    assert (counts.wins, counts.losses, counts.ties, counts.skips) == (8, 0, 1, 1)
    assert [rating.comment for rating in ratings if rating.comment] == ["3 s u: clearly better"]


@pytest.mark.browser
def test_two_raters_at_once_on_a_phone_and_a_desktop_keep_apart(browser: Any, tmp_path: Path) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "color_scheme": "dark"}
    with (
        Server([*write_study(tmp_path, count=4), "--raters", "2"]) as server,
        Rater(browser, server.links[0], **phone) as one,
        Rater(browser, server.links[1]) as two,
    ):
        one.begin()
        two.begin()
        orders = []
        for done in range(4):
            orders.append([rater.page.locator(".source .text").inner_text() for rater in (one, two)])
            one.page.get_by_role("button", name=("Top better", "Bottom better")[one.good_side()]).tap()
            two.page.keyboard.press(str(2 - two.good_side()))
            one.at(done + 1)
            two.at(done + 1)
        assert one.page.evaluate("document.documentElement.scrollWidth") == 390  # nothing sticks out
        assert one.complaints + two.complaints == []
        first, second = zip(*orders, strict=True)
        assert set(first) == set(second)
        assert first != second
    _, ratings = read_ratings(str(tmp_path / "ratings.db"))
    assert {(rating.rater, rating.choice) for rating in ratings} == {(1, "A"), (2, "B")}
    assert len(ratings) == 8


@pytest.mark.browser
def test_page_works_as_plain_forms_without_javascript(browser: Any, tmp_path: Path) -> None:
    with (
        Server(write_study(tmp_path, count=2)) as server,
        Rater(browser, server.links[0], java_script_enabled=False) as rater,
    ):
        page = rater.page
        page.get_by_role("link", name="Begin").click()
        page.get_by_role("button", name="Tie").click()
        page.get_by_role("heading", name="Item 2 of 2").wait_for()
        page.get_by_role("button", name="Undo last").click()
        page.get_by_role("heading", name="Item 1 of 2").wait_for()
        for _ in range(2):
            page.get_by_role("button", name=("Left better", "Right better")[rater.good_side()]).click()
        page.get_by_role("heading", name="All done").wait_for()
    assert [rating.choice for rating in read_ratings(str(tmp_path / "ratings.db"))[1]] == ["A", "A"]


@pytest.mark.browser
def test_answer_given_while_the_server_is_down_is_saved_when_it_is_back(browser: Any, tmp_path: Path) -> None:
    arguments = write_study(tmp_path, count=2)
    with Server(arguments) as server, Rater(browser, server.links[0]) as rater:
        rater.begin()
        server.kill()
        rater.page.keyboard.press("3")
        rater.page.get_by_text("Not saved yet").wait_for()
        with Server(arguments, port=server.port):
            rater.at(1)
            assert rater.page.locator("#status.trouble").count() == 0
    assert [rating.choice for rating in read_ratings(str(tmp_path / "ratings.db"))[1]] == ["tie"]


def test_kill_9_during_a_thousand_ratings_by_twenty_clients_loses_none_that_was_acknowledged(tmp_path: Path) -> None:
    arguments = [*write_study(tmp_path, count=50), "--raters", "20"]
    choices = ("left", "right", "tie", "skip")
    acknowledged: list[tuple[int, int]] = []
    statuses: set[int] = set()
    up = threading.Event()

    def client(rater: int, link: str) -> None:
        for position in range(50):
            form = {"position": position, "choice": choices[(rater + position) % 4], "request": f"request-{position}"}
            while True:  # as the page does: send the same request again until it is acknowledged
                up.wait()
                try:
                    statuses.add(post(link, "rate", **form))
                    break
                except (OSError, http.client.HTTPException):  # no server, or an answer that broke off
                    time.sleep(0.02)
            acknowledged.append((rater, position))

    def saved() -> set[tuple[int, int]]:
        with sqlite3.connect(tmp_path / "ratings.db") as sql:
            return set(sql.execute("SELECT rater, position FROM rating"))

    port = 0
    threads: list[threading.Thread] = []
    for limit in (300, 650, 1000):  # killed twice, then left to finish
        with Server(arguments, port=port) as server:
            port = server.port
            up.set()
            if not threads:
                threads = [
                    threading.Thread(target=client, args=(rater, link), daemon=True)
                    for rater, link in enumerate(server.links, start=1)
                ]
                for thread in threads:
                    thread.start()
            until(lambda limit=limit: len(acknowledged) >= limit, seconds=240)
            if limit < 1000:
                up.clear()
                server.kill()
                known = set(acknowledged)
                assert known <= saved(), "an acknowledged rating is lost"
    for thread in threads:
        thread.join(timeout=120)
    assert statuses == {303}
    assert len(saved()) == len(acknowledged) == len(set(acknowledged)) == 1000
    with sqlite3.connect(tmp_path / "ratings.db") as sql:
        assert sql.execute("SELECT count(*) FROM event").fetchone() == (1000,)  # resent requests counted once
        assert sql.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_host_other_than_loopback_is_warned_of_and_same_command_continues(tmp_path: Path) -> None:
    arguments = write_study(tmp_path, count=3)
    with Server(arguments) as server:
        link = server.links[0]
        assert link.startswith("http://127.0.0.1:")
        assert post(link, "rate", position=0, choice="tie", request="request-0") == 303
        assert post(link, "rate", origin="http://evil.example", position=1, choice="tie", request="request-1") == 403
        assert post(link[:-1], "rate", position=1, choice="tie", request="request-1") == 404
        rest = server.stop()
        assert "1 rating in" in rest
        assert "warning" not in rest
    with Server([*arguments, "--host", "0.0.0.0"]) as server:
        assert re.search(r"/r/(\S+)", server.printed).group(1) == link.rsplit("/", 1)[1]
        assert "(1 of 3 done)" in server.printed
        assert "warning: listening on 0.0.0.0" in server.stop()


def test_no_browser_is_a_failure_in_ci_and_a_skip_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="cannot run: none"):
        no_browser("none")
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="cannot run: none"):
        no_browser("none")


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_from_the_first_page_to_the_last(
    browser: Any, tmp_path: Path, width: str, scheme: str
) -> None:
    window = {"viewport": {"width": WIDTHS[width], "height": 844}, "color_scheme": scheme}
    with Server([*write_study(tmp_path, count=1)]) as server, Rater(browser, server.links[0], **window) as rater:
        assert findings_of(rater.page) == []
        rater.begin()
        assert findings_of(rater.page) == []
        rater.page.keyboard.press("3")
        rater.page.get_by_role("heading", name="All done").wait_for()
        assert findings_of(rater.page) == []
