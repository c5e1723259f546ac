// Lines: two columns of tokens, joined by lines as strong as their weights, in a colour for each head.

import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as scene from "./scene.js";
import * as parts from "./parts.js";
import * as data from "./data.js";

const { facts, single } = run;
const { el } = parts;
const MOST_LINES = 4000;
const CHOSEN_AT_FIRST = 4;
const MOST_TOKENS = 600; // in each column; of a longer text those round the chosen one

export function view(side) {
  const chips = el("div", { class: "chips", role: "group", "aria-label": "Heads drawn" });
  const threshold = el("input", { type: "range", id: "threshold", min: 0, max: 100 });
  const thresholdText = el("output", { for: "threshold" });
  const count = el("p", { class: "count" });
  const controls = el("div", { class: "controls" }, chips,
    el("label", { class: "range", "data-picture": "no" }, "Hide below", threshold, thresholdText), count);
  const queries = column("queries", facts.cross ? "Queries: this text looks" : "Queries: each looks", "query");
  const keys = column("keys", facts.cross ? "Keys: this one is looked at" : "Keys: each is looked at", "key");
  const canvas = el("canvas", { "aria-hidden": "true" });
  const between = el("div", { class: "between" }, canvas);
  const columns = el("div", { class: "columns" }, queries.root, between, keys.root);
  const root = el("div", { class: "lines-view" }, controls, columns);

  let heads = [];
  let active = false; // whether one token is singled out

  threshold.addEventListener("input", () => state.set({ threshold: Number(threshold.value) }));

  // A column of tokens to choose from; padding is counted, not listed.
  function column(which, title, name) {
    const list = el("div", { class: "tokens", role: "listbox", tabindex: 0, "aria-label": title, "data-text": which });
    const padded = el("p", { class: "padded" });
    const made = el("div", { class: `column ${which}` }, el("h2", {}, title), list, padded);
    let rows = [];
    let first = 0;
    let filled = -1;
    function fill(sequence, tokens, [start, end], around) {
      const inside = around >= first && around < first + rows.length;
      if (filled === sequence && (end - start <= MOST_TOKENS || inside)) return false;
      filled = sequence;
      first = end - start <= MOST_TOKENS ? start : Math.max(start, Math.min(end - MOST_TOKENS, around - MOST_TOKENS / 2));
      rows = tokens.slice(first, Math.min(end, first + MOST_TOKENS)).map((token, i) => el("div", {
        role: "option", id: `line-${which}-${first + i}`, "data-at": first + i, title: `#${parts.number(first + i, start)}`,
      }, el("bdi", {}, parts.label(token, 22))));
      list.replaceChildren(...rows);
      const [count, other] = [tokens.length - (end - start), end - start - rows.length];
      padded.textContent = !rows.length ? "all padding" : other ? `+ ${parts.grouped(other)} other tokens` : count ? `+ ${count} padding` : "";
      return true;
    }
    function choose(at, more = {}) {
      active = true;
      state.set({ [name]: at, side: name === "query" ? "looks" : "seen", ...more });
      paint();
    }
    list.addEventListener("pointermove", (event) => {
      const at = event.target.closest("[data-at]")?.dataset.at;
      if (at !== undefined && !state.state.pinned) choose(Number(at));
    });
    list.addEventListener("pointerleave", () => rest());
    list.addEventListener("click", (event) => {
      const at = event.target.closest("[data-at]")?.dataset.at;
      if (at === undefined) return;
      choose(Number(at), { pinned: !(state.state.pinned && Number(at) === state.state[name]) });
    });
    list.addEventListener("focus", () => { if (list.matches(":focus-visible")) choose(state.state[name]); });
    list.addEventListener("blur", () => rest());
    return { root: made, list, fill, rows: () => rows, first: () => first, row: (i) => rows[i - first] };
  }

  function rest() {
    if (state.state.pinned || document.activeElement === queries.list || document.activeElement === keys.list) return;
    active = false;
    paint();
  }

  function layer() {
    return facts.heads[state.state.head][0];
  }

  // The head numbers that are drawn: those chosen, else this head and a few beside it.
  function chosen() {
    const here = facts.heads.filter(([l]) => l === layer()).map(([, h]) => h);
    const wanted = state.state.chosen?.filter((h) => here.includes(h));
    if (wanted) return wanted;
    const own = facts.heads[state.state.head][1];
    const start = Math.max(0, Math.min(here.indexOf(own), here.length - CHOSEN_AT_FIRST));
    return here.slice(start, start + CHOSEN_AT_FIRST);
  }

  function fillChips() {
    const drawn = chosen();
    const here = facts.heads.filter(([l]) => l === layer()).map(([, h]) => h);
    const toggle = (h) => {
      const next = drawn.includes(h) ? drawn.filter((d) => d !== h) : [...drawn, h].sort((a, b) => a - b);
      state.set({ chosen: next });
    };
    const focused = chips.contains(document.activeElement) ? document.activeElement.getAttribute("data-chip") : null;
    chips.replaceChildren(
      el("span", { class: "chips-name" }, facts.namesLayers ? `Layer ${layer()}, heads` : "Heads"),
      ...here.map((h) => {
        const swatch = el("i", { class: "dot" });
        swatch.style.backgroundColor = colours.headColour(h);
        return el("button", {
          type: "button", class: "chip", "data-chip": h, "aria-pressed": String(drawn.includes(h)), "aria-label": `head ${h}`,
          "data-picture": drawn.includes(h) ? "yes" : "no", onclick: () => toggle(h),
        }, swatch, String(h));
      }),
      el("button", { type: "button", class: "chip", "data-chip": "all", "data-picture": "no", onclick: () => state.set({ chosen: here }) }, "all"),
      el("button", { type: "button", class: "chip", "data-chip": "none", "data-picture": "no", onclick: () => state.set({ chosen: [] }) }, "none"));
    if (focused !== null) chips.querySelector(`[data-chip="${focused}"]`)?.focus();
  }

  // ── shapes ──

  function isShown(q, k) {
    if (!active) return true;
    return state.state.side === "looks" ? q === state.state.query : k === state.state.key;
  }

  // The strongest lines, weakest first so that strong ones lie above; and how many there would be.
  function strongest(top) {
    const least = Math.max((state.state.threshold / 100) * top, 1e-12);
    const found = [];
    const within = (column, at) => at >= column.first() && at < column.first() + column.rows().length;
    const keep = (head, q, k, weight) => { if (weight >= least && isShown(q, k) && within(queries, q) && within(keys, k)) found.push({ q, k, weight, head }); };
    for (const head of heads) {
      for (let q = head.firstQuery; q < head.endQuery; q++) {
        if (head.statistic("largest", q) < least * 0.95 || (active && state.state.side === "looks" && q !== state.state.query)) continue;
        if (!single) for (const { at, weight } of head.top(q)) keep(head, q, at, weight); // the others are not known one by one
        for (let k = head.firstKey; k < head.endKey && single; k++) keep(head, q, k, head.weight(q, k));
      }
    }
    found.sort((a, b) => a.weight - b.weight);
    return { lines: found.slice(-MOST_LINES), all: found.length };
  }

  function centre(row, frame) {
    const box = row.getBoundingClientRect();
    return box.top + box.height / 2 - frame.top;
  }

  let drawn = null;
  function layoutLines() {
    const top = Math.max(1e-12, ...heads.map((head) => head.kind("largest").top));
    drawn = { top, ...strongest(top) };
  }

  // All lines, or only those that cross what is seen of the canvas.
  function items(all = false) {
    const frame = canvas.getBoundingClientRect();
    const rows = { q: queries.rows(), k: keys.rows() };
    if (!rows.q.length || !rows.k.length) return [];
    // Rows are equally high, so two of them say where all are.
    const place = (list, from) => {
      const first = centre(list[0], frame);
      const step = list.length > 1 ? (centre(list.at(-1), frame) - first) / (list.length - 1) : 0;
      return (i) => first + (i - from) * step;
    };
    const [yq, yk] = [place(rows.q, queries.first()), place(rows.k, keys.first())];
    const found = [];
    for (const { q, k, weight, head } of drawn.lines) {
      const [y0, y1] = [yq(q), yk(k)];
      if (!all && (Math.max(y0, y1) < -4 || Math.min(y0, y1) > frame.height + 4)) continue;
      const part = weight / drawn.top;
      found.push({
        kind: "curve", x0: 0, y0, x1: frame.width, y1, stroke: colours.headColour(head.head),
        alpha: Math.round(1000 * Math.min(1, 0.08 + 0.92 * part)) / 1000, width: 1 + 2.2 * part,
      });
    }
    return found;
  }

  function paintLines() {
    if (!drawn) return;
    const dots = devicePixelRatio || 1;
    const [w, h] = [Math.round(canvas.clientWidth * dots), Math.round(canvas.clientHeight * dots)];
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    const context = canvas.getContext("2d");
    context.setTransform(dots, 0, 0, dots, 0, 0);
    context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    scene.paint(context, items());
  }

  canvas.scene = () => items(true);

  // Beside the lines, each token that is reached gets a stripe for each head, as strong as its weight.
  function stripes() {
    const looking = state.state.side === "looks";
    const mark = (column, isChosen, weightOf) => column.rows().forEach((row, place) => {
      const i = column.first() + place;
      row.setAttribute("aria-selected", String(isChosen(i)));
      row.classList.toggle("chosen", active && !weightOf && isChosen(i));
      const shares = active && weightOf ? heads.map((head) => weightOf(head, i)) : [];
      if (!shares.some((part) => part > 0)) {
        row.style.backgroundImage = "";
        return;
      }
      const stops = shares.flatMap((part, j) => {
        const colour = `color-mix(in srgb, ${colours.headColour(heads[j].head)} ${Math.round(35 * Math.min(1, part))}%, transparent)`;
        return [`${colour} ${(100 * j) / shares.length}%`, `${colour} ${(100 * (j + 1)) / shares.length}%`];
      });
      row.style.backgroundImage = `linear-gradient(90deg, ${stops.join(", ")})`;
    });
    const { query, key } = state.state;
    const weight = (head, q, k) => (head.weight(q, k) ?? 0) / drawn.top;
    mark(queries, (i) => i === query, looking ? null : (head, i) => weight(head, i, key));
    mark(keys, (i) => i === key, looking ? (head, i) => weight(head, query, i) : null);
    for (const [column, at] of [[queries, query], [keys, key]]) {
      if (column.row(at)) column.list.setAttribute("aria-activedescendant", column.row(at).id);
      else column.list.removeAttribute("aria-activedescendant");
    }
  }

  function paint() {
    if (!heads.length) {
      drawn = { top: 1, lines: [], all: 0 };
      count.textContent = "no head chosen";
    } else {
      layoutLines();
      const { lines, all } = drawn;
      count.textContent = all > lines.length
        ? `the ${parts.grouped(lines.length)} strongest of ${parts.grouped(all)} lines` : `${parts.grouped(all)} line${all === 1 ? "" : "s"}`;
    }
    thresholdText.textContent = `${state.state.threshold} % = ${parts.weightText((state.state.threshold / 100) * drawn.top, 2)}`;
    stripes();
    paintLines();
  }

  async function update(changed) {
    const { sequence, head: index } = state.state;
    const here = facts.heads.map(([l, h], i) => ({ l, h, i })).filter(({ l, h }) => l === layer() && chosen().includes(h));
    const own = data.cells(sequence, index);
    const opened = await Promise.all(here.map(({ i }) => data.cells(sequence, i)));
    const current = await own;
    if (sequence !== state.state.sequence || index !== state.state.head || state.state.view !== "lines") return;
    heads = opened;
    const { query, key } = state.state;
    const filled = [queries.fill(sequence, run.queryTokens(sequence), run.real(sequence, "query"), query), keys.fill(sequence, run.keyTokens(sequence), run.real(sequence, "key"), key)];
    if (filled.includes(true)) {
      const most = Math.max(queries.rows().length, keys.rows().length, 1);
      columns.style.setProperty("--row-height", `${Math.round(Math.min(38, Math.max(24, (innerHeight - 300) / most)))}px`);
    }
    threshold.value = state.state.threshold;
    if (state.state.pinned) active = true;
    fillChips();
    if (changed.has("by-key")) active = true;
    if (changed.has("by-key") || (changed.has("view") && state.state.pinned)) {
      (state.state.side === "looks" ? queries.row(state.state.query) : keys.row(state.state.key))?.scrollIntoView({ block: "nearest" });
    }
    if (changed.has("pinned") && !state.state.pinned) active = false;
    paint();
    side.update(current);
  }

  columns.addEventListener("scroll", paintLines);
  addEventListener("scroll", () => { if (state.state.view === "lines") paintLines(); }, { passive: true });
  new ResizeObserver(() => { if (drawn) paintLines(); }).observe(between);

  return { root, update };
}
