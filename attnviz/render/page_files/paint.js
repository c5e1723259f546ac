// The pixels of a map: from codes to colours, as many as are seen.

import * as run from "./run.js";
import * as colours from "./colours.js";
import * as state from "./state.js";
import * as data from "./data.js";

const { facts, single } = run;

// The weights that the ends of the colour scale stand for; a row's own where each query has its scale.
/** @returns {[number, number]} */
export function range(head, query = null) {
  const { scale, pixel } = state.state;
  const kind = single ? "mean" : pixel;
  const own = head.kind(kind);
  const [low, top] = scale === "all" ? head.one.scale[kind] : [own.from, own.top];
  if (scale === "query" && query !== null) return [low, head.statistic("largest", query)];
  return [low, facts.vmax ?? top];
}

export function share(weight, [low, top]) {
  if (!(weight > 0) || !(top > 0)) return 0;
  const { curve } = state.state;
  const linear = weight / top;
  const part = curve === "log" ? Math.log(weight / low) / Math.log(top / low) : curve === "root" ? Math.sqrt(linear) : linear;
  return Math.min(1, Math.max(0, part));
}

/** @returns {[number, number, number]} */
export function colourOf(weight, ends) {
  return Number.isNaN(weight) ? colours.rgbOf(colours.brokenColour()) : colours.colourAt(share(weight, ends));
}

// The colour of each code; what is forbidden stays transparent, so that the hatch behind it is seen.
const tables = new Map();
function table(head, kind) {
  const ends = range(head);
  const values = head.values[kind];
  const key = [colours.theme(), state.state.curve, ...ends, values.length, values[3], values.at(-2), values[300]].join();
  if (!tables.has(key)) {
    if (tables.size > 64) tables.clear();
    const made = new Int32Array(values.length);
    for (let code = 1; code < made.length; code++) made[code] = colours.PALETTE[Math.round(255 * share(values[code], ends))];
    made[made.length - 1] = colours.packed(colours.rgbOf(colours.brokenColour()));
    if (kind !== "cell") made[data.PADDING] = padding();
    tables.set(key, made);
  }
  return tables.get(key);
}

function padding() {
  const [r, g, b] = colours.css("padding").match(/\d+/g).map(Number);
  return colours.packed([r, g, b]);
}

// What turns the codes of some rows into colours: a table, unless each query has its own scale.
function painter(head, kind, from, end) {
  if (state.state.scale !== "query") {
    const colourOfCode = table(head, kind);
    return (code) => colourOfCode[code];
  }
  let top = 0;
  for (let q = Math.max(from, head.firstQuery); q < Math.min(end, head.endQuery); q++) top = Math.max(top, head.statistic("largest", q));
  /** @type {[number, number]} */
  const ends = [range(head)[0], top];
  const other = table(head, kind);
  const values = head.values[kind];
  return (code) => (code < 3 || code >= data.PADDING ? other[code] : colours.PALETTE[Math.round(255 * share(values[code], ends))]);
}

const images = new WeakMap(); // one for each canvas, used again in the next frame
function sized(canvas, width, height) {
  const context = canvas.getContext("2d");
  if (canvas.width !== width || canvas.height !== height || !images.has(canvas)) {
    [canvas.width, canvas.height] = [width, height];
    images.set(canvas, context.createImageData(width, height));
  }
  const image = images.get(canvas);
  return { context, image, pixels: new Int32Array(image.data.buffer) };
}

// Paint a part of a level, a dot for a pixel: those from (x0, y0) up to (x1, y1).
export function paintLevel(canvas, head, level, [x0, y0, x1, y1]) {
  const kind = single ? "mean" : state.state.pixel;
  const codes = head.levels[kind][level];
  const across = facts.levels[level][1];
  const rows = facts.cells[0] * 2 ** level;
  let colourOfCode = painter(head, kind, 0, 0);
  const { context, image, pixels } = sized(canvas, x1 - x0, y1 - y0);
  for (let y = y0, to = 0; y < y1; y++) {
    if (state.state.scale === "query") colourOfCode = painter(head, kind, y * rows, (y + 1) * rows);
    for (let x = x0, from = y * across + x0; x < x1; x++) pixels[to++] = colourOfCode(codes[from++]);
  }
  context.putImageData(image, 0, 0);
}

