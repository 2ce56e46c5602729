"""The study of answers: races and votes against fixed n, on draws of real models (results/rules-answers.md).

    python experiments/answers.py draw votes.jsonl --kind votes --prompts 200        draws, by llama.cpp in this process
    python experiments/answers.py draw texts.jsonl --kind texts --prompts 100 --server URL --server-model M
    python experiments/answers.py votes votes.jsonl                                  tables, in Markdown
    python experiments/answers.py texts texts.jsonl --utility chrf++

Drawing can be interrupted and goes on with the same command: paid draws are kept.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

import mbrace
from mbrace.answers import Vote, answers, prompt_of
from mbrace.io.candidates import read_records
from mbrace.records import Record
from mbrace.sampler import Draws, FunctionDrawer, Receipt, Want

VOTES, TEXTS, HELD_OUT = 40, 64, 512
FIXED = (4, 8, 16, 32, 64)
REGRETS = (0.1, 0.2, 0.4)
MOST = 32
WINDOW = 5  # of early-stopping self-consistency (Li et al. 2024)
PATTERN = r"-?[\d,]*\.?\d+"


class Stored:
    """Draws that were made before, as a source of answers."""

    def __init__(self, draws: Sequence[str]) -> None:
        self._draws = draws

    def start_counted(self, records: Sequence[Record], receipts: dict[str | int, Receipt]) -> FunctionDrawer:
        """Begin a race."""

        def draw(wants: Sequence[Want]) -> list[Draws]:
            for want in wants:
                name = records[want.sentence].id
                receipts[name] = receipts.get(name, Receipt()) + Receipt(requests=1, draws=want.count)
            return [Draws(self._draws[want.first : want.first + want.count]) for want in wants]

        return FunctionDrawer(draw)


def questions(count: int, seed: int = 17) -> list[str]:
    """Sums and products."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        sign, most = chance.choice([("+", 99), ("-", 99), ("*", 12)])
        one, other = chance.randint(1, most), chance.randint(1, most)
        found.append(f"What is {one} {sign} {other}? Answer with the number only.")
    return found


def translations(count: int) -> list[str]:
    """Few-shot prompts to translate the bundled German sentences."""
    from importlib import resources

    with resources.as_file(resources.files("mbrace") / "data" / "newstest.jsonl.xz") as path:
        sources = [record.source or "" for record in read_records(str(path))]
    shots = "German: Guten Morgen.\nEnglish: Good morning.\nGerman: Wie spät ist es?\nEnglish: What time is it?\n"
    return [f"{shots}German: {source}\nEnglish:" for source in sources[:count]]


def draw(args: argparse.Namespace) -> None:
    """Make the draws of a file that `decode` could read too."""
    from mbrace.servers.local import MODEL, local_server

    votes = args.kind == "votes"
    server = mbrace.Server(
        args.server or local_server(), args.server_model or MODEL, prompt="{source}", chat=votes, max_tokens=64,
        stop=None if votes else "\n", temperature=0.7 if votes else 1.0, save_draws=args.file,
    )  # fmt: skip
    prompts = questions(args.prompts) if votes else translations(args.prompts)
    for done, _ in enumerate(server.stream(prompts, VOTES if votes else TEXTS + HELD_OUT), 1):
        print(f"{done} of {len(prompts)}", end="\r", flush=True)
    server.close()


def adaptive(votes: Sequence[str], confidence: float = 0.95) -> tuple[str, int]:
    """Adaptive-Consistency (Aggarwal et al. 2023): the Beta rule after each draw; the answer and the draws."""
    rule = Vote(len(votes), confidence)
    for count in range(1, len(votes) + 1):
        (best, first), *rest = Counter(votes[:count]).most_common(2)
        if rule.is_decided(first, rest[0][1] if rest else 0):
            return best, count
    return Counter(votes).most_common(1)[0][0], len(votes)


def early(votes: Sequence[str], size: int = WINDOW) -> tuple[str, int]:
    """Early-stopping self-consistency (Li et al. 2024): stop at the first window of equal answers."""
    for end in range(size, len(votes) + 1, size):
        if len(set(votes[end - size : end])) == 1:
            return votes[end - 1], end
    return Counter(votes).most_common(1)[0][0], len(votes)


