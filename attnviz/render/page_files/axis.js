// Around a map: tokens along its sides where there is room for them, else positions; and a curve of its rows.

import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as scene from "./scene.js";
import * as parts from "./parts.js";

const { facts } = run;

const LABEL_LIMIT = 16; // characters of a token along an axis
const APART = 15; // CSS pixels from one token's name to the next
const MEASURED = 300; // tokens of a text of which every label is measured

// Whether tokens are named along a side, all of them or each of a few; else positions are.
export function isNamed(cell) {
  return cell >= 2.2;
}

function* roundSteps() {
  for (let power = 1; ; power *= 10) yield* [power, 2 * power, 5 * power];
}

function step(cell, apart) {
  for (const one of roundSteps()) if (one * cell >= apart) return one;
  return 1;
}

const widths = new Map();

// A token short enough for `room` pixels. It is asked anew in each frame, so it is remembered.
export function labelOf(token, room) {
  const key = `${room}\n${token}`;
  if (!widths.has(key)) {
    if (widths.size > 20_000) widths.clear();
    let limit = LABEL_LIMIT;
    let text = parts.label(token, limit);
    while (limit > 3 && scene.textWidth(text, 12) > room) text = parts.label(token, --limit);
    widths.set(key, text);
  }
  return widths.get(key);
}

// How wide the widest label of a side is, at most `room`.
export function widest(texts, first, end, room) {
  if (end - first > MEASURED) return room;
  let found = 8;
  for (let i = first; i < end; i++) found = Math.max(found, scene.textWidth(labelOf(texts[i], room), 12));
  return found;
}

// What is named along a side, and whether it is every token or one `by` some: `found` are [{ at, place, text }], `at` in
// CSS pixels from the plot's corner to the middle of the cell.
function names({ cell, at, first, domain: [from, end], length, texts, room, apart, dense = false, edge = 0 }) {
  const found = [];
  const last = Math.min(end, Math.ceil(at + length / cell));
  const named = isNamed(cell);
  const by = named ? (dense ? 1 : Math.ceil(APART / cell)) : step(cell, apart);
  for (let place = first + Math.ceil((Math.max(from, Math.floor(at)) - first) / by) * by; place < last; place += by) {
    const where = (place + 0.5 - at) * cell;
    if (where < 0 || where > length - (named ? edge : 0)) continue;
    found.push({ at: where, place, text: named ? labelOf(texts[place], room) : parts.number(place, first) });
  }
  return { found, by: named ? by : 1 };
}

export function rowNames({ head, layout, cell, at, h }) {
  return names({
    cell: cell.y, at: at.y, first: head.firstQuery, domain: [head.domain.query, head.domain.endQuery], length: h,
    texts: run.queryTokens(head.sequence), room: layout.rowRoom, apart: 30,
  });
}

export function columnNames({ head, layout, cell, at, w }) {
  return names({
    cell: cell.x, at: at.x, first: head.firstKey, domain: [head.domain.key, head.domain.endKey], length: w,
    texts: run.keyTokens(head.sequence), room: layout.columnRoom, apart: 74, dense: layout.slant === 0,
    edge: 7, // what leans out further would stand over the curve's title
  });
}

export function rowLabel({ layout }, { at, text }, fill, weight) {
  return { kind: "text", text, x: layout.left - 8, y: layout.top + at + 4, size: 12, anchor: "end", fill, weight };
}

export function columnLabel({ layout, cell }, { at, text }, fill, weight) {
  const [x, y] = [layout.left + at, layout.top - 8];
  if (!isNamed(cell.x) || !layout.slant) return { kind: "text", text, x, y, size: 12, anchor: "middle", fill, weight };
  return { kind: "text", text, x: x + (layout.slant === -90 ? 4 : 2), y, size: 12, anchor: "start", fill, weight, rotate: layout.slant };
}

function nth(by) {
  return by > 1 ? `, every ${by}${by === 2 ? "nd" : by === 3 ? "rd" : "th"} named` : "";
}

export function items(shot) {
  const { head, layout, cell, at, w, h } = shot;
  const { left, top } = layout;
  const [ink, soft] = [colours.css("ink"), colours.css("soft")];
  const found = [];
  const [rows, columns] = [rowNames(shot), columnNames(shot)];
  const isReal = (place, from, end) => place >= from && place < end;
  for (const one of rows.found) {
    found.push(rowLabel(shot, one, isReal(one.place, head.firstQuery, head.endQuery) ? ink : soft), { kind: "line", x0: left - 5, y0: top + one.at, x1: left, y1: top + one.at, stroke: soft });
  }
  for (const one of columns.found) {
    found.push(columnLabel(shot, one, isReal(one.place, head.firstKey, head.endKey) ? ink : soft), { kind: "line", x0: left + one.at, y0: top - 5, x1: left + one.at, y1: top, stroke: soft });
  }
  const part = (from, length, size, first, end) => (length / size >= end - from - 0.01 && from <= first ? "" : `  ${parts.number(Math.floor(from), first)} – ${parts.number(Math.min(end, Math.ceil(from + length / size)) - 1, first)}`);
  found.push(
    { kind: "text", text: `key: is looked at →${part(at.x, w, cell.x, head.firstKey, head.domain.endKey)}${nth(columns.by)}`, x: left, y: 18, size: 12, weight: 600, fill: soft },
    { kind: "text", text: `← query: looks${part(at.y, h, cell.y, head.firstQuery, head.domain.endQuery)}${nth(rows.by)}`, x: 14, y: top + Math.max(h, 150), size: 12, weight: 600, fill: soft, rotate: -90 },
    { kind: "rect", x: left - 0.5, y: top - 0.5, w: w + 1, h: h + 1, stroke: colours.css("line") },
  );
  return found;
}

// The chosen statistic of the rows that are seen, as a curve beside them.
export function curve(shot) {
  const { head, layout, cell, at, w, h } = shot;
  const name = state.state.statistic;
  const x = layout.left + w + 14;
  const width = layout.beside;
  const most = head.own.statistics[name].most || 1;
  const points = [];
  for (let y = 0; y < h; y++) {
    const from = Math.max(head.firstQuery, Math.floor(at.y + y / cell.y));
    const to = Math.min(head.endQuery, Math.max(from + 1, Math.floor(at.y + (y + 1) / cell.y)));
    const value = to > from ? head.meanOf(name, from, to) : NaN;
    points.push([x + (width * (value || 0)) / most, layout.top + y], [x + (width * (value || 0)) / most, layout.top + y + 1]);
  }
  const soft = colours.css("soft");
  const [title, unit] = [name, facts.statistics[name]];
  return [
    { kind: "area", points: [[x, layout.top], ...points, [x, layout.top + h]], x, y: layout.top, w: width, h, fill: colours.css("bar") },
    { kind: "line", x0: x - 0.5, y0: layout.top, x1: x - 0.5, y1: layout.top + h, stroke: colours.css("line") },
    { kind: "text", text: layout.narrow ? "" : title, x, y: layout.top - 22, size: 12, weight: 600, fill: soft },
    ...(layout.narrow ? [] : [{ kind: "text", text: "0", x, y: layout.top - 8, size: 11, fill: soft }]),
    { kind: "text", text: `${parts.measureText(most)}${unit === "bits" && !layout.narrow ? " bits" : ""}`, x: x + width, y: layout.top - 8, size: 11, anchor: "end", fill: soft },
  ];
}
