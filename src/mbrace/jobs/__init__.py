"""Runs over files: what a run is, how it is described, started and resumed."""
