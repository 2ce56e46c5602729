"""BERT without its modules, against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from mbrace.neural.bert import PlainBert, without_modules

SHAPE: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}


def bert(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=90, max_position_embeddings=40, **SHAPE, **options)
    return transformers.BertModel(config, add_pooling_layer=False).eval()


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("masked", [False, True])
@torch.inference_mode()
def test_hidden_states_are_those_of_the_modules(activation: str, masked: bool) -> None:
    model = bert(hidden_act=activation)
    ids = torch.randint(0, 90, (3, 21))
    there = torch.arange(21) < torch.tensor([[21], [4], [13]]) if masked else torch.ones(3, 21, dtype=torch.bool)
    mask = there[:, None, None, :].expand(-1, -1, 21, -1) if masked else None
    expected = model(input_ids=ids, attention_mask=there, output_hidden_states=True).hidden_states
    plain = without_modules(model)
    assert plain is not None
    found = plain(ids, mask)
    assert len(found) == len(expected) == 4
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours[there], theirs[there], atol=1e-5, rtol=1e-4)
    [last] = plain(ids, mask, only_last=True)
    assert torch.equal(last, found[-1])


@torch.inference_mode()
def test_packed_strings_have_the_states_that_they_have_alone() -> None:
    model = bert()
    plain = without_modules(model)
    assert plain is not None
    groups = [(2, 21), (1, 20), (3, 7), (1, 1)]
    strings = [torch.randint(0, 90, (length,)) for count, length in groups for _ in range(count)]
    found = plain.packed(torch.cat(strings), groups)
    alone = [model(input_ids=string[None], output_hidden_states=True).hidden_states for string in strings]
    for layer, states in enumerate(found):
        expected = torch.cat([each[layer][0] for each in alone])
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-4)
    [last] = plain.packed(torch.cat(strings), groups, only_last=True)
    assert torch.equal(last, found[-1])


def test_packing_that_differs_from_the_modules_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PlainBert.packed

    def wrong(self: PlainBert, ids: Any, groups: Any, only_last: bool) -> Any:
        return right(self, ids.flip(0), groups, only_last=only_last)

    monkeypatch.setattr(PlainBert, "packed", wrong)
    assert without_modules(bert()) is None


def test_what_differs_from_the_modules_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PlainBert.__call__

    def wrong(self: PlainBert, ids: Any, mask: Any) -> Any:
        return [states + 1 for states in right(self, ids, mask)]

    monkeypatch.setattr(PlainBert, "__call__", wrong)
    assert without_modules(bert()) is None


def test_other_networks_keep_their_modules() -> None:
    config = transformers.XLMRobertaConfig(vocab_size=90, max_position_embeddings=40, **SHAPE)
    assert without_modules(transformers.XLMRobertaModel(config).eval()) is None
