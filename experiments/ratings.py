"""What ratings by people can show: the power of the paper's human evaluation, and how many ratings equivalence needs.

    python experiments/ratings.py [--ratings 125] [--ties 0.28] [--equal 0.85]

A rating prefers one system, the other, or neither. `net` is the share of ratings that prefer the first minus the share
that prefer the second; over all sentences, of which a share `equal` has the same prediction, it is net x (1 - equal).
"""

from __future__ import annotations

import argparse
import math
from statistics import NormalDist

from mbrace.judge.results import sign_test

PAPER = (48, 42, 35)  # wins of standard MBR, losses, ties


def binomial(count: int, chance: float) -> list[float]:
    """The probabilities of 0 .. count successes, for a chance above 0 and below 1."""
    logs = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + k * math.log(chance) + (count - k) * math.log1p(-chance)
        for k in range(count + 1)
    ]  # fmt: skip
    return [math.exp(value) for value in logs]


def power(ratings: int, ties: float, net: float, level: float = 0.05) -> float:
    """The chance that the exact sign test without ties finds a difference, if the net preference is `net`."""
    share = (1 + net / (1 - ties)) / 2  # of decided ratings that prefer the first
    found = 0.0
    for decided, likely in enumerate(binomial(ratings, 1 - ties)):
        if likely > 1e-12 and decided:
            wins = binomial(decided, share)
            found += likely * sum(p for won, p in enumerate(wins) if sign_test(won, decided - won) < level)
    return found


def detectable(ratings: int, ties: float, wanted: float = 0.8) -> float:
    """The smallest net preference, in whole percent, that is found with a chance of `wanted`."""
    return next(net / 100 for net in range(1, 100) if power(ratings, ties, net / 100) >= wanted)


def needed(margin: float, ties: float, wanted: float = 0.8, level: float = 0.05) -> int:
    """Ratings with which two one-sided tests show, with a chance of `wanted`, that a net preference of 0 is within it.

    By the normal approximation: ratings are -1, 0 or 1, with a variance of 1 - ties.
    """
    normal = NormalDist()
    both = normal.inv_cdf(1 - level) + normal.inv_cdf((1 + wanted) / 2)
    return math.ceil((both / margin) ** 2 * (1 - ties))


def interval(wins: int, losses: int, ties: int, level: float = 0.05) -> tuple[float, float, float]:
    """The net preference and the interval that two one-sided tests at `level` hold against a margin."""
    count = wins + losses + ties
    net = (wins - losses) / count
    error = math.sqrt(((wins + losses) / count - net**2) / count)
    half = NormalDist().inv_cdf(1 - level) * error
    return net, net - half, net + half


def main() -> None:
    """Print what the paper's ratings show, and a table of ratings that equivalence needs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratings", type=int, default=sum(PAPER))
    parser.add_argument("--ties", type=float, default=PAPER[2] / sum(PAPER))
    parser.add_argument("--equal", type=float, default=0.85)
    args = parser.parse_args()
    net, low, high = interval(*PAPER)
    print(f"The paper: net preference for standard MBR {net:+.3f} (90% interval {low:+.3f} to {high:+.3f}), over all")
    print(f"sentences {net * (1 - args.equal):+.4f} ({low * (1 - args.equal):+.4f} to {high * (1 - args.equal):+.4f}).")
    found = detectable(args.ratings, args.ties)
    print(f"{args.ratings} ratings find a net preference of {found:.2f} with a chance of 0.8 (ties {args.ties:.2f});")
    print(f"of 0.1 with a chance of {power(args.ratings, args.ties, 0.1):.2f}, of 0.05 with one of", end=" ")
    print(f"{power(args.ratings, args.ties, 0.05):.2f}.\n\n| margin of net preference | over all sentences | ratings |")
    print("| --: | --: | --: |")
    for margin in (0.2, 0.15, 0.1, 0.05):
        print(f"| {margin:g} | {margin * (1 - args.equal):.4f} | {needed(margin, args.ties):,} |")


if __name__ == "__main__":
    main()
