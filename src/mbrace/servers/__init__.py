"""What an OpenAI-compatible server does for us: candidates (`server`), scores (`judge`), embeddings (`embeddings`)."""
