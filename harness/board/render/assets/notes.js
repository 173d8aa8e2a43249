// NOTES.md of an entry as headings, lists, tables, code and text. Its author is a stranger: every piece
// becomes an element of ours or a text node, never markup, and a link leads to https or into the checkout.

const MARK = /\\([\\`*_{}[\]()#+.!|<>-])|(`{1,3})((?:(?!\2).){1,500})\2|\*\*([^*]{1,500})\*\*|(?<![\w*])\*([^*\s][^*]{0,300})\*(?!\w)|(?<!\w)_([^_\s][^_]{0,300})_(?!\w)|!?\[([^\][]{0,300})\]\(([^()\s]{1,300})\)/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
// No pattern here may read a text over and over: one line of 40,000 characters would hold the page up for hours.
const HEAD = /^(#{1,6})\s+(\S.*)$/;
const MOST_COLUMNS = 40;
const isRule = line => /^\|?:?-+:?(?:\|:?-+:?)*\|?$/.test((line || "").replace(/\s+/g, ""));

// The blocks of `text`; `folder`: where it lies in the checkout, for its links.
function notesOf(text, folder) {
  const lines = text.replace(/\r/g, "").replace(/[\u2028\u2029]/g, " ").replace(/<!--[\s\S]*?-->/g, "").split("\n"), blocks = [];
  const heads = lines.map(line => /^(#{1,6})\s/.exec(line)?.[1].length).filter(Boolean), top = Math.min(...heads);
  let at = 0, level = 3;
  while (at < lines.length) {
    const line = lines[at], head = HEAD.exec(line);
    if (!line.trim()) at += 1;
    else if (/^\s*(```|~~~)/.test(line)) at = fence(lines, at, blocks);
    else if (head) {
      level = Math.min(6, level + 1, head[1].length - top + 4); // below the panel's own h3, no step left out
      blocks.push(make(`h${level}`, {}, inline(withoutMarks(head[2]), folder)));
      at += 1;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) { blocks.push(make("hr")); at += 1; }
    else if (line.includes("|") && isRule(lines[at + 1])) at = table(lines, at, blocks, folder);
    else if (ITEM.test(line)) at = list(lines, at, blocks, folder);
    else if (/^\s*>/.test(line)) at = gather(lines, at, one => /^\s*>/.test(one), part => blocks.push(make("blockquote", {}, inline(part.map(one => one.replace(/^\s*>\s?/, "")).join(" "), folder))));
    else if (/^( {4}|\t)/.test(line)) at = gather(lines, at, one => /^( {4}|\t)/.test(one), part => blocks.push(make("pre", {}, part.map(one => one.replace(/^( {4}|\t)/, "")).join("\n"))));
    else at = gather(lines, at, one => one.trim() && !/^(#{1,6}\s|\s*(```|~~~|>))/.test(one) && !ITEM.test(one), part => blocks.push(make("p", {}, inline(part.join(" "), folder))));
  }
  return blocks;
}
// `title ##` → `title`.
function withoutMarks(head) {
  let end = head.length;
  while (head[end - 1] === "#") end -= 1;
  return head.slice(0, end).trimEnd();
}
// Lines from `at` on that belong together go to `put`; the index behind them.
function gather(lines, at, belongs, put) {
  let end = at + 1;
  while (end < lines.length && belongs(lines[end])) end += 1;
  put(lines.slice(at, end));
  return end;
}
function fence(lines, at, blocks) {
  const mark = lines[at].trim().slice(0, 3);
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(mark)) end += 1;
  blocks.push(make("pre", {}, lines.slice(at + 1, end).join("\n")));
  return end + 1;
}
function table(lines, at, blocks, folder) {
  const cells = line => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map(cell => cell.trim().replace(/\\\|/g, "|")).slice(0, MOST_COLUMNS);
  const head = cells(lines[at]), right = cells(lines[at + 1]).map(rule => rule.endsWith(":") && "num"), rows = [];
  const end = gather(lines, at + 1, line => line.includes("|"), part => rows.push(...part.slice(1).map(cells)));
  // As many cells as the line has: filled up, one of 2 characters would draw 40.
  const row = (name, texts) => make("tr", {}, texts.slice(0, head.length).map((text, i) => make(text ? name : "td", { class: right[i], scope: name === "th" && text ? "col" : null }, inline(text, folder))));
  blocks.push(make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "table" },
    make("table", {}, make("thead", {}, row("th", head)), make("tbody", {}, rows.map(one => row("td", one))))));
  return end;
}
// Items by their indentation; a line that goes on belongs to the item above it.
function list(lines, at, blocks, folder) {
  const items = [];
  let end = at;
  for (; end < lines.length; end += 1) {
    const found = ITEM.exec(lines[end]);
    if (found) items.push({ indent: found[1].length, number: found[2], text: found[3] });
    else if (lines[end].trim() && !/^(#{1,6}\s|\s*(```|~~~))/.test(lines[end]) && lines[end - 1].trim()) items.at(-1).text += ` ${lines[end].trim()}`;
    else if (lines[end].trim() || !ITEM.test(lines[end + 1] || "")) break;
  }
  const build = (from, indent) => {
    const holder = make(items[from].number ? "ol" : "ul", { start: items[from].number });
    let i = from;
    while (i < items.length && items[i].indent >= indent) {
      if (items[i].indent > indent && holder.lastChild) { const [inner, next] = build(i, items[i].indent); holder.lastChild.append(inner); i = next; continue; }
      holder.append(make("li", {}, inline(items[i].text, folder)));
      i += 1;
    }
    return [holder, i];
  };
  for (let from = 0; from < items.length;) { const [holder, next] = build(from, items[from].indent); blocks.push(holder); from = next; }
  return end;
}
// Text with code, stress and links; `depth` ends what is nested without end.
function inline(text, folder, depth = 0) {
  const parts = [];
  while (text) {
    const found = depth < 4 && MARK.exec(text);
    if (!found) { parts.push(text); break; }
    if (found.index) parts.push(text.slice(0, found.index));
    const [whole, escaped, , code, strong, star, under, label, target] = found;
    if (escaped) parts.push(escaped);
    else if (code) parts.push(make("code", {}, code.trim()));
    else if (strong) parts.push(make("strong", {}, inline(strong, folder, depth + 1)));
    else if (star || under) parts.push(make("em", {}, inline(star || under, folder, depth + 1)));
    else parts.push(...anchor(inline(label, folder, depth + 1), target, folder));
    text = text.slice(found.index + whole.length);
  }
  return parts;
}
function anchor(label, target, folder) {
  const host = /^https:\/\/([\w.-]+)(?:[/?#][^\s"'<>]*)?$/i.exec(target)?.[1];
  if (host) return [make("a", { href: target, rel: "noreferrer noopener nofollow", target: "_blank" }, label), ` (${host})`];
  const path = /^([\w.-]+(?:\/[\w.-]+)*\/?)(?:#[\w-]*)?$/.exec(target)?.[1];
  const inside = path && folder ? fromRoot(`${folder}/${path}`) : null;
  return inside ? [fileLink(inside, label)] : [...label, ` (${target})`];
}
// `submissions/a/../b.md` → `submissions/b.md`; null for what leads out of the checkout.
function fromRoot(path) {
  const parts = [];
  for (const part of path.split("/")) {
    if (part === ".." && !parts.length) return null;
    if (part === "..") parts.pop(); else if (part !== ".") parts.push(part);
  }
  return parts.join("/");
}
// A file of the checkout, beside which the page lies.
const fileLink = (path, ...label) => make("a", { href: hrefOf(DATA.home, path) }, label.length ? label : path);
const hrefOf = (...parts) => parts.join("").split("/").map(encodeURIComponent).join("/");
