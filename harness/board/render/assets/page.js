// What is chosen → what is drawn. The choice lives in the address, so that a view can be shared.

const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const STEP = 60; // rows drawn at a time
const state = { board: 0, sort: "rank", down: false, rows: STEP, config: 0 };

const chosen = () => DATA.boards[state.board];
function visible() {
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  return chosen().rows.filter(row => byId(row.kind === "baseline" ? "baselines" : "submissions").checked
    && words.every(word => `${row.entry} ${row.author} ${row.language} ${row.kind}`.toLowerCase().includes(word)));
}

// --------------------------------------------------------------- the table

function columns(board) {
  const figures = board.configs.map(config => ({ key: `config:${config.name}`, name: config.name, sub: "TFLOP/s", of: row => row.cells[config.name]?.tflops ?? null, down: true, kind: "num wide" }));
  return [
    { key: "rank", name: "rank", of: row => (row.rank === null ? null : row.rank + (row.exact ? 0 : 1e6)), kind: "num" }, { key: "entry", name: "entry", of: row => row.entry.toLowerCase() },
    { key: "speed", name: "speed-up", sub: `over ${board.headline}`, of: row => row.speedup?.[1] ?? null, down: true }, { key: "", name: "95 % interval", sub: "faint: each config", kind: "wide" }, ...figures,
    { key: "error", name: "rel. L2", sub: "worst config", of: worstError, kind: "num wide" }, { key: "integrity", name: "integrity", of: row => row.integrity, kind: "wide" },
    { key: "date", name: "date", of: row => row.date, down: true, kind: "wide" }];
}
const worstError = row => { const all = Object.values(row.cells).map(cell => cell.relL2).filter(known); return all.length ? Math.max(...all) : null; };

function sorted(rows, column) {
  const sign = state.down ? -1 : 1;
  return rows.map((row, i) => [column.of(row), i, row]).sort(([a, i], [b, j]) => {
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    return (a < b ? -1 : a > b ? 1 : 0) * sign || i - j;
  }).map(([, , row]) => row);
}
function drawTable(rows) {
  const board = chosen(), all = columns(board), column = all.find(one => one.key === state.sort) || all[0];
  const scored = rows.filter(row => row.speedup);
  // the top is where differences are small: the axis ends at 60 % of the best, the rest is an arrow
  const exact = scored.filter(row => row.exact), measure = exact.length ? exact : scored;
  const high = Math.max(1, ...measure.map(row => row.speedup[2])) * 1.03;
  const low = Math.max(high * .6, Math.min(1, ...measure.map(row => row.speedup[0])) * .97);
  const list = sorted(board.cpu ? rows : scored, column);
  const head = make("tr", {}, all.map(one => make("th", { scope: "col", class: one.kind, "aria-sort": one.key && one.key === state.sort ? (state.down ? "descending" : "ascending") : null },
    one.key ? make("button", { type: "button", onclick: () => sortBy(one) }, one.name) : one.name, one.sub ? make("span", { class: "sub" }, one.sub) : null)));
  const body = make("tbody", {});
  let approximate = false;
  for (const row of list.slice(0, state.rows)) {
    if (!row.exact && !approximate && !board.cpu && state.sort === "rank") {
      body.append(make("tr", { class: "class" }, make("td", { colspan: all.length }, "Approximate: inside 1e-2 of PyTorch's attention, outside the limits on the relative error; ranked among themselves")));
      approximate = true;
    }
    body.append(tableRow(board, row, low, high));
  }
  const table = list.length ? make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), body))
    : make("p", { class: "card empty" }, rows.length ? "Nobody here is ranked yet; see below." : "Nothing matches. Clear the search or tick both kinds.");
  byId("table").replaceChildren(table);
  byId("more").hidden = list.length <= state.rows;
  byId("more").textContent = `Show ${Math.min(STEP, list.length - state.rows)} more of ${list.length}`;
}
function tableRow(board, row, low, high) {
  const open = () => show(row);
  const figures = board.configs.map(config => {
    const cell = row.cells[config.name], of = config.peak || Math.max(...board.rows.map(r => r.cells[config.name]?.tflops || 0)) || 1;
    if (!known(cell?.tflops)) return make("td", { class: "num wide" }, cell ? cell.status : "–");
    return make("td", { class: "num wide tflops" }, fixed(cell.tflops, 0), make("i", {}, barOf(cell.tflops / of, row.kind)));
  });
  return make("tr", { tabindex: 0, class: row.rank === 1 && row.exact ? "first" : "", "aria-label": `${row.entry}, rank ${row.place}`, onclick: open,
    onkeydown: event => walk(event, open) },
    make("td", { class: "rank" }, row.place),
    make("td", { class: "name" }, make("span", { class: `dot ${row.kind}` }), row.entry, make("span", { class: "sub" }, [row.language, row.author].filter(Boolean).join(" · "))),
    make("td", { class: "speed" }, make("b", {}, times(row.speedup)), make("small", {}, range(row.speedup))),
    make("td", { class: "plot" }, board.cpu ? "" : hint(forest(row, board.configs, low, high), title(row))), figures,
    make("td", { class: "num wide" }, tiny(worstError(row))),
    make("td", { class: "wide" }, make("span", { class: `badge ${row.integrity.startsWith("judged") ? "" : "warn"}` }, row.integrity)), make("td", { class: "wide date" }, row.date));
}
function barOf(share, kind) {
  const bar = make("b", { class: kind });
  bar.style.width = `${Math.min(100, 100 * share)}%`;
  return bar;
}
function walk(event, open) {
  const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); }
  if (!next) return;
  event.preventDefault();
  let row = event.currentTarget[next];
  while (row && !row.hasAttribute("tabindex")) row = row[next];
  row?.focus();
}
function sortBy(column) {
  state.down = state.sort === column.key ? !state.down : Boolean(column.down);
  state.sort = column.key;
  redraw();
  byId("table").querySelector("[aria-sort] button")?.focus();
}

