// The card beside a long map: where one is, the cell, what its query looks at, the row's numbers, the legend.

import * as tokens from "./tokens.js";
import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as parts from "./parts.js";
import * as card from "./card.js";
import * as long_colours from "./long_colours.js";
import * as long_axis from "./long_axis.js";

const { facts } = run;
const { el } = parts;
const AROUND = 9; // tokens before and after the chosen one
const isSingle = facts.cells[0] * facts.cells[1] === 1; // whether each pixel is a cell

// Three digits, whatever the size.
export function weightText(weight) {
  if (Number.isNaN(weight)) return "not a number";
  if (weight === 0) return "0";
  if (weight >= 0.001) return weight.toPrecision(3);
  return weight.toExponential(2).replace("e-", "e−");
}

// What pixels are rounded to: two digits.
function roughText(weight) {
  return weight >= 0.001 ? String(Number(weight.toPrecision(2))) : weightText(weight).replace(/\.(\d)\d/, ".$1");
}

function percentText(share) {
  return `${(100 * share).toPrecision(2)} %`;
}

function queryName(head, q, limit) {
  return parts.label(run.queryTokens(head.sequence)[q] ?? "", limit);
}

function keyName(head, k, limit) {
  return parts.label(run.keyTokens(head.sequence)[k] ?? "", limit);
}

// ── a cell in words ──

function masks() {
  return facts.masks.length ? ` (${facts.masks.join(", ")})` : "";
}

export function verdict(head, q, k) {
  const cell = head.cell(q, k);
  const { name } = cell;
  if (name === "blind") return { name, weight: "–", words: `this query sees nothing: the masks${masks()} forbid every key` };
  if (name === "forbidden") return { name, weight: "–", words: `may not look: forbidden by the masks${masks()}` };
  if (name === "broken") return { name, weight: "–", words: "the weight is not a number" };
  if (name === "exact") {
    if (cell.zero) return { name, weight: "0", words: cell.unsure ? "exactly 0, or forbidden" : "may look, and does not: exactly 0" };
    if (cell.tiny) return { name, weight: `< ${weightText(cell.low)}`, words: "may look; too small to be told" };
    if (cell.listed) return { name, weight: weightText(cell.weight), words: "one of the row’s largest" };
    return { name, weight: roughText(cell.weight), error: ` ± ${percentText(isSingle ? facts.error : facts.cellError)}`, words: "may look" };
  }
  const weight = cell.below === null ? "–" : `< ${weightText(cell.below)}`;
  const words = cell.below === null ? "told by its pixel alone" : facts.top === 1 ? "not the row’s largest" : `not among the row’s ${facts.top} largest`;
  return { name, weight, words: `${words}${cell.unsure ? ", or forbidden" : ""}` };
}

function pixelText(head, q, k) {
  const codes = ["mean", "largest"].map((kind) => head.pixel(kind, q, k));
  if (codes.includes(null)) return "…";
  const [mean, largest] = ["mean", "largest"].map((kind, i) => (codes[i] === 2 ? `< ${roughText(head.own[kind].low)}` : roughText(head.value(kind, codes[i]))));
  const counts = head.countsAt(q, k);
  if (codes[0] === 0) return "all of its cells are forbidden";
  const some = counts.allowed === null || counts.allowed === counts.all ? `${parts.grouped(counts.all)} cells` : `${parts.grouped(counts.allowed)} allowed of ${parts.grouped(counts.all)} cells`;
  return `mean ${mean}, largest ${largest} of ${some}`;
}

export function cellText(head, q, k) {
  if (head.endQuery <= head.firstQuery || head.endKey <= head.firstKey) return "no tokens: all of this sequence is padding";
  const what = verdict(head, q, k);
  const from = `query ${long_axis.number(q, head.firstQuery)} ${queryName(head, q, 40)}`;
  const to = `key ${long_axis.number(k, head.firstKey)} ${keyName(head, k, 40)}`;
  const weight = what.weight === "–" ? "" : `weight ${what.weight}, `;
  return `${from}, ${to}: ${weight}${what.words}`;
}

// ── the card ──

// The text round a token, that one marked.
function context(title) {
  const about = el("h2", {}, title);
  const text = el("p", { class: "around" });
  const root = el("div", {}, about, text);
  function update(all, at, first, end) {
    const [from, to] = [Math.max(first, at - AROUND), Math.min(end, at + AROUND + 1)];
    const some = all.slice(from, to);
    text.dir = tokens.direction(some);
    const pieces = tokens.asText(some);
    text.replaceChildren(from > first ? "… " : "", ...pieces.flatMap((piece, i) => [
      piece.space ? " " : "", el(from + i === at ? "mark" : "bdi", {}, tokens.shorten(piece.text, 40)),
    ]), to < end ? " …" : "");
  }
  return { root, update };
}

