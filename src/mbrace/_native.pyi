"""The C++ kernel: exact chrF by bit counting, and bootstrap resamples as counts. See docs/kernel.md."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Utilities: TypeAlias = NDArray[np.floating]  # float32 or float64

class ChrFIndex:
    """The distinct hypotheses of one sentence, numbered and turned into bits once; read-only and shared by threads."""

    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of the columns and of the numbering tables."""

def build_indexes(
    hypotheses: list[Sequence[str]], *, char_order: int, word_order: int, whitespace: bool, threads: int = 1
) -> list[ChrFIndex]:
    """One index for the hypotheses of each sentence; the interpreter lock is released."""

def score_window(
    indexes: list[ChrFIndex],
    survivors: list[NDArray[np.int64]],
    references: list[Sequence[str]],
    *,
    beta: float,
    eps_smoothing: bool,
    threads: int = 1,
    simd: str = "",
) -> tuple[list[NDArray[np.float32]], float]:
    """For each sentence the scores, (survivors, references) from 0 to 100, and the share of the time spent on encoding.

    `simd` forces one of `simd_variants()`; all give the same bits.
    """

def attend(
    newest: NDArray[np.float32],
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    row_at: NDArray[np.int32],
    time: int,
    threads: int = 1,
) -> NDArray[np.float32]:
    """Self-attention (rows, heads x size) of the newest position of rows; `newest` (rows, 3, heads, size) is q, k, v.

    Keys and values are (room, capacity, heads, size): those of `time` are stored there, and the earlier ones of a row
    are those of rows row_at[earlier, row], (room, columns).
    """

