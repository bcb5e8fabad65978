"use strict";
// The page of a report. What a sweep gave is in #data: base64 of gzip of JSON (mercer.experiments.report).

const PAGE = 50; // rows of the leaderboard at a time
const SHOWN = 12; // pictures, and learning curves
const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888"];
const PARTS = { train: "#4477aa", validation: "#228833", test: "#ee8833" };
const $ = (selector, within = document) => within.querySelector(selector);

let report; // all of it
let view; // what is asked for: {by, over, each, filters, find, column, worst, rows}

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const found = JSON.parse(await new Response(stream).text());
  found.cells = found.cells.map(([identity, chosen, state, scores]) => ({ identity, chosen, state, scores }));
  return found;
}

function element(name, properties = {}, ...children) {
  const found = Object.assign(document.createElement(name), properties);
  found.append(...children);
  return found;
}

// ---- cells, and rows that are averages of them

const labelOf = (cell, i) => (cell.chosen[i] === null ? "–" : report.settings[i].labels[cell.chosen[i]]);

function badness(score, value) {
  const goal = report.goals[score];
  if (value === null || Number.isNaN(value)) return Infinity;
  return goal === "smaller" ? value : goal === "larger" ? -value : Math.abs(value - goal);
}

function left() {
  const words = view.find.toLowerCase().split(/\s+/).filter(Boolean);
  return report.cells.filter(
    (cell) =>
      cell.state === "finished" &&
      view.filters.every((choice, i) => choice === "" || cell.chosen[i] === Number(choice)) &&
      words.every((word) => cell.chosen.some((_, i) => labelOf(cell, i).toLowerCase().includes(word)) || cell.identity.startsWith(word)),
  );
}

function moments(values) {
  const known = values.filter((value) => value !== null);
  const num = known.length;
  if (num < values.length || num === 0) return { mean: null, error: null };
  const mean = known.reduce((a, b) => a + b, 0) / num;
  const square = known.reduce((a, b) => a + (b - mean) ** 2, 0);
  return { mean, error: num > 1 ? Math.sqrt(square / (num - 1) / num) : null };
}

function grouped(items, key) {
  const found = new Map();
  for (const item of items) {
    const name = key(item);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(item);
  }
  return [...found.values()];
}

// The scores in the order of their columns: that by which rows are sorted first.
const columns = () => report.scores.map((_, s) => s).sort((a, b) => (report.scores[b] === view.by) - (report.scores[a] === view.by));

const settingsOfRows = () => report.settings.map((_, i) => i).filter((i) => !view.over.has(i));

function rows() {
  const kept = settingsOfRows();
  let found = grouped(left(), (cell) => kept.map((i) => cell.chosen[i]).join()).map((cells) => ({
    cells,
    scores: report.scores.map((_, s) => moments(cells.map((cell) => cell.scores[s]))),
  }));
  const score = report.scores.indexOf(view.by);
  const rank = (row) => (score < 0 ? 0 : badness(view.by, row.scores[score].mean));
  found.sort((a, b) => rank(a) - rank(b));
  if (view.each.size)
    found = grouped(found, (row) => [...view.each].map((i) => row.cells[0].chosen[i]).join()).map((some) => some[0]);
  return found;
}

function sorted(found) {
  if (view.column === null) return found;
  const [kind, i] = view.column;
  const key = kind === "score" ? (row) => badness(report.scores[i], row.scores[i].mean) : (row) => row.cells[0].chosen[i] ?? -1;
  const order = [...found].sort((a, b) => key(a) - key(b));
  return view.worst ? order.reverse() : order;
}

// ---- the leaderboard

const number = (value) => (value === null ? "–" : Number(value.toPrecision(4)).toString());
const settingsOf = (cell, some) => some.map((i) => `${report.settings[i].short} ${labelOf(cell, i)}`).join(", ");

function changed() {
  const found = rows();
  drawTable(sorted(found));
  drawEffects();
  drawCurves(found);
  drawFits(found);
}

function drawTable(found) {
  const kept = settingsOfRows();
  const several = found.some((row) => row.cells.length > 1);
  const head = element("tr");
  const column = (text, name, title) => {
    const same = view.column !== null && view.column.join() === name.join();
    const cell = element("th", { title, scope: "col" }, element("button", { type: "button", textContent: text }));
    if (same) cell.ariaSort = view.worst ? "descending" : "ascending";
    cell.firstChild.onclick = () => {
      view.worst = same && !view.worst;
      view.column = name;
      drawTable(sorted(found));
    };
    head.append(cell);
  };
  for (const i of kept) column(report.settings[i].short, ["setting", i], report.settings[i].path);
  if (several) head.append(element("th", { textContent: "cells", scope: "col" }));
  for (const i of columns()) column(report.scores[i], ["score", i], `${report.scores[i]}, best first`);
  $("#leaderboard thead").replaceChildren(head);
  $("#leaderboard tbody").replaceChildren(...found.slice(0, view.rows).map((row) => tableRow(row, kept, several)));
  $("#more").hidden = found.length <= view.rows;
  const spread = several ? "; ± is one standard error of the mean" : "";
  $("#rows").textContent = `${found.length} row${found.length === 1 ? "" : "s"}${spread}`;
}

