// What is chosen → what is drawn. The choice lives in the address, so that a view can be shared.

const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const STEP = 60; // rows drawn at a time
const state = { board: 0, sort: "rank", down: false, rows: STEP, config: 0 };

const chosen = () => DATA.boards[state.board];
function visible() {
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  return chosen().rows.filter(row => byId(row.kind === "baseline" ? "baselines" : "submissions").checked && (!row.champion || byId("steps").checked)
    && (row.repeatable || byId("repeatable").parentElement.hidden || !byId("repeatable").checked) && words.every(word => `${row.entry} ${row.author} ${row.language} ${row.kind}`.toLowerCase().includes(word)));
}

// --------------------------------------------------------------- the table

// Who is ranked among whom: the order of the groups, and what stands above each but the first.
const GROUPS = ["exact", "approximate", "library", "step"];
const HEADS = {
  approximate: "Approximate: inside 1e-2 of PyTorch's attention, outside the limits on the relative error; ranked among themselves",
  library: "Library kernels: submissions that launched a library's attention or matrix products; ranked among themselves",
};
// The same inputs gave the same bits: told where some entries have it and others do not.
const repeatable = board => { const found = board.rows.filter(row => row.repeatable).length; return found < board.rows.length ? found : 0; };
const AMONG = { approximate: " among approximate entries", library: " among library kernels" };
// A step of a ladder stands below its champion, if that is ranked.
function rankOf(board, row) {
  const champion = row.champion && board.rows.find(one => one.entry === row.champion && one.rank !== null);
  if (champion) return rankOf(board, champion) + .5;
  return row.speedup ? GROUPS.indexOf(row.group) * 1e6 + (row.rank ?? 0) : null;
}

