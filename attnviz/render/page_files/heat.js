// A map as shapes: pixels of the level that fits the zoom, cells that are known one by one, marks.

import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as scene from "./scene.js";
import * as parts from "./parts.js";
import * as paint from "./paint.js";
import * as axis from "./axis.js";

const { facts, single } = run;
const NUMBERS_FROM = facts.annotate ? 22 : 38; // a cell of so many pixels has room for its weight
const FRAMES_FROM = 7;

// A shot is what the functions below take: `head`, `layout`, the size of a `cell` {x, y} in CSS pixels, the place
// `at` {x, y} in the plot's corner, and the plot's width and height `w`, `h`.

// The finest level of which no pixel is smaller than a dot of the screen; the coarsest where there is none.
export function level({ layout, cell }) {
  const dot = Math.min(cell.x * facts.cells[1], cell.y * facts.cells[0]) * layout.dots;
  let found = 0;
  while (found + 1 < facts.levels.length && dot * 2 ** found < 0.99) found++;
  return found;
}

/** @returns {[number, number, number, number]} */
function box({ cell, at, w, h }, [down, across], rows, columns) {
  return [
    Math.floor(at.x / columns), Math.floor(at.y / rows),
    Math.min(across, Math.ceil((at.x + w / cell.x) / columns)), Math.min(down, Math.ceil((at.y + h / cell.y) / rows)),
  ];
}

const canvas = document.createElement("canvas");

// The pixels. Until the level that fits is opened, the next coarser one that is stands in for it.
// Pixels of a dot or two are painted as they are, and stretched evenly; larger ones dot by dot.
function pixels(shot) {
  const { head, layout, cell, at, w, h } = shot;
  let from = level(shot);
  const kind = single ? "mean" : state.state.pixel;
  while (!head.levels[kind][from]) from++;
  const factor = 2 ** from;
  const [rows, columns] = [facts.cells[0] * factor, facts.cells[1] * factor];
  const found = { kind: "image", canvas, x: layout.left, y: layout.top, w, h };
  if (Math.min(cell.x * columns, cell.y * rows) * layout.dots >= 3) {
    paint.paintDots(canvas, shot, from);
    return found;
  }
  const part = box(shot, facts.levels[from], rows, columns);
  paint.paintLevel(canvas, head, from, part);
  return { ...found, smooth: true, sx: at.x / columns - part[0], sy: at.y / rows - part[1], sw: w / cell.x / columns, sh: h / cell.y / rows };
}

// The parts at full resolution that a shot needs and that are not opened yet: [row, column].
export function missingDetails(shot) {
  const { head, layout, cell } = shot;
  if (Math.min(cell.x, cell.y) * layout.dots < 0.99) return [];
  const [x0, y0, x1, y1] = box(shot, [Infinity, Infinity], facts.detail, facts.detail);
  return [...head.detailBlocks.keys()].map((key) => key.split(".").map(Number))
    .filter(([row, column]) => row >= y0 && row < y1 && column >= x0 && column < x1 && !head.details.has(`${row}.${column}`));
}

function grid({ layout, cell, at, w, h }) {
  const found = [];
  const stroke = colours.css("grid");
  const { left, top } = layout;
  if (cell.x >= 16) for (let k = Math.ceil(at.x); (k - at.x) * cell.x < w; k++) found.push({ kind: "line", x0: left + (k - at.x) * cell.x, y0: top, x1: left + (k - at.x) * cell.x, y1: top + h, stroke });
  if (cell.y >= 16) for (let q = Math.ceil(at.y); (q - at.y) * cell.y < h; q++) found.push({ kind: "line", x0: left, y0: top + (q - at.y) * cell.y, x1: left + w, y1: top + (q - at.y) * cell.y, stroke });
  return found;
}

export function shortWeight(weight) {
  if (Number.isNaN(weight)) return "NaN";
  if (weight >= 0.01) return weight.toFixed(2).replace(/^0/, "");
  return weight === 0 ? "0" : weight < 0 ? weight.toFixed(2) : weight.toExponential(0).replace("e-", "e−");
}

// Frames round the weights that are told one by one, where cells can be seen.
function frames(shot) {
  const { head, layout, cell, at, w, h } = shot;
  if (single || Math.min(cell.x, cell.y) < FRAMES_FROM) return [];
  const boxes = [];
  const [x0, y0, x1, y1] = box(shot, [head.endQuery, head.endKey], 1, 1);
  for (let q = y0; q < y1; q++) {
    for (const { at: k } of head.top(q)) {
      if (k < x0 || k >= x1) continue;
      const [x, y] = [layout.left + (k - at.x) * cell.x, layout.top + (q - at.y) * cell.y];
      const [left, top] = [Math.max(x + 0.5, layout.left), Math.max(y + 0.5, layout.top)];
      boxes.push([left, top, Math.min(x + cell.x - 0.5, layout.left + w) - left, Math.min(y + cell.y - 0.5, layout.top + h) - top]);
    }
  }
  return [{ kind: "frames", boxes, x: layout.left, y: layout.top, w, h, stroke: colours.css("soft") }];
}

// The weights of whole cells that are known, in numbers.
function numbers(shot) {
  const { head, layout, cell, at, w, h } = shot;
  if (Math.min(cell.x, cell.y) < NUMBERS_FROM) return [];
  const found = [];
  const [x0, y0, x1, y1] = box(shot, [head.endQuery, head.endKey], 1, 1);
  for (let q = y0; q < y1; q++) {
    const ends = paint.range(head, q);
    for (let k = x0; k < x1; k++) {
      const [x, y] = [(k - at.x) * cell.x, (q - at.y) * cell.y];
      const { name, weight, tiny, unsure } = head.cell(q, k);
      if (name !== "exact" || unsure || x < 0 || y < 0 || x + cell.x > w + 1 || y + cell.y > h + 1) continue;
      const fill = colours.inkOn(colours.colourAt(paint.share(weight, ends)));
      found.push({ kind: "text", text: tiny ? "≈0" : shortWeight(weight), x: layout.left + x + cell.x / 2, y: layout.top + y + cell.y / 2 + 4, size: Math.min(12, cell.x / 2.9), anchor: "middle", fill });
    }
  }
  return found;
}