function tableRow(row, kept, several) {
  const line = element("tr", { tabIndex: 0 });
  for (const i of kept) line.append(element("td", { textContent: labelOf(row.cells[0], i) }));
  if (several) line.append(element("td", { className: "number", textContent: row.cells.length }));
  for (const { mean, error } of columns().map((s) => row.scores[s])) {
    const cell = element("td", { className: "number", textContent: number(mean) });
    if (error !== null) cell.append(element("span", { className: "spread", textContent: ` ± ${Number(error.toPrecision(2))}` }));
    line.append(cell);
  }
  line.onclick = () => showCell(pictured(row) ?? row.cells[0], row);
  line.onkeydown = (event) => event.key === "Enter" && line.onclick();
  return line;
}

// ---- pictures

function layout(extra) {
  const style = getComputedStyle(document.documentElement);
  const [text, line] = ["--text", "--line"].map((name) => style.getPropertyValue(name).trim());
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true };
  const { xaxis = {}, yaxis = {}, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: text, size: 12 }, colorway: COLOURS,
    margin: { l: 50, r: 10, t: 10, b: 40 }, showlegend: false, hovermode: "closest",
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}

const draw = (place, traces, extra = {}) =>
  Plotly.react(place, traces, layout(extra), { responsive: true, displaylogo: false, displayModeBar: false });

const onItsOwn = (title) => element("div", {}, element("h3", { textContent: title }), element("div", { className: "plot" }));

function range(values, goal) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  const at = (share) => known[Math.round(share * (known.length - 1))];
  const low = goal === "larger" ? at(0.05) : known[0];
  const high = goal === "smaller" ? at(0.95) : known[known.length - 1];
  const margin = 0.05 * (high - low) || 0.1 * Math.abs(high) || 1;
  return [low - margin, high + margin];
}

function drawEffects() {
  const grid = $("#effects .grid");
  grid.replaceChildren();
  const cells = left();
  const score = report.scores.indexOf(view.by);
  const values = cells.map((cell) => cell.scores[score]);
  $("#effects").hidden = score < 0 || cells.length < 2;
  if ($("#effects").hidden) return;
  report.settings.forEach((setting, i) => {
    const used = grouped(cells, (cell) => cell.chosen[i]).sort((a, b) => a[0].chosen[i] - b[0].chosen[i]);
    if (used.length < 2) return;
    const box = onItsOwn(setting.short);
    grid.append(box);
    const traces = used.map((some) => ({
      type: "box", name: labelOf(some[0], i), y: some.map((cell) => cell.scores[score]),
      boxpoints: some.length <= 40 ? "all" : "outliers", jitter: 0.4, pointpos: 0, marker: { size: 4 },
    }));
    const yaxis = { title: { text: view.by }, range: range(values, report.goals[view.by]) };
    draw(box.lastChild, traces, { xaxis: { type: "category" }, yaxis });
  });
}

const pictured = (row) => row.cells.find((cell) => cell.identity in report.pictures);

function curveOf(cell, name) {
  return Object.entries(report.histories[cell.identity]).map(([stage, { steps, values }]) => ({
    type: "scatter", mode: "lines", name: name ?? stage, x: steps, y: values, line: { width: 1.5 },
  }));
}

function drawCurves(found) {
  const kept = settingsOfRows().filter((i) => new Set(found.map((row) => row.cells[0].chosen[i])).size > 1);
  const shown = found.filter(pictured).slice(0, SHOWN);
  const traces = shown.flatMap((row) => curveOf(pictured(row), settingsOf(pictured(row), kept)));
  $("#curves").hidden = traces.length === 0;
  $("#curves .note").textContent = `The objective in training, of the first ${shown.length === 1 ? "row that has" : `${shown.length} rows that have`} a curve in this report.`;
  if (traces.length)
    draw($("#curves .chart"), traces, {
      xaxis: { title: { text: "step" } }, yaxis: { title: { text: "objective" }, range: range(traces.flatMap((t) => t.y), "smaller") },
    });
}

