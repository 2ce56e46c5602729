// Without this script the page is plain forms. With it: keyboard shortcuts, no reload between items, and an answer that
// does not reach the server is sent again until it does (the server counts a repeated request once).
"use strict";

const PAUSE = 350; // ms: the second click of a double click must not answer the item that has just appeared
const status = document.getElementById("status");
let shownAt = 0;
let busy = false;

const ready = () => !busy && performance.now() - shownAt >= PAUSE;

function shown() {
  shownAt = performance.now();
  const main = document.querySelector("main");
  setTimeout(() => main.setAttribute("data-ready", ""), PAUSE);
}

function say(message, trouble = false) {
  status.classList.toggle("trouble", trouble);
  status.textContent = message;
}

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function send(url, body) {
  for (let delay = 500; ; delay = Math.min(2 * delay, 8000)) {
    try {
      const response = await fetch(url, { method: "POST", body });
      if (response.status < 500) return { saved: response.ok, html: await response.text() };
    } catch {
      // the server cannot be reached: handled like a failed response
    }
    say("Not saved yet: the server does not answer. Trying again; please leave this page open.", true);
    await wait(delay);
  }
}

function show(html) {
  const page = new DOMParser().parseFromString(html, "text/html");
  document.title = page.title;
  document.querySelector("main").replaceWith(document.adoptNode(page.querySelector("main")));
  const heading = document.querySelector("h1");
  window.scrollTo(0, 0);
  heading.focus({ preventScroll: true });
  shown();
}

document.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!ready()) return;
  busy = true;
  const form = event.target;
  const fields = new URLSearchParams(new FormData(form));
  if (event.submitter?.name) fields.append(event.submitter.name, event.submitter.value);
  document.querySelector("main").setAttribute("aria-busy", "true");
  const { saved, html } = await send(form.action, fields);
  show(html);
  const done = document.querySelector("progress")?.getAttribute("aria-label") ?? "";
  say(saved ? `${form.classList.contains("undo") ? "Undone" : "Saved"}: ${done}` : "");
  busy = false;
});

// The second click must not take the focus from the new item's heading either: a screen reader is reading it.
document.addEventListener("mousedown", (event) => {
  if (!ready() && event.target.closest("button")) event.preventDefault();
});

function toggleComment() {
  const comment = document.querySelector(".comment");
  if (!comment) return;
  comment.open = true;
  comment.querySelector("textarea").focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.repeat || event.isComposing) return;
  if (event.target.matches("textarea, input")) {
    if (event.key === "Escape") document.querySelector("h1").focus();
    return;
  }
  const key = event.key.toLowerCase();
  if (key === "c") {
    event.preventDefault(); // or the letter is typed into the comment
    toggleComment();
    return;
  }
  const button = [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
  if (button && ready()) button.click();
});

shown();
