// The card beside a view: where one is, the cell, what its query looks at, the row's numbers; and the legend.

import * as tokens from "./tokens.js";
import * as run from "./run.js";
import * as colours from "./colours.js";
import * as state from "./state.js";
import * as parts from "./parts.js";
import * as paint from "./paint.js";
import * as words from "./words.js";

const { facts, single } = run;
const { el } = parts;
const LIST_LENGTH = 8;
const AROUND = 9; // tokens before and after the chosen one

// A list of tokens with their weights: links to the cells.
function ranking(kind, onLink) {
  const rows = Array.from({ length: LIST_LENGTH }, () => {
    const name = el("bdi", { class: "name" });
    const place = el("span", { class: "at" });
    const bar = el("span", { class: "bar" });
    const value = el("span", { class: "value" });
    const link = el("button", { type: "button", class: "link", onclick: () => onLink(Number(link.dataset.at)) },
      name, place, el("span", { class: "track", "aria-hidden": "true" }, bar), value);
    return { row: el("li", {}, link), link, name, place, bar, value };
  });
  const about = el("h2", {}, "");
  const none = el("p", { class: "none" }, "");
  const root = el("section", { class: `ranking links ${kind}` }, about, el("ol", {}, ...rows.map((r) => r.row)), none);
  function update(head, title, found, chosen) {
    about.replaceChildren(...title); // a token may run from right to left, and the words about it do not
    none.textContent = facts.top ? "nothing" : "single weights were left out to keep this page small";
    none.hidden = found.length > 0;
    const [first, nameOf] = kind === "looks" ? [head.firstKey, parts.keyName] : [head.firstQuery, parts.queryName];
    rows.forEach(({ row, link, name, place, bar, value }, i) => {
      row.hidden = i >= found.length;
      if (row.hidden) return;
      const { at, weight } = found[i];
      link.dataset.at = at;
      link.setAttribute("aria-current", String(at === chosen));
      name.textContent = nameOf(head, at, 14);
      place.textContent = `#${parts.number(at, first)}`;
      bar.style.width = `${100 * Math.min(1, weight)}%`; // all of the track is all of the weight
      value.textContent = parts.listText(found[i]);
    });
  }
  return { root, update };
}

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

const ROW_NAMES = {
  entropy: "entropy, bits", largest: "largest weight", distance: "mean distance, tokens", first: "on the first token",
  previous: "on the token before", self: "on itself", near: `less than ${facts.near} away`,
};

function rowNumbers() {
  const about = el("h2", {}, "");
  const values = Object.fromEntries(Object.keys(facts.statistics).map((name) => [name, el("dd", { "data-row": name })]));
  const root = el("section", { class: "row-numbers" }, about,
    el("dl", {}, ...Object.entries(values).flatMap(([name, value]) => [el("dt", {}, ROW_NAMES[name] ?? name), value])));
  function update(head, q) {
    about.textContent = facts.rowsEach === 1 ? `This row${facts.rowError > 0.002 ? `, ± ${words.percentText(facts.rowError)}` : ""}` : `The ${facts.rowsEach} rows here, their means`;
    for (const [name, value] of Object.entries(values)) {
      const found = head.statistic(name, q);
      const isSize = name === "entropy" || name === "distance";
      const number = isSize ? parts.measureText(found) : parts.weightText(found);
      const known = head.isTiny(name, q) ? `≤ ${number}` : number;
      value.textContent = head.isBlind(q) ? "–" : Number.isNaN(found) ? "not a number" : known;
    }
  }
  return { root, update };
}

// All of the head, small, and the part that the view shows.
function overview(onPlace) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const frame = el("i", { class: "part", "aria-hidden": "true" });
  const where = el("div", { class: "where" }, canvas, frame);
  const root = el("section", { class: "overview", "data-picture": "no" }, where);
  let shown = null;
  where.addEventListener("pointerdown", (event) => {
    if (!shown) return;
    const box = canvas.getBoundingClientRect();
    const { key, endKey, query, endQuery } = shown.domain;
    onPlace(key + ((event.clientX - box.x) / box.width) * (endKey - key), query + ((event.clientY - box.y) / box.height) * (endQuery - query));
  });
  let drawnFor = "";
  function draw(head) {
    shown = head;
    const wanted = [head.sequence, head.index, colours.theme(), state.state.pixel, state.state.scale, state.state.curve].join();
    if (wanted === drawnFor) return; // it is asked in every frame
    drawnFor = wanted;
    paint.fillCanvas(canvas, head);
  }
  function moved({ head, cell, at, w, h }) {
    const { key, endKey, query, endQuery } = head.domain;
    const [across, down] = [endKey - key, endQuery - query];
    frame.hidden = w / cell.x >= across - 0.01 && h / cell.y >= down - 0.01;
    root.classList.toggle("whole", frame.hidden);
    const percent = (part, all) => `${(100 * part) / all}%`;
    Object.assign(frame.style, {
      left: percent(at.x - key, across), top: percent(at.y - query, down),
      width: percent(w / cell.x, across), height: percent(h / cell.y, down),
    });
  }
  return { root, draw, moved };
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
  let shownFor = "";
  function update(index) {
    const { sequence } = state.state;
    if (shownFor === `${sequence}.${index}`) return; // it is asked with every movement
    shownFor = `${sequence}.${index}`;
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
      value.textContent = parts.measureText(own);
      value.title = facts.measures[name];
    }
    drawnFor = sequence;
  }
  return { root, update };
}

