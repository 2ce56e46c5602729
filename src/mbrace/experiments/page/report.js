// The page's controls set parameters of the charts; the race viewer steps through recorded races. No network.
(() => {
  "use strict";
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const options = { renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false } };
  const views = {};
  const COLOURS = { out: "#c9d0d8", open: "#4f9fd0", winner: "#d9772b", answer: "#2a9d6f" };

  const chosen = (id) => $(id).value;
  const alphaValue = () => (chosen("alpha") === "all" ? "all" : Number(chosen("alpha")));

  async function draw() {
    for (const [id, spec] of Object.entries(data.charts)) {
      views[id] = { view: (await vegaEmbed($(id), spec, options)).view, names: (spec.params || []).map((p) => p.name) };
    }
    await choose();
  }

  // A utility may have been run on some of the pairs only; the others are disabled.
  function allow() {
    const known = new Set([...document.querySelectorAll(".choice:not([data-always])")].map((t) => JSON.stringify([t.dataset.pair, t.dataset.utility])));
    for (const option of $("pair").options) option.disabled = !known.has(JSON.stringify([option.value, chosen("utility")]));
    if ($("pair").selectedOptions[0].disabled) $("pair").value = [...$("pair").options].find((option) => !option.disabled).value;
  }

  async function choose() {
    allow();
    const values = { pair: chosen("pair"), utility: chosen("utility"), alpha: alphaValue(), measure: chosen("measure") };
    for (const [id, { view, names }] of Object.entries(views)) {
      if (names.includes("utility")) $(id).dataset.shows = [names.includes("pair") ? values.pair : "all pairs", values.utility].join(", ");
      for (const name of names) if (name in values) view.signal(name, values[name]);
      await view.runAsync();
    }
    for (const table of document.querySelectorAll(".choice")) {
      table.hidden = table.dataset.utility !== values.utility || (table.dataset.pair !== values.pair && !table.dataset.always);
    }
    listSentences();
  }

  // The race viewer
  let file = null, sentence = null, run = null, at = 0, all = false, timer = null, chart = null;

  function listSentences() {
    const match = (race) => race.utility === chosen("utility") && race.pair === chosen("pair");
    const found = data.races.filter(match);
    file = found.find((race) => race.split !== "test") || found[0] || null;
    $("viewer").hidden = !file;
    if (!file) return;
    const label = (one) => `${one.id}: ${one.source || one.reference || one.hypotheses[0]}`;
    $("sentence").replaceChildren(...file.sentences.map((one, index) => new Option(label(one), index)));
    pick();
  }

  function pick() {
    sentence = file.sentences[Number(chosen("sentence"))];
    const before = chosen("race-alpha");
    const alphas = Object.keys(sentence.races).sort().reverse();
    $("race-alpha").replaceChildren(...alphas.map((alpha) => new Option(alpha, alpha, false, alpha === before)));
    $("source").textContent = sentence.source || "–";
    $("reference").textContent = sentence.reference || "–";
    start();
  }

  async function start() {
    stop();
    run = sentence.races[chosen("race-alpha")];
    at = 0;
    $("step").max = Math.max(0, run.steps.length - 1);
    if (chart) chart.finalize();
    chart = run.steps.length ? (await vegaEmbed($("race"), raceSpec(), { ...options, actions: false })).view : null;
    show();
  }

  function raceSpec() {
    const lines = [];
    run.steps.forEach((step, number) => {
      const kept = new Set(step.kept);
      step.alive.forEach((hypothesis, index) => lines.push({
        hypothesis, step: number, refs: step.pseudo_references, mean: step.means[index] * file.scale,
        rate: step.win_rates[index], text: sentence.hypotheses[hypothesis],
        last: kept.has(index) ? 99 : number,
        role: hypothesis === run.answer ? 2 : hypothesis === sentence.winner ? 1 : 0,
      }));
    });
    const ends = {};
    for (const line of lines) ends[line.hypothesis] = Math.min(ends[line.hypothesis] ?? 99, line.last);
    for (const line of lines) line.end = ends[line.hypothesis];
    const colour = `datum.role == 2 ? '${COLOURS.answer}' : datum.role == 1 ? '${COLOURS.winner}' : datum.end <= step ? '${COLOURS.out}' : '${COLOURS.open}'`;
    const sizes = run.steps.map((step) => step.pseudo_references);
    const means = lines.map((line) => line.mean);
    const x = { field: "refs", type: "ordinal", title: "pseudo-references", axis: { labelAngle: 0 }, scale: { domain: sizes } };
    const y = { field: "mean", type: "quantitative", title: "expected utility", scale: { domain: [Math.min(...means), Math.max(...means)] } };
    const stroke = { field: "colour", type: "nominal", scale: null };
    const opacity = { condition: { test: "datum.end <= step && datum.role == 0", value: 0.45 }, value: 0.95 };
    return {
      $schema: data.charts.tradeoff.$schema, width: "container", height: 280, background: "transparent",
      config: data.charts.tradeoff.config,
      params: [{ name: "step", value: 0 }],
      data: { values: lines },
      transform: [{ filter: "datum.step <= step" }, { calculate: colour, as: "colour" }],
      layer: ["datum.role == 0", "datum.role > 0"].flatMap((filter, marked) => [  // answer and winner are drawn on top
        { transform: [{ filter }], mark: { type: "line", strokeWidth: marked ? 3 : 1.4 },
          encoding: { x, y, opacity, detail: { field: "hypothesis" }, stroke, order: { field: "step" } } },
        { transform: [{ filter }], mark: { type: "point", filled: true, size: marked ? 75 : 42 },
          encoding: { x, y, opacity, fill: stroke, tooltip: [{ field: "text", title: "hypothesis" },
            { field: "mean", format: ".2f", title: "expected utility" }, { field: "rate", format: ".3f", title: "win rate" }] } },
      ]),
    };
  }

  function cell(row, content, name) {
    const td = row.insertCell();
    if (content instanceof Node) td.append(content); else td.textContent = content;
    if (name) td.className = name;
    return td;
  }

  function tag(text, name) {
    const span = document.createElement("span");
    span.className = `tag ${name}`;
    span.textContent = text;
    return span;
  }

  function show() {
    const body = $("field").tBodies[0];
    body.replaceChildren();
    if (!run.steps.length) { $("state").textContent = "one hypothesis only: no race"; return; }
    const step = run.steps[at];
    const kept = new Set(step.kept);
    $("step").value = at;
    $("back").disabled = at === 0;
    $("forward").disabled = at === run.steps.length - 1;
    const over = at === run.steps.length - 1 ? `; decided after ${run.utility_calls.toLocaleString("en")} utility calls, rank ${run.rank} under R*` : "";
    $("state").textContent = `step ${at + 1} of ${run.steps.length}: ${step.pseudo_references} pseudo-references, ${step.alive.length} hypotheses, ${kept.size} stay${over}`;
    const order = step.alive.map((_, index) => index).sort((a, b) => step.means[b] - step.means[a]);
    const limit = all ? order.length : 14;
    $("more").hidden = order.length <= 14;
    $("more").textContent = all ? "Show the best only" : `Show all ${order.length}`;
    order.slice(0, limit).forEach((index, rank) => {
      const hypothesis = step.alive[index], row = body.insertRow();
      row.className = kept.has(index) ? (rank === 0 ? "leads" : "") : "out";
      cell(row, rank + 1);
      cell(row, (step.means[index] * file.scale).toFixed(2));
      const rate = document.createElement("span"), fill = document.createElement("i");
      rate.className = "rate";
      fill.style.width = `${100 * step.win_rates[index]}%`;
      rate.append(fill);
      cell(row, rate).append(step.win_rates[index].toFixed(3));
      const text = cell(row, sentence.hypotheses[hypothesis]);
      if (hypothesis === run.answer) text.append(tag("the answer", "answer"));
      if (hypothesis === sentence.winner) text.append(tag("best under R*", ""));
    });
    if (chart) chart.signal("step", at).runAsync();
  }

  function go(to) { at = Math.max(0, Math.min(run.steps.length - 1, to)); show(); }
  function stop() { clearInterval(timer); timer = null; $("play").textContent = "Play"; }
  function play() {
    if (timer) { stop(); return; }
    if (at === run.steps.length - 1) go(0);
    $("play").textContent = "Pause";
    timer = setInterval(() => { go(at + 1); if (at === run.steps.length - 1) stop(); }, 1100);
  }

  for (const id of ["pair", "utility", "alpha", "measure"]) $(id).addEventListener("change", choose);
  $("sentence").addEventListener("change", pick);
  $("race-alpha").addEventListener("change", start);
  $("step").addEventListener("input", () => { stop(); go(Number($("step").value)); });
  $("back").addEventListener("click", () => { stop(); go(at - 1); });
  $("forward").addEventListener("click", () => { stop(); go(at + 1); });
  $("play").addEventListener("click", play);
  $("more").addEventListener("click", () => { all = !all; show(); });
  draw().then(() => { document.documentElement.dataset.ready = "1"; });
})();