function drawPicture(place, cell) {
  const found = report.pictures[cell.identity];
  if ("levels" in found) {
    const line = { type: "scatter", mode: "lines+markers", x: found.levels, y: found.held, marker: { size: 4 } };
    const even = { type: "scatter", mode: "lines", x: [0, 1], y: [0, 1], line: { color: "#999", width: 1 }, hoverinfo: "skip" };
    const [x, y] = found.axes;
    draw(place, [even, line], { xaxis: { title: { text: x }, range: [0, 1] }, yaxis: { title: { text: y }, range: [0, 1] } });
    return;
  }
  const edge = (sign) => found.mean.map((mean, i) => mean + sign * 2 * found.sd[i]);
  const band = { type: "scatter", x: found.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
  const traces = [
    { ...band, y: edge(-1) },
    { ...band, y: edge(1), fill: "tonexty", fillcolor: "rgba(128,128,128,0.28)" },
    ...Object.entries(PARTS).map(([part, color]) => ({
      type: "scatter", mode: "markers", name: part, ...report.data[found.data][part], marker: { size: 3, color }, showlegend: true,
    })),
    { type: "scatter", mode: "lines", name: "mean", x: found.x, y: found.mean, line: { width: 2, color: COLOURS[1] } },
  ];
  traces.slice(0, 2).concat(traces.at(-1)).forEach((trace) => (trace.showlegend = false));
  draw(place, traces, { showlegend: true, legend: { orientation: "h", y: 1.12, itemsizing: "constant" } });
}

function drawFits(found) {
  const grid = $("#fits .grid");
  grid.replaceChildren();
  const shown = found.map(pictured).filter(Boolean).slice(0, SHOWN);
  $("#fits").hidden = shown.length === 0;
  for (const cell of shown) {
    const box = onItsOwn(settingsOf(cell, report.settings.map((_, i) => i)));
    grid.append(box);
    drawPicture(box.lastChild, cell);
  }
}

// ---- one cell

function place(tree, path, value) {
  const parts = path.replace(/\]$/, "").split(/[.[\]]+/);
  const last = parts.pop();
  parts.reduce((inside, part) => inside[part], tree)[last] = value;
}

function yaml(value, indent = "") {
  if (typeof value === "string") return value;
  if (Array.isArray(value) && value.every((item) => typeof item === "string")) return `[${value.join(", ")}]`;
  const entries = Array.isArray(value) ? value.map((item) => ["-", item]) : Object.entries(value).map(([key, item]) => [`${key}:`, item]);
  if (!entries.length) return "{}";
  const nested = (item) => typeof item === "object" && !(Array.isArray(item) ? item.every((one) => typeof one === "string") : !Object.keys(item).length);
  return entries.map(([key, item]) => (nested(item) ? `${indent}${key}\n${yaml(item, `${indent}  `)}` : `${indent}${key} ${yaml(item)}`)).join("\n");
}

function flow(value) {
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return `[${value.map(flow).join(", ")}]`;
  return `{${Object.entries(value).map(([key, item]) => `${key}: ${flow(item)}`).join(", ")}}`;
}