const PARTS = { matrix: ["small"], head: ["small", "cell", "looks", "seen", "context", "numbers", "across"], lines: ["looks", "seen"], text: ["looks", "seen"], trace: [] };

// The card. `onKey` and `onQuery` go to another cell of the row or the column, `onRank` ranks all heads by the cell.
export function beside({ onKey, onQuery, onFollow, onPlace, onRank, onHead }) {
  const query = el("bdi", { "data-fact": "query" });
  const key = el("bdi", { "data-fact": "key" });
  const at = { query: el("span", { class: "at" }), key: el("span", { class: "at" }) };
  const weight = el("strong", { "data-fact": "weight" });
  const error = el("span", { class: "error" });
  const rank = el("dd", { "data-fact": "rank" });
  const mask = el("dd", { "data-fact": "mask" });
  const pixel = el("dd", { "data-fact": "pixel" });
  const pin = el("p", { class: "pin" });
  const follow = el("button", { type: "button", class: "follow", onclick: onFollow }, "Follow: make the key the query");
  const small = overview(onPlace);
  const looks = ranking("looks", onKey);
  const seen = ranking("seen", onQuery);
  const numbers = rowNumbers();
  const across = acrossHeads(onRank, onHead);
  const around = { query: context("Round the query"), key: context("Round the key") };
  const cell = el("section", { class: "cell" },
    el("div", { class: "pair" },
      el("div", {}, el("span", { class: "role" }, "query"), query, at.query),
      el("span", { class: "arrow", "aria-hidden": "true" }, "→"),
      el("div", {}, el("span", { class: "role" }, "key"), key, at.key)),
    el("p", { class: "weight" }, el("span", { class: "role" }, "weight"), weight, error),
    el("dl", {}, ...(single ? [el("dt", {}, "rank"), rank] : []), el("dt", {}, "cell"), mask, ...(single ? [] : [el("dt", {}, "pixel"), pixel])), pin);
  const strips = measureStrips();
  const texts = el("section", { class: "context" }, around.query.root, around.key.root);
  const root = el("div", { class: "card halves" },
    el("div", { class: "half" }, small.root, cell, across.root, numbers.root), el("div", { class: "half" }, looks.root, seen.root, texts, strips.root));
  if (!facts.cross) looks.root.append(follow);
  const all = { small: small.root, cell, looks: looks.root, seen: seen.root, context: texts, numbers: numbers.root, across: across.root };

  // The query and the key that the lists are about: those of the cell, or one token in both its parts.
  function tokensOf() {
    const { view, query: q, key: k, side } = state.state;
    if (view === "head" || facts.cross) return [q, k];
    return side === "looks" ? [q, q] : [k, k];
  }

  function update(head) {
    for (const part of Object.values(all)) part.classList.toggle("empty", head.empty);
    if (head.empty) return;
    const { query: q, key: k, pinned, view } = state.state;
    const [own, other] = tokensOf();
    const title = (name, place, does) => ["“", el("bdi", {}, name), `” #${place} ${does}`];
    looks.update(head, title(parts.queryName(head, own, 18), parts.number(own, head.firstQuery), "looks at"), head.top(own), view === "head" ? k : -1);
    seen.update(head, title(parts.keyName(head, other, 18), parts.number(other, head.firstKey), "is looked at by"), head.seenBy(other, LIST_LENGTH), view === "head" ? q : -1);
    if (view !== "head") return;
    const what = words.verdict(head, q, k);
    query.textContent = parts.queryName(head, q);
    key.textContent = parts.keyName(head, k);
    at.query.textContent = `#${parts.number(q, head.firstQuery)}`;
    at.key.textContent = `#${parts.number(k, head.firstKey)}`;
    weight.textContent = what.weight;
    error.textContent = what.error ?? "";
    mask.textContent = what.words;
    if (single) rank.textContent = words.rankText(head, q, k);
    else pixel.textContent = words.pixelText(head, q, k);
    cell.dataset.verdict = what.name;
    pin.textContent = pinned ? "pinned: click again or press Esc to let go" : "click to pin, and to rank all heads by this cell";
    numbers.update(head, q);
    around.query.update(run.queryTokens(head.sequence), q, head.firstQuery, head.endQuery);
    around.key.update(run.keyTokens(head.sequence), k, head.firstKey, head.endKey);
  }
  function show(view) {
    for (const [name, part] of Object.entries(all)) part.hidden = !PARTS[view].includes(name);
    small.root.classList.toggle("large", view === "matrix");
    texts.hidden ||= facts.queries < 40 && facts.keys < 40; // such a text is seen as a whole
  }
  return { root, show, small, strips, across, update };
}

