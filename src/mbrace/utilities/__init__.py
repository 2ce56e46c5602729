"""Utilities: string metrics here; `neural` encodes each string once, `cross` reads both strings of a pair together."""