def score_pairs(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    char_order: int,
    word_order: int,
    whitespace: bool,
    beta: float,
    eps_smoothing: bool,
    threads: int = 1,
    simd: str = "",
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores of aligned pairs, (pairs,), and corpus totals, (orders, 3): hypothesis, reference, matching n-grams."""

class Resamples:
    """Bootstrap resamples of one size, as counts: the same for the same seed on every platform, shared by sentences."""

    def __init__(self, seed: int, draws: int, bootstraps: int) -> None: ...
    def counts(self) -> NDArray[np.float64]:
        """(bootstraps, draws): how often each draw is in each resample; every row sums to `draws`."""

    def regret(
        self,
        utilities: Utilities,
        counts: NDArray[np.int64],
        weights: NDArray[np.float64] | None,
        leaders: Sequence[int],
    ) -> float:
        """The expected regret of answering with the hypotheses `leaders` (ascending): the mean over resamples of how
        much more expected utility the best hypotheses have, per leader. `weights` as in `decide_window`."""

    def wins(
        self,
        utilities: Utilities,
        counts: NDArray[np.int64],
        weights: NDArray[np.float64] | None,
        rival: int,
        *,
        max_losing_wins: float | None = None,
        portable: bool = False,
    ) -> NDArray[np.int64]:
        """(hypotheses,): in how many resamples each has at least the rival's weighted total utility.

        `utilities` is (hypotheses, distinct), `counts` (distinct,) how often each pseudo-reference was drawn,
        `weights` (distinct,) the weight of one draw (None: all equal).
        Copies of a string are next to each other among the draws.
        A hypothesis is pruned at or below `max_losing_wins`: counting stops for it as soon as that is decided
        (None: everything is counted).
        Totals are exact, so equal utilities tie exactly, and `portable` (no special instructions) changes nothing.
        """

class Tally:
    """The race of one sentence in numbers: alive hypotheses, counts of pseudo-references drawn, utilities.

    It is made from the hypotheses, of which equal ones are merged, or from their number.
    """

    def __init__(self, hypotheses: Sequence[str] | int) -> None: ...
    @property
    def hypotheses(self) -> list[str]:
        """The distinct hypotheses it was made from."""

    @property
    def strings(self) -> int:
        """How many distinct strings there are, hypotheses and pseudo-references together."""

    def enter(self, table: Utilities) -> tuple[int, int] | None:
        """Let new hypotheses in, with their utilities against all pseudo-references so far, (new, distinct).

        Returns the row and column of the first value that is not finite (nobody is let in then), else None.
        """

    def leave_out(self, row: int, column: int) -> None:
        """From now on, leave one draw of this column out of the expected utility of this row (an index into `alive`):
        the draw is the hypothesis itself."""

    def __len__(self) -> int:
        """How many hypotheses are alive."""

    def draw(self, texts: Sequence[str]) -> list[str]:
        """Add draws; returns the strings drawn for the first time, each once. TypeError if one is not a string."""

    def add(self, table: Utilities) -> tuple[int, int] | None:
        """Add the utilities of the alive hypotheses against new pseudo-references, (alive, new).

        Returns the row and column of the first value that is not finite (nothing is added then), else None.
        """

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Drop the other hypotheses; `rows` are ascending indexes into `alive`."""

    @property
    def alive(self) -> NDArray[np.int64]:
        """(alive,): indexes of the hypotheses still in the race."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """(distinct,): how often each pseudo-reference was drawn."""

    @property
    def draws(self) -> int:
        """The number of draws so far."""

    @property
    def utilities(self) -> Utilities:
        """(alive, distinct), a copy, in doubles if one of the tables was. A draw that is left out of a hypothesis'
        expected utility is replaced by the mean of the others."""

    def utilities_under(self, weights: NDArray[np.float64] | None) -> Utilities:
        """The same with weights, (distinct,), as in `decide_window`."""

    def expected_utilities(self, weights: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """(alive,): the expected utilities that `decide_window` would decide by."""

    @property
    def spread(self) -> float:
        """The standard deviation of the expected utilities of all that raced: of those alive as last computed, of
        pruned ones as they were when `keep` or a decision dropped them."""

def race_lists(
    tallies: list[Tally],
    indexes: list[ChrFIndex],
    drawn: list[Sequence[str]],
    scored: list[Sequence[str]],
    *,
    sizes: Sequence[int],
    resamples: dict[int, Resamples],
    nbest: int,
    enough: int,
    max_losing_wins: float,
    max_regret: float,
    beta: float,
    eps_smoothing: bool,
    simd: str = "",
) -> tuple[list[NDArray[np.float64]], list[list[tuple[int, int, int, int]]], tuple[float, float, float]]:
    """Whole races with chrF, each over a list of pseudo-references, `drawn`, that chrF reads as `scored`.

    `resamples` go by the number of draws. Of each race the expected utilities of those left and its steps (draws,
    survivors, calls, pairs); and the seconds spent on reading pseudo-references, on pairs and on decisions.
    """

def decide_window(
    tallies: list[Tally],
    resamples: list[Resamples | None],
    weights: list[NDArray[np.float64] | None],
    *,
    nbest: int,
    max_losing_wins: float,
    max_regret: float = 0.0,
    threads: int = 1,
) -> list[NDArray[np.float64]]:
    """One step of the race of each sentence: drops the pruned hypotheses; the survivors' expected utilities, (alive,).

    The survivors are the `nbest` and those that win more than `max_losing_wins` resamples against the last of these;
    all if there are no resamples. If the expected regret of answering now is at most `max_regret` times the spread
    between all hypotheses that raced, only the `nbest` survive. `weights` (distinct,) is each pseudo-reference's
    weight in the expectation; None: its count. The interpreter lock is released.
    """

def likeness(texts: Sequence[str]) -> NDArray[np.float32]:
    """(texts, texts): how alike they are, by the n-grams of characters that some of them have and others lack: positive
    if two differ from the rest in the same way; 1 on average for a text with itself."""

class Forecast:
    """A forecast of the expected utilities of hypotheses that were not scored, from those of hypotheses that were."""

    def __init__(self, texts: Sequence[str]) -> None: ...
    def start(self, count: int) -> NDArray[np.int64]:
        """Let the first hypotheses in, chosen to be informative about all others; returns their indexes, ascending."""

    def next(self, means: NDArray[np.float64], rival: float, least: float, most: int) -> NDArray[np.int64]:
        """Let in up to `most` hypotheses whose expected improvement on `rival` is more than `least` standard deviations
        of `means`, (entered,), the expected utilities of those that entered so far, in that order."""

def covering_order(texts: Sequence[str]) -> NDArray[np.int64]:
    """The indices of all texts, in an order in which every prefix has n-gram frequencies close to the whole list's."""

def build_forecasts(
    hypotheses: list[Sequence[str]], starters: int, threads: int = 1
) -> list[tuple[Forecast, NDArray[np.int64]]]:
    """A forecast for the hypotheses of each sentence, and what its `start` returns. Releases the interpreter lock."""

def next_window(
    forecasts: list[Forecast],
    means: list[NDArray[np.float64]],
    rivals: NDArray[np.float64],
    least: NDArray[np.float64],
    most: int,
    threads: int = 1,
) -> list[NDArray[np.int64]]:
    """What `next` returns for each forecast; the interpreter lock is released."""

def distinct(texts: Sequence[str]) -> list[str]:
    """The distinct strings, in the order of their first copies."""

def expected_utilities(
    utilities: Utilities, weights: NDArray[np.float64], *, exact: bool = False
) -> NDArray[np.float64]:
    """(hypotheses,): for each row the sum of weight x utility divided by the sum of the weights.

    Sums are exact, rounded once and divided last: the same bits on every machine and in every order of the columns.
    With `exact` only the quotient is rounded, so that rows with other weights tie where they should.
    """

class WordList:
    """A number for every distinct word. Texts are cut at single spaces between printable ASCII characters, Latin or
    Cyrillic letters, ideographs or syllables; other spaces stay in a word."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def numbers(self, texts: Sequence[str], threads: int = 1) -> tuple[NDArray[np.int32], NDArray[np.int64], list[str]]:
        """The numbers of all words of all texts, how many words each text has (at least one), and the new words, whose
        numbers follow those already known. Only one call at a time; the interpreter lock is released."""

def join_words(
    numbers: NDArray[np.int32],
    counts: NDArray[np.int64],
    ids: NDArray[np.int32],
    begin: NDArray[np.int64],
    size: NDArray[np.int64],
    before: NDArray[np.int32],
    after: NDArray[np.int32],
    room: int,
    threads: int = 1,
) -> tuple[NDArray[np.int32], NDArray[np.int64], int]:
    """The tokens of texts, one after another, how many each text has, and how many texts were cut to `room` tokens.

    A text is `counts` words, given by their `numbers`; a word is `size` tokens of `ids`, from index `begin` on. The
    tokens `before` and `after` are put around each text. The interpreter lock is released.
    """

class Pieces:
    """What each id of a model's vocabulary stands for, as in SentencePiece: `texts`, empty for ids without text, and
    `bytes`, the byte (0 to 255) that an id stands for instead of a text, or -1."""

    def __init__(self, texts: Sequence[str], bytes: Sequence[int]) -> None: ...
    def texts(self, ids: NDArray[np.int32], threads: int = 1) -> list[str]:
        """The text of each row of ids (rows, width), without whitespace around it. Ids that are not in the vocabulary,
        such as the -1 that rows are padded with, have no text. The interpreter lock is released."""

def simd_variants() -> list[str]:
    """The instruction sets this machine can count with, best first; the last is "portable"."""

class BleuIndex:
    """The n-grams of one sentence's hypotheses, numbered and counted once; `tokenizer` is 13a, char or none."""

    def __init__(self, *, tokenizer: str, order: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of the n-grams and of the numbering tables."""

def add_bleu_hypotheses(indexes: list[BleuIndex], hypotheses: list[Sequence[str]], *, threads: int = 1) -> None:
    """Append hypotheses to each index, all of which must be different objects. The interpreter lock is released."""

def score_bleu_window(
    indexes: list[BleuIndex],
    rows: list[NDArray[np.int64]],
    references: list[Sequence[str]],
    *,
    smoothing: str,
    smoothing_value: float,
    effective_order: bool,
    threads: int = 1,
) -> tuple[list[NDArray[np.float32]], float]:
    """For each sentence the scores, (rows, references) from 0 to 100, and the share of the time spent on encoding.

    `smoothing` is exp, floor, add-k or none; `smoothing_value` is read by floor and add-k.
    """

def bleu_statistics(
    hypotheses: list[str], references: list[str], *, tokenizer: str, order: int, threads: int = 1
) -> NDArray[np.int64]:
    """(pairs, 2 + 2 * order): tokens of each hypothesis and reference, then matches and n-grams by order."""

def bleu_scores(
    statistics: NDArray[np.int64], *, smoothing: str, smoothing_value: float, effective_order: bool
) -> NDArray[np.float64]:
    """(pairs,): BLEU from 0 to 100 of `bleu_statistics` of pairs, or of their sums over a corpus."""
