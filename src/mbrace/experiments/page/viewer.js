// The race viewer steps through recorded races, or through one that is on (`live`, `add`, `end`: the page of `mbrace
// serve`); the answer is shown at the end.
const Viewer = (() => {
  "use strict";
  const $ = (id) => document.getElementById(id);
  const SHOWN = 10;
  const LEGEND = [{ name: "still racing", style: "open" }, { name: "out", style: "out" }, { name: "leads", style: "leads" }];
  const OUT = { name: "out", style: "out" };
  const OVER = [OUT, { name: "the answer", style: "answer" }, { name: "best under R*", style: "winner" }];
  const RIGHT = [OUT, { name: "the answer, also best under R*", style: "answer" }];
  const ANSWERED = [OUT, { name: "the answer", style: "answer" }];
  const RECORDED = { draws: "pseudo-references", texts: "hypotheses", one: "1 hypothesis", none: "One hypothesis only: no race." };
  const LIVE = { draws: "draws", texts: "answers", one: "1 answer", none: "One draw only: no race." };
  let file = null, sentence = null, run = null, at = 0, all = false, timer = null, set = null, changed = () => {};
  let words = RECORDED;

  function cell(row, content) {
    const made = row.insertCell();
    made.append(content);
    return made;
  }

  function tag(text, name) {
    const made = document.createElement("span");
    made.className = `tag ${name}`;
    made.textContent = text;
    return made;
  }

  const over = () => !run.open && at === run.steps.length - 1;
  const measured = (step, index) => (step.win_rates ? `win rate ${step.win_rates[index].toFixed(3)}` : `drawn ${step.copies[index]}x`);

  // A line for each hypothesis, up to the step that is shown.
  function chart() {
    const lines = new Map(), out = new Set();
    run.steps.slice(0, at + 1).forEach((step, number) => {
      const kept = new Set(step.kept);
      step.alive.forEach((hypothesis, index) => {
        if (!lines.has(hypothesis)) lines.set(hypothesis, []);
        lines.get(hypothesis).push({ x: step.pseudo_references, y: step.means[index] * file.scale, more: measured(step, index) });
        if (!kept.has(index)) out.add(hypothesis);
      });
      if (number === at && over()) for (const hypothesis of step.alive) if (hypothesis !== run.answer) out.add(hypothesis);
    });
    const step = run.steps[at], leader = step.alive[step.means.indexOf(Math.max(...step.means))];
    const style = (hypothesis) => {
      if (over() && hypothesis === run.answer) return "answer";
      if (over() && hypothesis === sentence.winner) return "winner";
      if (!over() && hypothesis === leader) return "leads";
      return out.has(hypothesis) ? "out" : "open";
    };
    const rank = { out: 0, open: 1, leads: 2, winner: 3, answer: 4 };
    const series = [...lines].map(([hypothesis, points]) => ({ name: sentence.hypotheses[hypothesis], style: style(hypothesis), joined: true, points }));
    for (const one of series) one.thin = rank[one.style] < 2;
    series.sort((a, b) => rank[a.style] - rank[b.style]);
    const means = run.steps.flatMap((one) => one.means).map((mean) => mean * file.scale);
    return {
      x: { title: `${words.draws} (log scale)`, log: true, ticks: run.steps.map((one) => one.pseudo_references), low: 0.9 * run.steps[0].pseudo_references, high: 1.1 * run.steps.at(-1).pseudo_references },
      y: { title: "expected utility so far", digits: 2, low: Math.min(...means), high: Math.max(...means) },
      series, legend: !over() ? LEGEND : sentence.winner === undefined ? ANSWERED : run.answer === sentence.winner ? RIGHT : OVER,
      describes: `Expected utility of the ${words.texts} against ${words.draws}, up to step ${at + 1} of ${run.steps.length}.`,
    };
  }

  function show() {
    const body = $("field").tBodies[0];
    body.replaceChildren();
    $("verdict").hidden = true;
    for (const id of ["back", "forward", "play", "step"]) $(id).disabled = !run.steps.length;
    if (!run.steps.length) {
      $("state").textContent = words.none;
      $("more").hidden = true;
      set(null);
      if (run.told) tell();
      return;
    }
    const step = run.steps[at], kept = new Set(step.kept);
    $("step").value = at;
    $("step").setAttribute("aria-valuetext", `step ${at + 1} of ${run.steps.length}`);
    $("back").disabled = at === 0;
    $("forward").disabled = at === run.steps.length - 1;
    $("state").textContent = `Step ${at + 1} of ${run.steps.length}: ${step.pseudo_references} ${words.draws}, ${step.alive.length === 1 ? words.one : `${step.alive.length} ${words.texts}`}, ${kept.size} stay.`;
    const order = step.alive.map((_, index) => index).sort((a, b) => step.means[b] - step.means[a]);
    $("more").hidden = order.length <= SHOWN;
    $("more").textContent = all ? "Show the best only" : `Show all ${order.length} ${words.texts}`;
    order.slice(0, all ? order.length : SHOWN).forEach((index, rank) => {
      const hypothesis = step.alive[index], row = body.insertRow();
      row.className = kept.has(index) ? (rank === 0 ? "leads" : "") : "out";
      cell(row, rank + 1);
      cell(row, (step.means[index] * file.scale).toFixed(2));
      const rate = document.createElement("span"), fill = document.createElement("i");
      rate.className = "rate";
      fill.style.width = `${100 * (step.win_rates ? step.win_rates[index] : step.copies[index] / step.pseudo_references)}%`;
      rate.append(fill);
      cell(row, rate).append(step.win_rates ? step.win_rates[index].toFixed(3) : step.copies[index]);
      const text = cell(row, sentence.hypotheses[hypothesis]);
      if (!kept.has(index)) text.append(tag("out", "gone"));
      if (over() && hypothesis === run.answer) text.append(tag("the answer", "answer"));
      if (over() && hypothesis === sentence.winner) text.append(tag("best under R*", "winner"));
    });
    if (over()) tell();
    set(chart());
  }

  function tell() {
    const right = run.answer === sentence.winner;
    $("answer").textContent = sentence.hypotheses[run.answer];
    $("told").textContent = run.told || `Decided after ${run.utility_calls.toLocaleString("en")} utility calls. ` + (right ? "It is also the best under R*."
      : `Under R* it has rank ${run.rank}; the best there is “${sentence.hypotheses[sentence.winner]}”.`);
    $("verdict").hidden = false;
  }

  function go(to) { at = Math.max(0, Math.min(run.steps.length - 1, to)); show(); changed(); }
  function stop() { clearInterval(timer); timer = null; $("play").textContent = "Play"; }
  function play() {
    if (timer) { stop(); return; }
    if (!run.steps.length) return;
    if (over()) go(0);
    $("play").textContent = "Pause";
    timer = setInterval(() => { go(at + 1); if (over()) stop(); }, 1100);
  }

  function start(step) {
    stop();
    run = sentence.races[$("alpha").value];
    at = Math.max(0, Math.min(run.steps.length - 1, step));
    $("step").max = Math.max(0, run.steps.length - 1);
    show();
  }

  // A race that is on: its steps are added as they come, and shown unless somebody looks at an earlier one.
  function live() {
    stop();
    words = LIVE;
    file = { scale: 1 };
    sentence = { hypotheses: [] };
    run = { steps: [], open: true };
    at = 0;
    show();
  }

  function add(step, texts) {
    step.alive.forEach((hypothesis, index) => { sentence.hypotheses[hypothesis] = texts[index]; });
    if (at >= run.steps.length - 1) at = run.steps.length;
    run.steps.push(step);
    $("step").max = run.steps.length - 1;
    show();
  }

  function end(answer, told) {
    run.open = false;
    run.told = told;
    run.answer = sentence.hypotheses.indexOf(answer);
    if (run.answer < 0) run.answer = sentence.hypotheses.push(answer) - 1;
    show();
  }

  // Show sentence `number` (from 1) of a file's recorded races, at an alpha if it was raced with it.
  function open(races, number, alpha, step = 0) {
    if (file !== races) {
      file = races;
      const label = (one, index) => `${index + 1}. ${one.source || one.reference || one.hypotheses[0]}`;
      $("sentence").replaceChildren(...file.sentences.map((one, index) => new Option(label(one, index), index + 1)));
    }
    if (file.sentences[number - 1]) $("sentence").value = number;
    sentence = file.sentences[Number($("sentence").value) - 1];
    const before = $("alpha").value;
    $("alpha").replaceChildren(...Object.keys(sentence.races).sort().reverse().map((name) => new Option(name)));
    $("alpha").value = alpha in sentence.races ? alpha : before in sentence.races ? before : $("alpha").options[0].value;
    for (const name of ["source", "reference"]) {
      $(name).textContent = sentence[name] || "";
      $(name).hidden = $(name).previousElementSibling.hidden = !sentence[name];
    }
    start(step);
  }

  // Called once; `whenChanged` is told of every step and choice.
  function begin(whenChanged = () => {}) {
    set = Charts.fill($("race"));
    changed = whenChanged;
    $("sentence")?.addEventListener("change", () => { open(file, Number($("sentence").value), $("alpha").value); changed(); });
    $("alpha")?.addEventListener("change", () => { start(0); changed(); });
    $("step").addEventListener("input", () => { stop(); go(Number($("step").value)); });
    $("back").addEventListener("click", () => { stop(); go(at - 1); });
    $("forward").addEventListener("click", () => { stop(); go(at + 1); });
    $("play").addEventListener("click", play);
    $("more").addEventListener("click", () => { all = !all; show(); });
  }

  return { begin, open, live, add, end, play: () => { if (!timer) play(); }, step: () => at + 1 };
})();