function columns(board) {
  const figures = board.grid ? gridColumns() : board.configs.map(config => ({ key: `config:${config.name}`, name: config.name, sub: "TFLOP/s", of: row => row.cells[config.name]?.tflops ?? null, down: true, kind: "num wide" }));
  return [
    { key: "rank", name: "rank", of: row => rankOf(board, row), kind: "num rank" }, { key: "entry", name: "entry", of: row => row.entry.toLowerCase() },
    { key: "speed", name: "speed-up", sub: `over ${board.headline}`, of: row => row.speedup?.[1] ?? null, down: true }, { key: "", name: "95 % interval", sub: "faint: each config", kind: "plot" }, ...figures,
    { key: "error", name: "rel. L2", sub: "worst config", of: worstError, kind: "num wide roomy" }, { key: "integrity", name: "integrity", of: row => row.integrity, kind: "wide roomy" },
    { key: "date", name: "date", of: row => row.date, down: true, kind: "wide roomy" }];
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
    one.key ? make("button", { type: "button", onclick: () => sortBy(one) }, breakable(one.name)) : one.name, one.sub ? make("span", { class: "sub" }, breakable(one.sub)) : null)));
  const body = make("tbody", {});
  let group = "exact";
  for (const row of list.slice(0, state.rows)) {
    if (row.group !== group && HEADS[row.group] && !board.cpu && state.sort === "rank") {
      body.append(make("tr", { class: "class" }, make("td", { colspan: all.length }, HEADS[row.group])));
      group = row.group;
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
  const open = () => show(row), step = row.champion && row.entry.slice(row.champion.length + 1);
  const about = [step && `step of ${row.champion}`, row.language, row.author, row.repeatable && repeatable(board) && "bitwise repeatable"].filter(Boolean).join(" · ");
  const figures = board.grid ? gridColumns().map(one => make("td", { class: one.kind }, one.text(row))) : board.configs.map(config => {
    const cell = row.cells[config.name], of = config.peak || Math.max(...board.rows.map(r => r.cells[config.name]?.tflops || 0)) || 1;
    if (!known(cell?.tflops)) return make("td", { class: "num wide" }, cell ? cell.status : "–");
    return make("td", { class: "num wide tflops" }, fixed(cell.tflops, 0), make("i", {}, barOf(cell.tflops / of, row.kind)), lastingOf(cell));
  });
  return make("tr", { tabindex: 0, class: row.champion ? "step" : row.rank === 1 && row.exact ? "first" : "", "aria-label": `${row.entry}, rank ${row.place}`, onclick: open,
    onkeydown: event => walk(event, open) },
    make("td", { class: "rank" }, row.place),
    nameCell(row, step || row.entry, make("span", { class: "sub" }, about, row.integrity.startsWith("judged") ? null : make("span", { class: "badge warn" }, row.integrity),
      row.loss ? hint(make("span", { class: "badge warn" }, row.loss.split(" than on ")[0].split(", ")[0]), row.loss) : null)),
    make("td", { class: "speed" }, make("b", {}, times(row.speedup)), make("small", {}, range(row.speedup))),
    make("td", { class: "plot" }, board.cpu ? "" : hint(forest(row, board.configs, low, high), title(row))), figures,
    make("td", { class: "num wide roomy" }, tiny(worstError(row))),
    make("td", { class: "wide roomy" }, make("span", { class: `badge ${row.integrity.startsWith("judged") ? "" : "warn"}` }, row.integrity)), make("td", { class: "wide roomy date" }, row.date));
}
// The dot and the name stay on one line; a long name breaks behind / and _.
function nameCell(row, name, ...below) {
  return make("td", { class: "name" }, make("div", { class: "who" }, make("span", { class: `dot ${row.kind}` }), make("span", {}, breakable(name))), below);
}
const breakable = name => name.split(/(?<=[/_])/).flatMap((part, i) => (i ? [make("wbr"), part] : [part]));
// What lasts for seconds, under the figure of the bursts.
function lastingOf(cell) {
  if (!known(cell.lasting?.tflops)) return null;
  return make("small", { title: cell.lasting.words }, `${fixed(cell.lasting.tflops, 0)} lasting${known(cell.lasting.pj) ? `, ${cell.lasting.pj} pJ/FLOP` : ""}`);
}
function barOf(share, kind) {
  const bar = make("b", { class: kind });
  bar.style.width = `${Math.min(100, 100 * share)}%`;
  return bar;
}
function walk(event, open) {
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); }
}
const rowsShown = () => [...byId("table").querySelectorAll("tbody tr[tabindex]")];
// ↑ ↓ Enter from anywhere that has no use for them, as long as the table is in sight; / goes to Find.
function keys(event) {
  const at = event.target, rows = rowsShown(), from = rows.indexOf(at.closest("tr"));
  if (byId("panel").open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName)) { event.preventDefault(); byId("find").focus(); }
  if (!["ArrowDown", "ArrowUp", "Enter"].includes(event.key) || !rows.length) return;
  const idle = at === document.body || at === byId("board"), box = byId("table").getBoundingClientRect();
  if (event.key === "Enter") {
    if (at === byId("find") || (idle && box.top < innerHeight && box.bottom > 0)) { event.preventDefault(); rows[0].click(); }
  } else if (from >= 0) {
    event.preventDefault();
    (rows[from + (event.key === "ArrowDown" ? 1 : -1)] || (from ? at : byId("find"))).focus();
  } else if (event.key === "ArrowDown" && (at === byId("find") || (idle && box.top < innerHeight && box.bottom > 0))) {
    event.preventDefault();
    rows[0].focus();
  }
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
  const config = board.configs[state.config] || board.configs[0];
  byId("grid").hidden = !board.grid?.length;
  byId("heat").replaceChildren(...heatMaps({ ...board, grid: board.grid || [] }, show));
  byId("bars").replaceChildren(...(board.grid ? [config] : board.configs).map(config => make("div", { class: "card" }, make("h2", {}, config.name), make("p", {}, config.shape),
    bars(config, scored, board.reported, show), ...config.machineNotes.map(note => make("p", { class: "small" }, note)))));
  byId("pareto-config").replaceChildren(...board.configs.map((one, i) => make("option", { value: i, selected: one === config }, one.name)));
  byId("pareto").replaceChildren(pareto(config, scored, show));
  byId("roof").replaceChildren(roofline(board.grid ? { ...board, configs: [config] } : board, scored, show));
  const failed = rows.filter(row => !row.speedup && !board.cpu);
  byId("unranked").replaceChildren(...(failed.length ? [make("div", { class: "head" }, make("h2", { id: "unranked-title" }, "Not ranked")),
    make("div", { class: "scroll", tabindex: 0, role: "group", "aria-labelledby": "unranked-title" }, make("table", {}, make("thead", {}, make("tr", {}, ["entry", "why", "next"].map(name => make("th", { scope: "col" }, name)))),
      make("tbody", {}, failed.slice(0, 200).map(row => make("tr", {}, make("td", { class: "name" }, make("div", { class: "who" }, make("span", { class: `dot ${row.kind}` }),
        make("button", { type: "button", onclick: () => show(row) }, row.entry))), make("td", {}, row.why), make("td", {}, row.next))))))] : []));
  byId("unranked").hidden = !failed.length;
}
// What papers say of this very problem and these very shapes; of another one nothing is shown.
function drawReported() {
  const board = chosen(), names = board.configs.map(config => config.name).filter(name => board.reported.some(one => known(one.tflops[name])));
  byId("reported").hidden = !board.reported.length;
  byId("reported").replaceChildren(make("div", { class: "head" }, make("h2", { id: "reported-title" }, "Reported elsewhere, not ranked"),
    make("p", {}, "TFLOP/s as their authors report them, on their machines and by their protocols.")),
  make("div", { class: "scroll", tabindex: 0, role: "group", "aria-labelledby": "reported-title" }, make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "kernel"), names.map(name => make("th", { scope: "col", class: "num" }, breakable(name))))),
    make("tbody", {}, board.reported.map(one => make("tr", {}, make("td", { class: "name" }, one.name, make("span", { class: "sub" }, one.source)), names.map(name => make("td", { class: "num" }, fixed(one.tflops[name], 0)))))))),
  ...board.claims.map(one => make("p", { class: "small" }, `${one[0]}: ${one[1]} (${one[2]}); ${one[3]}.`)));
}
function drawHead() {
  const board = chosen(), day = board.rows.map(row => row.date).sort().at(-1);
  byId("board-title").textContent = `${board.gpu} · ${board.suite}`;
  byId("board-note").textContent = board.cpu ? "Times of a CPU are never ranked; these rows say who passed."
    : `Geometric mean over the configs of (time of ${board.headline} / time of the entry), paired inside each block, with its 95 % interval. Rows marked = cannot be told apart. Suite ${board.sha}, protocol ${board.protocol}, newest result ${day}.`;
  byId("speed-note").textContent = "TFLOP/s of each entry" + (board.configs.some(config => config.peak) ? "; the line on the right is the chip's dense 16-bit peak" : "")
    + (board.reported.length ? ", the ticks above are figures that papers report from other machines." : ".");
  const steps = board.rows.filter(row => row.champion).length;
  byId("repeatable").parentElement.hidden = !repeatable(board);
  byId("repeatable-count").textContent = `only bitwise repeatable (${repeatable(board)})`;
  byId("steps").parentElement.hidden = !steps;
  byId("steps-count").textContent = `steps of ladders (${steps})`;
}
function redraw() {
  drawHead();
  const rows = visible();
  drawTable(rows);
  drawRest(rows);
  drawReported();
}
function show(row) {
  byId("tip").hidden = true;
  const fresh = !byId("panel").open;
  openPanel(chosen(), row);
  remember(row, fresh);
}

