// The card beside a view, and the legend below it.

import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as parts from "./parts.js";

const { facts } = run;
const { el } = parts;

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
      name.textContent = parts.label(texts[found[i].at], 14);
      bar.style.width = `${(100 * found[i].weight) / top}%`;
      value.textContent = parts.weightText(found[i].weight, head.step);
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
  function update(head, q, k) {
    const { pinned } = state.state;
    const what = parts.verdict(head, q, k);
    query.textContent = parts.label(run.queryTokens(head.sequence)[q]);
    key.textContent = parts.label(run.keyTokens(head.sequence)[k]);
    at.query.textContent = `#${q}`;
    at.key.textContent = `#${k}`;
    const shown = what.name === "allowed";
    weight.textContent = shown ? parts.cellWeight(head, q, k) : "–";
    error.textContent = shown && head.weight(q, k) !== 0 && !facts.wide ? ` ± ${(head.step / 2).toPrecision(1)}` : "";
    rank.value.textContent = parts.rankText(head, q, k);
    mask.value.textContent = what.words;
    cell.dataset.verdict = what.name;
    pin.textContent = pinned ? "pinned: click again or press Esc to let go" : "click to pin";
    looks.root.firstChild.textContent = `“${parts.label(run.queryTokens(head.sequence)[q], 18)}” looks at`;
    seen.root.firstChild.textContent = `“${parts.label(run.keyTokens(head.sequence)[k], 18)}” is looked at by`;
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
    parts.fillCanvas(canvas, head, 512);
  }
  return { root, update };
}

// Each measure as a line with a dot for every head, this one's marked.
export function measureStrips() {
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
      value.textContent = parts.measureText(own);
      value.title = facts.measures[name];
    }
    drawnFor = sequence;
  }
  return { root, update };
}

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
    top.textContent = scale === "query" ? "each query's largest" : parts.weightText(value, value / 50);
    note.textContent = scale === "all" ? "one scale for all heads" : scale === "head" ? "each head's own scale" : "";
    blind.hidden = !head || head.sees.subarray(head.firstQuery, head.endQuery).every((s) => s);
    broken.hidden = !head || head.broken === 0;
  }
  return { root, update };
}
