"""Which model or server generates candidates for a job: plain values, and how they are loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mbrace.errors import SettingError, require
from mbrace.jobs.settings import stable_name

if TYPE_CHECKING:
    from mbrace.models.hypotheses import CandidateModel, SamplingSettings
    from mbrace.servers.server import Server


@dataclass(frozen=True)
class ModelSettings:
    """A model by name or folder or, where `server` is its URL, the model that a server calls `server_model`."""

    model: str = "bundled"
    kind: str = "seq2seq"
    source_language: str | None = None
    target_language: str | None = None
    source_prefix: str = ""
    prompt: str | None = None
    stop: str | None = None
    device: str | None = None
    dtype: str | None = None
    server: str | None = None
    server_model: str | None = None
    server_kind: str = "chat"
    concurrency: int = 8
    samples_per_request: int = 16
    max_tokens: int = 512
    system_prompt: str | None = None
    timeout: float = 120.0
    retries: int = 6
    server_epsilon: float | None = None
    server_beam_search: bool = False

    def describe(self) -> dict[str, Any]:
        """What outputs depend on; of a server's URL, nothing that is secret."""
        left_out = ("device", "concurrency", "timeout", "retries")
        settings = {name: value for name, value in asdict(self).items() if name not in left_out}
        for name in ("samples_per_request", "max_tokens", "server_beam_search"):
            if settings[name] == getattr(ModelSettings, name):  # the default
                settings[name] = None  # where older descriptions have nothing
        if self.server is not None:
            from mbrace.servers.http import hide_credentials

            settings["server"] = hide_credentials(self.server)
        return settings

    def load(
        self, threads: int, sampling: SamplingSettings, *, seed: int = 0, logprobs: bool = False
    ) -> CandidateModel | Server:
        """The model, to be run with `threads` threads on a CPU (0: all cores), or the server, told how to sample."""
        if self.server is not None:
            from mbrace.servers.server import Server

            if self.prompt is None:
                raise SettingError(
                    "prompt", None, "needed with a server, with {source} where the source goes, such as "
                    "'Translate into English, the translation only: {source}'",
                )  # fmt: skip
            return Server(
                self.server,
                self.server_model or "",
                prompt=self.prompt,
                chat=self.server_kind == "chat",
                system=self.system_prompt,
                stop=self.stop,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
                epsilon=self.server_epsilon,
                beam_search=self.server_beam_search,
                length_penalty=sampling.length_penalty,
                max_tokens=self.max_tokens,
                logprobs=logprobs,
                seed=seed,
                per_request=self.samples_per_request,
                concurrency=self.concurrency,
                retries=self.retries,
                timeout=self.timeout,
            )
        require("torch", extra="models")
        if threads:
            from mbrace.neural.device import limit_threads

            limit_threads(threads)
        if self.kind == "causal":
            from mbrace.models.causal import CausalLM

            return CausalLM(self.model, prompt=self.prompt or "", stop=self.stop, device=self.device, dtype=self.dtype)
        from mbrace.models.seq2seq import Seq2Seq

        return Seq2Seq(
            self.model,
            source_language=self.source_language,
            target_language=self.target_language,
            prefix=self.source_prefix,
            device=self.device,
            dtype=self.dtype,
        )


AnyModel: TypeAlias = "ModelSettings | CandidateModel | Server | str"


def describe_model(model: AnyModel) -> dict[str, Any]:
    """What outputs depend on; of a ready model, its name."""
    if not isinstance(model, ModelSettings):
        model = ModelSettings(model if isinstance(model, str) else stable_name(model))
    return model.describe()


def load_model(
    model: AnyModel, threads: int, sampling: SamplingSettings, *, seed: int, logprobs: bool = False
) -> CandidateModel | Server:
    """The model of settings or of a name, or a ready one; see `ModelSettings.load`."""
    if isinstance(model, str):
        model = ModelSettings(model)
    if isinstance(model, ModelSettings):
        return model.load(threads, sampling, seed=seed, logprobs=logprobs)
    return model
