"""Sentence embeddings from an OpenAI-compatible server (`/v1/embeddings`), and their cosine as a utility."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbrace.errors import UserError, check_whole
from mbrace.neural.head import Cosine
from mbrace.neural.scorer import NeuralUtility
from mbrace.servers.answer_file import AnswerFile, key_of
from mbrace.servers.chat import cost_of
from mbrace.servers.failures import UselessError
from mbrace.servers.http import Client
from mbrace.setting_fields import known_settings
from mbrace.settings import Connection, ConnectionOptions
from mbrace.utility import Cost

if TYPE_CHECKING:
    from typing_extensions import Unpack


class EmbeddingServer(NeuralUtility):
    """The cosine between a server's embeddings of hypothesis and reference; each string is sent once per window, the
    vector of a blank text, which servers refuse, is all zeros.

    `url` is the server's, with or without /v1; `model` is the model's name there. `answers` is a file that keeps
    embeddings, so that none is asked for twice. `options` (`dimensions`, ...) go into every request unchanged. Other
    keywords are those of `Server`.
    """

    needs_source = False
    device = torch.device("cpu")

    def __init__(
        self,
        url: str,
        model: str,
        *,
        per_request: int = 64,
        answers: str | Path | None = None,
        api_key: str | None = None,
        options: Mapping[str, Any] | None = None,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        known_settings(Connection, connection, EmbeddingServer)
        check_whole("per_request", per_request, least=1)
        self._client = Client(url, "/embeddings", Connection(**connection), api_key=api_key)
        self._body = {"model": model, "encoding_format": "float", **(options or {})}
        self._per_request, self._units = per_request, 0  # units are not known before the first answer
        self._file = None if answers is None else AnswerFile(answers)
        self.encoder, self.head = self, Cosine()
        self.name = f"cosine|server:{model}"
        self.cost = Cost()  # the requests so far, and how many answers were kept from before

    @property
    def truncated(self) -> int:
        """Unknown: a server cuts or refuses long texts itself."""
        return 0

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, units), normalised."""
        vectors: dict[str, NDArray[np.float32]] = {}
        for text in dict.fromkeys(texts):
            kept = None if self._file is None else self._file.get(self._key(text), _vector)
            if kept is not None:
                vectors[text] = kept
                self.cost += Cost(kept_answers=1)
        new = [text for text in dict.fromkeys(texts) if text.strip() and text not in vectors]
        if not new and not vectors and not self._units:
            new = ["."]  # only blank texts: ask for any vector, to learn how long they are
        blocks = [new[begin : begin + self._per_request] for begin in range(0, len(new), self._per_request)]
        for block, found in zip(blocks, self._client.gather(map(self._ask, blocks)), strict=True):
            vectors |= dict(zip(block, found, strict=True))
        for vector in vectors.values():  # vectors of different lengths cannot be compared
            if self._units not in (0, len(vector)):
                message = f"{len(vector)} numbers for one text and {self._units} for another"
                raise UserError(f"{self._client.url}: embeddings have {message}; use one model for all texts")
            self._units = len(vector)
        blank = np.zeros(self._units or 1, dtype=np.float32)
        rows = torch.from_numpy(np.stack([vectors.get(text, blank) for text in texts]).astype(np.float32))
        lengths: Tensor = rows.norm(dim=1, keepdim=True)
        return rows / lengths.clamp(min=1e-12)

    def interrupt(self) -> None:
        """End all requests and waits: they fail with a ServiceError."""
        self._client.interrupt()

    def close(self) -> None:
        """Cancel requests, and close the connections and the file."""
        self._client.close()
        if self._file is not None:
            self._file.close()

    def _key(self, text: str) -> bytes:
        return key_of(self._body | {"input": text})

    async def _ask(self, texts: list[str]) -> list[NDArray[np.float32]]:
        """The vectors of one request, saved as they arrive, even if another request fails."""
        vectors, cost = await self._client.ask(self._body | {"input": texts}, lambda answer: _read(answer, len(texts)))
        self.cost += cost
        if self._file is not None:
            for text, vector in zip(texts, vectors, strict=True):
                self._file.put(self._key(text), {"embedding": base64.b64encode(vector.tobytes()).decode()})
        return vectors


def _vector(kept: dict[str, Any]) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(kept["embedding"], validate=True), dtype="<f4")


def _read(answer: Any, count: int) -> tuple[list[NDArray[np.float32]], Cost]:
    """The vectors of an answer in the order asked for, and what it cost; ValueError if it has none."""
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or len(data) != count:
        raise ValueError(f"not {count} embeddings in the answer")
    if any(isinstance(row, list) for each in data for row in each["embedding"]):
        raise UselessError(
            "one vector for each token, not for each text; start the server with pooling (llama.cpp: --pooling mean)"
        )
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and refused below
        placed = {int(each["index"]): np.array(each["embedding"], dtype="<f4") for each in data}
    vectors = [placed[index] for index in range(count)]
    if any(vector.ndim != 1 or not len(vector) or not np.isfinite(vector).all() for vector in vectors):
        raise ValueError("an embedding that is not a list of finite numbers")
    return vectors, cost_of(answer)