// --------------------------------------------------------------- the rest of the page

function drawRest(rows) {
  const board = chosen(), scored = rows.filter(row => row.speedup || Object.values(row.cells).some(cell => known(cell.tflops)));
  for (const id of ["speed", "maps"]) byId(id).hidden = board.cpu || !scored.length;
  byId("bars").replaceChildren(...board.configs.map(config => make("div", { class: "card" }, make("h2", {}, config.name), make("p", {}, config.shape),
    bars(config, scored, DATA.reported, show), ...config.machineNotes.map(note => make("p", { class: "small" }, note)))));
  const config = board.configs[state.config] || board.configs[0];
  byId("pareto-config").replaceChildren(...board.configs.map((one, i) => make("option", { value: i, selected: one === config }, one.name)));
  byId("pareto").replaceChildren(pareto(config, scored, show));
  byId("roof").replaceChildren(roofline(board, scored, show));
  const failed = rows.filter(row => !row.speedup && !board.cpu);
  byId("unranked").replaceChildren(...(failed.length ? [make("div", { class: "head" }, make("h2", { id: "unranked-title" }, "Not ranked")),
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ["entry", "why", "next"].map(name => make("th", { scope: "col" }, name)))),
      make("tbody", {}, failed.slice(0, 200).map(row => make("tr", {}, make("td", { class: "name" }, make("span", { class: `dot ${row.kind}` }),
        make("button", { type: "button", onclick: () => show(row) }, row.entry)), make("td", {}, row.why), make("td", {}, row.next))))))] : []));
}
function drawReported() {
  const names = Object.keys(DATA.reported[0].tflops);
  byId("reported").append(make("div", { class: "head" }, make("h2", { id: "reported-title" }, "Reported elsewhere, not ranked"),
    make("p", {}, "TFLOP/s as their authors report them, on their machines and by their protocols.")),
  make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "kernel"), names.map(name => make("th", { scope: "col", class: "num" }, name)), make("th", { scope: "col" }, "source"))),
    make("tbody", {}, DATA.reported.map(one => make("tr", {}, make("td", { class: "name" }, one.name), names.map(name => make("td", { class: "num" }, fixed(one.tflops[name], 0))), make("td", { class: "small" }, one.source)))))),
  ...DATA.other.map(one => make("p", { class: "small" }, `${one[0]}: ${one[1]} (${one[2]}); ${one[3]}.`)));
}
function drawHead() {
  const board = chosen(), day = board.rows.map(row => row.date).sort().at(-1);
  byId("board-title").textContent = `${board.gpu} · ${board.suite}`;
  byId("board-note").textContent = board.cpu ? "Times of a CPU are never ranked; these rows say who passed."
    : `Geometric mean over the configs of (time of ${board.headline} / time of the entry), paired inside each block, with its 95 % interval. Rows marked = cannot be told apart. Suite ${board.sha}, protocol ${board.protocol}, newest result ${day}.`;
}
function redraw() {
  const rows = visible();
  drawHead();
  drawTable(rows);
  drawRest(rows);
  remember(null);
}
function show(row) {
  byId("tip").hidden = true;
  openPanel(chosen(), row);
  remember(row);
}

