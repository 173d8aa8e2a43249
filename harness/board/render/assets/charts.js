"use strict";
// Small charts as SVG. Text is set as text, never as markup: names come from submissions.

const SVG = "http://www.w3.org/2000/svg";

// make("td", {class: "num"}, child, "text"): an HTML element; numbers and strings become text.
function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}
// draw("line", {x1: 0}): the same for SVG.
function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}
function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined));
  return element;
}

const known = value => value !== null && value !== undefined;
const fixed = (value, digits) => (known(value) ? value.toFixed(digits) : "–");
const times = ratio => (ratio ? `${ratio[1].toFixed(3)}×` : "–");
const range = ratio => (ratio ? `[${ratio[0].toFixed(3)}, ${ratio[2].toFixed(3)}]` : "");
const precise = value => (known(value) ? Number(value).toPrecision(4) : "–");
const tiny = value => (known(value) ? Number(value).toExponential(1) : "–");
const percent = value => (known(value) ? `${value.toFixed(1)} %` : "–");

function logScale(low, high, from, to) {
  const span = Math.log(high / low) || 1;
  return value => from + (Math.log(value / low) / span) * (to - from);
}
function linearScale(low, high, from, to) {
  const span = high - low || 1;
  return value => from + ((value - low) / span) * (to - from);
}
// At most `most` round numbers between low and high.
function roundTicks(low, high, most = 6) {
  const raw = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(k => k * power).find(k => k >= raw);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step / 1e6; tick += step) ticks.push(+tick.toPrecision(6));
  return ticks;
}

// --------------------------------------------------------------- the words that follow the pointer