// What the query looks at most: links to the cells.
function ranking(onLink) {
  const rows = Array.from({ length: Math.max(1, facts.top) }, () => {
    const name = el("bdi", { class: "name" });
    const place = el("span", { class: "at" });
    const bar = el("span", { class: "bar" });
    const value = el("span", { class: "value" });
    const link = el("button", { type: "button", class: "link", onclick: () => onLink(Number(link.dataset.key)) },
      name, place, el("span", { class: "track", "aria-hidden": "true" }, bar), value);
    return { row: el("li", {}, link), link, name, place, bar, value };
  });
  const about = el("h2", {}, "");
  const none = el("p", { class: "none" }, "");
  const root = el("section", { class: "ranking links" }, about, el("ol", {}, ...rows.map((r) => r.row)), none);
  function update(head, q, k) {
    const found = head.top(q);
    about.textContent = `“${queryName(head, q, 18)}” looks at`;
    none.textContent = facts.top ? "nothing" : "single weights were left out to keep this page small";
    none.hidden = found.length > 0;
    rows.forEach(({ row, link, name, place, bar, value }, i) => {
      row.hidden = i >= found.length;
      if (row.hidden) return;
      const { at, weight } = found[i];
      link.dataset.key = at;
      link.setAttribute("aria-current", String(at === k));
      name.textContent = keyName(head, at, 14);
      place.textContent = `#${long_axis.number(at, head.firstKey)}`;
      bar.style.width = `${(100 * weight) / found[0].weight}%`;
      value.textContent = weightText(weight);
    });
  }
  return { root, update };
}

const ROW_NAMES = {
  entropy: "entropy, bits", largest: "largest weight", distance: "mean distance, tokens", first: "on the first token",
  previous: "on the token before", self: "on itself", near: `less than ${facts.near} away`,
};

function rowNumbers() {
  const about = el("h2", {}, "");
  const values = Object.fromEntries(Object.keys(facts.measures).map((name) => [name, el("dd", { "data-row": name })]));
  const root = el("section", { class: "row-numbers" }, about,
    el("dl", {}, ...Object.entries(values).flatMap(([name, value]) => [el("dt", {}, ROW_NAMES[name] ?? name), value])));
  function update(head, q) {
    about.textContent = facts.rowsEach === 1 ? `This row${facts.rowError > 0.001 ? `, ± ${percentText(facts.rowError)}` : ""}` : `The ${facts.rowsEach} rows here, their means`;
    for (const [name, value] of Object.entries(values)) {
      const found = head.statistic(name, q);
      const isSize = name === "entropy" || name === "distance";
      const number = isSize ? parts.measureText(found) : weightText(found);
      const known = head.isTiny(name, q) ? `≤ ${number}` : number;
      value.textContent = head.isBlind(q) ? "–" : Number.isNaN(found) ? "not a number" : known;
    }
  }
  return { root, update };
}

// All of the head, small, and the part that the map shows.
function overview(onPlace) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const frame = el("i", { class: "part", "aria-hidden": "true" });
  const where = el("div", { class: "where" }, canvas, frame);
  const root = el("section", { class: "overview", "data-picture": "no" }, where);
  let shown = null;
  where.addEventListener("pointerdown", (event) => {
    if (!shown) return;
    const box = canvas.getBoundingClientRect();
    const { firstKey, endKey, firstQuery, endQuery } = shown;
    onPlace(firstKey + ((event.clientX - box.x) / box.width) * (endKey - firstKey), firstQuery + ((event.clientY - box.y) / box.height) * (endQuery - firstQuery));
  });
  let drawnFor = "";
  function draw(head) {
    shown = head;
    const wanted = [head.sequence, head.index, colours.theme(), state.state.pixel, state.state.scale, state.state.curve].join();
    if (wanted === drawnFor) return; // it is asked in every frame
    drawnFor = wanted;
    long_colours.fillCanvas(canvas, head);
  }
  function moved({ head, cell, at, w, h }) {
    const [across, down] = [head.endKey - head.firstKey, head.endQuery - head.firstQuery];
    frame.hidden = w / cell.x >= across && h / cell.y >= down;
    const percent = (part, all) => `${(100 * part) / all}%`;
    Object.assign(frame.style, {
      left: percent(at.x - head.firstKey, across), top: percent(at.y - head.firstQuery, down),
      width: percent(w / cell.x, across), height: percent(h / cell.y, down),
    });
  }
  return { root, draw, moved };
}