// --------------------------------------------------------------- choices and the address

// A panel is a step of the browser's history, so that Back closes it.
function remember(row, fresh = false) {
  const board = chosen(), words = new URLSearchParams({ gpu: board.gpu, suite: board.suite, sha: board.sha, protocol: board.protocol });
  if (row) words.set("entry", row.entry);
  try {
    if (fresh) history.pushState({ panel: true }, "", `#${words}`); else history.replaceState(history.state, "", `#${words}`);
  } catch { /* a page inside a frame may not */ }
}
// The board that the address names: by GPU and suite; hash and protocol choose among those of one name.
function recall() {
  const words = new URLSearchParams(location.hash.slice(1)), missed = [];
  let found = DATA.boards.map((_, i) => i);
  for (const key of ["gpu", "suite", "protocol", "sha"]) {
    const asked = words.get(key), left = found.filter(i => (key === "sha" ? DATA.boards[i].sha.startsWith(asked) : String(DATA.boards[i][key]) === asked));
    if (!asked) continue;
    if (left.length) found = left; else missed.push(`${key} '${asked.slice(0, 80)}'`);
  }
  const named = words.get("gpu") || words.get("suite") || words.get("sha");
  state.missed = missed;
  return { board: !named || found.includes(DATA.main) ? DATA.main : found[0], entry: words.get("entry") };
}
// What the address asks for is shown: at the start, after Back and Forward, and when somebody edits it.
function follow() {
  const asked = recall();
  if (asked.board !== state.board || !byId("table").hasChildNodes()) choose(asked.board);
  const row = asked.entry && chosen().rows.find(one => one.entry === asked.entry);
  if (asked.entry && !row) state.missed.push(`entry '${asked.entry.slice(0, 80)}'`);
  if (row) openPanel(chosen(), row); else if (byId("panel").open) byId("panel").close();
  byId("missed").textContent = state.missed.length ? `The address asks for ${state.missed.join(", ")}, which is not on this page. Shown: ${chosen().gpu}, ${chosen().suite}.` : "";
}
function closed() {
  const open = new URLSearchParams(location.hash.slice(1)).has("entry");
  if (open && history.state?.panel) history.back(); else if (open) remember(null);
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
function pick(index) {
  choose(index);
  byId("missed").textContent = "";
  remember(null);
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
function footer() {
  const told = [[DATA.home, "README.md", "the repository's README"], ["", DATA.text, "this board as text"], [DATA.docs, "docs/how-to-read-the-board.md", "how to read it"],
    [DATA.docs, "docs/how-timing-works.md", "how timing works"], [DATA.results, "", "the records"]].filter(([base]) => known(base));
  byId("files").append(...listed(told.map(([base, path, name]) => make("a", { href: hrefOf(base, path) || "." }, name))));
}
function start() {
  theme();
  footer();
  const judged = DATA.boards.every(board => board.rows.every(row => row.integrity.startsWith("judged")));
  byId("lead").textContent = `${judged ? "Each entry" : "Each entry marked judged"} was checked and timed by a process that never ran it, on inputs nobody saw before, in the same blocks as its rivals.`
    + (DATA.badLines ? ` ${DATA.badLines} damaged record lines were left out.` : "");
  if (!DATA.boards.length) {
    byId("board").replaceChildren(make("h2", { id: "board-title" }, "No results yet"), make("p", { class: "card empty" }, "Measure one: python run.py --submission triton_template"));
    for (const id of ["speed", "maps", "controls", "unranked", "reported", "grid"]) byId(id).hidden = true;
    return;
  }
  follow();
  for (const name of ["popstate", "hashchange"]) addEventListener(name, follow);
  addEventListener("beforeprint", () => { state.rows = Infinity; redraw(); });
  byId("gpu").addEventListener("change", event => pick(DATA.boards.findIndex(board => board.gpu === event.target.value)));
  byId("suite").addEventListener("change", event => pick(Number(event.target.value)));
  byId("pareto-config").addEventListener("change", event => { state.config = Number(event.target.value); redraw(); });
  for (const id of ["submissions", "baselines", "repeatable", "steps"]) byId(id).addEventListener("change", redraw);
  byId("find").addEventListener("input", () => { state.rows = STEP; redraw(); });
  byId("controls").addEventListener("submit", event => event.preventDefault());
  byId("more").addEventListener("click", () => { state.rows += STEP; redraw(); });
  byId("panel").addEventListener("close", closed);
  byId("panel").addEventListener("click", event => { if (event.target === byId("panel")) byId("panel").close(); });
  document.addEventListener("keydown", keys);
}
start();