def vote_rows(lists: Sequence[Sequence[str]]) -> list[list[Any]]:
    """Agreement with all draws, and mean draws and requests, by rule; lists of answers, one list for each question."""
    final = [Counter(votes).most_common(1)[0][0] for votes in lists]
    rows = []
    for confidence in (0.9, 0.95, 0.99, 1.0):
        utility, found = mbrace.ExactMatch(), []
        for votes in lists:
            options: dict[str, Any] = {"n": len(votes), "utility": utility, "confidence": confidence}
            found.append(next(answers([prompt_of("q", 0)], Stored(votes), **options)))
        agreed = np.mean([answer.text == best for answer, best in zip(found, final, strict=True)])
        draws, requests = (
            np.mean([getattr(answer.receipt, name) for answer in found]) for name in ("draws", "requests")
        )
        rows.append([f"race, {confidence:g}", agreed, draws, requests])
        if confidence < 1:
            single = [adaptive(votes, confidence) for votes in lists]
            agreed = np.mean([best == last for (best, _), last in zip(single, final, strict=True)])
            count = np.mean([count for _, count in single])
            rows.append([f"Adaptive-Consistency, {confidence:g}", agreed, count, count])
    found_early = [early(votes) for votes in lists]
    agreed = np.mean([best == last for (best, _), last in zip(found_early, final, strict=True)])
    count = np.mean([count for _, count in found_early])
    rows.append([f"early stopping, windows of {WINDOW}", agreed, count, count / WINDOW])
    return rows


def loss_rows(lists: Sequence[tuple[Sequence[str], Sequence[str]]], utility: Any) -> list[list[Any]]:
    """Mean draws and loss by rule, in standard deviations between a prompt's draws; (draws, held-out draws) each."""
    held: list[dict[str, float]] = []
    for drawn, out in lists:
        texts = list(dict.fromkeys(drawn))
        pairs = utility.pairs([text for text in texts for _ in out], [other for _ in texts for other in out])
        means = np.asarray(pairs).reshape(len(texts), len(out)).mean(1)
        held.append(dict(zip(texts, (means / max(float(means.std()), 1e-9)).tolist(), strict=True)))

    def chosen(n: int, regret: float) -> tuple[float, float]:
        """Mean draws, and mean expected utility on the held-out draws."""
        found = [
            next(answers([prompt_of("q", 0)], Stored(drawn), n=n, utility=utility, regret=regret)) for drawn, _ in lists
        ]
        value = np.mean([known[answer.text] for answer, known in zip(found, held, strict=True)])
        return float(np.mean([answer.draws for answer in found])), float(value)

    full = {}
    for n in FIXED:
        best = [mbrace.decode(list(drawn[:n]), utility=utility, prune=None).text for drawn, _ in lists]
        full[n] = float(np.mean([known[text] for text, known in zip(best, held, strict=True)]))
    rows: list[list[Any]] = [[f"fixed {n}", n, full[MOST] - full[n], ""] for n in FIXED]
    for regret in REGRETS:
        draws, value = chosen(MOST, regret)
        same = full[MOST] - float(np.interp(np.log(draws), np.log(FIXED), [full[n] for n in FIXED]))
        rows.append([f"regret {regret:g}", draws, full[MOST] - value, same])
    return rows


def halves(lists: Sequence[tuple[Sequence[str], Sequence[str]]], utility: Any) -> list[bool]:
    """Whether each prompt is in the half whose draws agree more with each other."""
    agree = []
    for drawn, _ in lists:
        some = drawn[:16]
        pairs = [(one, other) for i, one in enumerate(some) for other in some[i + 1 :]]
        agree.append(float(np.mean(utility.pairs(*map(list, zip(*pairs, strict=True))))))
    return [value > float(np.median(agree)) for value in agree]


def show(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table in Markdown."""
    print(f"\n**{title}**\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(f'{cell:.3f}' if isinstance(cell, float) else str(cell) for cell in row)} |")


def main() -> None:
    """One of the commands above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("draw", "votes", "texts"))
    parser.add_argument("file")
    parser.add_argument("--kind", choices=("votes", "texts"), default="votes")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--server")
    parser.add_argument("--server-model")
    parser.add_argument("--utility", default="chrf++")
    args = parser.parse_args()
    if args.command == "draw":
        return draw(args)
    lists = [list(record.hypotheses) for record in read_records(args.file)]
    if args.command == "votes":
        utility = mbrace.ExactMatch(pattern=PATTERN, numbers=True)
        found = [[answer for text in texts if (answer := utility.answer(text)) is not None] for texts in lists]
        found = [votes for votes in found if votes]
        sure = [votes for votes in found if Counter(votes).most_common(1)[0][1] > 0.4 * len(votes)]
        heads = ("rule", "agreement", "draws", "requests")
        show(f"{len(found)} questions", heads, vote_rows(found))
        return show(f"{len(sure)} with a top share above 0.4", heads, vote_rows(sure)) if sure else None
    from mbrace.utilities.named import make_utility

    utility = make_utility(args.utility)
    pairs = [(texts[:TEXTS], texts[TEXTS:]) for texts in lists if len(texts) >= 2 * TEXTS]
    peaked = halves(pairs, utility)
    heads = ("rule", "draws", "loss", "fixed n, same draws")
    for name, half in (("peaked", True), ("the others", False)):
        show(name, heads, loss_rows([pair for pair, own in zip(pairs, peaked, strict=True) if own == half], utility))
    return None


if __name__ == "__main__":
    main()