// --------------------------------------------------------------- choices and the address

function remember(row) {
  const board = chosen(), words = new URLSearchParams({ gpu: board.gpu, suite: board.suite, sha: board.sha, protocol: board.protocol });
  if (row) words.set("entry", row.entry);
  try { history.replaceState(null, "", `#${words}`); } catch { /* a page inside a frame may not */ }
}
function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  const at = DATA.boards.findIndex(board => board.gpu === words.get("gpu") && board.sha === words.get("sha") && String(board.protocol) === words.get("protocol"));
  state.board = at < 0 ? DATA.main : at;
  return words.get("entry");
}
function fillChoices() {
  const gpus = [...new Set(DATA.boards.map(board => board.gpu))], board = chosen();
  byId("gpu").replaceChildren(...gpus.map(gpu => make("option", { value: gpu, selected: gpu === board.gpu }, gpu)));
  byId("suite").replaceChildren(...DATA.boards.map((one, i) => [one, i]).filter(([one]) => one.gpu === board.gpu)
    .map(([one, i]) => make("option", { value: i, selected: i === state.board }, twins(one) ? `${one.suite} (protocol ${one.protocol}, ${one.sha.slice(0, 6)})` : one.suite)));
}
const twins = board => DATA.boards.some(one => one !== board && one.gpu === board.gpu && one.suite === board.suite);
function choose(index) {
  Object.assign(state, { board: index, rows: STEP, config: 0, sort: "rank", down: false });
  fillChoices();
  redraw();
}
function theme() {
  const order = ["auto", "light", "dark"], root = document.documentElement;
  let at = 0;
  const set = () => {
    if (order[at] === "auto") delete root.dataset.theme; else root.dataset.theme = order[at];
    byId("theme").textContent = `Theme: ${order[at]}`;
  };
  byId("theme").addEventListener("click", () => { at = (at + 1) % order.length; set(); });
  set();
}
function start() {
  theme();
  byId("lead").textContent = "Each entry was checked and timed by a process that never ran it, on inputs nobody saw before, in the same blocks as its rivals."
    + (DATA.badLines ? ` ${DATA.badLines} damaged record lines were left out.` : "");
  drawReported();
  if (!DATA.boards.length) {
    byId("board").replaceChildren(make("p", { class: "card empty" }, "No results yet. Measure one: python run.py --submission triton_template"));
    for (const id of ["speed", "maps", "controls"]) byId(id).hidden = true;
    return;
  }
  const wanted = recall();
  fillChoices();
  redraw();
  const row = wanted && chosen().rows.find(one => one.entry === wanted);
  if (row) show(row);
  byId("gpu").addEventListener("change", event => choose(DATA.boards.findIndex(board => board.gpu === event.target.value)));
  byId("suite").addEventListener("change", event => choose(Number(event.target.value)));
  byId("pareto-config").addEventListener("change", event => { state.config = Number(event.target.value); redraw(); });
  for (const id of ["submissions", "baselines"]) byId(id).addEventListener("change", redraw);
  byId("find").addEventListener("input", () => { state.rows = STEP; redraw(); });
  byId("controls").addEventListener("submit", event => event.preventDefault());
  byId("more").addEventListener("click", () => { state.rows += STEP; redraw(); });
  byId("panel").addEventListener("close", () => remember(null));
  byId("panel").addEventListener("click", event => { if (event.target === byId("panel")) byId("panel").close(); });
  document.addEventListener("keydown", event => {
    if (event.key === "/" && !byId("panel").open && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) { event.preventDefault(); byId("find").focus(); }
  });
}
start();
