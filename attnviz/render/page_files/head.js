// Head: one heatmap, large. Rows are queries, which look; columns are keys, which are looked at.

import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as scene from "./scene.js";
import * as parts from "./parts.js";

const { facts } = run;
const { el } = parts;
const LARGEST_CELL = 64; // CSS pixels
const LABEL_LIMIT = 14; // characters of a token along an axis
const NUMBERS_FROM = 38; // a cell of so many pixels has room for its weight

const measuring = document.createElement("canvas").getContext("2d");
function textWidth(text, size, weight = 400) {
  measuring.font = scene.font({ size, weight });
  return measuring.measureText(text).width;
}

export function view(side) {
  const base = el("canvas", { "aria-hidden": "true" });
  const over = el("canvas", {
    class: "over", tabindex: 0, role: "application", "aria-roledescription": "heatmap", "aria-describedby": "heat-help",
  });
  const plot = el("div", { class: "plot" }, base, over);
  const zoomText = el("output", { class: "zoom-text" });
  const button = (words, sign, act) => el("button", { type: "button", "aria-label": words, title: words, onclick: act }, sign);
  const controls = el("div", { class: "controls zoom", "data-picture": "no" },
    button("Zoom out", "−", () => zoom(1 / 1.5)), zoomText, button("Zoom in", "+", () => zoom(1.5)),
    button("Show all", "⤢", () => fit()));
  const root = el("div", { class: "head-view" }, plot, controls,
    el("p", { id: "heat-help", class: "hidden-text" },
      "Arrow keys move through queries and keys, Enter pins the cell, plus and minus zoom, 0 shows all."));

  let head = null;
  let full = null; // a pixel a cell
  let pooled = null; // what is painted when a cell is smaller than a pixel
  let pool = 1;
  let layout = null;
  let cell = 0; // CSS pixels
  let at = { x: 0, y: 0 }; // the cell in the plot's upper left corner

  // ── measuring ──

  function labelsOf(tokens) {
    return tokens.map((token) => parts.label(token, LABEL_LIMIT));
  }

  // Where everything goes: gutters for labels, then as many pixels a cell as fit.
  function measure() {
    const width = plot.clientWidth;
    const narrow = width < 560;
    const rows = labelsOf(run.queryTokens(state.state.sequence));
    const columns = labelsOf(run.keyTokens(state.state.sequence));
    const widest = (labels) => Math.max(8, ...labels.map((text) => textWidth(text, 12)));
    const left = 26 + Math.min(narrow ? 76 : 118, widest(rows)) + 8;
    const columnWidth = Math.min(narrow ? 76 : 118, widest(columns));
    const height = narrow ? Math.max(300, width) : Math.max(360, innerHeight - plot.getBoundingClientRect().top - scrollY - 84);
    const room = (labelHeight, right) => Math.min((width - left - right) / facts.keys, (height - labelHeight - 30) / facts.queries);
    let slant = 0;
    let top = 52;
    let right = 26;
    let size = room(top, right);
    if (columnWidth + 6 > Math.min(size, LARGEST_CELL)) {
      slant = narrow ? -90 : -52;
      top = 40 + columnWidth * (narrow ? 1 : 0.79) + 8;
      right = narrow ? 24 : Math.max(26, columnWidth * 0.62);
      size = room(top, right);
    }
    const dots = devicePixelRatio || 1;
    const sharp = (pixels) => (pixels * dots >= 1 ? Math.floor(Math.min(pixels, LARGEST_CELL) * dots) / dots : pixels);
    const fitted = sharp(size);
    layout = { left, top, right, slant, rows, columns, fitted, width, height, dots };
    layout.home = home(sharp, (width - left - right), (height - top - 30));
    pool = fitted * dots >= 1 ? 1 : Math.ceil(1 / (fitted * dots));
  }

  // The cell and corner to begin with.
  function home(sharp, wide, high) {
    const shown = parts.area(head);
    const cell = sharp(Math.min(wide / (shown.endKey - shown.key), high / (shown.endQuery - shown.query)));
    return { cell, x: shown.key, y: shown.query };
  }

  function goHome() {
    cell = layout.home.cell;
    at = { x: layout.home.x, y: layout.home.y };
  }

  function fit() {
    cell = layout.fitted;
    at = { x: 0, y: 0 };
    paintAll();
  }

  // The plot takes the room that the cells need, as far as there is any; and shows no place without cells.
  function bounded() {
    layout.plotWidth = Math.min(layout.width - layout.left - layout.right, cell * facts.keys);
    layout.plotHeight = Math.min(layout.height - layout.top - 30, cell * facts.queries);
    const most = (count, pixels) => Math.max(0, count - pixels / cell);
    at.x = Math.min(most(facts.keys, layout.plotWidth), Math.max(0, at.x));
    at.y = Math.min(most(facts.queries, layout.plotHeight), Math.max(0, at.y));
  }

  // Zoom so that the cell under (x, y) of the plot stays there; without a place, under the crosshair.
  function zoom(by, x, y) {
    const wanted = Math.max(layout.fitted, Math.min(LARGEST_CELL, cell * by));
    const next = wanted <= layout.fitted ? layout.fitted : Math.max(1, Math.round(wanted * layout.dots)) / layout.dots;
    const fx = x ?? Math.min(layout.plotWidth, Math.max(0, (state.state.key + 0.5 - at.x) * cell));
    const fy = y ?? Math.min(layout.plotHeight, Math.max(0, (state.state.query + 0.5 - at.y) * cell));
    at = { x: at.x + fx / cell - fx / next, y: at.y + fy / cell - fy / next };
    cell = next;
    paintAll();
  }

  function bringIntoView() {
    const { key, query } = state.state;
    const before = { ...at };
    const [wide, high] = [layout.plotWidth / cell, layout.plotHeight / cell];
    if (key < at.x) at.x = key;
    if (key + 1 > at.x + wide) at.x = key + 1 - wide;
    if (query < at.y) at.y = query;
    if (query + 1 > at.y + high) at.y = query + 1 - high;
    bounded();
    return before.x !== at.x || before.y !== at.y;
  }

  // ── shapes ──

  function visible(from, pixels, count) {
    return [Math.max(0, Math.floor(from)), Math.min(count, Math.ceil(from + pixels / cell))];
  }

  function columnLabel(k, fill, weight) {
    const { left, top, slant, columns } = layout;
    const x = left + (k + 0.5 - at.x) * cell;
    if (!slant) return { kind: "text", text: columns[k], x, y: top - 9, size: 12, anchor: "middle", fill, weight };
    const shift = slant === -90 ? 4 : 3;
    return { kind: "text", text: columns[k], x: x + shift, y: top - 7, size: 12, anchor: "start", fill, weight, rotate: slant };
  }

  function rowLabel(q, fill, weight) {
    const { left, top, rows } = layout;
    return { kind: "text", text: rows[q], x: left - 8, y: top + (q + 0.5 - at.y) * cell + 4, size: 12, anchor: "end", fill, weight };
  }

  function isPaddedQuery(q) {
    return q < head.firstQuery || q >= head.endQuery;
  }

  function isPaddedKey(k) {
    return k < head.firstKey || k >= head.endKey;
  }

  function labelItems(x0, x1, y0, y1) {
    const items = [];
    const ink = colours.css("ink");
    const soft = colours.css("soft");
    const every = (pixels) => Math.max(1, Math.ceil(pixels / cell));
    const [columnStep, rowStep] = [every(layout.slant || cell < 15 ? 15 : 1), every(15)];
    const inside = (from, to, pixels) => to > 1 && to < pixels - 1 && from >= 0;
    for (let k = Math.ceil(x0 / columnStep) * columnStep; k < x1; k += columnStep) {
      const centre = (k + 0.5 - at.x) * cell;
      if (inside(k, centre, layout.plotWidth)) items.push(columnLabel(k, isPaddedKey(k) ? soft : ink));
    }
    for (let q = Math.ceil(y0 / rowStep) * rowStep; q < y1; q += rowStep) {
      const centre = (q + 0.5 - at.y) * cell;
      if (inside(q, centre, layout.plotHeight)) items.push(rowLabel(q, isPaddedQuery(q) ? soft : ink));
    }
    const { left, top, plotWidth, plotHeight } = layout;
    const thinned = (step) => (step > 1 ? `, every ${step}${step === 2 ? "nd" : step === 3 ? "rd" : "th"} named` : "");
    items.push(
      { kind: "text", text: `key: is looked at →${thinned(columnStep)}`, x: left, y: 20, size: 12, weight: 600, fill: soft },
      { kind: "text", text: `← query: looks${thinned(rowStep)}`, x: 15, y: top + plotHeight, size: 12, weight: 600, fill: soft, rotate: -90 },
    );
    for (let q = y0; q < y1; q++) {
      if (!isPaddedQuery(q) && !head.sees[q] && (q + 0.5 - at.y) * cell < plotHeight) {
        items.push({ kind: "text", text: "∅", x: left + plotWidth + 6, y: top + (q + 0.5 - at.y) * cell + 5, size: 14, weight: 700, fill: colours.css("warn") });
      }
    }
    return items;
  }

  function numberItems(x0, x1, y0, y1) {
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

  function items() {
    const { left, top, plotWidth, plotHeight } = layout;
    const [x0, x1] = visible(at.x, plotWidth, facts.keys);
    const [y0, y1] = visible(at.y, plotHeight, facts.queries);
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
    if (cell >= NUMBERS_FROM) found.push(...numberItems(x0, x1, y0, y1));
    found.push({ kind: "rect", x: left - 0.5, y: top - 0.5, w: plotWidth + 1, h: plotHeight + 1, stroke: colours.css("line") });
    found.push(...labelItems(x0, x1, y0, y1));
    return found;
  }

  function crosshair() {
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
      const text = rowLabel(q, paper, 600);
      const wide = Math.min(textWidth(text.text, 12, 600), left - 18) + 10;
      found.push({ kind: "rect", x: left - 4 - wide, y: text.y - 13, w: wide, h: 18, radius: 4, fill: accent }, { ...text, x: left - 9 });
    }
    if (down) {
      for (const edge of [x, x + w]) found.push({ kind: "line", x0: edge, y0: top, x1: edge, y1: top + plotHeight, stroke: accent });
      const text = columnLabel(k, paper, 600);
      const wide = textWidth(text.text, 12, 600) + 10;
      const from = text.anchor === "middle" ? text.x - wide / 2 : text.x - 5;
      found.push({ kind: "rect", x: from, y: text.y - 13, w: wide, h: 18, radius: 4, fill: accent, rotate: text.rotate, about: [text.x, text.y] }, text);
    }
    if (across && down) found.push({ kind: "rect", x: x - 0.5, y: y - 0.5, w: w + 1, h: w + 1, stroke: accent, width: pinned ? 4 : 2.5, radius: 1 });
    return found;
  }

  // ── painting ──

  function prepare(canvas) {
    const width = layout.width;
    const height = layout.top + layout.plotHeight + 26;
    const [w, h] = [Math.round(width * layout.dots), Math.round(height * layout.dots)];
    if (canvas.width !== w || canvas.height !== h) {
      [canvas.width, canvas.height] = [w, h];
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      plot.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(layout.dots, 0, 0, layout.dots, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  function paintAll() {
    bounded();
    scene.paint(prepare(base), items());
    paintOver();
    const all = cell <= layout.fitted;
    zoomText.textContent = all ? "all" : `${Math.round(cell / layout.fitted * 10) / 10}×`;
    plot.classList.toggle("zoomed", !all);
    controls.hidden = layout.fitted >= 40;
    Object.assign(plot.dataset, { left: layout.left, top: layout.top, cell, key: at.x, query: at.y }); // where cells are, for whoever drives the page
  }

  function paintOver() {
    scene.paint(prepare(over), crosshair());
    over.setAttribute("aria-label", `Heatmap of ${run.headName(facts.heads[head.index])}. ${parts.cellText(head, state.state.query, state.state.key)}`);
  }

  base.scene = () => items();
  over.scene = () => crosshair();

  // ── hands ──

  function cellUnder(event) {
    const box = over.getBoundingClientRect();
    const x = event.clientX - box.left - layout.left;
    const y = event.clientY - box.top - layout.top;
    const key = Math.floor(at.x + x / cell);
    const query = Math.floor(at.y + y / cell);
    const inside = x >= 0 && y >= 0 && x < layout.plotWidth && y < layout.plotHeight && key < facts.keys && query < facts.queries;
    return { x, y, key, query, inside };
  }

  let frame = 0;
  let waiting = null;
  function hover(place) {
    waiting = place;
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (!state.state.pinned) state.set({ query: waiting.query, key: waiting.key });
    });
  }

  let drag = null;
  over.addEventListener("pointermove", (event) => {
    if (!head) return;
    if (drag && event.buttons) {
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      drag.moved ||= Math.hypot(dx, dy) > 4;
      if (drag.moved && cell > layout.fitted) {
        at = { x: drag.at.x - dx / cell, y: drag.at.y - dy / cell };
        paintAll();
        return;
      }
    }
    const place = cellUnder(event);
    if (place.inside) hover(place);
  });
  over.addEventListener("pointerdown", (event) => {
    if (!head || event.button) return;
    drag = { x: event.clientX, y: event.clientY, at: { ...at }, moved: false };
    if (event.pointerType === "mouse") over.setPointerCapture(event.pointerId);
  });
  over.addEventListener("pointerup", (event) => {
    const wasDrag = drag?.moved && cell > layout.fitted;
    drag = null;
    if (!head || wasDrag) return;
    const place = cellUnder(event);
    if (!place.inside) return;
    const same = place.query === state.state.query && place.key === state.state.key;
    state.set({ query: place.query, key: place.key, pinned: !(state.state.pinned && same) });
  });
  over.addEventListener("pointercancel", () => { drag = null; });
  over.addEventListener("wheel", (event) => {
    if (!head || (event.deltaY > 0 && cell <= layout.fitted)) return;
    const place = cellUnder(event);
    if (!place.inside) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 300), place.x, place.y);
  }, { passive: false });
  over.addEventListener("keydown", (event) => {
    const act = { "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: fit }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });

  // ── what is shown ──

  const PICTURE = ["view", "sequence", "head", "scale", "curve"];

  async function update(changed) {
    const { sequence, head: index } = state.state;
    const next = await run.head(sequence, index);
    if (sequence !== state.state.sequence || index !== state.state.head || state.state.view !== "head") return;
    const redraw = head !== next || PICTURE.some((name) => changed.has(name));
    head = next;
    if (redraw) {
      const wasHome = !layout || changed.has("sequence") || cell === layout.home.cell || cell <= layout.fitted;
      measure();
      full = parts.picture(head);
      pooled = pool > 1 ? parts.picture(head, pool) : null;
      if (wasHome) goHome();
      paintAll();
      performance.mark("attnviz:first-head");
    } else if (changed.has("by-key") && bringIntoView()) {
      paintAll();
    } else {
      paintOver();
    }
    side.update(head);
  }

  new ResizeObserver(() => { if (head && root.isConnected && plot.clientWidth && plot.clientWidth !== layout.width) update(new Set(["view"])); }).observe(plot);

  return { root, update, focus: () => over.focus(), keepInView: () => { if (head && bringIntoView()) paintAll(); } };
}