export function beside({ onLink, onFollow, onPlace }) {
  const query = el("bdi", { "data-fact": "query" });
  const key = el("bdi", { "data-fact": "key" });
  const at = { query: el("span", { class: "at" }), key: el("span", { class: "at" }) };
  const weight = el("strong", { "data-fact": "weight" });
  const error = el("span", { class: "error" });
  const mask = el("dd", { "data-fact": "mask" });
  const pixel = el("dd", { "data-fact": "pixel" });
  const pin = el("p", { class: "pin" });
  const follow = el("button", { type: "button", class: "follow", onclick: onFollow }, "Follow: make the key the query");
  const small = overview(onPlace);
  const looks = ranking(onLink);
  const numbers = rowNumbers();
  const around = { query: context("Round the query"), key: context("Round the key") };
  const cell = el("section", { class: "cell" },
    el("div", { class: "pair" },
      el("div", {}, el("span", { class: "role" }, "query"), query, at.query),
      el("span", { class: "arrow", "aria-hidden": "true" }, "→"),
      el("div", {}, el("span", { class: "role" }, "key"), key, at.key)),
    el("p", { class: "weight" }, el("span", { class: "role" }, "weight"), weight, error),
    el("dl", {}, el("dt", {}, "cell"), mask, el("dt", {}, "pixel"), pixel), pin);
  const strips = card.measureStrips();
  const texts = el("section", { class: "context" }, around.query.root, around.key.root);
  const map = [cell, looks.root, texts, numbers.root];
  const root = el("div", { class: "card halves" },
    el("div", { class: "half" }, small.root, cell, numbers.root), el("div", { class: "half" }, looks.root, texts, strips.root));
  if (!facts.cross) looks.root.append(follow);
  function update(head) {
    const { query: q, key: k, pinned } = state.state;
    const empty = head.endQuery <= head.firstQuery || head.endKey <= head.firstKey;
    for (const part of map) part.classList.toggle("empty", empty);
    if (empty) return;
    const what = verdict(head, q, k);
    query.textContent = queryName(head, q);
    key.textContent = keyName(head, k);
    at.query.textContent = `#${long_axis.number(q, head.firstQuery)}`;
    at.key.textContent = `#${long_axis.number(k, head.firstKey)}`;
    weight.textContent = what.weight;
    error.textContent = what.error ?? "";
    mask.textContent = what.words;
    pixel.textContent = isSingle ? "one cell" : pixelText(head, q, k);
    cell.dataset.verdict = what.name;
    pin.textContent = pinned ? "pinned: click again or press Esc to let go" : "click to pin";
    looks.update(head, q, k);
    numbers.update(head, q);
    around.query.update(run.queryTokens(head.sequence), q, head.firstQuery, head.endQuery);
    around.key.update(run.keyTokens(head.sequence), k, head.firstKey, head.endKey);
  }
  function showMap(on) {
    for (const part of map) part.hidden = !on;
  }
  return { root, showMap, small, strips, update };
}

// ── the legend ──

function cellsText(factor, head) {
  const rows = Math.min(facts.cells[0] * factor, head.endQuery - head.firstQuery);
  const keys = Math.min(facts.cells[1] * factor, head.endKey - head.firstKey);
  if (rows * keys === 1) return "a pixel is one cell";
  return `${state.state.pixel} of ${parts.grouped(rows)} × ${parts.grouped(keys)} cells a pixel, of those that are allowed`;
}

export function sizeText(head) {
  const [queries, keys] = [head.endQuery - head.firstQuery, head.endKey - head.firstKey].map((n) => parts.grouped(n));
  return facts.cross ? `${queries} queries × ${keys} keys` : `${queries} tokens`;
}

export function legend() {
  const bar = el("canvas", { class: "ramp", width: 256, height: 1 });
  const [low, top] = [el("span", {}), el("span", {})];
  const note = el("span", { class: "note" });
  const swatch = (name, words) => el("span", { class: "swatch" }, el("i", { class: name, "data-hatch": name === "forbidden" ? "yes" : null }), words);
  const framed = swatch("framed", "framed: one cell’s weight");
  const broken = swatch("broken", "not a number");
  const root = el("div", { class: "legend" }, el("span", { class: "scale" }, low, bar, top), note,
    swatch("forbidden", "forbidden by a mask"), framed, broken);
  let rampFor = "";
  let wordsFor = "";
  function update(head, shot, level) {
    const { curve, scale, pixel } = state.state;
    const ends = long_colours.range(head);
    if (rampFor !== colours.theme()) {
      rampFor = colours.theme();
      const context = bar.getContext("2d");
      for (let x = 0; x < 256; x++) {
        context.fillStyle = colours.cssColour(colours.colourAt(x / 255));
        context.fillRect(x, 0, 1, 1);
      }
    }
    const close = shot ? Math.min(shot.cell.x, shot.cell.y) : 0;
    const full = close && close * shot.layout.dots >= 0.99 && head.details.size > 0;
    const wanted = [ends, curve, scale, pixel, level, full, close >= 7, head.sequence, head.index].join();
    if (wanted === wordsFor) return; // it is asked in every frame
    wordsFor = wanted;
    low.textContent = curve === "log" ? `≤ ${weightText(ends[0])}` : "0";
    top.textContent = `${weightText(ends[1])}${curve === "log" ? ", logarithmic" : ""}`;
    const factor = shot ? 2 ** level : 2 ** (facts.levels.length - 1);
    const alone = facts.heads.length === 1 ? "" : scale === "all" ? "; one scale for all heads" : "; each head’s own scale";
    note.textContent = `${full ? "cells one by one where they are here, else " : ""}${cellsText(factor, head)}; ${sizeText(head)}, exact${alone}`;
    framed.hidden = close < 7 || !facts.top || isSingle;
    broken.hidden = !["mean", "largest"].some((kind) => head.levels[kind].at(-1).includes(255));
  }
  return { root, update };
}
