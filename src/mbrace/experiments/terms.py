"""The terms that report.html explains on hover, on focus and in a list at its end."""

from __future__ import annotations

from collections.abc import Sequence

from mbrace.experiments.formatting import DESCRIBED

TERMS = {
    "mbr": (
        "MBR decoding",
        "Minimum Bayes risk decoding: of the hypotheses, choose the one that is most like the model's own samples "
        "(pseudo-references), as a utility measures it. Standard MBR scores every hypothesis against every sample.",
    ),
    "utility": (
        "expected utility",
        "The mean utility of a hypothesis against the pseudo-references; MBR decoding looks for the highest.",
    ),
    "calls": (
        "utility calls",
        "How many pairs of a hypothesis and a pseudo-reference are scored for a sentence, counted as the paper does "
        "(repeated ones included).",
    ),
    "alpha": (
        "alpha (α)",
        "Confidence pruning: a hypothesis leaves the race when it would beat or equal the leader in at most a share of "
        "1 - alpha of bootstrap resamples. The nearer to 1, the more careful.",
    ),
    "beta": (
        "beta (β)",
        "The simpler rule it is compared with: after each time step, the worst share beta of the hypotheses leaves. "
        "Beta = 0 is standard MBR.",
    ),
    "schedule": ("schedule", "How many pseudo-references have been used at the end of each time step of a race."),
    "regret": (
        "regret",
        "A race may also stop when the leader's expected loss against any survivor is below this many standard "
        "deviations between hypotheses; 0: never.",
    ),
    "win": ("win rate", "In how many bootstrap resamples a hypothesis is at least as good as the leader."),
    "rstar": (
        "R*",
        "All pseudo-references of a sentence in the candidate file (1,024 in the paper). A race draws its R from them; "
        "the best hypothesis under R* counts as the right answer.",
    ),
    "accuracy": (
        "exact accuracy",
        "How often the answer is the best hypothesis under R*. Standard MBR uses fewer pseudo-references than R* has, "
        "so it is not always right either.",
    ),
    "rr": ("RR (reciprocal rank)", "1 divided by the rank of the answer under R*: 1 for the best, 1/2 for the second."),
    "score": (
        "score",
        "The quality of the answers against the human references: by the metric that decoded, and by metrics that did "
        "not, which are the ones to trust.",
    ),
}


def terms(utilities: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Each term and its explanation, by the name that the page refers to it by."""
    found = dict(TERMS)
    if any(utility.split(" ")[0] == "learned" for utility in utilities):
        found["learned"] = ("learned", DESCRIBED.removeprefix("learned, ").capitalize() + ".")
    return found
