// The heatmap as shapes: where everything goes, cells, labels, numbers, the crosshair.

import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as scene from "./scene.js";
import * as parts from "./parts.js";

const { facts } = run;
export const LARGEST_CELL = 64; // CSS pixels
export const BELOW = 30; // pixels that stay free below the cells
const LABEL_LIMIT = 14; // characters of a token along an axis
const NUMBERS_FROM = 38; // a cell of so many pixels has room for its weight

// Labels short enough for a gutter of `room` pixels.
function labelsOf(tokens, room) {
  return tokens.map((token) => {
    let limit = LABEL_LIMIT;
    let text = parts.label(token, limit);
    while (limit > 3 && scene.textWidth(text, 12) > room) text = parts.label(token, --limit);
    return text;
  });
}

// Where everything goes in a canvas `width` wide and at most `height` high: gutters for labels, then
// as many pixels a cell as fit. `fitted` is the cell that shows everything, `home` what is shown first.
export function layoutOf(head, width, height) {
  const narrow = width < 560;
  const gutter = narrow ? 76 : 118;
  const rows = labelsOf(run.queryTokens(head.sequence), gutter);
  const columns = labelsOf(run.keyTokens(head.sequence), gutter);
  const widest = (labels) => Math.max(8, ...labels.map((text) => scene.textWidth(text, 12)));
  const left = 26 + widest(rows) + 8;
  const columnWidth = widest(columns);
  const room = (above, right) => Math.min((width - left - right) / facts.keys, (height - above - BELOW) / facts.queries);
  let slant = 0;
  let top = 52;
  let right = 26;
  if (columnWidth + 6 > Math.min(room(top, right), LARGEST_CELL)) {
    slant = narrow ? -90 : -52;
    top = 40 + columnWidth * (narrow ? 1 : 0.79) + 8;
    right = narrow ? 24 : Math.max(26, columnWidth * 0.62);
  }
  const dots = devicePixelRatio || 1;
  const sharp = (pixels) => (pixels * dots >= 1 ? Math.floor(Math.min(pixels, LARGEST_CELL) * dots) / dots : pixels);
  const shown = parts.area(head);
  const across = (width - left - right) / (shown.endKey - shown.key);
  const down = (height - top - BELOW) / (shown.endQuery - shown.query);
  return {
    width, height, left, top, right, slant, rows, columns, dots, fitted: sharp(room(top, right)),
    home: { cell: sharp(Math.min(across, down)), x: shown.key, y: shown.query },
  };
}

// The functions below take a plot: its head and layout, the pictures `full` (a pixel a cell) and `pooled`,
// the `cell` in pixels, and `at`, the cell in the upper left corner.

function visible(from, pixels, count, cell) {
  return [Math.max(0, Math.floor(from)), Math.min(count, Math.ceil(from + pixels / cell))];
}

function columnLabel({ layout, cell, at }, k, fill, weight) {
  const { left, top, slant, columns } = layout;
  const x = left + (k + 0.5 - at.x) * cell;
  if (!slant) return { kind: "text", text: columns[k], x, y: top - 9, size: 12, anchor: "middle", fill, weight };
  const shift = slant === -90 ? 4 : 3;
  return { kind: "text", text: columns[k], x: x + shift, y: top - 7, size: 12, anchor: "start", fill, weight, rotate: slant };
}

function rowLabel({ layout, cell, at }, q, fill, weight) {
  const { left, top, rows } = layout;
  return { kind: "text", text: rows[q], x: left - 8, y: top + (q + 0.5 - at.y) * cell + 4, size: 12, anchor: "end", fill, weight };
}

function isPaddedQuery(head, q) {
  return q < head.firstQuery || q >= head.endQuery;
}

function isPaddedKey(head, k) {
  return k < head.firstKey || k >= head.endKey;
}

function labelItems(plot, x0, x1, y0, y1) {
  const { head, layout, cell, at } = plot;
  const items = [];
  const ink = colours.css("ink");
  const soft = colours.css("soft");
  const every = (pixels) => Math.max(1, Math.ceil(pixels / cell));
  const [columnStep, rowStep] = [every(layout.slant || cell < 15 ? 15 : 1), every(15)];
  const inside = (from, to, pixels) => to > 1 && to < pixels - 1 && from >= 0;
  for (let k = Math.ceil(x0 / columnStep) * columnStep; k < x1; k += columnStep) {
    const centre = (k + 0.5 - at.x) * cell;
    if (inside(k, centre, layout.plotWidth)) items.push(columnLabel(plot, k, isPaddedKey(head, k) ? soft : ink));
  }
  for (let q = Math.ceil(y0 / rowStep) * rowStep; q < y1; q += rowStep) {
    const centre = (q + 0.5 - at.y) * cell;
    if (inside(q, centre, layout.plotHeight)) items.push(rowLabel(plot, q, isPaddedQuery(head, q) ? soft : ink));
  }
  const { left, top, plotWidth, plotHeight } = layout;
  const thinned = (step) => (step > 1 ? `, every ${step}${step === 2 ? "nd" : step === 3 ? "rd" : "th"} named` : "");
  items.push(
    { kind: "text", text: `key: is looked at →${thinned(columnStep)}`, x: left, y: 20, size: 12, weight: 600, fill: soft },
    { kind: "text", text: `← query: looks${thinned(rowStep)}`, x: 15, y: top + plotHeight, size: 12, weight: 600, fill: soft, rotate: -90 },
  );
  for (let q = y0; q < y1; q++) {
    if (!isPaddedQuery(head, q) && !head.sees[q] && (q + 0.5 - at.y) * cell < plotHeight) {
      items.push({ kind: "text", text: "∅", x: left + plotWidth + 6, y: top + (q + 0.5 - at.y) * cell + 5, size: 14, weight: 700, fill: colours.css("warn") });
    }
  }
  return items;
}

