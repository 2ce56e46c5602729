"""Training translators and learned metrics."""
