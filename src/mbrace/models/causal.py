"""Decoder-only language models that translate by a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mbrace.errors import UserError
from mbrace.models.generic import CausalDecoder
from mbrace.models.live import Limits, LiveModel, device_for
from mbrace.models.seq2seq import end_ids, find, load
from mbrace.neural.device import choose_dtype


class CausalLM(LiveModel):
    """A decoder-only model of transformers, by name or folder, or an object with its tokenizer.

    `prompt` has `{source}` where the source goes. With `chat` (the default if the tokenizer has a chat template) it is
    the user's message; otherwise it is the text that the model continues. An output ends before the string `stop`, such
    as a newline. The other options are those of Seq2Seq.
    """

    pad_left = True

    def __init__(
        self,
        model: Any,
        *,
        prompt: str,
        chat: bool | None = None,
        system: str | None = None,
        stop: str | None = None,
        tokenizer: Any = None,
        device: str | None = None,
        dtype: Any = None,
        rows: int | None = None,
    ) -> None:
        super().__init__()
        self.device = device_for(device, model)
        if isinstance(model, str | Path):
            model, tokenizer = load(find(str(model)), tokenizer, "AutoModelForCausalLM")
        if tokenizer is None:
            raise UserError("a model object needs its tokenizer: CausalLM(model, tokenizer=...)")
        if "{source}" not in prompt:
            raise UserError("prompt: has no {source}; put it where the source goes")
        self.dtype = choose_dtype(dtype, self.device)
        model = model.to(self.device, self.dtype).eval()
        self.codec = PromptCodec(tokenizer, prompt, chat=chat, system=system, stop=stop)
        positions = int(getattr(model.config, "max_position_embeddings", None) or 4096)
        self.limits = Limits(positions - 1, positions, both=positions)
        self.decoder = CausalDecoder(model)
        self.ends = tuple(dict.fromkeys([*end_ids(model, tokenizer.eos_token_id), *self.codec.stops()]))
        self.start = self.ends[0]  # never used: an output starts from the prompt
        pad = tokenizer.pad_token_id
        self.pad = int(self.ends[0] if pad is None else pad)
        self.rows = rows or (1024 if self.device.type == "cuda" else 256)


class PromptCodec:
    """Sources to the ids of their prompts; ids of outputs to text, up to `stop`."""

    pieces = None

    def __init__(self, tokenizer: Any, prompt: str, *, chat: bool | None, system: str | None, stop: str | None) -> None:
        template = getattr(tokenizer, "chat_template", None)
        if chat and not template:
            raise UserError("chat: this tokenizer has no chat template; leave chat out to continue the prompt as text")
        self._tokenizer, self._prompt, self._system, self._stop = tokenizer, prompt, system, stop
        self._chat = bool(template) if chat is None else chat

    def stops(self) -> list[int]:
        """The ids whose text contains `stop`."""
        if self._stop is None:
            return []
        ids = [[number] for number in range(len(self._tokenizer))]
        texts = self._tokenizer.batch_decode(ids, clean_up_tokenization_spaces=False)
        return [number for number, text in enumerate(texts) if self._stop in text]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the prompts."""
        prompts = [self._prompt.replace("{source}", text) for text in texts]
        if not self._chat:
            return [list(row) for row in self._tokenizer(prompts)["input_ids"]] if prompts else []
        start = [] if self._system is None else [{"role": "system", "content": self._system}]
        filled = [
            self._tokenizer.apply_chat_template(
                [*start, {"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
            )
            for prompt in prompts
        ]
        return [list(row) for row in self._tokenizer(filled, add_special_tokens=False)["input_ids"]] if filled else []

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts of outputs."""
        kept = [[number for number in row if number >= 0] for row in rows]
        texts = self._tokenizer.batch_decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return [(text.strip() if self._stop is None else text.split(self._stop)[0].strip()) for text in texts]
