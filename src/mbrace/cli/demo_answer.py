"""The race of `mbrace demo --answer`: answers of SmolLM2, a small language model that runs in this process."""

from __future__ import annotations

from typing import Any

from mbrace.errors import visible

PROMPT = "What is the capital of France? Answer in one sentence."


def show_answers(console: Any) -> None:
    """Draw answers to a question and show after each step who is ahead, and at the end what it cost."""
    from mbrace import ChrF
    from mbrace.answers import answers, prompt_of
    from mbrace.serve.engine import watching
    from mbrace.servers.local import MODEL, local_server
    from mbrace.servers.server import Server

    console.print(f"[bold]{MODEL}[/] by llama.cpp, in this process: [italic]{PROMPT}[/]")
    server = Server(local_server(), MODEL, max_tokens=40, temperature=0.8)

    def show(step: dict[str, Any]) -> None:
        console.print(f"\n{step['draws']} whole draws, the best by expected chrF++ among them:")
        ranked = sorted(step["rows"], key=lambda row: (-row["alive"], -(row["utility"] or 0.0)))
        for row in ranked[:5]:
            state = "" if row["alive"] else " (out)"
            times = f" x{row['copies']}" if row["copies"] > 1 else ""
            text = visible(" ".join(row["text"].split()))
            console.print(f"  {row['utility'] or 0.0:6.2f}  {text}{times}{state}", markup=False, highlight=False)

    answer = next(answers([prompt_of(PROMPT, 0)], server, utility=ChrF(), watch=watching(show)))
    console.print("\n[bold]Answer[/]: ", end="")
    console.print(visible(answer.text), highlight=False, markup=False)
    cost = answer.receipt
    console.print(
        f"{answer.draws} of at most 16 draws ({cost.cut} cut), stopped by: {answer.stopped}; {cost.tokens_in} + "
        f"{cost.tokens_out} tokens, {cost.seconds:.1f} s. The same with your server: mbrace answer --server URL",
        highlight=False,
    )
    server.close()
