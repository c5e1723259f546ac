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

// A weight with the decimals that its head's steps leave certain; where steps are coarse, one more,
// since the error stands beside it.
export function weightText(weight, step) {
  if (Number.isNaN(weight)) return "not a number";
  if (weight === 0) return "0";
  const digits = Math.min(6, Math.max(2, Math.floor(-Math.log10(step || 1e-4)) + (facts.wide ? 0 : 1)));
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
  if (size > 0 && size < 0.005) return value.toExponential(0).replace("e-", "e−");
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

// What a token looks at, or is looked at by, in one sentence.
export function tokenText(head, direction, at) {
  const [own, others] = direction === "looks"
    ? [run.queryTokens(head.sequence), run.keyTokens(head.sequence)] : [run.keyTokens(head.sequence), run.queryTokens(head.sequence)];
  const found = head.top(at, 3, direction === "looks" ? "keys" : "queries");
  const list = found.map((one) => `${label(others[one.at], 40)} ${weightText(one.weight, head.step)}`).join(", ");
  return `${label(own[at], 40)} ${direction === "looks" ? "looks at" : "is looked at by"} ${list || "nothing"}`;
}
