// Head: one map, large, to zoom into. Rows are queries, which look; columns are keys, which are looked at.

import * as run from "./run.js";
import * as state from "./state.js";
import * as scene from "./scene.js";
import * as parts from "./parts.js";
import * as data from "./data.js";
import * as axis from "./axis.js";
import * as heat from "./heat.js";

const { facts, single } = run;
const { el } = parts;
const LARGEST_CELL = 64; // CSS pixels
const READABLE = 18; // a cell of so many pixels has its token beside it
const BELOW = 12;

export function view(side) {
  const base = el("canvas", { "aria-hidden": "true" });
  const over = el("canvas", {
    class: "over", tabindex: 0, role: "application", "aria-roledescription": "heatmap", "aria-describedby": "map-help",
  });
  const plot = el("div", { class: "plot" }, base, over);
  const zoomText = el("output", { class: "zoom-text" });
  const button = (words, sign, act) => el("button", { type: "button", "aria-label": words, title: words, onclick: act }, sign);
  const controls = el("div", { class: "controls zoom", "data-picture": "no" },
    button("Zoom out", "−", () => zoomBy(1 / 2)), zoomText, button("Zoom in", "+", () => zoomBy(2)),
    button("Read: zoom until tokens can be read", "Aa", () => read()), button("Show all", "⤢", () => fit()));
  const root = el("div", { class: "map-view" }, controls, plot, el("p", { id: "map-help", class: "hidden-text" },
    "Arrow keys move through queries and keys, with Shift by one token; full stop and comma go along the row's largest weights; Enter pins the cell; plus and minus zoom, 0 shows all, z reads."));

  let head = null;
  let layout = null;
  let zoom = 1; // 1 shows all
  let at = { x: 0, y: 0 }; // the place in the plot's upper left corner

  // ── measuring ──

  function measure() {
    const width = plot.clientWidth;
    const below = innerHeight - plot.getBoundingClientRect().top - scrollY - 92;
    const narrow = width < 560;
    const height = narrow ? Math.max(340, width) : Math.max(380, below);
    layout = { width, height, narrow, beside: narrow ? 44 : 100, dots: devicePixelRatio || 1, fitted: { x: 0, y: 0 }, deepest: 1 };
    const { key, endKey, query, endQuery } = head.domain;
    const [across, down] = [Math.max(1, endKey - key), Math.max(1, endQuery - query)];
    // labels take room from cells, and the size of cells decides what is labelled: twice is enough
    for (let i = 0; i < 2; i++) {
      const { wide, high } = gutters(layout.fitted);
      const [x, y] = [Math.max(1, wide) / across, Math.max(1, high) / down];
      // cells are square, unless one side would be a mere line then
      const shared = Math.max(across, down) <= 4 * Math.min(across, down) ? Math.min(x, y) : null;
      layout.fitted = { x: Math.min(LARGEST_CELL, shared ?? x), y: Math.min(LARGEST_CELL, shared ?? y) };
    }
    layout.deepest = LARGEST_CELL / Math.min(layout.fitted.x, layout.fitted.y);
  }

  // The room round the plot: more where tokens are named; and how large the plot may be.
  function gutters(size) {
    const { narrow, width, height, beside } = layout;
    const { key, endKey, query, endQuery } = head.domain;
    const named = { rows: axis.isNamed(size.y), columns: axis.isNamed(size.x) };
    layout.rowRoom = named.rows ? axis.widest(run.queryTokens(head.sequence), query, endQuery, narrow ? 60 : 94) : 50;
    layout.columnRoom = named.columns ? axis.widest(run.keyTokens(head.sequence), key, endKey, narrow ? 60 : 94) : 50;
    layout.slant = !named.columns || layout.columnRoom + 6 <= size.x ? 0 : narrow ? -90 : -52;
    const left = 34 + layout.rowRoom;
    const top = layout.slant ? 36 + layout.columnRoom * (narrow ? 1 : 0.79) : 66;
    return { left, top, wide: width - left - beside - 22, high: height - top - BELOW };
  }

  function cell() {
    return { x: Math.min(LARGEST_CELL, layout.fitted.x * zoom), y: Math.min(LARGEST_CELL, layout.fitted.y * zoom) };
  }

  // What is shown, bounded so that no place outside of the text is.
  function shot() {
    const size = cell();
    const { key, endKey, query, endQuery } = head.domain;
    const [across, down] = [endKey - key, endQuery - query];
    const { left, top, wide, high } = gutters(size);
    const [w, h] = [Math.min(wide, across * size.x), Math.min(high, down * size.y)];
    at.x = Math.max(key, Math.min(endKey - w / size.x, at.x));
    at.y = Math.max(query, Math.min(endQuery - h / size.y, at.y));
    return { head, layout: { ...layout, left, top }, cell: size, at, w, h };
  }

  // ── moving ──

  // Zoom so that the place under (x, y) of the plot stays there; without one, the chosen cell or the middle.
  function zoomTo(wanted, x, y) {
    const before = shot();
    const next = Math.max(1, Math.min(layout.deepest, wanted));
    const { key, query } = state.state;
    const chosen = { x: (key + 0.5 - at.x) * before.cell.x, y: (query + 0.5 - at.y) * before.cell.y };
    const inside = chosen.x >= 0 && chosen.y >= 0 && chosen.x <= before.w && chosen.y <= before.h;
    const fx = x ?? (inside ? chosen.x : before.w / 2);
    const fy = y ?? (inside ? chosen.y : before.h / 2);
    zoom = next;
    const after = cell();
    const { left, top } = gutters(after); // the plot may begin elsewhere now, and the place stays
    const [tx, ty] = [fx + before.layout.left - left, fy + before.layout.top - top];
    at = { x: at.x + fx / before.cell.x - tx / after.x, y: at.y + fy / before.cell.y - ty / after.y };
    moved();
  }

  function zoomBy(by, x, y) {
    if (head) zoomTo(zoom * by, x, y);
  }

  function fit() {
    zoom = 1;
    moved();
  }

  // Bring the chosen cell into the middle.
  function centre() {
    const { cell: size, w, h } = shot();
    at = { x: state.state.key + 0.5 - w / size.x / 2, y: state.state.query + 0.5 - h / size.y / 2 };
  }

  function read() {
    if (!head) return;
    zoom = Math.min(layout.deepest, Math.max(zoom, READABLE / Math.min(layout.fitted.x, layout.fitted.y)));
    centre();
    moved();
  }

  function bringIntoView() {
    const { cell: size, w, h } = shot();
    const { key, query } = state.state;
    const near = (place, from, count) => place >= from && place + 1 <= from + count;
    const was = { ...at };
    if (!near(key, at.x, w / size.x)) at.x = key + 0.5 - w / size.x / 2;
    if (!near(query, at.y, h / size.y)) at.y = query + 0.5 - h / size.y / 2;
    shot();
    return was.x !== at.x || was.y !== at.y;
  }

  let frame = 0;
  let rest = 0;
  let placed = ""; // the place that was told last
  function moved() {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      paintAll();
      clearTimeout(rest);
      rest = setTimeout(() => {
        placed = [at.x, at.y, zoom * 100].map((n) => Math.max(0, Math.round(n))).join(".");
        state.set({ place: placed });
      }, 150);
    });
  }

  // How many tokens an arrow key moves: what is seen as a small step.
  function stride(along) {
    const size = cell()[along];
    return size >= 3 ? 1 : Math.max(1, Math.round(4 / size));
  }

  // ── painting ──

  function prepare(canvas, height) {
    const [w, h] = [Math.round(layout.width * layout.dots), Math.round(height * layout.dots)];
    if (canvas.width !== w || canvas.height !== h) {
      [canvas.width, canvas.height] = [w, h];
      canvas.style.width = `${layout.width}px`;
      canvas.style.height = `${height}px`;
      plot.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(layout.dots, 0, 0, layout.dots, 0, 0);
    context.clearRect(0, 0, layout.width, height);
    return context;
  }

  function paintAll() {
    if (!head || !layout) return;
    const shown = shot();
    scene.paint(prepare(base, layout.height), heat.items(shown));
    paintOver();
    zoomText.textContent = zoom === 1 ? "all" : `${zoom < 10 ? Math.round(zoom * 10) / 10 : Math.round(zoom)}×`;
    plot.classList.toggle("zoomed", zoom > 1);
    controls.hidden = layout.deepest < 1.6;
    const data = { left: shown.layout.left, top: shown.layout.top, cellX: shown.cell.x, cellY: shown.cell.y, key: at.x, query: at.y, level: heat.level(shown) };
    for (const [name, value] of Object.entries(data)) if (plot.dataset[name] !== String(value)) plot.dataset[name] = value;
    side.moved(shown);
    load(shown);
  }

  function paintOver() {
    scene.paint(prepare(over, layout.height), heat.crosshair(shot()));
    over.setAttribute("aria-label", `Heatmap of ${run.headName(facts.heads[head.index])}. ${side.words(head)}`);
  }

  // Open what the shot needs, and paint it when it is there.
  const pending = new Set();
  function load(shown) {
    const own = head;
    const want = (key, open) => {
      if (pending.has(key)) return;
      pending.add(key);
      side.busyWhile(open.then(() => {
        pending.delete(key);
        if (own !== head) return;
        moved();
        side.update(head); // more may be known of the chosen cell
      }));
    };
    const kind = single ? "mean" : state.state.pixel;
    const level = heat.level(shown);
    if (!own.levels[kind][level]) want(`${own.sequence}.${own.index}.${kind}.${level}`, own.openLevel(kind, level));
    for (const [row, column] of heat.missingDetails(shown)) want(`${own.sequence}.${own.index}.${row}.${column}`, own.openDetail(row, column));
  }

  base.scene = () => heat.items(shot());
  over.scene = () => []; // a picture that is downloaded has no cursor

  // ── hands ──

  function under(event) {
    const box = over.getBoundingClientRect();
    const shown = shot();
    const x = event.clientX - box.left - shown.layout.left;
    const y = event.clientY - box.top - shown.layout.top;
    const key = Math.min(head.domain.endKey - 1, Math.floor(at.x + x / shown.cell.x));
    const query = Math.min(head.domain.endQuery - 1, Math.floor(at.y + y / shown.cell.y));
    return { x, y, key, query, inside: x >= 0 && y >= 0 && x < shown.w && y < shown.h };
  }

  let waiting = null;
  let hovering = 0;
  function hover(place) {
    waiting = place;
    hovering ||= requestAnimationFrame(() => {
      hovering = 0;
      if (!state.state.pinned) state.set({ query: waiting.query, key: waiting.key });
    });
  }

  const fingers = new Map();
  let drag = null;
  function grip() {
    const [a, b] = [...fingers.values()];
    return { x: (a.clientX + b.clientX) / 2, y: (a.clientY + b.clientY) / 2, apart: Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) };
  }
  over.addEventListener("pointerdown", (event) => {
    if (!head || event.button) return;
    fingers.set(event.pointerId, event);
    over.setPointerCapture(event.pointerId);
    drag = { x: event.clientX, y: event.clientY, at: { ...at }, moved: fingers.size > 1, grip: fingers.size === 2 ? grip() : null };
  });
  over.addEventListener("pointermove", (event) => {
    if (!head) return;
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event);
    if (drag?.grip && fingers.size === 2) {
      const now = grip();
      const box = over.getBoundingClientRect();
      const size = cell();
      at = { x: at.x - (now.x - drag.grip.x) / size.x, y: at.y - (now.y - drag.grip.y) / size.y };
      const { left, top } = gutters(size);
      zoomBy(now.apart / drag.grip.apart, now.x - box.left - left, now.y - box.top - top);
      drag.grip = now;
      return;
    }
    if (drag && event.buttons) {
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      drag.moved ||= Math.hypot(dx, dy) > 4;
      if (drag.moved && zoom > 1) {
        const size = cell();
        at = { x: drag.at.x - dx / size.x, y: drag.at.y - dy / size.y };
        moved();
        return;
      }
    }
    const place = under(event);
    if (place.inside) hover(place);
  });
  over.addEventListener("pointerup", (event) => {
    fingers.delete(event.pointerId);
    const wasDrag = drag?.moved;
    drag = null;
    if (!head || wasDrag) return;
    const place = under(event);
    if (!place.inside) return;
    const same = place.query === state.state.query && place.key === state.state.key;
    state.set({ query: place.query, key: place.key, pinned: !(state.state.pinned && same) });
  });
  over.addEventListener("pointercancel", (event) => {
    fingers.delete(event.pointerId);
    drag = null;
  });
  over.addEventListener("dblclick", (event) => {
    const place = under(event);
    if (!place.inside) return;
    state.set({ query: place.query, key: place.key, pinned: true });
    zoomBy(4, place.x, place.y);
  });
  over.addEventListener("wheel", (event) => {
    if (!head || (event.deltaY > 0 && zoom === 1)) return;
    const place = under(event);
    if (!place.inside) return;
    event.preventDefault();
    zoomBy(Math.exp(-event.deltaY / 240), place.x, place.y);
  }, { passive: false });
  over.addEventListener("keydown", (event) => {
    const act = { "+": () => zoomBy(2), "=": () => zoomBy(2), "-": () => zoomBy(1 / 2), 0: fit }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });

  // ── what is shown ──

  const PICTURE = ["view", "sequence", "head", "scale", "curve", "pixel", "statistic"];

  function takePlace() {
    const [x, y, percent] = state.state.place.split(".").map(Number);
    at = { x, y };
    zoom = Math.max(1, Math.min(layout.deepest, percent / 100));
  }

  async function update(changed) {
    const { sequence, head: index } = state.state;
    const next = await data.head(sequence, index);
    if (sequence !== state.state.sequence || index !== state.state.head || state.state.view !== "head") return;
    if (head === next && changed.size === 1 && changed.has("place")) return;
    const other = head !== next;
    const redraw = other || PICTURE.some((name) => changed.has(name));
    const wasOther = head && head.sequence !== next.sequence;
    head = next;
    if (redraw) {
      const first = !layout;
      measure();
      if (wasOther) [zoom, at] = [1, { x: 0, y: 0 }];
      if (state.state.place && state.state.place !== placed && (first || changed.has("place"))) takePlace();
      if (changed.has("by-key")) bringIntoView();
      paintAll();
      performance.mark("attnviz:first-head");
      const own = head;
      side.busyWhile(Promise.all([head.openLevel("mean", 0), head.openLevel("largest", 0), head.openCounts()]).then(() => { if (own === head) side.update(head); }));
    } else if (changed.has("by-key") && bringIntoView()) {
      moved();
    } else {
      paintOver();
    }
    side.update(head);
  }

  // Go to a place of the map that is pointed at elsewhere.
  function goTo(x, y) {
    const { cell: size, w, h } = shot();
    at = { x: x - w / size.x / 2, y: y - h / size.y / 2 };
    moved();
  }

  new ResizeObserver(() => { if (head && root.isConnected && plot.clientWidth && plot.clientWidth !== layout.width) update(new Set(["view"])); }).observe(plot);

  return { root, update, stride, read, fit, zoomBy, goTo, focus: () => over.focus() };
}
