"""Whole corpora on a Ray cluster: `run` shards any work over a pool of workers and writes it in input order."""
