"""`mbrace --cite`: the paper and this software as BibTeX. A test compares them with CITATION.cff."""

from __future__ import annotations

PAPER = {
    "title": "Faster Minimum Bayes Risk Decoding with Confidence-based Pruning",
    "author": "Cheng, Julius and Vlachos, Andreas",
    "booktitle": "Proceedings of the 2023 Conference on Empirical Methods in Natural Language Processing",
    "year": "2023",
    "publisher": "Association for Computational Linguistics",
    "url": "https://aclanthology.org/2023.emnlp-main.767",
    "doi": "10.18653/v1/2023.emnlp-main.767",
}
SOFTWARE = {"title": "mbrace: minimum {Bayes} risk decoding that races", "author": "{The mbrace authors}"}


def bibtex() -> str:
    """Two entries: the paper with the algorithm, and the running version of mbrace."""
    from mbrace import __version__

    return "\n\n".join(
        [
            _entry("inproceedings", "cheng-vlachos-2023-faster", PAPER),
            _entry("software", "mbrace", {**SOFTWARE, "version": __version__}),
        ]
    )


def _entry(kind: str, key: str, fields: dict[str, str]) -> str:
    width = max(map(len, fields))
    return "\n".join([f"@{kind}{{{key},", *(f"  {name:<{width}} = {{{text}}}," for name, text in fields.items()), "}"])
