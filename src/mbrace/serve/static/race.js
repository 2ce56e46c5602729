"use strict";
// The steps of a race come as lines of JSON; each replaces the list of draws. Texts are only ever set as text.

const form = document.getElementById("ask");
const state = document.getElementById("state");
const list = document.getElementById("rows");
const section = document.getElementById("answer");
const button = form.querySelector("button");

function show(step) {
  const known = step.rows.map((row) => row.utility).filter((value) => value !== null);
  const most = Math.max(1e-9, ...known);
  const rows = [...step.rows].sort((a, b) => (b.alive - a.alive) || ((b.utility ?? -1) - (a.utility ?? -1)));
  list.replaceChildren(...rows.map((row) => {
    const item = document.createElement("li");
    const words = document.createElement("div");
    const bar = document.createElement("progress");
    const label = document.createElement("span");
    item.className = row.alive ? "in" : "out";
    words.className = "words";
    words.textContent = row.text;
    bar.max = 1;
    bar.value = Math.max(0, (row.utility ?? 0) / most);
    bar.setAttribute("aria-label", "expected utility");
    const times = row.copies > 1 ? `, drawn ${row.copies} times` : "";
    label.textContent = ` ${row.utility === null ? "?" : row.utility.toFixed(2)}${times}${row.alive ? "" : ", out"}`;
    item.append(words, bar, label);
    return item;
  }));
  state.textContent = `${step.draws} draws so far`;
}

function end(answer) {
  const race = answer.mbrace;
  document.getElementById("text").textContent = answer.choices[0].message.content;
  document.getElementById("cost").textContent =
    `${race.draws} draws, stopped by: ${race.stopped}; ${answer.usage.total_tokens} tokens`;
  section.hidden = false;
  state.textContent = "done";
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  section.hidden = true;
  button.disabled = true;
  list.replaceChildren();
  state.textContent = "drawing";
  const headers = { "content-type": "application/json" };
  const key = document.getElementById("key").value;
  if (key) headers.authorization = `Bearer ${key}`;
  const body = { messages: [{ role: "user", content: document.getElementById("prompt").value }] };
  try {
    const response = await fetch("/race", { method: "POST", headers, body: JSON.stringify(body) });
    if (!response.ok) throw new Error((await response.json()).error.message);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      text += value ?? "";
      const lines = text.split("\n");
      text = lines.pop();
      for (const line of lines) {
        const found = JSON.parse(line);
        if (found.error) throw new Error(found.error);
        if (found.answer) end(found.answer); else show(found);
      }
      if (done) break;
    }
  } catch (error) {
    state.textContent = `failed: ${error.message}`;
  } finally {
    button.disabled = false;
  }
});
