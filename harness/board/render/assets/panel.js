// The panel of one entry: who, where, every config, raw samples, history, notes.

function openPanel(board, row) {
  const panel = document.getElementById("panel");
  panel.replaceChildren(
    make("div", { class: "top" },
      make("div", {}, make("h2", { id: "panel-title" }, row.entry), make("p", {}, placeOf(board, row))),
      make("button", { type: "button", autofocus: true, onclick: () => panel.close() }, "Close")),
    facts(row),
    ...hiddenPart(row),
    ...board.configs.map(config => configCard(board, config, row)),
    ...stepsOf(board, row),
    ...pastOf(row),
    ...notesPart(row));
  if (!panel.open) panel.showModal();
  panel.scrollTop = 0;
}
function placeOf(board, row) {
  if (board.cpu) return `${board.gpu} · ${board.suite}: a CPU's times are never ranked`;
  if (!row.speedup) return `not ranked: ${row.why}. Next: ${row.next}`;
  const place = row.champion ? `a step of ${row.champion}, without a place: ` : `place ${row.place}${AMONG[row.group] || ""}: `;
  return `${place}${times(row.speedup)} ${range(row.speedup)} over ${board.headline}, ${board.gpu} · ${board.suite}`;
}
function facts(row) {
  const machine = row.machine, told = [
    ["kind", `${row.kind}, ${row.language}`], ["author", row.author], ["version", row.version], ["integrity", row.integrity],
    ["measured", `${row.date}, run ${row.run}`],
    ["records", listed(row.records.map(name => (known(DATA.results) ? make("a", { href: hrefOf(DATA.results, name) }, name) : name)))],
    ["source", row.folder && fileLink(row.folder)], ["source hash", row.source && make("code", {}, row.source)], ["harness", row.harness && make("code", {}, row.harness)],
    ["machine", [machine.gpu, machine.sms && `${machine.sms} SMs`, machine.power_limit_w && `${Math.round(machine.power_limit_w)} W`, machine.gpu === "cpu" && machine.cpu].filter(Boolean).join(", ")],
    ["software", ["driver", "cuda", "torch", "triton", "python"].filter(key => machine[key]).map(key => `${key} ${machine[key]}`).join(", ")]];
  return pairs(told);
}
const listed = nodes => (nodes.length ? nodes.flatMap((node, i) => (i ? [", ", node] : [node])) : null);
const pairs = told => make("dl", {}, told.filter(([, value]) => value).flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)]));

function configCard(board, config, row) {
  const cell = row.cells[config.name];
  if (!cell) return make("div", { class: "card" }, make("h3", {}, config.name), make("p", { class: "small" }, "not run"));
  const head = make("h3", {}, config.name, " ", make("span", { class: `badge ${cell.status === "PASSED" ? "good" : "bad"}` }, cell.status),
    cell.class === "approximate" ? make("span", { class: "badge warn" }, "approximate") : null);
  const shape = [make("p", { class: "small" }, config.shape), errorMap(cell.map)];
  if (cell.status !== "PASSED" || !known(cell.ms)) return make("div", { class: "card" }, head, shape, cell.reason ? make("p", {}, cell.reason) : null,
    cell.log?.length ? make("pre", { tabindex: 0 }, cell.log.join("\n")) : null);
  const told = [
    ["latency", `${precise(cell.ms)} ms (p10 ${precise(cell.p10)}, p90 ${precise(cell.p90)})`],
    ["speed", `${fixed(cell.tflops, 1)} TFLOP/s, ${percent(cell.peakPct)} of peak`],
    ["speed-up", cell.speedup && `${times(cell.speedup)} ${range(cell.speedup)} over ${board.headline}, ${cell.blocks} blocks`],
    ["error", `max diff ${tiny(cell.maxDiff)}, relative L2 ${tiny(cell.relL2)}, worst row ${tiny(cell.worstRow)}`],
    ["likely limit", make("span", { class: "limit" }, cell.limiter)],
    ["clock, power", known(cell.mhz) && `${fixed(cell.mhz, 0)} MHz (${percent(cell.atClockPct)} of the peak at that clock), ${fixed(cell.watts, 0)} W; read between bursts`],
    ["clock slack", known(cell.slackPct) && `${cell.slackPct.toFixed(2)} % of the mean`],
    ["kernels", cell.kernels.length > 0 && make("code", {}, cell.kernels.join(", "))],
    ["notes", [...cell.notes, ...config.machineNotes].join("; ")]];
  return make("div", { class: "card" }, head, shape, pairs(told), samples(cell, row.kind),
    make("details", {}, make("summary", { class: "small" }, "raw samples"), make("pre", { tabindex: 0 }, cell.samples.map(s => `${s[0]}\t${s[1]} ms${s[2] ? "\tlate" : ""}`).join("\n"))));
}
function hiddenPart(row) {
  if (!row.hidden.length) return [];
  return [make("div", { class: "card" }, make("h3", {}, "Hidden shapes"), make("p", { class: "small" }, "Drawn from the secret of its run, in no score; batch×heads×seqlen, TFLOP/s."),
    pairs(row.hidden), row.loss ? make("p", {}, row.loss) : null)];
}
function stepsOf(board, row) {
  const steps = board.rows.filter(one => one.champion === row.entry);
  if (!steps.length) return [];
  return [make("h3", {}, `Steps of its ladder (${steps.length})`), make("ul", { class: "card steps" }, steps.map(step => make("li", {},
    make("button", { type: "button", onclick: () => show(step) }, step.entry.slice(row.entry.length + 1)), ` ${step.speedup ? `${times(step.speedup)} ${range(step.speedup)}` : step.why}`)))];
}
function pastOf(row) {
  if (row.history.length < 2) return [];
  const lines = row.history.slice().reverse().map(point => make("tr", {}, make("td", {}, point.date), make("td", {}, make("code", {}, point.source)),
    make("td", { class: "num" }, point.speedup ? times(point.speedup) + (point.doubt || "") : "–"), make("td", { class: "small" }, point.speedup ? range(point.speedup) : point.failed)));
  return [make("h3", {}, `History (${row.history.length} runs)`), make("div", { class: "card" }, pastChart(row.history, row.kind),
    make("details", {}, make("summary", { class: "small" }, "every run"), make("table", {}, make("tbody", {}, lines))))];
}
function notesPart(row) {
  if (!row.notesText) return [];
  const rest = row.notesCut ? [make("p", { class: "small" }, "Cut here; all of it: ", row.folder ? fileLink(`${row.folder}/NOTES.md`) : "NOTES.md", ".")] : [];
  return [make("h3", {}, "Notes of its author"), make("div", { id: "notes", class: "card" }, notesOf(row.notesText, row.folder), rest)];
}
