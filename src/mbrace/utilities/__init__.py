"""Utilities by name, from functions, from mixtures, from stored tables; quality estimation by name."""