const quoted = (text) => (/^[\w.,:=/+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

function configuration(cell) {
  const tree = structuredClone(report.experiment);
  report.settings.forEach(({ path, values }, i) => cell.chosen[i] !== null && place(tree, path, values[cell.chosen[i]]));
  return `${yaml(tree)}\n`;
}

function command(cell) {
  if (report.commands.run === null) return `mercer run ${cell.identity.slice(0, 12)}.yaml  # the configuration below, in a file`;
  const changes = report.settings.flatMap(({ path, values }, i) =>
    cell.chosen[i] === null ? [] : [quoted(`${path}=${flow(values[cell.chosen[i]])}`)]);
  return [report.commands.run, ...changes].join(" ");
}

function showCell(cell, row = { cells: [cell] }) {
  const dialog = $("#cell");
  $("h2", dialog).textContent = settingsOf(cell, report.settings.map((_, i) => i));
  const among = row.cells.length > 1 ? `, one of the ${row.cells.length} of its row` : "";
  $(".among", dialog).textContent = `cell ${cell.identity}, ${cell.state}${among}`;
  const lines = report.scores.map((name, i) => [name, cell.scores[i]]).filter(() => cell.state === "finished");
  $("table", dialog).replaceChildren(
    ...lines.map(([name, value]) => element("tr", {}, element("td", { textContent: name }), element("td", { className: "number", textContent: number(value) }))));
  $(".command", dialog).textContent = command(cell);
  $(".configuration", dialog).textContent = configuration(cell);
  const failure = report.failures[cell.identity];
  $(".traceback", dialog).textContent = failure ? `${failure.time} ${failure.reason}\n\n${failure.traceback}` : "";
  for (const name of [".picture", ".curve"]) $(name, dialog).replaceWith(element("div", { className: name.slice(1) }));
  dialog.showModal();
  if (cell.identity in report.pictures) {
    $(".picture", dialog).append(element("div", { className: "plot" }));
    $(".curve", dialog).append(element("div", { className: "plot" }));
    for (const plot of dialog.querySelectorAll(".plot")) plot.style.height = "18rem";
    drawPicture($(".picture .plot", dialog), cell);
    draw($(".curve .plot", dialog), curveOf(cell), { xaxis: { title: { text: "step" } }, yaxis: { title: { text: "objective" } } });
  }
}

async function copy(button) {
  const place = $(button.dataset.copy, $("#cell"));
  try {
    await navigator.clipboard.writeText(place.textContent);
  } catch {
    getSelection().selectAllChildren(place);
    document.execCommand("copy");
  }
  const text = button.textContent;
  button.textContent = "copied";
  setTimeout(() => (button.textContent = text), 1200);
}

// ---- what is there only once

function drawStates() {
  const states = ["finished", "failed", "running", "missing"].map((state) => [state, report.cells.filter((cell) => cell.state === state).length]);
  const said = states.filter(([, num]) => num).map(([state, num]) => `${num} ${state}`).join(", ");
  $("#summary").textContent = `${report.cells.length} cells: ${said}. Written ${report.made}.`;
  $("#states").ariaLabel = said;
  for (const [state, num] of states.filter(([, num]) => num))
    $("#states").append(element("span", { className: state, textContent: num, title: `${num} ${state}`, style: `flex: ${num}` }));
}

function drawFailed() {
  const broken = report.cells.filter((cell) => cell.state !== "finished");
  $("#failed").hidden = broken.length === 0;
  const head = element("thead", {}, element("tr", {}, ...["cell", "state", "why"].map((text) => element("th", { textContent: text }))));
  const lines = broken.slice(0, 500).map((cell) => {
    const texts = [settingsOf(cell, report.settings.map((_, i) => i)), cell.state, report.failures[cell.identity]?.reason ?? ""];
    const line = element("tr", { tabIndex: 0, onclick: () => showCell(cell) }, ...texts.map((text) => element("td", { textContent: text })));
    line.onkeydown = (event) => event.key === "Enter" && showCell(cell);
    return line;
  });
  const more = broken.length > lines.length ? `And ${broken.length - lines.length} more. ` : "";
  $("#failed .wide").replaceChildren(element("table", {}, head, element("tbody", {}, ...lines)),
    element("p", { textContent: `${more}To go on with what is missing:` }), element("pre", { textContent: report.commands.resume }));
}

function drawControls() {
  $("#by").append(...report.scores.map((name) => element("option", { textContent: name, selected: name === view.by })));
  $("#by").onchange = (event) => ((view.by = event.target.value), (view.column = null), changed());
  let waiting;
  $("#find").oninput = (event) => {
    view.find = event.target.value;
    clearTimeout(waiting);
    waiting = setTimeout(changed, 150);
  };
  report.settings.forEach((setting, i) => {
    const options = setting.labels.map((label, value) => element("option", { value, textContent: label }));
    const choice = element("select", { title: setting.path }, element("option", { value: "", textContent: "all" }), ...options);
    choice.onchange = () => ((view.filters[i] = choice.value), changed());
    $("#filters").append(element("label", {}, `${setting.short} `, choice));
    for (const name of ["over", "each"]) {
      const box = element("input", { type: "checkbox", checked: view[name].has(i) });
      box.onchange = () => (box.checked ? view[name].add(i) : view[name].delete(i), changed());
      $(`#${name}`).append(element("label", {}, box, ` ${setting.short}`));
    }
  });
  $("#more").onclick = () => ((view.rows += PAGE), drawTable(sorted(rows())));
  for (const button of document.querySelectorAll("[data-copy]")) button.onclick = () => copy(button);
}

function paint(theme) {
  document.documentElement.dataset.theme = theme;
  if (view) changed();
}

async function begin() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  paint(dark.matches ? "dark" : "light");
  dark.onchange = () => paint(dark.matches ? "dark" : "light");
  $("#theme").onclick = () => paint(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  report = await unpacked($("#data").textContent);
  const numbers = (paths) => new Set(paths.map((path) => report.settings.findIndex((setting) => setting.path === path)));
  const { by, over, each } = report.start;
  view = { by, over: numbers(over), each: numbers(each), filters: report.settings.map(() => ""), find: "", column: null, worst: false, rows: PAGE };
  drawStates();
  drawControls();
  drawFailed();
  $("#versions").textContent = Object.entries(report.versions).map(([name, version]) => `${name} ${version}`).join(", ");
  changed();
  document.documentElement.dataset.ready = "yes";
}

begin();
