"""Sizes of models, and a Marian model of a given size with random weights."""

from __future__ import annotations

from dataclasses import dataclass

from mbrace.models.marian_network import MarianNetwork
from mbrace.models.tokenizers import EOS, Vocabulary


@dataclass(frozen=True)
class Size:
    """The shape of a model, and its defaults: number of pieces, dropout, highest learning rate."""

    width: int
    feed_forward: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    vocabulary: int
    dropout: float
    rate: float


SIZES = {
    "base": Size(512, 2048, 8, 6, 6, 24000, 0.1, 7e-4),  # "base" of Vaswani et al.
    "shallow": Size(512, 2048, 8, 6, 2, 20000, 0.1, 7e-4),  # base with two decoder layers: quick to train and to sample
    "small": Size(320, 1536, 5, 6, 2, 8000, 0.1, 1.2e-3),  # the bundled translator: 14.5M weights, a quick decoder
    "tiny": Size(64, 128, 2, 2, 2, 1000, 0.0, 3e-3),  # for tests
}


def new_model(size: Size, vocabulary: Vocabulary, *, dropout: float | None = None) -> MarianNetwork:
    """A Marian network with random weights and positions for 512 ids."""
    config = {
        "vocab_size": len(vocabulary),
        "max_position_embeddings": 512,
        "d_model": size.width,
        "encoder_layers": size.encoder_layers,
        "decoder_layers": size.decoder_layers,
        "encoder_ffn_dim": size.feed_forward,
        "decoder_ffn_dim": size.feed_forward,
        "encoder_attention_heads": size.heads,
        "decoder_attention_heads": size.heads,
        "activation_function": "swish",
        "dropout": size.dropout if dropout is None else dropout,
        "scale_embedding": True,
        "pad_token_id": vocabulary.pad,
        "decoder_start_token_id": vocabulary.pad,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
    }
    return MarianNetwork.random(config, {"bad_words_ids": [[vocabulary.pad]]})
