"""Generating with an OpenAI-compatible server."""
