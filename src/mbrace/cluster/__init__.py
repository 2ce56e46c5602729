"""Whole corpora on a Ray cluster: `run` spreads a job over a pool of workers and writes its lines in input order."""

from mbrace.cluster.driver import run
from mbrace.io.folders import Manifest, Shard

__all__ = ["Manifest", "Shard", "run"]