function hint(element, text) {
  const tip = document.getElementById("tip");
  const show = event => {
    tip.textContent = text;
    tip.hidden = false;
    const box = element.getBoundingClientRect();
    const x = event.clientX || box.right, y = event.clientY || box.bottom;
    tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(8, Math.min(y + 14, innerHeight - tip.offsetHeight - 8))}px`;
  };
  const hide = () => { tip.hidden = true; };
  element.addEventListener("pointermove", show);
  element.addEventListener("pointerleave", hide);
  element.addEventListener("focus", show);
  element.addEventListener("blur", hide);
  return element;
}
const title = row => `${row.entry}\n${times(row.speedup)} ${range(row.speedup)}`;

// --------------------------------------------------------------- one row's interval

// The interval as a band with its middle, faint dots for the single configs, on an axis that all rows
// share; the dashed line is the baseline. Rows beyond the axis are told by an arrow.
function forest(row, configs, low, high) {
  const svg = draw("svg", { viewBox: "0 0 300 34", preserveAspectRatio: "none", height: 34, role: "img",
    "aria-label": `speed-up ${times(row.speedup)} ${range(row.speedup)}` });
  const scale = logScale(low, high, 8, 292), x = ratio => Math.max(4, Math.min(296, scale(ratio)));
  const put = (name, attributes) => svg.append(draw(name, { "vector-effect": "non-scaling-stroke", ...attributes }));
  if (low < 1 && high > 1) put("line", { class: "one", x1: x(1), x2: x(1), y1: 0, y2: 34 });
  if (!row.speedup) return svg;
  if (row.speedup[1] < low || row.speedup[1] > high) {
    put("path", { class: row.kind, d: row.speedup[1] < low ? "M14 11 L5 17 L14 23" : "M286 11 L295 17 L286 23", "stroke-width": 1.8 });
    svg.lastChild.style.fill = "none";
    return svg;
  }
  for (const config of configs) {
    const single = row.cells[config.name]?.speedup?.[1];
    // a dot as a round line cap keeps its shape while the plot stretches
    if (single >= low) put("line", { class: `each ${row.kind}`, x1: x(single), x2: x(single), y1: 17, y2: 17.01 });
  }
  const [from, at, to] = row.speedup.map(x);
  put("line", { class: `whisker ${row.kind}`, x1: from, x2: Math.max(to, from + .5), y1: 17, y2: 17 });
  put("line", { class: `middle ${row.kind}`, x1: at, x2: at, y1: 9, y2: 25 });
  return svg;
}

// --------------------------------------------------------------- bars of one config

function bars(config, rows, reported, open) {
  const shown = rows.filter(row => known(row.cells[config.name]?.tflops))
    .sort((a, b) => b.cells[config.name].tflops - a.cells[config.name].tflops).slice(0, 20);
  const papers = reported.filter(one => known(one.tflops[config.name]));
  const best = Math.max(0, ...shown.map(row => row.cells[config.name].tflops), ...papers.map(one => one.tflops[config.name]));
  const top = config.peak || best * 1.05 || 1;
  const left = 146, right = 372, step = 23, head = papers.length ? 34 : 12;
  const x = linearScale(0, top, left, right), height = head + step * shown.length + 26;
  const svg = draw("svg", { viewBox: `0 0 420 ${height}`, role: "group", "aria-label": `TFLOP/s on ${config.name}` });
  for (const tick of roundTicks(0, top, 5).filter(t => x(t) < right - 30 || !config.peak)) {
    svg.append(draw("line", { class: "axis", x1: x(tick), x2: x(tick), y1: head - 4, y2: height - 22 }),
      draw("text", { x: x(tick), y: height - 8, "text-anchor": "middle" }, String(tick)));
  }
  paperTicks(svg, papers, config, x, head);
  shown.forEach((row, i) => {
    const cell = row.cells[config.name], y = head + step * i;
    const bar = draw("rect", { class: `mark ${row.kind}`, x: left, y: y + 3, width: Math.max(1, x(cell.tflops) - left), height: step - 8,
      rx: 3, "stroke-width": 0, tabindex: 0, role: "button", "aria-label": `${row.entry}: ${cell.tflops} TFLOP/s`,
      "fill-opacity": row.exact ? 1 : .45, onclick: () => open(row), onkeydown: event => event.key === "Enter" && open(row) });
    hint(bar, `${row.entry}\n${fixed(cell.tflops, 1)} TFLOP/s, ${percent(cell.peakPct)} of peak\n${precise(cell.ms)} ms (p10 ${precise(cell.p10)}, p90 ${precise(cell.p90)})`);
    svg.append(draw("text", { class: "ink", x: left - 8, y: y + 16, "text-anchor": "end", style: wide(row.entry) > left - 10 ? "font-size: 9.5px" : null }, shorten(row.entry, 26)), bar,
      draw("text", { class: "ink", x: x(cell.tflops) + 6, y: y + 16 }, fixed(cell.tflops, 0)));
  });
  if (config.peak) svg.append(draw("line", { class: "roof", x1: x(top), x2: x(top), y1: head - 4, y2: height - 22 }),
    draw("text", { x: x(top), y: height - 8, "text-anchor": "middle" }, "peak"));
  return svg;
}
function paperTicks(svg, papers, config, x, head) {
  const taken = [];
  for (const one of papers) { // the best known come first and get their name written
    const at = x(one.tflops[config.name]), text = one.name.replace("FlashAttention-", "FA"), half = text.length * 2.9 + 4;
    const near = draw("rect", { x: at - 4, y: head - 18, width: 8, height: 18, fill: "transparent" });
    svg.append(draw("line", { class: "paper", x1: at, x2: at, y1: head - 12, y2: head - 3 }),
      hint(near, `${one.name}, reported: ${one.tflops[config.name]} TFLOP/s\n${one.source}`));
    if (text.length > 7 || taken.some(other => Math.abs(other[0] - at) < other[1] + half)) continue;
    svg.append(draw("text", { class: "paper", x: at, y: head - 16, "text-anchor": "middle" }, text));
    taken.push([at, half]);
  }
}
const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// --------------------------------------------------------------- accuracy against speed

function pareto(config, rows, open) {
  const points = rows.map(row => ({ row, cell: row.cells[config.name] }))
    .filter(point => known(point.cell?.tflops) && point.cell.relL2 > 0);
  if (!points.length) return make("p", { class: "empty" }, "No measured error on this config.");
  const errors = points.map(p => p.cell.relL2), speeds = points.map(p => p.cell.tflops);
  const least = Math.min(...errors) / 1.12, most = Math.max(...errors) * 1.12;
  const y = logScale(least, most, 268, 14), x = linearScale(Math.min(...speeds) * .92, Math.max(...speeds) * 1.06, 58, 468);
  const svg = draw("svg", { viewBox: "0 0 480 312", role: "img", "aria-label": "relative error against TFLOP/s" });
  frame(svg, roundTicks(Math.min(...speeds) * .92, Math.max(...speeds) * 1.06, 6), x, "TFLOP/s", 268);
  for (const tick of logTicks(least, most))
    svg.append(draw("line", { class: "axis", x1: 58, x2: 468, y1: y(tick), y2: y(tick) }),
      draw("text", { x: 52, y: y(tick) + 4, "text-anchor": "end" }, shortest(tick)));
  const front = points.filter(p => !points.some(o => o.cell.tflops >= p.cell.tflops && o.cell.relL2 <= p.cell.relL2
    && (o.cell.tflops > p.cell.tflops || o.cell.relL2 < p.cell.relL2))).sort((a, b) => a.cell.tflops - b.cell.tflops);
  svg.append(draw("polyline", { class: "front", points: front.map(p => `${x(p.cell.tflops)},${y(p.cell.relL2)}`).join(" ") }));
  const taken = points.map(({ cell }) => [x(cell.tflops) - 6, y(cell.relL2) - 6, x(cell.tflops) + 6, y(cell.relL2) + 6]);
  for (const { row, cell } of [...points].sort((a, b) => b.cell.tflops - a.cell.tflops)) {
    const at = [x(cell.tflops), y(cell.relL2)];
    svg.append(hint(dot(row, at, open), `${row.entry}\n${fixed(cell.tflops, 1)} TFLOP/s\nrelative L2 ${tiny(cell.relL2)}, worst row ${tiny(cell.worstRow)}`));
    label(svg, row.entry, at, taken);
  }
  return svg;
}
// Round numbers on a logarithmic axis: powers of ten, with 2 and 5, or where it is short evenly spaced ones.
function logTicks(low, high) {
  if (high / low < 6) return roundTicks(low, high, 5);
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const k of high / low > 100 ? [1] : [1, 2, 5]) if (k * 10 ** power >= low && k * 10 ** power <= high) ticks.push(+(k * 10 ** power).toPrecision(3));
  return ticks;
}
const shortest = value => value.toExponential().replace("e-", "e\u2212").replace("e+0", "");
// Pixels that a text takes in the charts' type.
const brush = document.createElement("canvas").getContext("2d");
const wide = text => { brush.font = "11.5px system-ui, sans-serif"; return brush.measureText(text).width; };
// For the pointer alone: with a keyboard the table above opens the same panels, without hundreds of stops.
function dot(row, [cx, cy], open) {
  return draw("circle", { class: `mark ${row.kind}`, cx, cy, r: 5.5, "stroke-width": 0, "fill-opacity": row.exact ? .9 : .4, onclick: () => open(row) });
}
// The name beside its dot, on the side where there is room, or not at all.
function label(svg, text, [cx, cy], taken) {
  const name = shorten(text, 24), width = wide(name) + 4;
  const spots = [[cx + 9, cy + 4], [cx - 9 - width, cy + 4], [cx - width / 2, cy - 10], [cx - width / 2, cy + 19],
    [cx + 5, cy - 10], [cx - 5 - width, cy - 10], [cx + 5, cy + 19], [cx - 5 - width, cy + 19], [cx - width / 2, cy - 24], [cx - width / 2, cy + 33]];
  for (const [left, base] of spots) {
    const box = [left, base - 10, left + width, base + 2];
    if (box[0] < 58 || box[2] > 474 || box[1] < 2 || box[3] > 266 || taken.some(o => box[0] < o[2] && o[0] < box[2] && box[1] < o[3] && o[1] < box[3])) continue;
    taken.push(box);
    svg.append(draw("text", { x: left, y: base }, name));
    return;
  }
}
function frame(svg, ticks, x, name, bottom) {
  for (const tick of ticks) svg.append(draw("line", { class: "axis", x1: x(tick), x2: x(tick), y1: 14, y2: bottom }),
    draw("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, String(tick)));
  svg.append(draw("text", { x: 468, y: bottom + 34, "text-anchor": "end" }, name));
}

// --------------------------------------------------------------- roofline

function roofline(board, rows, open) {
  const roofed = board.configs.filter(config => config.peak && config.bandwidth);
  if (!roofed.length) return make("p", { class: "empty" }, "This chip's peak and bandwidth are not in the table.");
  const { peak, bandwidth } = roofed[0], speeds = rows.flatMap(row => roofed.map(c => row.cells[c.name]?.tflops)).filter(known);
  const least = Math.min(peak / 4, ...speeds) * .7, ridge = peak * 1e12 / bandwidth, sites = [ridge, ...roofed.map(config => config.intensity)];
  const from = Math.min(...sites) / 2, to = Math.max(...sites) * 2;
  const x = logScale(from, to, 58, 468), y = logScale(least, peak * 1.5, 246, 14); // below 246: the names of the configs
  const svg = draw("svg", { viewBox: "0 0 480 312", role: "img", "aria-label": "roofline: FLOPs a byte against TFLOP/s" });
  frame(svg, logTicks(from, to), x, "FLOPs a byte", 268);
  for (const tick of logTicks(least, peak * 1.5))
    svg.append(draw("line", { class: "axis", x1: 58, x2: 468, y1: y(tick), y2: y(tick) }), draw("text", { x: 52, y: y(tick) + 4, "text-anchor": "end" }, String(tick)));
  const foot = Math.max(from, least * 1e12 / bandwidth), memory = `memory ${(bandwidth / 1e12).toFixed(1)} TB/s`;
  const middle = [(x(foot) + x(ridge)) / 2, (y(foot * bandwidth / 1e12) + y(peak)) / 2], room = x(Math.min(...sites.slice(1))) - 8 - middle[0];
  svg.append(draw("polyline", { class: "roof", points: `${x(foot)},${y(foot * bandwidth / 1e12)} ${x(ridge)},${y(peak)} 468,${y(peak)}` }),
    draw("text", { x: 466, y: y(peak) - 6, "text-anchor": "end" }, `tensor cores ${fixed(peak, 0)} TFLOP/s`),
    draw("text", { x: room > wide(memory) + 8 ? middle[0] + 8 : 62, y: room > wide(memory) + 8 ? middle[1] + 12 : 10 }, memory));
  let end = -1;
  for (const config of [...roofed].sort((a, b) => a.intensity - b.intensity)) {
    const at = x(config.intensity), name = config.name.split("_")[0].replace("hdim", "d"), half = wide(name) / 2 + 3;
    if (config.expPeak && config.expPeak < peak * 1.4) {
      svg.append(draw("line", { class: "paper", x1: at - 26, x2: at + 26, y1: y(config.expPeak), y2: y(config.expPeak) }),
        draw("text", { class: "paper", x: at - 29, y: y(config.expPeak) + 4, "text-anchor": "end" }, "exp"));
    }
    if (at - half > end) { svg.append(draw("text", { class: "ink", x: at, y: 262, "text-anchor": "middle" }, name)); end = at + half; }
    for (const row of rows) {
      const cell = row.cells[config.name];
      if (known(cell?.tflops)) svg.append(hint(dot(row, [at, y(cell.tflops)], open), `${row.entry} on ${config.name}\n${fixed(cell.tflops, 1)} TFLOP/s\nlimit: ${cell.limiter}`));
    }
  }
  return svg;
}

// --------------------------------------------------------------- samples and history of one entry

function samples(cell, kind) {
  const values = cell.samples.map(sample => sample[1]);
  if (!values.length) return null;
  const low = Math.min(...values), high = Math.max(...values), pad = Math.max((high - low) * .12, high * 1e-3);
  const x = linearScale(0, Math.max(cell.samples.length - 1, 1), 62, 610), y = linearScale(low - pad, high + pad, 108, 10);
  const svg = draw("svg", { viewBox: "0 0 624 134", role: "img", "aria-label": "latency of every block" });
  for (const tick of roundTicks(low - pad, high + pad, 4))
    svg.append(draw("line", { class: "axis", x1: 62, x2: 610, y1: y(tick), y2: y(tick) }), draw("text", { x: 56, y: y(tick) + 4, "text-anchor": "end" }, precise(tick)));
  svg.append(draw("line", { class: "one", x1: 62, x2: 610, y1: y(cell.ms), y2: y(cell.ms) }));
  cell.samples.forEach(([block, ms, late], i) => svg.append(hint(
    draw("circle", { class: late ? "late" : kind, cx: x(i), cy: y(ms), r: 3.5, "stroke-width": late ? 1.5 : 0 }),
    `block ${block}: ${precise(ms)} ms${late ? "\ndisturbed, not scored" : ""}`)));
  svg.append(draw("text", { x: 62, y: 128 }, "block 0"), draw("text", { x: 610, y: 128, "text-anchor": "end" }, `ms a call in each of ${cell.samples.length} blocks`));
  return svg;
}
function pastChart(points, kind) {
  const told = points.filter(point => point.speedup);
  if (told.length < 2) return null;
  const low = Math.min(...told.map(p => p.speedup[0])), high = Math.max(...told.map(p => p.speedup[2]));
  const x = linearScale(0, told.length - 1, 72, 590), y = logScale(low * .99, high * 1.01, 118, 12);
  const svg = draw("svg", { viewBox: "0 0 624 146", role: "img", "aria-label": "speed-up over time" });
  for (const tick of roundTicks(low, high, 4)) svg.append(draw("line", { class: "axis", x1: 56, x2: 610, y1: y(tick), y2: y(tick) }),
    draw("text", { x: 50, y: y(tick) + 4, "text-anchor": "end" }, `${tick}×`));
  svg.append(draw("polyline", { class: "roof", points: told.map((p, i) => `${x(i)},${y(p.speedup[1])}`).join(" ") }));
  told.forEach((point, i) => {
    const fresh = i > 0 && told[i - 1].source !== point.source;
    svg.append(draw("line", { class: `whisker ${kind}`, x1: x(i), x2: x(i), y1: y(point.speedup[0]), y2: y(point.speedup[2]) }), hint(
      draw("circle", { class: kind, cx: x(i), cy: y(point.speedup[1]), r: 4.5, "stroke-width": 0 }),
      `${point.date} ${point.run}\n${times(point.speedup)}${point.doubt || ""} ${range(point.speedup)}\nsource ${point.source}${fresh ? " (new)" : ""}`));
  });
  svg.append(draw("text", { x: 56, y: 140 }, told[0].date), draw("text", { x: 610, y: 140, "text-anchor": "end" }, told.at(-1).date));
  return svg;
}
// Where an output is wrong: a line a head, a mark for some rows, darker where more of it is wrong.
function errorMap(map) {
  if (!map) return null;
  const top = 18, line = 14, left = 110, wide = 500 / map.levels[0].length, high = top + line * map.levels.length;
  const svg = draw("svg", { viewBox: `0 0 624 ${high + 4}`, role: "img", "aria-label": `wrong elements by head and row: ${map.scale}` });
  svg.append(draw("text", { x: left, y: 12 }, `${map.scale}; darker: more elements wrong`));
  map.levels.forEach((levels, i) => {
    const y = top + i * line;
    svg.append(draw("text", { x: left - 6, y: y + 11, "text-anchor": "end" }, map.heads[i]), draw("line", { class: "axis", x1: left, x2: left + 500, y1: y + 7, y2: y + 7 }));
    [...levels].forEach((level, j) => level > 0 && svg.append(draw("rect", { fill: "var(--bad)", "fill-opacity": .2 + .8 * level / 9, x: left + j * wide, y, width: wide, height: line - 1 })));
  });
  return svg;
}

// A suite of many cells: each of the best submissions as a map of ratios to the best library of the cell.

function heatMaps(board, open) {
  return board.grid.map(map => {
    const row = board.rows.find(one => one.entry === map.entry);
    const head = make("tr", {}, make("th", { scope: "col" }, ""), map.lengths.map(length => make("th", { scope: "col", class: "num" }, length)));
    const body = map.lines.map(([name, fields]) => make("tr", {}, make("th", { scope: "row" }, name), fields.map(heatCell)));
    return make("div", { class: "card heat" }, make("h2", {}, make("button", { type: "button", onclick: () => open(row) }, map.entry)), make("p", {}, map.summary),
      make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": `${map.entry} beside the best library of each cell` }, make("table", {}, make("thead", {}, head), make("tbody", {}, body))));
  });
}
// Green: not slower than the best library, beyond doubt; red: slower, beyond doubt; amber: neither.
function heatCell(field) {
  if (!field.length) return make("td", {}, "–");
  const [low, value, high, library, tflops] = field[0], word = low >= 1 ? "ahead" : high < 1 ? "behind" : "level";
  const cell = make("td", { class: `num ${word}`, tabindex: 0, "aria-label": `${value.toFixed(3)} times ${library}, ${word}` }, `${value.toFixed(2)}×`, make("span", { class: "sub" }, `${tflops.toFixed(0)} · ${library}`));
  cell.style.setProperty("--deep", `${12 + 60 * Math.min(1, Math.abs(Math.log(value)) / .25)}%`);
  return hint(cell, `${value.toFixed(3)}× [${low.toFixed(3)}, ${high.toFixed(3)}] over ${library}\n${tflops.toFixed(1)} TFLOP/s`);
}
// The columns that stand in the table of a grid for its configs.
const gridColumns = () => [
  { key: "best", name: "over best library", sub: "geometric mean of the cells", of: row => row.best?.over?.[1] ?? null, down: true, kind: "num wide", text: row => times(row.best?.over) },
  { key: "least", name: "least cell", of: row => row.best?.least[0] ?? null, down: true, kind: "num wide", text: row => (row.best ? `${row.best.least[0].toFixed(3)}×` : "–") },
  { key: "led", name: "cells led", of: row => row.best?.led ?? null, down: true, kind: "num wide", text: row => (row.best ? `${row.best.led} of ${row.best.of}` : "–") }];
