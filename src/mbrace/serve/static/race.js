"use strict";
// The steps of a race come as lines of JSON; the report's viewer shows them as they come, and steps through them afterwards.

const form = document.getElementById("ask");
const progress = document.getElementById("progress");
const button = document.getElementById("go");
const viewer = document.getElementById("viewer");

function show(found) {
  viewer.hidden = false;  // before its chart is drawn, which needs to know its width
  if (found.step) { Viewer.add(found.step, found.texts); return; }
  const answer = found.answer, race = answer.mbrace;
  const tokens = answer.usage ? `; ${answer.usage.total_tokens.toLocaleString("en")} tokens` : "";
  Viewer.end(answer.choices[0].message.content, `${race.draws} draws, stopped by: ${race.stopped}${tokens}`);
  progress.textContent = "";
}

async function ask() {
  const headers = { "content-type": "application/json" };
  const key = document.getElementById("key").value;
  if (key) headers.authorization = `Bearer ${key}`;
  const body = { messages: [{ role: "user", content: document.getElementById("prompt").value }] };
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
      show(found);
    }
    if (done) break;
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  button.disabled = true;
  progress.textContent = "Drawing …";
  viewer.hidden = true;
  Viewer.live();
  try {
    await ask();
  } catch (error) {
    progress.textContent = `Failed: ${error.message}`;
  } finally {
    button.disabled = false;
  }
});
Viewer.begin();
