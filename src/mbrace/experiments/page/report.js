// The page's controls: what is chosen decides which charts, tables and races are shown, and is kept in the address:
// #pair=de-en&utility=chrF%2B%2B&alpha=0.9&measure=rr&sentence=3&step=2&play=1 (each part may be left out).
(async () => {
  "use strict";
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const chosen = (id) => $(id).value;
  const figures = [...document.querySelectorAll("figure.chart[data-chart]")].map((figure) => ({
    name: figure.dataset.chart, by: figure.dataset.by ? figure.dataset.by.split(" ") : [], set: Charts.fill(figure),
  }));
  let races = [], following = true;

  // Packed by gzip; a browser from before 2023 cannot unpack them and shows the rest of the page.
  async function unpack() {
    const packed = $("races").textContent;
    if (!packed) return [];
    if (typeof DecompressionStream === "undefined") {
      $("viewer").replaceChildren(...[...$("viewer").children].slice(0, 1));
      $("viewer").append("This browser is too old to unpack the recorded races; everything else on the page works.");
      return [];
    }
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  // Pairs and utilities go together: a choice that was not run with the other one changes the other one too.
  function agree(changed) {
    const fits = ([pair, utility]) => pair === chosen("pair") && utility === chosen("utility");
    if (data.choices.some(fits)) return;
    const own = changed === "utility" ? 1 : 0;
    const found = data.choices.find((choice) => choice[own] === chosen(changed === "utility" ? "utility" : "pair"));
    [$("pair").value, $("utility").value] = found;
  }

  function choose(changed) {
    agree(changed);
    for (const { name, by, set } of figures) set(data.charts[[name, ...by.map((id) => chosen(id))].join("|")]);
    for (const part of document.querySelectorAll("[data-utility]")) {
      part.hidden = part.dataset.utility !== chosen("utility") || (part.dataset.pair !== undefined && part.dataset.pair !== chosen("pair"));
    }
    for (const part of document.querySelectorAll("[data-when-none]")) {
      part.hidden = [...document.querySelectorAll(part.dataset.whenNone)].some((other) => !other.hidden);
    }
  }

  function watch(sentence, alpha, step) {
    if (!races.length) return;
    const fits = races.filter((one) => one.pair === chosen("pair") && one.utility === chosen("utility"));
    const file = fits.find((one) => one.split !== "test") || fits[0];
    $("viewer").hidden = !file;
    if (file) Viewer.open(file, sentence, alpha, step);
  }

  function remember() {
    if (!following) return;
    const kept = new URLSearchParams();
    const first = { pair: data.choices[0][0], utility: data.choices[0][1], measure: "accuracy" };
    for (const [id, value] of Object.entries(first)) if ($(id) && chosen(id) !== value) kept.set(id, chosen(id));
    if (races.length && !$("viewer").hidden) {
      kept.set("alpha", chosen("alpha"));
      kept.set("sentence", chosen("sentence"));
      if (Viewer.step() > 1) kept.set("step", Viewer.step());
    }
    try { history.replaceState(null, "", `#${kept}`); } catch { /* not allowed here: the page works without */ }
  }

  // What the address asks for; parts that name nothing known are passed over.
  function follow() {
    const text = location.hash.slice(1);
    if (!text.includes("=")) {
      const target = text && $(text);
      for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
      for (const part of target ? target.querySelectorAll("details[data-with-section]") : []) part.open = true;
      if (target) target.scrollIntoView();
      return false;
    }
    const asked = new URLSearchParams(text.replaceAll("+", "%2B"));
    for (const id of ["pair", "utility", "measure"]) {
      if ($(id) && [...$(id).options].some((option) => option.value === asked.get(id))) $(id).value = asked.get(id);
    }
    choose(asked.has("utility") ? "utility" : "pair");
    watch(Number(asked.get("sentence") || 1), asked.get("alpha"), Number(asked.get("step") || 1) - 1);
    if (asked.has("sentence") || asked.has("play")) $("viewer").scrollIntoView();
    if (asked.has("play") && races.length) Viewer.play();
    return true;
  }

  // Terms are explained on hover, on focus and on tap; Escape takes the explanation away.
  function explain() {
    const tip = $("explained");
    const hide = () => { tip.hidden = true; };
    function show(event) {
      const term = event.target.closest?.(".term");
      if (!term) return;
      tip.textContent = $(term.getAttribute("aria-describedby")).textContent;
      tip.hidden = false;
      const box = term.getBoundingClientRect();
      tip.style.left = `${Math.max(8, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${box.bottom + tip.offsetHeight + 8 < innerHeight ? box.bottom + 4 : Math.max(4, box.top - tip.offsetHeight - 4)}px`;
    }
    for (const name of ["pointerover", "focusin", "click"]) document.addEventListener(name, show);
    document.addEventListener("pointerout", (event) => { if (event.target.closest?.(".term") && document.activeElement !== event.target) hide(); });
    document.addEventListener("focusout", hide);
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
    addEventListener("scroll", hide, { passive: true });
  }

  function rewatch() { watch(1, races.length ? chosen("alpha") : null, 0); remember(); }
  $("pair").addEventListener("change", () => { choose("pair"); rewatch(); });
  $("utility").addEventListener("change", () => { choose("utility"); rewatch(); });
  $("measure")?.addEventListener("change", () => { choose("pair"); remember(); });
  addEventListener("hashchange", follow);
  explain();
  if (innerWidth < 1120) document.querySelector("#contents details").open = false;
  choose("pair");
  races = await unpack();
  if (races.length) {
    following = false;
    Viewer.begin(remember);
    watch(1, null, 0);
  }
  follow();
  following = true;
  document.documentElement.dataset.ready = "1";
})();
