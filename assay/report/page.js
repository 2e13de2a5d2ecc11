"use strict";
/* What moves in the page. Texts of a model are only ever set as textContent; nothing here makes markup of a text. */

const SVG = "http://www.w3.org/2000/svg";
const NEUTRAL = { ratio: 1 };
const CHANNEL_NAMES = {
  gradient: "gradient", ratio: "ratio", log_ratio: "log-ratio", entropy: "entropy", kl: "KL", logprob: "log-prob",
  surprise: "surprise", mismatch: "sampler gap", advantage: "advantage",
};
const SORTS = {
  spread: ["largest spread", (row) => -row.spread], reward: ["lowest reward", (row) => row.reward],
  length: ["longest", (row) => -row.length], clipped: ["most clipped", (row) => -row.clipped],
  peak: ["largest |log-ratio|", (row) => -row.peak], order: ["as recorded", (row) => row.index],
};
const FEW_ROWS = 12;
const KEYS = [
  ["left, right", "move the cursor over the curves, or through cells and tokens"], ["j, k", "next and previous group"],
  ["c", "next channel"], ["m", "token with the largest |log-ratio|"], ["Esc", "close the group"], ["?", "these keys"],
];

let data = {};
const state = { source: 0, sort: "spread", group: -1, channel: "", row: -1, token: -1, all: false, step: null };
const decoded = new Map();
const scales = new Map();

function make(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, String(value));
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

const find = (selector, root) => (root || document).querySelector(selector);
const findAll = (selector, root) => [...(root || document).querySelectorAll(selector)];

function shown(value) {
  if (value === null || value === undefined) return "\u2013";
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "not a number" : String(value);
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

/* ---- numbers that travel packed ---- */

function bytes(text) {
  const raw = atob(text);
  const found = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) found[at] = raw.charCodeAt(at);
  return found;
}

function half(word) {
  const sign = word & 0x8000 ? -1 : 1;
  const exponent = (word >> 10) & 0x1f;
  const fraction = word & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function unpack(text) {
  const raw = bytes(text);
  const found = new Float64Array(raw.length / 2);
  for (let at = 0; at < found.length; at++) found[at] = half(raw[2 * at] | (raw[2 * at + 1] << 8));
  return found;
}

function completion(place) {
  if (!decoded.has(place)) {
    const stored = data.completions[place];
    const raw = bytes(stored.ids);
    const view = new DataView(raw.buffer);
    const ids = stored.pieces.map((_, at) => view.getUint32(4 * at, true));
    const channels = {};
    for (const [name, text] of Object.entries(stored.channels)) channels[name] = unpack(text);
    if (channels.log_ratio) channels.ratio = channels.log_ratio.map(Math.exp);
    if (channels.logprob && channels.entropy) channels.surprise = channels.logprob.map((value, at) => value + channels.entropy[at]);
    decoded.set(place, {
      ids, pieces: stored.pieces, text: stored.text, channels, masked: new Set(stored.masked), clipped: stored.clipped ? new Set(stored.clipped) : null,
    });
  }
  return decoded.get(place);
}

/* The same for every completion in the page, so that colours can be compared: the size that 2 % of the tokens exceed. */
function scaleOf(channel) {
  if (!scales.has(channel)) {
    const sizes = [];
    data.completions.forEach((_, place) => {
      const values = completion(place).channels[channel];
      if (values) for (const value of values) if (Number.isFinite(value)) sizes.push(Math.abs(value - (NEUTRAL[channel] || 0)));
    });
    sizes.sort((one, other) => one - other);
    const high = sizes[Math.floor(0.98 * (sizes.length - 1))] || sizes[sizes.length - 1] || 1;
    scales.set(channel, high > 0 ? high : sizes[sizes.length - 1] || 1);
  }
  return scales.get(channel);
}

function colour(value, scale, most) {
  if (!Number.isFinite(value)) return "";
  const share = Math.max(-1, Math.min(1, value / scale));
  if (Math.abs(share) < 0.01) return "";
  return `rgba(var(${share < 0 ? "--low" : "--high"}), ${(Math.abs(share) * most).toFixed(3)})`;
}

/* ---- curves ---- */

function startCurves() {
  const charts = new Map(data.charts.map((chart) => [chart.key, chart]));
  for (const figure of findAll("figure[data-chart]")) {
    const chart = charts.get(figure.dataset.chart);
    const drawing = find(":scope > svg", figure);
    if (drawing && !figure.classList.contains("nothing-here")) figure.append(saveButton(figure, drawing));
    if (!chart || !drawing || figure.closest("#lengths")) continue;
    const left = Number(drawing.dataset.left), right = Number(drawing.dataset.right), width = drawing.viewBox.baseVal.width;
    const stepAt = (event) => {
      const box = drawing.getBoundingClientRect();
      const share = (((event.clientX - box.left) / box.width) * width - left) / (right - left);
      return chart.ends[0] + Math.max(0, Math.min(1, share)) * (chart.ends[1] - chart.ends[0]);
    };
    for (const kind of ["pointermove", "pointerdown"]) drawing.addEventListener(kind, (event) => moveCursor(stepAt(event)));
    figure.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      event.preventDefault();
      moveCursor(nextStep(chart, event.key === "ArrowLeft" ? -1 : 1));
    });
  }
  const curves = find("#curves");
  if (curves) curves.addEventListener("pointerleave", () => moveCursor(null));
  if (state.step !== null) moveCursor(state.step);
}

