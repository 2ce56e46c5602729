// Charts of points with intervals as SVG. A chart is data made by mbrace.experiments.charts; colours are report.css's.
// Each chart is read by pointer (nearest point), by keyboard (arrow keys) and as a table of its numbers.
const Charts = (() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const SHAPES = {
    alpha80: "circle", alpha90: "square", alpha95: "up", alpha98: "diamond", alpha99: "down", alpha: "circle", beta: "square",
    open: "circle", out: "circle", leads: "square", winner: "diamond", answer: "up",
  };
  const OUTLINES = {  // of radius 1
    circle: "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0-1 0Z", square: "M-.9-.9H.9V.9H-.9Z", up: "M0-1.2L1.1.9H-1.1Z", down: "M0 1.2L1.1-.9H-1.1Z",
    diamond: "M0-1.3L1.3 0L0 1.3L-1.3 0Z",
  };

  function make(name, attributes = {}, ...inside) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  }

  function html(name, className, text = "") {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.textContent = text;
    return made;
  }

  const marker = (style, radius) => make("path", { class: "marker", d: OUTLINES[SHAPES[style] || "circle"], transform: `scale(${radius})` });

  function short(value) {
    if (Math.abs(value) >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
    if (Math.abs(value) >= 1000) return `${Number((value / 1000).toPrecision(3))}k`;
    return String(Number(value.toPrecision(4)));
  }

  const full = (value, axis) => (axis.digits === undefined ? Number(value.toPrecision(4)).toLocaleString("en")
    : value.toLocaleString("en", { minimumFractionDigits: axis.digits, maximumFractionDigits: axis.digits }));
  const calls = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3)).toLocaleString("en"));

  // A scale from values to pixels, with ticks.
  function scaled(axis, values, start, end) {
    const usable = values.filter((value) => Number.isFinite(value) && (!axis.log || value > 0));
    const forward = axis.log ? Math.log : (value) => value, back = axis.log ? Math.exp : (value) => value;
    let low = forward(axis.low ?? Math.min(...usable)), high = forward(axis.high ?? Math.max(...usable));
    if (!(high > low)) { low -= 0.3; high += 0.3; }
    const room = 0.05 * (high - low);
    if (axis.low === undefined) low -= room;
    if (axis.high === undefined) high += room;
    const at = (value) => start + (forward(value) - low) / (high - low) * (end - start);
    const inside = (value) => forward(value) >= low - 1e-9 && forward(value) <= high + 1e-9;
    const ticks = (axis.ticks || (axis.log ? logTicks(back(low), back(high)) : evenTicks(low, high))).filter(inside);
    return { at, inside, ticks };
  }

  function evenTicks(low, high) {
    const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((times) => times * power >= rough) * power;
    const found = [];
    for (let number = Math.ceil(low / step); number * step <= high + 1e-12; number++) found.push(Number((number * step).toPrecision(6)));
    return found;
  }

  function logTicks(low, high) {
    let found = [];
    for (const steps of [[1], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7]]) {
      found = [];
      for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) {
        for (const step of steps) if (step * 10 ** power >= low && step * 10 ** power <= high) found.push(Number((step * 10 ** power).toPrecision(3)));
      }
      if (found.length >= 3) return found;
    }
    return found.length >= 2 ? found : evenTicks(low, high);
  }

  function said(spec, series, point) {
    const interval = point.low === undefined ? "" : ` (${spec.interval || "95% interval"} ${full(point.low, spec.y)} to ${full(point.high, spec.y)})`;
    const name = [series.name, point.label].filter(Boolean).join(" ");
    const bare = (title) => title.replace(" (log scale)", "");
    const lines = [name, `${bare(spec.x.title)}: ${calls(point.x)}`, `${bare(spec.y.title)}: ${full(point.y, spec.y)}${interval}`];
    return point.more ? [...lines, point.more] : lines;
  }

  // What labels may not cover: markers, intervals, and lines as a row of small boxes.
  function obstacles(marks, dashed, left, right) {
    const taken = dashed.map((y) => [left, y - 1, right, y + 1]);
    marks.forEach((mark, number) => {
      taken.push([mark.x - 5, mark.y - 5, mark.x + 5, mark.y + 5]);
      if (mark.span) taken.push([mark.x - 1, mark.span[1], mark.x + 1, mark.span[0]]);
      const next = marks[number + 1];
      if (!mark.series.joined || next?.series !== mark.series) return;
      const parts = Math.ceil(Math.hypot(next.x - mark.x, next.y - mark.y) / 5);
      for (let part = 1; part < parts; part++) {
        const [x, y] = [mark.x + (next.x - mark.x) * part / parts, mark.y + (next.y - mark.y) * part / parts];
        taken.push([x - 1, y - 1, x + 1, y + 1]);
      }
    });
    return taken;
  }

  // Labels that cover nothing; one without room is left out (its point still says it).
  function placeLabels(marks, taken, left, right, foot) {
    const free = (box) => taken.every((other) => box[2] <= other[0] || other[2] <= box[0] || box[3] <= other[1] || other[3] <= box[1]);
    for (const { x, y, point, group } of marks) {
      if (!point.label) continue;
      const width = 6.4 * point.label.length + 2;
      const spots = [[-width / 2, -19], [-width / 2, 8], [8, -6], [-8 - width, -6], [5, -17], [-5 - width, -17], [5, 6], [-5 - width, 6], [-width / 2, -26], [-width / 2, 15], [13, -6], [-13 - width, -6]];
      const spot = spots.map(([dx, dy]) => [x + dx, y + dy, x + dx + width, y + dy + 12]).find((box) => box[0] >= left && box[2] <= right && box[1] >= 16 && box[3] <= foot && free(box));
      if (!spot) continue;
      taken.push(spot);
      group.append(make("text", { class: "label", x: spot[0] + 1, y: spot[1] + 10 }, point.label));
    }
  }

  function draw(plot, spec) {
    const width = Math.max(260, plot.clientWidth), height = width < 480 ? 270 : 320;
    const shown = spec.series.map((series) => ({ ...series, points: series.points.filter((p) => Number.isFinite(p.y) && (!spec.x.log || p.x > 0) && (!spec.y.log || p.y > 0)) })).filter((series) => series.points.length);
    plot.querySelector("svg")?.remove();
    plot.classList.toggle("empty", !shown.length);
    if (!shown.length) return [];
    const all = shown.flatMap((series) => series.points);
    const heights = all.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]).concat((spec.lines || []).map((line) => line.y));
    const foot = height - 44;
    const rough = scaled(spec.y, heights, foot, 30);
    const left = 14 + 7 * Math.max(...rough.ticks.map((tick) => short(tick).length));
    const y = rough, x = scaled(spec.x, all.map((p) => p.x), left, width - 12);
    const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const tick of y.ticks) {
      svg.append(make("line", { class: "grid", x1: left, x2: width - 12, y1: y.at(tick), y2: y.at(tick) }), make("text", { x: left - 6, y: y.at(tick) + 4, "text-anchor": "end" }, short(tick)));
    }
    let last = -Infinity;
    for (const tick of x.ticks) {
      const at = x.at(tick), half = 3.5 * short(tick).length + 2;
      svg.append(make("line", { class: "grid", x1: at, x2: at, y1: foot, y2: foot + 4 }));
      if (at - half < last || at + half > width) continue;
      last = at + half;
      svg.append(make("text", { x: at, y: foot + 17, "text-anchor": "middle" }, short(tick)));
    }
    svg.append(make("line", { class: "axis", x1: left, x2: width - 12, y1: foot, y2: foot }));
    svg.append(make("text", { class: "title", x: 2, y: 14 }, spec.y.title), make("text", { class: "title", x: width - 12, y: height - 6, "text-anchor": "end" }, spec.x.title));
    for (const line of spec.lines || []) svg.append(make("line", { class: "standard", x1: left, x2: width - 12, y1: y.at(line.y), y2: y.at(line.y) }));
    const marks = [];
    shown.forEach((series, number) => {
      const shift = series.dodge ? 5 * (number - (shown.length - 1) / 2) : 0;
      const group = make("g", { class: `series ${series.style}` });
      const place = (p) => [x.at(p.x) + shift, y.at(p.y)];
      if (series.band && series.points[0].low !== undefined) {
        const edge = (name) => series.points.map((p) => `${x.at(p.x)} ${y.at(p[name])}`);
        group.append(make("path", { class: "band", d: `M${[...edge("low"), ...edge("high").reverse()].join("L")}Z` }));
      }
      for (const p of series.points) {
        const [px, py] = place(p);
        if (!series.band && p.low !== undefined) group.append(make("line", { class: "interval", x1: px, x2: px, y1: y.at(spec.y.log ? Math.max(p.low, spec.y.low || 1e-9) : p.low), y2: y.at(p.high) }));
      }
      if (series.joined) group.append(make("path", { class: "line", d: `M${series.points.map((p) => place(p).join(" ")).join("L")}` }));
      for (const p of series.points) {
        const [px, py] = place(p);
        group.append(make("g", { transform: `translate(${px} ${py})` }, marker(series.style, series.thin ? 2.6 : 4.2)));
        const span = series.band || p.low === undefined || spec.y.log ? null : [y.at(p.low), y.at(p.high)];
        marks.push({ x: px, y: py, series, point: p, group, span });
      }
      svg.append(group);
    });
    if (all.some((p) => p.label)) placeLabels(marks, obstacles(marks, (spec.lines || []).map((line) => y.at(line.y)), left, width - 12), left, width, foot);
    plot.prepend(svg);
    return marks;
  }

  function legend(spec) {
    const list = html("ul", "legend");
    const add = (swatch, name) => { const item = html("li"); item.append(swatch, name); list.append(item); };
    const small = (style, ...inside) => make("svg", { width: 22, height: 14, class: `series ${style}`, "aria-hidden": "true" }, ...inside);
    for (const series of spec.legend || spec.series) {
      add(small(series.style, make("path", { class: "line", d: "M0 7H22" }), make("g", { transform: "translate(11 7)" }, marker(series.style, 4.2))), series.name);
    }
    for (const line of spec.lines || []) add(small("", make("line", { class: "standard", x1: 0, x2: 22, y1: 7, y2: 7 })), line.name);
    return list;
  }

  function table(spec) {
    const made = html("table", "numbers"), head = made.createTHead().insertRow(), body = made.createTBody();
    const labelled = spec.series.some((series) => series.points.some((p) => p.label));
    const ranged = spec.series.some((series) => series.points.some((p) => p.low !== undefined));
    for (const title of ["series", ...(labelled ? ["setting"] : []), spec.x.title.replace(" (log scale)", ""), spec.y.title.replace(" (log scale)", ""), ...(ranged ? [spec.interval || "95% interval"] : [])]) {
      const cell = html("th", "", title);
      cell.scope = "col";
      head.append(cell);
    }
    for (const series of spec.series) for (const p of series.points) {
      const row = body.insertRow(), first = html("th", "", series.name);
      first.scope = "row";
      row.append(first);
      if (labelled) row.insertCell().textContent = p.label || "";
      row.insertCell().textContent = calls(p.x);
      row.insertCell().textContent = full(p.y, spec.y);
      if (ranged) row.insertCell().textContent = p.low === undefined ? "" : `${full(p.low, spec.y)} to ${full(p.high, spec.y)}`;
    }
    return made;
  }

  // Fill a figure: `set(spec)` draws another chart in it.
  function fill(figure) {
    let spec = null, marks = [], at = -1, drawn = 0;
    const keys = html("div"), plot = html("div", "plot"), tip = html("div", "tip"), status = html("div", "unseen");
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-roledescription", "chart");
    status.setAttribute("role", "status");
    tip.hidden = true;
    tip.setAttribute("aria-hidden", "true");
    plot.append(tip);
    figure.append(keys, plot, status);
    let numbers = null;
    if (figure.dataset.table !== "no") {
      numbers = html("details", "table-of");
      const scroll = html("div", "scroll");
      scroll.tabIndex = 0;
      scroll.setAttribute("role", "region");
      numbers.append(html("summary", "", "The numbers as a table"), scroll);
      numbers.addEventListener("toggle", () => { if (numbers.open) scroll.replaceChildren(table(spec)); });
      figure.append(numbers);
    }

    function point(number, spoken) {
      at = number;
      plot.querySelector(".pointed")?.remove();
      tip.hidden = number < 0;
      if (number < 0) return;
      const mark = marks[number], lines = said(spec, mark.series, mark.point);
      tip.replaceChildren(...lines.map((line, index) => html(index ? "div" : "b", "", line)));
      plot.querySelector("svg").append(make("circle", { class: "pointed", cx: mark.x, cy: mark.y, r: 8 }));
      tip.style.left = `${Math.max(0, Math.min(mark.x + 12, plot.clientWidth - tip.offsetWidth))}px`;
      tip.style.top = `${mark.y - tip.offsetHeight - 12 > 0 ? mark.y - tip.offsetHeight - 12 : mark.y + 14}px`;
      if (spoken) status.textContent = lines.join("; ");
    }

    function nearest(event) {
      const box = plot.getBoundingClientRect();
      let best = -1, least = 28;
      marks.forEach((mark, number) => {
        const distance = Math.hypot(mark.x - event.clientX + box.left, mark.y - event.clientY + box.top);
        if (distance < least) { least = distance; best = number; }
      });
      point(best, false);
    }

    function move(event) {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const to = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") { point(-1); return; }
      if (!marks.length || (step === undefined && to === undefined)) return;
      event.preventDefault();
      if (at < 0) { point(0, true); return; }
      if (step) { point(Math.max(0, Math.min(marks.length - 1, at + step)), true); return; }
      const names = [...new Set(marks.map((mark) => mark.series.name))];
      const name = names[names.indexOf(marks[at].series.name) + to];
      if (name !== undefined) point(marks.findIndex((mark) => mark.series.name === name), true);
    }

    function redraw() {
      if (!spec || !plot.clientWidth) return;
      drawn = plot.clientWidth;
      marks = draw(plot, spec);
      point(-1);
    }

    plot.addEventListener("pointermove", nearest);
    plot.addEventListener("pointerdown", nearest);
    plot.addEventListener("pointerleave", () => point(-1));
    plot.addEventListener("keydown", move);
    plot.addEventListener("blur", () => point(-1));
    new ResizeObserver(() => { if (plot.clientWidth !== drawn) redraw(); }).observe(plot);
    return (chosen) => {
      spec = chosen;
      figure.hidden = !spec;
      if (!spec) return;
      plot.setAttribute("aria-label", `${spec.describes} Arrow keys move from point to point.`);
      keys.replaceChildren(legend(spec));
      if (numbers) {
        numbers.lastChild.setAttribute("aria-label", `Numbers of the chart: ${spec.describes}`);
        if (numbers.open) numbers.lastChild.replaceChildren(table(spec));
      }
      redraw();
    };
  }

  return { fill };
})();
