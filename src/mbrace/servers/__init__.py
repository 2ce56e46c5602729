"""Clients of OpenAI-compatible servers: candidates (`server`), scores (`judge`), embeddings (`embeddings`)."""