function nextStep(chart, way) {
  const steps = [...new Set(chart.series.flatMap((series) => series.steps))].sort((one, other) => one - other);
  if (state.step === null) return way > 0 ? steps[0] : steps[steps.length - 1];
  const beyond = steps.filter((step) => (step - state.step) * way > 1e-9);
  return beyond.length ? (way > 0 ? beyond[0] : beyond[beyond.length - 1]) : state.step;
}

function nearest(steps, step) {
  let best = -1;
  steps.forEach((candidate, at) => {
    if (best < 0 || Math.abs(candidate - step) < Math.abs(steps[best] - step)) best = at;
  });
  return best;
}

function moveCursor(step) {
  state.step = step;
  for (const chart of data.charts) {
    const figure = find(`figure[data-chart="${chart.key}"]`);
    if (!figure) continue;
    const line = find(".cursor", figure);
    const drawing = find(":scope > svg", figure);
    if (line && step !== null) {
      const left = Number(drawing.dataset.left), right = Number(drawing.dataset.right);
      const share = (step - chart.ends[0]) / (chart.ends[1] - chart.ends[0] || 1);
      line.setAttribute("transform", `translate(${(left + share * (right - left)).toFixed(1)} 0)`);
    }
    if (line) line.classList.toggle("on", step !== null);
    chart.series.forEach((series, place) => {
      const output = find(`output[data-series="${place}"]`, figure);
      if (!output || !series.steps.length) return;
      const known = series.values.filter((value) => value !== null);
      output.textContent = shown(step === null ? known[known.length - 1] : series.values[nearest(series.steps, step)]);
    });
  }
  const readout = find("#cursor-step");
  if (readout) readout.textContent = step === null ? "Move over a curve to read all of them." : `step ${Math.round(step)}`;
}

function saveButton(figure, drawing) {
  return make("button", { type: "button", class: "save", title: "Save as SVG", onclick: () => save(figure, drawing) }, "SVG");
}

