"""Decoder-only language models that translate by a prompt."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mbrace.answers import Answering, Prompts, answer_all, answer_in
from mbrace.errors import SettingError, UserError
from mbrace.models.live import Limits, LiveModel, device_for
from mbrace.models.seq2seq import end_ids, find, load
from mbrace.models.transformers_decoders import CausalDecoder
from mbrace.neural.device import choose_dtype
from mbrace.records import Record
from mbrace.sampler import Draws, FunctionDrawer, Receipt, Want
from mbrace.settings import ModelSettings, Sampling
from mbrace.utility import PairFunction, Utility
from mbrace.windows import OnError


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
        prompt: str = "{source}",
        chat: bool | None = None,
        system: str | None = None,
        stop: str | None = None,
        tokenizer: Any = None,
        device: str | None = None,
        dtype: Any = None,
        rows: int | None = None,
    ) -> None:
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

    def answer(
        self,
        prompts: Prompts,
        *,
        utility: Utility | PairFunction | None = None,
        ids: Sequence[str | int] | None = None,
        on_error: OnError | None = None,
        max_tokens: int = ModelSettings.max_tokens,
        temperature: float = Sampling.temperature,
        **options: Any,
    ) -> Any:
        """The consensus answers to prompts: texts, or lists of messages; an `Answer` for each, or one for one.

        At most `n` draws are made for each, in steps while the race between them is open. `options` are those of
        `sampler` (`epsilon`, `top_p`, ...) and of `mbrace.answers.Answering` (`n`, `regret`, `confidence`, ...). A
        prompt that fails ends the call; with `on_error`, it is passed to that function with its error instead, and left
        out. In a service, call it on a thread: `await asyncio.to_thread(model.answer, prompt)`.
        """
        of_sampler: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "epsilon": None}
        of_sampler |= {name: options.pop(name) for name in ("epsilon", "top_k", "top_p", "min_p") if name in options}
        settings = Answering(**options)
        if settings.logprobs:
            raise SettingError("logprobs", ..., "only valid with a server")
        drawer = PromptDraws(self, seed=settings.seed, **of_sampler)
        return answer_all(prompts, drawer, settings, ids=ids, utility=utility, on_error=on_error)


class PromptDraws:
    """Draws of answers to prompts, counted in tokens, without reasoning and without those that were cut."""

    def __init__(self, model: CausalLM, *, max_tokens: int, seed: int, **sampling: Any) -> None:
        assert isinstance(model.codec, PromptCodec)
        self._codec = model.codec
        self._model = copy.copy(model)
        self._model.codec = CountedOutputs(model.codec, model.ends)
        self._sampler = self._model.sampler(seed=seed, max_length=max_tokens, ahead=(), **sampling)

    def start(self, records: Sequence[Record]) -> FunctionDrawer:
        """Begin a window of races."""
        filled = [replace(record, source=self._codec.fill(record)) for record in records]
        drawer = self._sampler.start(filled)
        prompt_sizes = [len(row) for row in self._model.codec.encode([record.source or "" for record in filled])]

        def draw(wants: Sequence[Want]) -> list[Draws]:
            started = time.monotonic()
            found = drawer.draw(wants)
            seconds, out = time.monotonic() - started, []
            for want, draws in zip(wants, found, strict=True):
                outputs = [output.split(" ", 2) for output in draws.texts]
                whole = [answer_in(text) for _, ended, text in outputs if ended == "ended"]
                usable, cut = [text for text in whole if text], len(outputs) - len(whole)
                receipt = Receipt(
                    prompt_sizes[want.sentence], sum(int(size) for size, *_ in outputs), 0, len(outputs), cut,
                    len(whole) - len(usable), seconds=seconds,
                )  # fmt: skip
                out.append(Draws(usable, None, len(outputs) - len(usable), receipt=receipt))
            return out

        return FunctionDrawer(draw)


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
        return self.ids_of([self.fill(Record((), source=text)) for text in texts])

    def fill(self, record: Record) -> str:
        """The text that the model continues for a record: its messages, or the prompt with its source."""
        messages = getattr(record, "messages", None)
        text = self._prompt.replace("{source}", record.source or "")
        if not self._chat:
            if messages is not None and len(messages) > 1:
                raise record.error("messages: this tokenizer has no chat template; give one prompt")
            return text
        turns = [{"role": "user", "content": text}] if messages is None else list(messages)
        if self._system is not None and turns[0]["role"] not in ("system", "developer"):
            turns = [{"role": "system", "content": self._system}, *turns]
        filled: str = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        return filled

    def ids_of(self, filled: Sequence[str]) -> list[list[int]]:
        """Ids of filled prompts; a chat template writes its special tokens itself."""
        found = self._tokenizer(list(filled), add_special_tokens=not self._chat)["input_ids"] if filled else []
        return [list(row) for row in found]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts of outputs."""
        return [text for text, _ in self.outputs(rows)]

    def outputs(self, rows: Sequence[Sequence[int]]) -> list[tuple[str, bool]]:
        """Texts of outputs, and whether `stop` ended them."""
        kept = [[number for number in row if number >= 0] for row in rows]
        texts = self._tokenizer.batch_decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if self._stop is None:
            return [(text.strip(), False) for text in texts]
        return [(text.split(self._stop)[0].strip(), self._stop in text) for text in texts]


class CountedOutputs:
    """A codec for prompts that are filled in already; before the text of an output are its ids, and how it ended."""

    pieces = None

    def __init__(self, codec: PromptCodec, ends: Sequence[int]) -> None:
        self._codec, self._ends = codec, ends

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the prompts."""
        return self._codec.ids_of(texts)

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Such as "12 ended Paris." or "16 cut Par": its text split again may have other ids."""
        return [
            f"{len(row)} {'ended' if is_stopped or row[-1] in self._ends else 'cut'} {text}"
            for row, (text, is_stopped) in zip(rows, self._codec.outputs(rows), strict=True)
        ]
