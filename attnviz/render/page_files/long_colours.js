// The colours of a long map: from bytes to pixels, as many as are seen.

import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";

const { facts } = run;

// The weights that the ends of the colour scale stand for.
export function range(head) {
  const { scale, pixel } = state.state;
  const own = head.own[pixel];
  return scale === "head" ? [own.from, own.top] : head.one.scale[pixel];
}

export function share(weight, [low, top]) {
  if (!(weight > 0)) return 0;
  const part = state.state.curve === "linear" ? weight / top : Math.log(weight / low) / Math.log(top / low);
  return Math.min(1, Math.max(0, part));
}

function packed([r, g, b]) {
  return (255 << 24) | (b << 16) | (g << 8) | r;
}

// The colour of each byte; what is forbidden stays transparent, so that the hatch behind it is seen.
const tables = new Map();
function table(head, kind) {
  const ends = range(head);
  const { low, ratio } = head.own[kind];
  const key = [colours.theme(), state.state.curve, ...ends, low, ratio].join();
  if (!tables.has(key)) {
    if (tables.size > 64) tables.clear();
    const hex = colours.brokenColour();
    const broken = packed([1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
    tables.set(key, Int32Array.from({ length: 256 }, (_, code) => {
      if (code === 0) return 0;
      return code === 255 ? broken : packed(colours.colourAt(share(head.value(kind, code), ends)));
    }));
  }
  return tables.get(key);
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
  const kind = state.state.pixel;
  const codes = head.levels[kind][level];
  const across = facts.levels[level][1];
  const colourOf = table(head, kind);
  const { context, image, pixels } = sized(canvas, x1 - x0, y1 - y0);
  for (let y = y0, to = 0; y < y1; y++) {
    for (let x = x0, from = y * across + x0; x < x1; x++) pixels[to++] = colourOf[codes[from++]];
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
  const kind = state.state.pixel;
  const codes = head.levels[kind][level];
  const [width, height] = [Math.max(1, Math.round(w * layout.dots)), Math.max(1, Math.round(h * layout.dots))];
  const size = { x: cell.x * layout.dots, y: cell.y * layout.dots };
  const keys = places(width, at.x, size.x, head.endKey);
  const queries = places(height, at.y, size.y, head.endQuery);
  const factor = 2 ** level;
  const columns = keys.map((k) => Math.floor(k / facts.cells[1] / factor));
  const colourOf = table(head, kind);
  const { context, image, pixels } = sized(canvas, width, height);
  for (let y = 0, to = 0; y < height; y++) {
    const row = Math.floor(queries[y] / facts.cells[0] / factor) * facts.levels[level][1];
    for (let x = 0; x < width; x++) pixels[to++] = colourOf[codes[row + columns[x]]];
  }
  if (Math.min(size.x, size.y) >= 0.99) paintKnown(head, pixels, queries, keys);
  if (head.first) paintForbidden(head, pixels, queries, keys);
  context.putImageData(image, 0, 0);
}

// The cells whose own weight is known: parts at full resolution, and the largest of each row.
function paintKnown(head, pixels, queries, keys) {
  const colourOf = table(head, "cell");
  const ends = range(head);
  const width = keys.length;
  const one = facts.cells[0] * facts.cells[1] === 1;
  let last = -1;
  let listed = [];
  for (let y = 0; y < queries.length; y++) {
    const q = queries[y];
    const row = y * width;
    const parts = Math.floor(q / facts.detail);
    for (let x = 0; x < width && head.detailRows.has(parts); x++) {
      const code = head.cellCode(q, keys[x]);
      if (code >= 0) pixels[row + x] = colourOf[code];
    }
    if (q !== last) {
      listed = one ? [] : head.top(q).map(({ at, weight }) => [at, packed(colours.colourAt(share(weight, ends)))]);
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
  const cut = (place, cells, end) => Math.min(end, Math.ceil(place / cells / factor));
  const box = [
    Math.floor(head.firstKey / facts.cells[1] / factor), Math.floor(head.firstQuery / facts.cells[0] / factor),
    cut(head.endKey, facts.cells[1], across), cut(head.endQuery, facts.cells[0], down),
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