function save(figure, drawing) {
  const copy = drawing.cloneNode(true);
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("viewBox", `0 -36 ${drawing.viewBox.baseVal.width} ${drawing.viewBox.baseVal.height + 36}`);
  copy.setAttribute("width", "720");
  const style = document.createElementNS(SVG, "style");
  style.textContent = data.svg_style;
  copy.prepend(style);
  const words = (text, x, y) => {
    const node = document.createElementNS(SVG, "text");
    node.textContent = text;
    node.setAttribute("x", x);
    node.setAttribute("y", y);
    copy.append(node);
  };
  words(find("h3", figure).textContent, 46, -22);
  let x = 46;
  findAll(".keys li", figure).forEach((item) => {
    const name = find("span", item).textContent;
    const line = find("line", item).cloneNode(true);
    line.setAttribute("x1", x);
    line.setAttribute("x2", x + 16);
    line.setAttribute("y1", -8);
    line.setAttribute("y2", -8);
    copy.append(line);
    words(name, x + 20, -5);
    x += 34 + 5.6 * name.length;
  });
  const address = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  make("a", { href: address, download: `${figure.dataset.chart}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/* ---- groups ---- */

const sourceName = (source) => {
  const step = source.step === null ? source.name || "batch" : `step ${source.step}`;
  const update = source.update && source.examined ? `, update ${source.update}` : "";
  return `${step}${update}: ${source.length.length} completions, ${source.examined ? "examined" : "recorded"}`;
};

function rowsOf(source) {
  return source.groups.map((group, index) => {
    const of = (name) => group.rows.map((row) => (source[name] ? source[name][row] : null)).filter((value) => value !== null);
    const judged = of("reward").length ? of("reward") : of("advantage");
    const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0);
    return {
      group, index, spread: judged.length ? Math.max(...judged) - Math.min(...judged) : 0, reward: mean(of("reward")),
      length: mean(of("length")), clipped: of("clipped").reduce((sum, value) => sum + value, 0), peak: Math.max(0, ...of("peak")),
      named: group.rows.filter((row) => source.named.includes(row)).length,
    };
  });
}

function startGroups() {
  const controls = find("#groups-controls");
  if (!controls || !data.sources.length) return;
  controls.replaceChildren();
  const sources = make("select", { onchange: (event) => { state.source = Number(event.target.value); state.group = -1; showTable(); showGroup(); } },
    ...data.sources.map((source, at) => make("option", { value: at, selected: at === state.source }, sourceName(source))));
  const sorts = make("select", { onchange: (event) => { state.sort = event.target.value; showTable(); } },
    ...Object.entries(SORTS).map(([name, [words]]) => make("option", { value: name, selected: name === state.sort }, words)));
  controls.append(make("label", {}, "Completions of", sources), make("label", {}, "first", sorts),
    make("button", { type: "button", id: "jump-peak", onclick: jumpToPeak }, "Largest |log-ratio|"), legendOf("advantage", advantageScale()));
  showTable();
  showGroup();
}

function advantageScale() {
  const sizes = data.sources.flatMap((source) => (source.advantage || []).filter(Number.isFinite).map(Math.abs)).sort((one, other) => one - other);
  return sizes[Math.floor(0.98 * (sizes.length - 1))] || 1;
}

function legendOf(name, scale) {
  const middle = NEUTRAL[name] || 0;
  return make("span", { class: "legend" }, `${name} ${shown(middle - scale)}`, make("i"), shown(middle + scale));
}

function showTable() {
  const source = data.sources[state.source];
  const rows = rowsOf(source).sort((one, other) => other.named - one.named || SORTS[state.sort][1](one) - SORTS[state.sort][1](other) || one.index - other.index);
  const kept = state.all ? rows : rows.slice(0, FEW_ROWS);
  const scale = advantageScale();
  const body = make("tbody", {}, ...kept.map((row) => tableRow(source, row, scale)));
  const head = make("thead", {}, make("tr", {}, ...["prompt", "completions", "reward", "tokens", "clipped", "|log-ratio|"].map((words) => make("th", { scope: "col" }, words))));
  const table = make("table", { class: "cells", onkeydown: moveInTable }, head, body);
  const more = rows.length > kept.length
    ? make("button", { type: "button", onclick: () => { state.all = true; showTable(); } }, `Show all ${rows.length} prompts`) : null;
  find("#groups-table").replaceChildren(table, ...(more ? [more] : []));
}

function tableRow(source, row, scale) {
  const prompt = row.group.prompt >= 0 ? data.prompts[row.group.prompt] : "";
  const name = prompt.trim() || row.group.id || `group ${row.index + 1}`;
  const cells = row.group.rows.map((at) => cellOf(source, row.index, at, scale));
  return make("tr", { class: row.index === state.group ? "open" : "", "data-group": row.index },
    make("td", {}, make("button", { type: "button", class: "prompt", title: name.slice(0, 300), onclick: () => openGroup(row.index) }, name.slice(0, 200))),
    make("td", {}, make("div", { class: "row-cells" }, ...cells)),
    make("td", {}, source.reward ? shown(row.reward) : "\u2013"), make("td", {}, shown(row.length)),
    make("td", {}, source.clipped ? String(row.clipped) : "\u2013"), make("td", {}, source.peak ? shown(row.peak) : "\u2013"));
}

function cellOf(source, group, row, scale) {
  const advantage = source.advantage ? source.advantage[row] : null;
  const reward = source.reward ? source.reward[row] : null;
  const notes = [`completion ${row}`, `reward ${shown(reward)}`, `advantage ${shown(advantage)}`, `${source.length[row]} tokens`];
  const classes = ["cell"];
  if (source.cut.includes(row)) { classes.push("cut"); notes.push("cut off by the limit"); }
  if (source.out.includes(row)) { classes.push("out"); notes.push("not in the loss"); }
  if (source.named.includes(row)) { classes.push("named"); notes.push("named by a finding"); }
  if (!(String(row) in source.stored)) { classes.push("left"); notes.push("its text is not in this page"); }
  const sign = advantage === null || Math.abs(advantage) < 1e-9 ? "" : advantage > 0 ? "+" : "\u2212";
  const cell = make("button", { type: "button", class: classes.join(" "), tabindex: -1, title: notes.join(", "), "aria-label": notes.join(", "), onclick: () => openGroup(group, row) }, sign);
  if (advantage !== null) cell.style.backgroundColor = colour(advantage, scale, 0.85);
  return cell;
}

function moveInTable(event) {
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (!(event.key in moves)) return;
  const rows = findAll("tbody tr", event.currentTarget).map((row) => findAll("button", row));
  const down = rows.findIndex((row) => row.includes(document.activeElement));
  if (down < 0) return;
  event.preventDefault();
  const [by, along] = moves[event.key];
  const row = rows[Math.max(0, Math.min(rows.length - 1, down + by))];
  row[Math.max(0, Math.min(row.length - 1, rows[down].indexOf(document.activeElement) + along))].focus();
}

function openGroup(group, row) {
  state.group = group;
  state.row = row === undefined ? -1 : row;
  state.token = -1;
  for (const line of findAll("#groups-table tr[data-group]")) line.classList.toggle("open", Number(line.dataset.group) === group);
  showGroup();
  find("#group").scrollIntoView({ block: "start", behavior: "auto" });
  const chosen = find(".completion.chosen");
  if (chosen) chosen.scrollIntoView({ block: "nearest", inline: "center" });
}

/* ---- tokens ---- */

function channelsHere(source) {
  const present = new Set();
  for (const place of Object.values(source.stored)) for (const name of Object.keys(completion(place).channels)) present.add(name);
  return Object.keys(CHANNEL_NAMES).filter((name) => present.has(name));
}

function showGroup() {
  const place = find("#group");
  if (!place) return;
  place.replaceChildren();
  const source = data.sources[state.source];
  const group = source && source.groups[state.group];
  if (!group) return;
  const present = channelsHere(source);
  if (!present.includes(state.channel)) state.channel = present.includes("log_ratio") && scaleOf("log_ratio") > 1e-6 ? "log_ratio" : present[0] || "";
  const picks = present.map((name) => make("button", {
    type: "button", "aria-pressed": String(name === state.channel), title: data.channels[name], "data-channel": name,
    onclick: () => { state.channel = name; showGroup(); },
  }, CHANNEL_NAMES[name]));
  const absent = Object.keys(CHANNEL_NAMES).filter((name) => !present.includes(name)).map((name) => CHANNEL_NAMES[name]);
  const bar = make("div", { class: "controls", id: "channels", role: "group", "aria-label": "Channel" }, ...picks,
    state.channel ? legendOf(CHANNEL_NAMES[state.channel], scaleOf(state.channel)) : null);
  const title = make("h3", {}, group.id || `group ${state.group + 1}`);
  place.append(make("div", { class: "group-head" }, title, make("button", { type: "button", id: "close-group", onclick: closeGroup }, "Close")));
  if (group.prompt >= 0) place.append(make("div", { class: "text prompt-text" }, data.prompts[group.prompt]));
  place.append(bar);
  const meaning = state.channel ? `${CHANNEL_NAMES[state.channel]}: ${data.channels[state.channel]}. ` : "";
  const lacking = absent.length ? ` Not recorded here: ${absent.join(", ")}.` : "";
  const signs = "Underlined: clipped. Hatched: not in the loss. Dashed: behind the end.";
  place.append(make("p", { class: "quiet small" }, `${meaning}${signs}${lacking}`));
  const ordered = [...group.rows].sort((one, other) => worth(source, other) - worth(source, one));
  place.append(make("div", { class: "side" }, ...ordered.map((row) => completionCard(source, row))));
  place.append(make("div", { class: "detail", id: "detail", "aria-live": "polite" }, detailOf(source)));
}

const worth = (source, row) => (source.reward && source.reward[row] !== null ? source.reward[row] : source.advantage ? source.advantage[row] || 0 : -row);

function completionCard(source, row) {
  const facts = [`reward ${shown(source.reward ? source.reward[row] : null)}`, `advantage ${shown(source.advantage ? source.advantage[row] : null)}`, `${source.length[row]} tokens`];
  if (source.clipped) facts.push(`${source.clipped[row]} clipped`);
  if (source.cut.includes(row)) facts.push("cut off");
  const head = make("h4", {}, facts.join(" \u00b7 "));
  const chosen = row === state.row ? " chosen" : "";
  if (!(String(row) in source.stored)) {
    const step = source.step === null ? "" : ` --step ${source.step}`;
    return make("article", { class: `completion${chosen}` }, head, make("p", { class: "nothing" }, `Its text is not in this page; assay show RUN${step} prints it.`));
  }
  const stored = completion(source.stored[row]);
  const text = make("div", { class: "text", role: "listbox", "aria-label": "Tokens", tabindex: 0, "data-row": row, onkeydown: moveInText });
  const values = stored.channels[state.channel];
  const middle = NEUTRAL[state.channel] || 0, scale = state.channel ? scaleOf(state.channel) : 1;
  stored.pieces.forEach((piece, at) => {
    const classes = ["token"];
    if (stored.masked.has(at)) classes.push("masked");
    if (stored.clipped && stored.clipped.has(at)) classes.push("clipped");
    if (at >= source.length[row]) classes.push("beyond");
    if (values && !stored.masked.has(at) && !Number.isFinite(values[at])) classes.push("broken");
    if (!piece) classes.push("empty");
    if (row === state.row && at === state.token) classes.push("chosen");
    const node = make("span", { class: classes.join(" "), "data-token": at, role: "option" }, piece.replaceAll("\n", "\u21b5\n").replaceAll("\t", "\u21e5\t"));
    if (values && !stored.masked.has(at)) node.style.backgroundColor = colour(values[at] - middle, scale, 0.75);
    text.append(node);
  });
  const choose = (event) => {
    const token = event.target.closest(".token");
    if (token) chooseToken(row, Number(token.dataset.token));
  };
  text.addEventListener("pointerover", choose);
  text.addEventListener("click", choose);
  const whole = stored.text ? make("div", { class: "text plain-text" }, stored.text) : null;
  return make("article", { class: `completion${chosen}`, "data-completion": row }, head, whole, text);
}

function chooseToken(row, token) {
  state.row = row;
  state.token = token;
  for (const node of findAll("#group .token.chosen")) node.classList.remove("chosen");
  for (const card of findAll("#group .completion")) card.classList.toggle("chosen", Number(card.dataset.completion) === row);
  const node = find(`#group .text[data-row="${row}"] .token[data-token="${token}"]`);
  if (node) node.classList.add("chosen");
  find("#detail").replaceChildren(detailOf(data.sources[state.source]));
  return node;
}

function moveInText(event) {
  const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!way) return;
  event.preventDefault();
  const row = Number(event.currentTarget.dataset.row);
  const count = find(".token", event.currentTarget) ? findAll(".token", event.currentTarget).length : 0;
  const at = row === state.row && state.token >= 0 ? state.token + way : 0;
  const node = chooseToken(row, Math.max(0, Math.min(count - 1, at)));
  if (node) node.scrollIntoView({ block: "nearest" });
}

function detailOf(source) {
  const place = source.stored[state.row];
  if (place === undefined || state.token < 0) return make("p", { class: "quiet" }, "Point at a token to read all of its numbers.");
  const stored = completion(place);
  const facts = [["token", JSON.stringify(stored.pieces[state.token]).slice(1, -1) || "(continues in the next)"], ["id", String(stored.ids[state.token])], ["place", String(state.token)]];
  for (const name of Object.keys(CHANNEL_NAMES)) if (stored.channels[name]) facts.push([CHANNEL_NAMES[name], shown(stored.channels[name][state.token])]);
  if (stored.clipped && stored.clipped.has(state.token)) facts.push(["clipped", "yes"]);
  if (state.token >= source.length[state.row]) facts.push(["behind the end of the completion", "yes"]);
  if (stored.masked.has(state.token)) facts.push(["in the loss", "no"]);
  return make("dl", {}, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

/* Of all completions in the page. */
function jumpToPeak() {
  let best = null;
  data.sources.forEach((source, at) => {
    for (const [row, place] of Object.entries(source.stored)) {
      const stored = completion(place);
      (stored.channels.log_ratio || []).forEach((value, token) => {
        const counts = Number.isFinite(value) && !stored.masked.has(token);
        if (counts && (!best || Math.abs(value) > best.size)) best = { source: at, row: Number(row), token, size: Math.abs(value) };
      });
    }
  });
  if (!best) return;
  state.channel = "log_ratio";
  showToken(best.source, best.row, best.token);
}

function showToken(source, row, token) {
  if (source !== state.source) { state.source = source; startGroups(); }
  const group = data.sources[source].groups.findIndex((candidate) => candidate.rows.includes(row));
  if (group < 0) return;
  openGroup(group, row);
  if (token === null || token === undefined) return;
  const node = chooseToken(row, token);
  if (node) node.scrollIntoView({ block: "center", inline: "center" });
}

function closeGroup() {
  state.group = state.row = state.token = -1;
  for (const line of findAll("#groups-table tr.open")) line.classList.remove("open");
  showGroup();
}

/* ---- findings lead to what they speak of ---- */

function startFindings() {
  for (const button of findAll("button.jump")) {
    const { source, step, row, token } = button.dataset;
    const at = data.sources.findIndex((candidate) => (source ? candidate.name === source : candidate.step === Number(step)));
    const knowsRow = row !== undefined && at >= 0 && data.sources[at].groups.some((group) => group.rows.includes(Number(row)));
    if (!knowsRow && step === undefined) continue;
    button.hidden = false;
    button.addEventListener("click", () => {
      if (knowsRow) return showToken(at, Number(row), token === undefined ? null : Number(token));
      find("#curves").scrollIntoView();
      return moveCursor(Number(step));
    });
    if (!knowsRow) button.textContent = "show in the curves";
  }
}

/* ---- the whole page ---- */

function startNavigation() {
  const links = new Map(findAll("nav a").map((link) => [link.getAttribute("href").slice(1), link]));
  const seen = new Map();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) seen.set(entry.target.id, entry.isIntersecting);
    const first = [...links.keys()].find((key) => seen.get(key));
    for (const [key, link] of links) link.classList.toggle("here", key === first);
  }, { rootMargin: "-60px 0px -55% 0px" });
  for (const key of links.keys()) if (document.getElementById(key)) watcher.observe(document.getElementById(key));
}

