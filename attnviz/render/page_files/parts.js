// Pieces that several views share: elements, numbers, the picture of a head, the words about a cell.

import * as tokens from "./tokens.js";
import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";

const { facts } = run;

// An element with attributes and children. A string becomes text, whatever it holds.
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, String(value));
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

// ── numbers ──

// A weight with as many decimals as its head's steps can tell apart.
export function weightText(weight, step) {
  if (Number.isNaN(weight)) return "not a number";
  if (weight === 0) return "0";
  const digits = Math.min(6, Math.max(2, Math.ceil(-Math.log10(step || 1e-4))));
  return weight.toFixed(digits);
}

// The weight of a cell; "< …" where it is more than 0 by less than half a step.
export function cellWeight(head, q, k) {
  if (head.isTiny(q, k)) return `< ${head.step ? (head.step / 2).toPrecision(1) : "1e-300"}`;
  return weightText(head.weight(q, k), head.step);
}

export function measureText(value) {
  if (value === null) return "–";
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  return value.toFixed(size >= 10 ? 1 : 2);
}

export function grouped(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

export function measureTitle(name) {
  return `${name} (${facts.measures[name]})`;
}

export function label(token, limit = 24) {
  return tokens.shorten(tokens.visible(token), limit);
}

// ── the picture of a head: one pixel a cell, or a pixel for several ──

// The weight that the end of the colour scale stands for.
export function scaleTop(head, query) {
  if (state.state.scale === "query") return head.rowLargest[query];
  return state.state.scale === "head" ? head.largest : run.largest(head.sequence);
}

export function share(weight, top) {
  if (!(weight > 0) || !(top > 0)) return 0;
  const linear = Math.min(1, weight / top);
  return state.state.curve === "root" ? Math.sqrt(linear) : linear;
}

function packed([r, g, b]) {
  return (255 << 24) | (b << 16) | (g << 8) | r;
}

function hexColour(text) {
  return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
}

// The colour of each number that a weight can be stored as: a table where there are few of them.
function codeColours(head, top) {
  const broken = packed(hexColour(colours.brokenColour()));
  const colourOf = (code) => {
    const weight = head.value(code);
    return Number.isNaN(weight) ? broken : packed(colours.colourAt(share(weight, top)));
  };
  if (facts.wide) return colourOf;
  const table = Int32Array.from({ length: 256 }, (_, code) => colourOf(code));
  return (code) => table[code];
}

const BESIDE = 2; // padded places that stay in sight

// What is shown first of a head: everything; but where padding takes most of the room, what is not padding.
export function area(head) {
  const { firstQuery, endQuery, firstKey, endKey } = head;
  const all = { query: 0, endQuery: facts.queries, key: 0, endKey: facts.keys };
  const real = (endQuery - firstQuery) * (endKey - firstKey);
  if (!real || real * 2 > facts.queries * facts.keys) return all;
  return {
    query: Math.max(0, firstQuery - BESIDE), endQuery: Math.min(facts.queries, endQuery + BESIDE),
    key: Math.max(0, firstKey - BESIDE), endKey: Math.min(facts.keys, endKey + BESIDE),
  };
}

// A canvas with a pixel for each `pool` × `pool` cells of an area: the largest of them. What a mask
// forbids stays transparent, so that the hatch behind it is seen; padding has a tone of its own.
export function picture(head, pool = 1, shown = { query: 0, endQuery: facts.queries, key: 0, endKey: facts.keys }) {
  const width = Math.ceil((shown.endKey - shown.key) / pool);
  const height = Math.ceil((shown.endQuery - shown.query) / pool);
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Int32Array(image.data.buffer);
  pixels.fill(packed(hexColour(colours.css("padding"))));
  const { codes, allowed, firstQuery, endQuery, firstKey, endKey } = head;
  const perRow = state.state.scale === "query";
  let colourOf = codeColours(head, scaleTop(head, 0));
  for (let y = 0; y < height; y++) {
    const largest = new Int32Array(width).fill(-2); // -2: all padding, -1: all forbidden; not a number wins
    let top = 0;
    const from = shown.query + y * pool;
    for (let q = Math.max(firstQuery, from); q < Math.min(endQuery, from + pool, shown.endQuery); q++) {
      const row = q * facts.keys;
      top = Math.max(top, head.rowLargest[q]);
      for (let k = Math.max(firstKey, shown.key); k < Math.min(endKey, shown.endKey); k++) {
        const x = pool === 1 ? k - shown.key : ((k - shown.key) / pool) | 0;
        const found = allowed && !allowed[row + k] ? -1 : codes[row + k];
        if (found > largest[x]) largest[x] = found;
      }
    }
    if (perRow) colourOf = codeColours(head, top);
    for (let x = 0; x < width; x++) {
      if (largest[x] >= 0) pixels[y * width + x] = colourOf(largest[x]);
      else if (largest[x] === -1) pixels[y * width + x] = 0;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// ── words about a cell ──

export function verdict(head, q, k) {
  const masks = facts.masks.length ? ` (${facts.masks.join(", ")})` : "";
  const weight = head.weight(q, k);
  const all = weight !== 0 ? `, yet it holds ${weightText(weight, head.step)}` : "";
  if (head.isPadding(q, k)) return { name: "padding", words: `padding, no part of the text${all}` };
  if (!head.sees[q]) return { name: "blind", words: `this query sees nothing: the masks${masks} forbid every key` };
  if (!head.isAllowed(q, k)) return { name: "forbidden", words: `may not look: forbidden by the masks${masks}${all}` };
  if (Number.isNaN(weight)) return { name: "broken", words: "may look, but the weight is not a number" };
  return { name: "allowed", words: weight === 0 && !head.isTiny(q, k) ? "may look, and does not: exactly 0" : "may look" };
}

export function rankText(head, q, k) {
  if (!head.shows(q, k) || Number.isNaN(head.weight(q, k))) return "–";
  const { first, last, all } = head.rank(q, k);
  return first === last ? `${first} of ${all}` : `${first}–${last} of ${all}`;
}

export function cellText(head, q, k) {
  const from = label(run.queryTokens(head.sequence)[q], 40);
  const to = label(run.keyTokens(head.sequence)[k], 40);
  const what = verdict(head, q, k);
  if (what.name !== "allowed") return `query ${q} ${from}, key ${k} ${to}: ${what.words}`;
  return `query ${q} ${from}, key ${k} ${to}: weight ${cellWeight(head, q, k)}, rank ${rankText(head, q, k)}, ${what.words}`;
}

// ── the card beside a view ──

const LIST_LENGTH = 8;

function ranking(title, side) {
  const rows = Array.from({ length: LIST_LENGTH }, () => {
    const name = el("bdi", { class: "name" });
    const bar = el("span", { class: "bar" });
    const value = el("span", { class: "value" });
    const row = el("li", {}, name, el("span", { class: "track" }, bar), value);
    return { row, name, bar, value };
  });
  const about = el("h2", {}, title);
  const none = el("p", { class: "none" }, "nothing");
  const root = el("section", { class: "ranking" }, about, el("ol", {}, ...rows.map((r) => r.row)), none);
  function update(head, q, k) {
    const along = side === "looks" ? "keys" : "queries";
    const texts = side === "looks" ? run.keyTokens(head.sequence) : run.queryTokens(head.sequence);
    const found = head.top(side === "looks" ? q : k, LIST_LENGTH, along);
    const top = found.length ? found[0].weight : 1;
    none.hidden = found.length > 0;
    rows.forEach(({ row, name, bar, value }, i) => {
      row.hidden = i >= found.length;
      if (row.hidden) return;
      name.textContent = label(texts[found[i].at], 14);
      bar.style.width = `${(100 * found[i].weight) / top}%`;
      value.textContent = weightText(found[i].weight, head.step);
    });
  }
  return { root, update };
}

function fact(name) {
  const value = el("dd", { "data-fact": name });
  return { term: el("dt", {}, name), value };
}

// The card: the cell in words, what its query looks at, what looks at its key, what the head does.
export function card() {
  const query = el("bdi", { "data-fact": "query" });
  const key = el("bdi", { "data-fact": "key" });
  const at = { query: el("span", { class: "at" }), key: el("span", { class: "at" }) };
  const weight = el("strong", { "data-fact": "weight" });
  const error = el("span", { class: "error" });
  const rank = fact("rank");
  const mask = fact("mask");
  const pin = el("p", { class: "pin" });
  const looks = ranking("Looks at", "looks");
  const seen = ranking("Is looked at by", "seen");
  const cell = el("section", { class: "cell" },
    el("div", { class: "pair" },
      el("div", {}, el("span", { class: "role" }, "query"), query, at.query),
      el("span", { class: "arrow", "aria-hidden": "true" }, "→"),
      el("div", {}, el("span", { class: "role" }, "key"), key, at.key)),
    el("p", { class: "weight" }, el("span", { class: "role" }, "weight"), weight, error),
    el("dl", {}, rank.term, rank.value, mask.term, mask.value), pin);
  const strips = measureStrips();
  const picture = preview();
  const root = el("div", { class: "card" }, picture.root, cell, looks.root, seen.root, strips.root);
  function update(head) {
    const { query: q, key: k, pinned } = state.state;
    const what = verdict(head, q, k);
    query.textContent = label(run.queryTokens(head.sequence)[q]);
    key.textContent = label(run.keyTokens(head.sequence)[k]);
    at.query.textContent = `#${q}`;
    at.key.textContent = `#${k}`;
    const shown = what.name === "allowed";
    weight.textContent = shown ? cellWeight(head, q, k) : "–";
    error.textContent = shown && head.weight(q, k) !== 0 && !facts.wide ? ` ± ${(head.step / 2).toPrecision(1)}` : "";
    rank.value.textContent = rankText(head, q, k);
    mask.value.textContent = what.words;
    cell.dataset.verdict = what.name;
    pin.textContent = pinned ? "pinned: click again or press Esc to let go" : "click to pin";
    looks.root.firstChild.textContent = `“${label(run.queryTokens(head.sequence)[q], 18)}” looks at`;
    seen.root.firstChild.textContent = `“${label(run.keyTokens(head.sequence)[k], 18)}” is looked at by`;
    looks.update(head, q, k);
    seen.update(head, q, k);
  }
  return { root, cell, looks, seen, strips, preview: picture, update };
}

// A head that is pointed at in the matrix, larger.
function preview() {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const root = el("section", { class: "preview" }, canvas);
  function update(head) {
    fillCanvas(canvas, head, 512);
  }
  return { root, update };
}

// Draw a head into a canvas of some `width`: square cells, sharp where there is room for them.
export function fillCanvas(canvas, head, width) {
  const shown = area(head);
  const [across, down] = [shown.endKey - shown.key, shown.endQuery - shown.query];
  const drawn = picture(head, Math.max(1, Math.floor(across / width)), shown);
  [canvas.width, canvas.height] = [drawn.width, drawn.height];
  canvas.getContext("2d").drawImage(drawn, 0, 0);
  canvas.style.aspectRatio = `${across} / ${down}`;
  canvas.classList.add("drawn");
  canvas.classList.toggle("sharp", drawn.width <= width);
}

// Each measure as a line with a dot for every head, this one's marked.
function measureStrips() {
  const title = el("h2", {});
  const rows = Object.keys(facts.measures).map((name) => {
    const value = el("span", { class: "value" });
    const line = el("span", { class: "strip", "aria-hidden": "true" });
    return { name, value, line, row: el("li", {}, el("span", { class: "name" }, name), line, value) };
  });
  const root = el("section", { class: "measures" }, title, el("ul", {}, ...rows.map((r) => r.row)));
  let drawnFor = -1;
  function update(index) {
    const { sequence } = state.state;
    title.textContent = run.headName(facts.heads[index]);
    for (const { name, value, line } of rows) {
      const values = facts.sequences[sequence].measures[name];
      const known = values.filter((v) => v !== null);
      const low = Math.min(...known);
      const high = Math.max(...known);
      const place = (v) => (high > low ? (100 * (v - low)) / (high - low) : 50);
      if (drawnFor !== sequence) {
        line.replaceChildren(...known.map((v) => {
          const dot = el("i");
          dot.style.left = `${place(v)}%`;
          return dot;
        }), el("b"));
      }
      const own = values[index];
      line.lastChild.hidden = own === null;
      line.lastChild.style.left = `${place(own ?? 0)}%`;
      value.textContent = measureText(own);
      value.title = facts.measures[name];
    }
    drawnFor = sequence;
  }
  return { root, update };
}

// ── the legend ──

export function legend() {
  const bar = el("canvas", { class: "ramp", width: 256, height: 1 });
  const top = el("span", {});
  const note = el("span", { class: "note" });
  const swatch = (name, words, hatch) => el("span", { class: "swatch" },
    el("i", { class: name, "data-hatch": hatch }), words);
  const blind = el("span", { class: "swatch" }, el("b", { class: "blind" }, "∅"), "sees nothing");
  const root = el("div", { class: "legend" },
    el("span", { class: "scale" }, el("span", {}, "0"), bar, top), note,
    swatch("forbidden", "forbidden by a mask", "yes"), swatch("padding", "padding"), blind,
    swatch("broken", "not a number"));
  const [, , , padding, , broken] = root.children;
  const hasPadding = facts.sequences.some((s) => s.queryReal[1] - s.queryReal[0] < facts.queries
    || s.keyReal[1] - s.keyReal[0] < facts.keys);
  padding.hidden = !hasPadding;
  root.children[2].hidden = facts.sequences.every((s) => s.masks.every((m) => m < 0));
  let drawnFor = "";
  function update(head) {
    const { scale, curve, sequence } = state.state;
    const wanted = [colours.theme(), scale, curve, sequence, head?.index].join();
    if (wanted === drawnFor) return; // it is asked with every movement
    drawnFor = wanted;
    const context = bar.getContext("2d");
    for (let x = 0; x < 256; x++) {
      const part = curve === "root" ? Math.sqrt(x / 255) : x / 255;
      context.fillStyle = colours.cssColour(colours.colourAt(part));
      context.fillRect(x, 0, 1, 1);
    }
    const value = scale === "all" || !head ? run.largest(sequence) : head.largest;
    top.textContent = scale === "query" ? "each query's largest" : weightText(value, value / 50);
    note.textContent = scale === "all" ? "one scale for all heads" : scale === "head" ? "each head's own scale" : "";
    blind.hidden = !head || head.sees.subarray(head.firstQuery, head.endQuery).every((s) => s);
    broken.hidden = !head || head.broken === 0;
  }
  return { root, update };
}