// The line between what a model was given and what it wrote, through labels and cells.
function answerItems({ head, layout, cell, at }) {
  const { answer } = facts.sequences[head.sequence];
  if (answer === null) return [];
  const { left, top, plotWidth, plotHeight } = layout;
  const above = top - (layout.slant ? 6 : 26); // slanted labels lie across a longer line
  const stroke = colours.css("ink");
  const [x, y] = [left + (answer - at.x) * cell, top + (answer - at.y) * cell];
  const items = [];
  if (y >= top && y <= top + plotHeight) items.push({ kind: "line", x0: 26, y0: y, x1: left + plotWidth, y1: y, stroke });
  if (!facts.cross && x >= left && x <= left + plotWidth) items.push({ kind: "line", x0: x, y0: above, x1: x, y1: top + plotHeight, stroke });
  return items;
}

function numberItems({ head, layout, cell, at }, x0, x1, y0, y1) {
  const items = [];
  const { left, top } = layout;
  for (let q = y0; q < y1; q++) {
    const scaleTop = parts.scaleTop(head, q);
    for (let k = x0; k < x1; k++) {
      if (!head.shows(q, k)) continue;
      const weight = head.weight(q, k);
      const fill = colours.inkOn(colours.colourAt(parts.share(weight, scaleTop)));
      const text = Number.isNaN(weight) ? "NaN" : weight === 0 && !head.isTiny(q, k) ? "0" : weight.toFixed(2).replace(/^0/, "");
      items.push({ kind: "text", text, x: left + (k + 0.5 - at.x) * cell, y: top + (q + 0.5 - at.y) * cell + 4, size: cell > 50 ? 13 : 11.5, anchor: "middle", fill });
    }
  }
  return items;
}

// The heatmap without its crosshair.
export function items(plot) {
  const { full, pooled, pool, layout, cell, at } = plot;
  const { left, top, plotWidth, plotHeight } = layout;
  const [x0, x1] = visible(at.x, plotWidth, facts.keys, cell);
  const [y0, y1] = visible(at.y, plotHeight, facts.queries, cell);
  const small = cell * layout.dots < 1;
  const [source, one] = small ? [pooled, pool] : [full, 1];
  const found = [
    { kind: "hatch", x: left, y: top, w: plotWidth, h: plotHeight },
    {
      kind: "image", canvas: source, x: left, y: top, w: plotWidth, h: plotHeight,
      sx: at.x / one, sy: at.y / one, sw: plotWidth / cell / one, sh: plotHeight / cell / one,
    },
  ];
  if (cell >= 16) {
    const stroke = colours.css("grid");
    for (let k = x0 + 1; k < x1; k++) {
      const x = left + (k - at.x) * cell;
      found.push({ kind: "line", x0: x, y0: top, x1: x, y1: top + plotHeight, stroke });
    }
    for (let q = y0 + 1; q < y1; q++) {
      const y = top + (q - at.y) * cell;
      found.push({ kind: "line", x0: left, y0: y, x1: left + plotWidth, y1: y, stroke });
    }
  }
  if (cell >= NUMBERS_FROM) found.push(...numberItems(plot, x0, x1, y0, y1));
  found.push({ kind: "rect", x: left - 0.5, y: top - 0.5, w: plotWidth + 1, h: plotHeight + 1, stroke: colours.css("line") });
  found.push(...answerItems(plot), ...labelItems(plot, x0, x1, y0, y1));
  return found;
}

// The chosen row, column and cell.
export function crosshair(plot) {
  const { layout, cell, at } = plot;
  const { query: q, key: k, pinned } = state.state;
  const { left, top, plotWidth, plotHeight } = layout;
  const x = left + (k - at.x) * cell;
  const y = top + (q - at.y) * cell;
  const accent = colours.css("accent");
  const paper = colours.css("paper");
  const found = [];
  const w = Math.max(cell, 3);
  const across = y + cell / 2 > top && y + cell / 2 < top + plotHeight;
  const down = x + cell / 2 > left && x + cell / 2 < left + plotWidth;
  if (across) {
    for (const edge of [y, y + w]) found.push({ kind: "line", x0: left, y0: edge, x1: left + plotWidth, y1: edge, stroke: accent });
    const text = rowLabel(plot, q, paper, 600);
    const wide = Math.min(scene.textWidth(text.text, 12, 600), left - 18) + 10;
    found.push({ kind: "rect", x: left - 4 - wide, y: text.y - 13, w: wide, h: 18, radius: 4, fill: accent }, { ...text, x: left - 9 });
  }
  if (down) {
    for (const edge of [x, x + w]) found.push({ kind: "line", x0: edge, y0: top, x1: edge, y1: top + plotHeight, stroke: accent });
    const text = columnLabel(plot, k, paper, 600);
    const wide = scene.textWidth(text.text, 12, 600) + 10;
    const from = text.anchor === "middle" ? text.x - wide / 2 : text.x - 5;
    found.push({ kind: "rect", x: from, y: text.y - 13, w: wide, h: 18, radius: 4, fill: accent, rotate: text.rotate, about: [text.x, text.y] }, text);
  }
  if (across && down) found.push({ kind: "rect", x: x - 0.5, y: y - 0.5, w: w + 1, h: w + 1, stroke: accent, width: pinned ? 4 : 2.5, radius: 1 });
  return found;
}