function showKeys() {
  let dialog = find("dialog");
  if (!dialog) {
    dialog = make("dialog", { "aria-label": "Keys" }, make("h2", {}, "Keys"),
      make("dl", {}, ...KEYS.map(([key, words]) => make("div", {}, make("dt", {}, make("kbd", {}, key)), make("dd", {}, words)))),
      make("button", { type: "button", onclick: () => dialog.close() }, "Close"));
    document.body.append(dialog);
  }
  dialog.showModal();
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input, textarea, dialog")) return;
  const groups = findAll("#groups-table tr[data-group]").map((row) => Number(row.dataset.group));
  const turn = (way) => {
    const at = groups.indexOf(state.group) + way;
    if (groups.length && at >= 0 && at < groups.length) openGroup(groups[at]);
  };
  const names = state.group >= 0 ? channelsHere(data.sources[state.source]) : [];
  const actions = {
    j: () => turn(1), k: () => turn(-1), m: jumpToPeak, Escape: closeGroup, "?": showKeys,
    c: () => { if (names.length) { state.channel = names[(names.indexOf(state.channel) + 1) % names.length]; showGroup(); } },
  };
  if ((event.key in actions) && (data.sources.length || event.key === "?")) actions[event.key]();
}

async function follow() {
  try {
    const answer = await fetch("version", { cache: "no-store" });
    if (answer.ok && (await answer.text()) !== data.version) {
      const page = await (await fetch("./", { cache: "no-store" })).text();
      const fresh = new DOMParser().parseFromString(page, "text/html");
      for (const part of ["header", "main"]) find(part).replaceWith(document.importNode(find(part, fresh), true));
      const name = data.sources.length ? data.sources[state.source].name : "";
      find("#data").textContent = find("#data", fresh).textContent;
      read(name);
    }
    document.title = document.title.replace(/^(\u25cf |\u25cb )?/, "\u25cf ");
  } catch {
    document.title = document.title.replace(/^(\u25cf |\u25cb )?/, "\u25cb "); // the server has ended
  }
  setTimeout(follow, 2000);
}

/* Those that a finding names, else those of the last step. */
function firstSource() {
  const named = data.sources.findIndex((source) => source.named.length > 0);
  return named >= 0 ? named : Math.max(data.sources.length - 1, 0);
}

function read(name) {
  data = JSON.parse(find("#data").textContent);
  const same = data.sources.findIndex((source) => source.name === name);
  state.source = same >= 0 ? same : firstSource();
  if (same < 0) state.group = -1;
  decoded.clear();
  scales.clear();
  startCurves();
  startGroups();
  startFindings();
  startNavigation();
}

read();
document.addEventListener("keydown", pressed);
const keysButton = find("#keys-button");
if (keysButton) {
  keysButton.hidden = false;
  keysButton.addEventListener("click", showKeys);
}
if (data.live) setTimeout(follow, 2000);