// The heads that look from the chosen query to the chosen key most.
function acrossHeads(onRank, onHead) {
  const list = el("ol", {});
  const title = el("h2", {}, "Across heads");
  const all = el("button", { type: "button", class: "follow", onclick: onRank }, "Rank all heads by this cell");
  const root = el("section", { class: "across unpinned", "data-picture": "no" }, title, list, all);
  function update(found) { // [{ index, weight }], largest first; null where no cell is pinned
    root.classList.toggle("unpinned", !found || facts.heads.length < 2);
    if (!found) return;
    list.replaceChildren(...found.slice(0, 5).map(({ index, text }) => {
      const current = String(index === state.state.head);
      return el("li", {}, el("button", { type: "button", class: "link", "aria-current": current, onclick: () => onHead(index) },
        el("span", { class: "name" }, run.headName(facts.heads[index])), el("span", { class: "value" }, text)));
    }));
  }
  update(null);
  return { root, update };
}

// ── the legend ──

function cellsText(factor, head) {
  const rows = Math.min(facts.cells[0] * factor, head.endQuery - head.firstQuery);
  const keys = Math.min(facts.cells[1] * factor, head.endKey - head.firstKey);
  if (rows * keys <= 1) return "";
  const kind = single ? "largest" : state.state.pixel;
  return `${kind} of ${parts.grouped(rows)} × ${parts.grouped(keys)} cells a pixel, of those that are allowed; ${words.sizeText(head)}, exact`;
}

export function legend() {
  const bar = el("canvas", { class: "ramp", width: 256, height: 1 });
  const [low, top] = [el("span", {}), el("span", {})];
  const note = el("span", { class: "note" });
  const swatch = (name, text) => el("span", { class: "swatch" }, el("i", { class: name, "data-hatch": name === "forbidden" ? "yes" : null }), text);
  const framed = swatch("framed", "framed: one cell’s weight");
  const broken = swatch("broken", "not a number");
  const padding = swatch("padding", "padding");
  const forbidden = swatch("forbidden", "forbidden by a mask");
  const blind = el("span", { class: "swatch" }, el("b", { class: "blind" }, "∅"), "sees nothing");
  const root = el("div", { class: "legend" }, el("span", { class: "scale" }, low, bar, top), note, forbidden, padding, blind, framed, broken);
  forbidden.hidden = single && facts.sequences.every((s) => s.heads.every((h) => h.mask == null));
  let rampFor = "";
  let wordsFor = "";
  function update(head, shot, level) {
    const { curve, scale, pixel } = state.state;
    const ends = paint.range(head);
    if (rampFor !== curve) {
      rampFor = curve;
      const context = bar.getContext("2d");
      for (let x = 0; x < 256; x++) {
        context.fillStyle = colours.cssColour(colours.colourAt(curve === "root" ? Math.sqrt(x / 255) : x / 255));
        context.fillRect(x, 0, 1, 1);
      }
    }
    const close = shot ? Math.min(shot.cell.x, shot.cell.y) : 0;
    const full = close && close * shot.layout.dots >= 0.99 && head.details.size > 0;
    const wanted = [ends, curve, scale, pixel, level, full, close >= 7, head.sequence, head.index, head.levels.mean.length].join();
    if (wanted === wordsFor) return; // it is asked in every frame
    wordsFor = wanted;
    low.textContent = curve === "log" ? `weight ≤ ${parts.weightText(ends[0], 2)}` : "weight 0";
    const end = scale === "query" ? "each query’s largest" : `${facts.vmax ? "≥ " : ""}${parts.weightText(ends[1], 3)}`;
    top.textContent = `${end}${curve === "log" ? ", logarithmic" : curve === "root" ? ", root" : ""}`;
    const factor = shot ? 2 ** level : 2 ** (facts.levels.length - 1);
    const alone = facts.heads.length === 1 || scale === "query" ? "" : scale === "all" ? "one scale for all heads" : "each head’s own scale";
    note.textContent = [full ? "cells one by one where they are here" : "", cellsText(factor, head), alone].filter(Boolean).join("; ");
    framed.hidden = close < 7 || !facts.top || single;
    const { domain } = head;
    padding.hidden = !(domain.query < head.firstQuery || domain.endQuery > head.endQuery || domain.key < head.firstKey || domain.endKey > head.endKey);
    broken.hidden = !["mean", "largest"].some((kind) => head.levels[kind].at(-1)?.includes(single && facts.fine ? 65535 : facts.fine ? 65535 : 255));
    const rows = Math.min(head.endQuery, head.firstQuery + 2000);
    let blindRows = false;
    for (let q = head.firstQuery; q < rows && shot && !blindRows; q++) blindRows = head.isBlind(q);
    blind.hidden = !blindRows;
  }
  return { root, update };
}
