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
