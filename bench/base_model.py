"""The bundled translator's function in a network of a base model's size, for its speed."""

from __future__ import annotations

import torch

import mbrace
from mbrace.models.marian_network import load_bundled

DECODER_LAYERS, IDS = 6, 16000


def base_model(device: torch.device) -> mbrace.Seq2Seq:
    """The bundled translator's function in a network of a base model's shape."""
    transformers = __import__("transformers")
    small, vocabulary = load_bundled()
    config = transformers.MarianConfig(**{**vars(small.config), "tie_word_embeddings": False})
    config.d_model *= 2
    config.encoder_attention_heads *= 2
    config.decoder_attention_heads *= 2
    config.decoder_layers = DECODER_LAYERS
    config.vocab_size = config.decoder_vocab_size = IDS
    model = transformers.MarianMTModel(config)
    model.generation_config.bad_words_ids = [[vocabulary.pad], *([number] for number in range(len(vocabulary), IDS))]
    wide = {name: _doubled(name, weights) for name, weights in small.state_dict().items()}
    scale = 2**-0.5  # what is looked up is multiplied by the root of the number of units
    ids = torch.nn.functional.pad(wide["model.encoder.embed_tokens.weight"], (0, 0, 0, IDS - len(vocabulary)))
    for side in (model.model.encoder, model.model.decoder):
        side.embed_tokens = torch.nn.Embedding.from_pretrained(ids * scale, freeze=True)
    model.lm_head.weight = torch.nn.Parameter(ids / 2, requires_grad=False)
    model.final_logits_bias.zero_()
    last = f"model.decoder.layers.{small.config.decoder_layers - 1}.final_layer_norm."
    gain, shift = wide[last + "weight"], wide[last + "bias"]
    for name, weights in model.state_dict().items():
        if name in wide and "embed_tokens" not in name and name not in ("final_logits_bias", "model.shared.weight"):
            if "lm_head" not in name:
                weights.copy_(wide[name])
        elif ".decoder.layers." in name:  # a layer that changes nothing: its branches are 0, its norm is undone
            if "layer_norm.weight" in name:
                weights.fill_(float((gain.square().mean() + shift.var()).sqrt()))
            elif "layer_norm.bias" in name:
                weights.fill_(float(shift.mean()))
            elif "out_proj" in name or "fc2" in name:
                weights.zero_()
    return mbrace.Seq2Seq.of(model.to(device).eval(), vocabulary)


def _doubled(name: str, weights: torch.Tensor) -> torch.Tensor:
    """Weights over units of which there are two copies; the hidden units of a feed-forward layer stay as they are."""
    if weights.ndim == 1:
        return weights if ".fc1." in name else weights.repeat(2)
    if "embed" in name or "shared" in name or "lm_head" in name:
        return weights.repeat(1, 2)
    into, out = (1 if ".fc2." in name else 2), (1 if ".fc1." in name else 2)
    return weights.repeat(out, into) / into