// The place under the middle of each dot of `count` dots, from place `from` on, `size` dots a place.
function places(count, from, size, end) {
  return Int32Array.from({ length: count }, (_, dot) => Math.min(end - 1, Math.floor(from + (dot + 0.5) / size)));
}

// Paint what a shot shows, dot by dot: the pixel under each; a cell's own weight where cells can be seen and it is
// known; nothing where the row may not look.
export function paintDots(canvas, { head, layout, cell, at, w, h }, level) {
  const kind = single ? "mean" : state.state.pixel;
  const codes = head.levels[kind][level];
  const [width, height] = [Math.max(1, Math.round(w * layout.dots)), Math.max(1, Math.round(h * layout.dots))];
  const size = { x: cell.x * layout.dots, y: cell.y * layout.dots };
  const keys = places(width, at.x, size.x, head.domain.endKey);
  const queries = places(height, at.y, size.y, head.domain.endQuery);
  const factor = 2 ** level;
  const columns = keys.map((k) => Math.floor(k / facts.cells[1] / factor));
  let colourOfCode = painter(head, kind, 0, 0);
  let last = -1;
  const { context, image, pixels } = sized(canvas, width, height);
  for (let y = 0, to = 0; y < height; y++) {
    if (state.state.scale === "query" && queries[y] !== last) {
      last = queries[y];
      colourOfCode = painter(head, kind, last, last + 1);
    }
    const row = Math.floor(queries[y] / facts.cells[0] / factor) * facts.levels[level][1];
    for (let x = 0; x < width; x++) pixels[to++] = colourOfCode(codes[row + columns[x]]);
  }
  if (!single && Math.min(size.x, size.y) >= 0.99) paintKnown(head, pixels, queries, keys);
  if (head.first) paintForbidden(head, pixels, queries, keys);
  context.putImageData(image, 0, 0);
}

// The cells whose own weight is known: parts at full resolution, and the largest of each row.
function paintKnown(head, pixels, queries, keys) {
  const colourOfCode = table(head, "cell");
  const ends = range(head);
  const width = keys.length;
  let last = -1;
  let listed = [];
  for (let y = 0; y < queries.length; y++) {
    const q = queries[y];
    const row = y * width;
    const parts = Math.floor(q / facts.detail);
    for (let x = 0; x < width && head.detailRows.has(parts); x++) {
      const code = head.cellCode(q, keys[x]);
      if (code >= 0) pixels[row + x] = colourOfCode[code];
    }
    if (q !== last) {
      listed = head.top(q).map(({ at, weight }) => [at, colours.packed(colours.colourAt(share(weight, ends)))]);
      last = q;
    }
    for (const [key, colour] of listed) {
      if (key < keys[0] || key > keys[width - 1]) continue;
      for (let x = firstDot(keys, key); keys[x] === key; x++) pixels[row + x] = colour;
    }
  }
}

function firstDot(keys, key) {
  let [low, high] = [0, keys.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (keys[middle] < key) low = middle + 1;
    else high = middle;
  }
  return low;
}

// A pixel on the edge of a mask is whole only as far as its rows may look.
function paintForbidden(head, pixels, queries, keys) {
  const width = keys.length;
  for (let y = 0; y < queries.length; y++) {
    const [first, end] = [head.first[queries[y]], head.end[queries[y]]];
    const row = y * width;
    pixels.fill(0, row, row + (end > first ? firstDot(keys, first) : width));
    pixels.fill(0, row + firstDot(keys, end), row + width);
  }
}

// Paint all of a head, in as many pixels as its coarsest level has.
export function fillCanvas(canvas, head) {
  const level = facts.levels.length - 1;
  const [down, across] = facts.levels[level];
  const factor = 2 ** level;
  const { query, endQuery, key, endKey } = head.domain;
  const cut = (place, cells, end) => Math.min(end, Math.ceil(place / cells / factor));
  /** @type {[number, number, number, number]} */
  const box = [
    Math.floor(key / facts.cells[1] / factor), Math.floor(query / facts.cells[0] / factor),
    cut(endKey, facts.cells[1], across), cut(endQuery, facts.cells[0], down),
  ];
  if (box[2] <= box[0] || box[3] <= box[1]) {
    canvas.width = canvas.height = 1; // all of it is padding
    return;
  }
  paintLevel(canvas, head, level, box);
  canvas.style.aspectRatio = `${box[2] - box[0]} / ${box[3] - box[1]}`;
  canvas.classList.add("drawn");
  canvas.classList.toggle("sharp", across < 64);
}