export function items(shot) {
  const { layout, w, h } = shot;
  return [
    { kind: "hatch", x: layout.left, y: layout.top, w, h },
    pixels(shot),
    ...grid(shot),
    ...frames(shot),
    ...numbers(shot),
    ...marks(shot),
    ...axis.items(shot),
    ...axis.curve(shot),
  ];
}

// Rows that see nothing, and the line between what a model was given and what it wrote.
function marks({ head, layout, cell, at, w, h }) {
  const found = [];
  const { left, top } = layout;
  if (cell.y >= 6) {
    for (let q = Math.max(head.firstQuery, Math.floor(at.y)); q < head.endQuery && (q + 0.5 - at.y) * cell.y < h; q++) {
      if (head.isBlind(q)) found.push({ kind: "text", text: "∅", x: left + w + 1, y: top + (q + 0.5 - at.y) * cell.y + 5, size: 13, weight: 700, fill: colours.css("warn") });
    }
  }
  const { answer } = head.one;
  if (answer === null) return found;
  const stroke = colours.css("ink");
  const [x, y] = [left + (answer - at.x) * cell.x, top + (answer - at.y) * cell.y];
  if (y >= top && y <= top + h) found.push({ kind: "line", x0: 26, y0: y, x1: left + w, y1: y, stroke });
  if (!facts.cross && x >= left && x <= left + w) found.push({ kind: "line", x0: x, y0: top - 24, x1: x, y1: top + h, stroke });
  return found;
}

// The chosen row and column, and the row's largest weights where they stand.
export function crosshair(shot) {
  const { head, layout, cell, at, w, h } = shot;
  const { query: q, key: k, pinned } = state.state;
  const { left, top } = layout;
  const [accent, paper] = [colours.css("accent"), colours.css("paper")];
  const found = [];
  const [x, y] = [(k - at.x) * cell.x, (q - at.y) * cell.y];
  const across = y + cell.y > 0 && y < h;
  const down = x + cell.x > 0 && x < w;
  const edges = (from, size, most) => (size < 4 ? [from + size / 2] : [from, from + size]).map((v) => Math.min(most, Math.max(0, v)));
  if (across) {
    for (const edge of edges(y, cell.y, h)) found.push({ kind: "line", x0: left, y0: top + edge, x1: left + w + 14 + layout.beside, y1: top + edge, stroke: accent });
    (single ? [] : head.top(q)).forEach(({ at: one }, rank) => {
      const [cx, cy] = [left + (one + 0.5 - at.x) * cell.x, top + y + cell.y / 2];
      if (cx < left || cx > left + w || cy < top || cy > top + h) return;
      const size = Math.max(5 + 5 / (rank + 1), cell.x * 0.2);
      if (Math.min(cell.x, cell.y) < 12) found.push({ kind: "rect", x: cx - size, y: cy - size, w: 2 * size, h: 2 * size, radius: size, stroke: paper, width: 4 }, { kind: "rect", x: cx - size, y: cy - size, w: 2 * size, h: 2 * size, radius: size, stroke: accent, width: 2 });
    });
    const label = axis.rowLabel(shot, { at: Math.min(h, Math.max(0, y + cell.y / 2)), text: rowText(shot, q) }, paper, 600);
    const wide = Math.min(scene.textWidth(label.text, 12, 600), left - 16) + 10;
    found.push({ kind: "rect", x: left - 4 - wide, y: label.y - 13, w: wide, h: 18, radius: 4, fill: accent }, { ...label, x: left - 9 });
  }
  if (down) {
    for (const edge of edges(x, cell.x, w)) found.push({ kind: "line", x0: left + edge, y0: top, x1: left + edge, y1: top + h, stroke: accent });
    const label = axis.columnLabel(shot, { at: Math.min(w, Math.max(0, x + cell.x / 2)), text: columnText(shot, k) }, paper, 600);
    const wide = scene.textWidth(label.text, 12, 600) + 10;
    if (label.anchor === "middle") label.x = Math.max(left + wide / 2 - 10, Math.min(left + w - wide / 2 + 10, label.x));
    const from = label.anchor === "middle" ? label.x - wide / 2 : label.x - 5;
    found.push({ kind: "rect", x: from, y: label.y - 13, w: wide, h: 18, radius: 4, fill: accent, rotate: label.rotate, about: [label.x, label.y] }, label);
  }
  if (across && down && Math.min(cell.x, cell.y) >= 4) {
    found.push({ kind: "rect", x: left + x - 0.5, y: top + y - 0.5, w: cell.x + 1, h: cell.y + 1, stroke: accent, width: pinned ? 4 : 2.5, radius: 1 });
  }
  return found;
}

// Where tokens are named, the chosen one is named by itself, else by its place.
function rowText({ head, cell, layout }, q) {
  return axis.isNamed(cell.y) ? axis.labelOf(run.queryTokens(head.sequence)[q], layout.rowRoom) : parts.number(q, head.firstQuery);
}

function columnText({ head, cell, layout }, k) {
  return axis.isNamed(cell.x) ? axis.labelOf(run.keyTokens(head.sequence)[k], layout.columnRoom) : parts.number(k, head.firstKey);
}
