"""Utilities: string metrics and, in `neural`, learned ones."""
