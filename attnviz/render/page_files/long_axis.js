// Round a long map: positions along its sides, tokens where there is room for them, and a curve beside it.

import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as scene from "./scene.js";
import * as parts from "./parts.js";

const { facts } = run;

export const TOKENS_FROM = 13; // CSS pixels of a cell in which a token can be named
const LABEL_LIMIT = 16; // characters of a token along an axis

function* roundSteps() {
  for (let power = 1; ; power *= 10) yield* [power, 2 * power, 5 * power];
}

function step(cell, apart) {
  for (const one of roundSteps()) if (one * cell >= apart) return one;
  return 1;
}

const widths = new Map();

// A token short enough for `room` pixels. It is asked anew in each frame, so it is remembered.
function labelOf(token, room) {
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

// A place as people count: 0 is the first token of the text.
export function number(place, first) {
  return parts.grouped(place - first);
}

// What is named along a side: [{ at, text }], `at` in CSS pixels from the plot's corner, at the middle of the cell.
function names({ cell, at, first, end, length, texts, room, apart, edge = 0 }) {
  const found = [];
  const last = Math.min(end, Math.ceil(at + length / cell));
  const named = cell >= TOKENS_FROM;
  const by = named ? 1 : step(cell, apart);
  for (let place = first + Math.ceil((Math.floor(at) - first) / by) * by; place < last; place += by) {
    const where = (place + 0.5 - at) * cell;
    if (where < 0 || where > length - (named ? edge : 0)) continue;
    found.push({ at: where, place, text: named ? labelOf(texts[place], room) : number(place, first) });
  }
  return found;
}

export function rowNames({ head, layout, cell, at, h }) {
  return names({
    cell: cell.y, at: at.y, first: head.firstQuery, end: head.endQuery, length: h,
    texts: run.queryTokens(head.sequence), room: layout.left - 34, apart: 30,
  });
}

export function columnNames({ head, layout, cell, at, w }) {
  return names({
    cell: cell.x, at: at.x, first: head.firstKey, end: head.endKey, length: w,
    texts: run.keyTokens(head.sequence), room: (layout.top - 40) * (layout.narrow ? 1 : 1.2), apart: 74,
    edge: 7, // what leans out further would stand over the curve's title
  });
}

export function rowLabel({ layout }, { at, text }, fill, weight) {
  return { kind: "text", text, x: layout.left - 8, y: layout.top + at + 4, size: 12, anchor: "end", fill, weight };
}

export function columnLabel({ layout, cell }, { at, text }, fill, weight) {
  const [x, y] = [layout.left + at, layout.top - 8];
  if (cell.x < TOKENS_FROM) return { kind: "text", text, x, y, size: 12, anchor: "middle", fill, weight };
  const turned = layout.narrow ? -90 : -52;
  return { kind: "text", text, x: x + (layout.narrow ? 4 : 2), y, size: 12, anchor: "start", fill, weight, rotate: turned };
}

export function items(shot) {
  const { head, layout, cell, at, w, h } = shot;
  const { left, top } = layout;
  const [ink, soft] = [colours.css("ink"), colours.css("soft")];
  const found = [];
  for (const one of rowNames(shot)) {
    found.push(rowLabel(shot, one, ink), { kind: "line", x0: left - 5, y0: top + one.at, x1: left, y1: top + one.at, stroke: soft });
  }
  for (const one of columnNames(shot)) {
    found.push(columnLabel(shot, one, ink), { kind: "line", x0: left + one.at, y0: top - 5, x1: left + one.at, y1: top, stroke: soft });
  }
  const part = (from, length, size, first, end) => `${number(Math.floor(from), first)} – ${number(Math.min(end, Math.ceil(from + length / size)) - 1, first)}`;
  found.push(
    { kind: "text", text: `key: is looked at →  ${part(at.x, w, cell.x, head.firstKey, head.endKey)}`, x: left, y: 18, size: 12, weight: 600, fill: soft },
    { kind: "text", text: `← query: looks  ${part(at.y, h, cell.y, head.firstQuery, head.endQuery)}`, x: 14, y: top + Math.max(h, 150), size: 12, weight: 600, fill: soft, rotate: -90 },
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
  const [title, unit] = [name, facts.measures[name]];
  return [
    { kind: "area", points: [[x, layout.top], ...points, [x, layout.top + h]], x, y: layout.top, w: width, h, fill: colours.css("bar") },
    { kind: "line", x0: x - 0.5, y0: layout.top, x1: x - 0.5, y1: layout.top + h, stroke: colours.css("line") },
    { kind: "text", text: layout.narrow ? "" : title, x, y: layout.top - 22, size: 12, weight: 600, fill: soft },
    ...(layout.narrow ? [] : [{ kind: "text", text: "0", x, y: layout.top - 8, size: 11, fill: soft }]),
    { kind: "text", text: `${parts.measureText(most)}${unit === "bits" && !layout.narrow ? " bits" : ""}`, x: x + width, y: layout.top - 8, size: 11, anchor: "end", fill: soft },
  ];
}
