"""Generating with a model on this machine: hypotheses by beam search, pseudo-references by sampling."""
