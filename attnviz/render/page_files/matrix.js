// Matrix: the text, and all heads as thumbnails, layers × heads; or in the order of a measure; or those within a
// range. The weight of the chosen cell is one of the measures.

import * as run from "./run.js";
import * as state from "./state.js";
import * as parts from "./parts.js";
import * as data from "./data.js";
import * as paint from "./paint.js";
import * as words from "./words.js";
import * as sentences from "./sentences.js";

const { facts } = run;
const { el } = parts;
const AT_ONCE = 12; // heads that are opened together
const STRIP = 48; // tokens of the text above the heads

// The weight of the chosen cell in every head: [{ index, weight, text }], in the page's order; null weight for none.
export async function ofCell(sequence, query, key) {
  const found = [];
  for (let from = 0; from < facts.heads.length; from += AT_ONCE) {
    const some = facts.heads.slice(from, from + AT_ONCE).map((_, i) => data.cells(sequence, from + i));
    for (const head of await Promise.all(some)) {
      const told = words.verdict(head, query, key);
      const known = head.cell(query, key);
      const weight = known.name === "exact" ? known.weight : known.name === "pixel" ? head.weight(query, key) : null;
      found.push({ index: head.index, weight, text: told.weight });
    }
  }
  return found;
}

export function view(onOpen, onLook) {
  const grid = el("div", { class: "tiles", role: "group", "aria-label": "Heads" });
  const count = el("p", { class: "count", role: "status" });
  const measure = el("select", { id: "measure" },
    ...Object.keys(facts.measures).map((name) => el("option", { value: name }, parts.measureTitle(name))),
    el("option", { value: "cell" }, "weight of the chosen cell"));
  const order = el("select", { id: "order" }, el("option", { value: "place" }, "by layer and head"),
    el("option", { value: "up" }, "smallest first"), el("option", { value: "down" }, "largest first"));
  const low = el("input", { type: "range", id: "from", min: 0, max: 100 });
  const high = el("input", { type: "range", id: "to", min: 0, max: 100 });
  const lowText = el("output", { for: "from" });
  const highText = el("output", { for: "to" });
  const controls = el("div", { class: "controls", "data-picture": "no" },
    el("label", {}, "Measure", measure), el("label", {}, "Order", order),
    el("span", { class: "from-to" }, el("label", { class: "range" }, "From", low, lowText), el("label", { class: "range" }, "to", high, highText)), count);
  const hint = el("p", { class: "hint" });
  const strips = [strip("queries", "query"), ...(facts.cross ? [strip("keys", "key")] : [])];
  const texts = el("div", { class: "strips" }, ...strips.map((one) => one.root), hint);
  const root = el("div", { class: "matrix" }, texts, controls, el("div", { class: "scroller" }, grid));

  // The text above the heads: pointing at a token marks its row and column in all of them.
  function strip(which, name) {
    return sentences.sentence({
      which, prefix: "strip-", name: which === "keys" ? "Keys" : "Text", most: STRIP,
      onHover: (at) => mark(name === "query" ? at : null, name === "key" || !facts.cross ? at : null),
      onPick: (at) => state.set({ [facts.cross || state.state.side === "looks" ? name : "key"]: at }),
    });
  }
  texts.addEventListener("pointerleave", () => mark(null, null));

  // Mark a row and a column of every head, where they are given.
  function mark(query, key) {
    const [sequence] = [state.state.sequence];
    const domain = data.domainOf(sequence);
    const set = (name, at, from, end) => {
      if (at === null) grid.style.removeProperty(name);
      else grid.style.setProperty(name, `${(100 * (at + 0.5 - from)) / (end - from)}%`);
    };
    set("--row", query, domain.query, domain.endQuery);
    set("--column", key, domain.key, domain.endKey);
    grid.classList.toggle("marked", query !== null || key !== null);
  }

  measure.addEventListener("change", () => state.set({ measure: measure.value }));
  order.addEventListener("change", () => state.set({ sort: order.value }));
  low.addEventListener("input", () => state.set({ low: Math.min(Number(low.value), state.state.high) }));
  high.addEventListener("input", () => state.set({ high: Math.max(Number(high.value), state.state.low) }));

  const tiles = facts.heads.map((place, i) => {
    const canvas = el("canvas", { width: 1, height: 1, "aria-hidden": "true" });
    const value = el("span", { class: "value" });
    const name = facts.namesLayers ? `${place[0]}·${place[1]}` : `head ${place[1]}`;
    const button = el("button", { class: "tile", type: "button", "data-head": i, tabindex: -1 },
      el("span", { class: "thumb" }, canvas), el("span", { class: "caption" }, el("span", { class: "name" }, name), value));
    button.addEventListener("click", () => onOpen(i));
    button.addEventListener("pointerenter", () => onLook(i));
    button.addEventListener("focus", () => { state.set({ head: i, chosen: null }); onLook(i); });
    return { button, canvas, value };
  });

  let cellTexts = [];
  let cellValues = facts.heads.map(() => null);
  function values() {
    if (state.state.measure === "cell") return cellValues;
    return facts.sequences[state.state.sequence].measures[state.state.measure];
  }

  // The heads within the filter, in order; null where a place of the matrix stays empty.
  function ordered() {
    const all = values();
    const known = all.filter((v) => v !== null);
    const [least, most] = [Math.min(...known), Math.max(...known)];
    const at = (percent) => least + ((most - least) * percent) / 100;
    const { sort, low: from, high: to } = state.state;
    lowText.textContent = parts.measureText(known.length ? at(from) : null);
    highText.textContent = parts.measureText(known.length ? at(to) : null);
    const fine = (most - least) * 1e-9;
    const within = (v) => (from === 0 && to === 100) || (v !== null && v >= at(from) - fine && v <= at(to) + fine);
    const kept = all.map((v, i) => ({ v, i })).filter(({ v }) => within(v));
    const sign = sort === "down" ? -1 : 1;
    if (sort !== "place") kept.sort((a, b) => sign * ((a.v ?? Infinity) - (b.v ?? Infinity)) || a.i - b.i);
    return kept.map(({ i }) => i);
  }

  function arrange() {
    const kept = ordered();
    const shown = values();
    const layers = [...new Set(facts.heads.map(([l]) => l))].sort((a, b) => a - b);
    const numbers = [...new Set(facts.heads.map(([, h]) => h))].sort((a, b) => a - b);
    const byPlace = state.state.sort === "place" && layers.length > 1;
    tiles.forEach(({ button, value }, i) => {
      value.textContent = state.state.measure === "cell" ? cellTexts[i] : parts.measureText(shown[i]);
      button.setAttribute("aria-label", `${run.headName(facts.heads[i])}, ${state.state.measure} ${parts.measureText(shown[i])}`);
      button.style.gridRow = byPlace ? String(layers.indexOf(facts.heads[i][0]) + 2) : "";
      button.style.gridColumn = byPlace ? String(numbers.indexOf(facts.heads[i][1]) + 2) : "";
    });
    const marks = [];
    if (byPlace) {
      layers.forEach((l, i) => {
        const mark = el("span", { class: "layer" }, i === 0 ? `layer ${l}` : String(l));
        mark.style.gridRow = String(i + 2);
        marks.push(mark);
      });
      numbers.forEach((h, i) => {
        const mark = el("span", { class: "number" }, i === 0 ? `head ${h}` : String(h));
        mark.style.gridColumn = String(i + 2);
        marks.push(mark);
      });
    }
    grid.classList.toggle("by-place", byPlace);
    grid.classList.toggle("few", tiles.length <= 16);
    grid.style.gridTemplateColumns = byPlace ? `auto repeat(${numbers.length}, minmax(var(--tile), 1fr))` : "";
    grid.replaceChildren(...marks, ...kept.map((i) => tiles[i].button));
    count.textContent = kept.length === tiles.length
      ? `${tiles.length} head${tiles.length > 1 ? "s" : ""}` : `${kept.length} of ${tiles.length} heads`;
    const stop = kept.includes(state.state.head) ? state.state.head : kept[0];
    tiles.forEach(({ button }, i) => { button.tabIndex = i === stop ? 0 : -1; });
    return kept;
  }

  let turn = 0;
  async function draw(kept) {
    const own = ++turn;
    const { sequence } = state.state;
    for (let from = 0; from < kept.length; from += from ? AT_ONCE : 1) { // the first one alone: it is seen soonest
      const some = kept.slice(from, from ? from + AT_ONCE : 1);
      const opened = await Promise.all(some.map((i) => data.thumbnail(sequence, i)));
      if (own !== turn) return;
      some.forEach((i, n) => paint.fillCanvas(tiles[i].canvas, opened[n]));
      if (!from) performance.mark("attnviz:first-head");
    }
    performance.mark("attnviz:all-heads");
  }

  function describe() {
    const { sequence, query, key } = state.state;
    const name = (all, at, side) => `“${parts.label(all[at] ?? "", 18)}” #${parts.number(at, run.real(sequence, side)[0])}`;
    const from = name(run.queryTokens(sequence), query, "query");
    const to = name(run.keyTokens(sequence), key, "key");
    measure.lastChild.textContent = `weight from ${from} to ${to}`;
    const heads = facts.heads.length > 1 ? "Each square is a head. " : "";
    hint.textContent = `${heads}Rows are queries, which look; columns are keys, which are looked at. Point at a token to mark its row and column, click a head to open it.`;
    strips.forEach((one, i) => {
      one.fill(sequence, i ? key : query);
      one.colour(i || state.state.side === "seen" ? key : query);
    });
  }

  async function rankByCell() {
    const { sequence, query, key } = state.state;
    const found = await ofCell(sequence, query, key);
    [cellValues, cellTexts] = [found.map(({ weight }) => weight), found.map(({ text }) => text)];
    if (state.state.view === "matrix") mark(query, key);
  }

  async function update(changed) {
    measure.value = state.state.measure;
    order.value = state.state.sort;
    low.value = state.state.low;
    high.value = state.state.high;
    await run.openTokens(state.state.sequence);
    describe();
    const onlyCell = [...changed].every((name) => ["query", "key", "pinned", "side", "by-key"].includes(name));
    if (state.state.measure === "cell") {
      await rankByCell();
      if (onlyCell) return arrange();
    } else if (onlyCell) return null;
    if (changed.has("head") && changed.size <= 2 && !changed.has("view")) {
      tiles.forEach(({ button }, i) => { button.tabIndex = i === state.state.head ? 0 : -1; });
      return null;
    }
    return draw(arrange());
  }

  // Arrows go to the tile that lies in that direction, nearest first.
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const here = document.activeElement;
    if (!step || !here.classList.contains("tile")) return;
    event.preventDefault();
    event.stopPropagation();
    const from = here.getBoundingClientRect();
    let best = null;
    for (const { button } of tiles) {
      if (!button.isConnected || button === here) continue;
      const box = button.getBoundingClientRect();
      const [dx, dy] = [box.x - from.x, box.y - from.y];
      const ahead = dx * step[0] + dy * step[1];
      const aside = Math.abs(dx * step[1]) + Math.abs(dy * step[0]);
      if (ahead <= 1) continue;
      const distance = ahead + 4 * aside;
      if (!best || distance < best.distance) best = { button, distance };
    }
    best?.button.focus();
  });

  return { root, update };
}
