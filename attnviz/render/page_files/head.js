// Head: one heatmap, large. Rows are queries, which look; columns are keys, which are looked at.

import * as run from "./run.js";
import * as state from "./state.js";
import * as scene from "./scene.js";
import * as parts from "./parts.js";
import * as heat from "./heat.js";

const { facts } = run;
const { el } = parts;

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

  function measure() {
    const width = plot.clientWidth;
    const below = innerHeight - plot.getBoundingClientRect().top - scrollY - 84;
    layout = heat.layoutOf(head, width, width < 560 ? Math.max(300, width) : Math.max(360, below));
    pool = layout.fitted * layout.dots >= 1 ? 1 : Math.ceil(1 / (layout.fitted * layout.dots));
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
    layout.plotHeight = Math.min(layout.height - layout.top - heat.BELOW, cell * facts.queries);
    const most = (count, pixels) => Math.max(0, count - pixels / cell);
    at.x = Math.min(most(facts.keys, layout.plotWidth), Math.max(0, at.x));
    at.y = Math.min(most(facts.queries, layout.plotHeight), Math.max(0, at.y));
  }

  // Zoom so that the cell under (x, y) of the plot stays there; without a place, under the crosshair.
  function zoom(by, x, y) {
    const wanted = Math.max(layout.fitted, Math.min(heat.LARGEST_CELL, cell * by));
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

  // ── painting ──

  function shapes() {
    return { head, full, pooled, pool, layout, cell, at };
  }

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
    scene.paint(prepare(base), heat.items(shapes()));
    paintOver();
    const all = cell <= layout.fitted;
    zoomText.textContent = all ? "all" : `${Math.round(cell / layout.fitted * 10) / 10}×`;
    plot.classList.toggle("zoomed", !all);
    controls.hidden = layout.fitted >= 40;
    Object.assign(plot.dataset, { left: layout.left, top: layout.top, cell, key: at.x, query: at.y }); // where cells are, for whoever drives the page
  }

  function paintOver() {
    scene.paint(prepare(over), heat.crosshair(shapes()));
    over.setAttribute("aria-label", `Heatmap of ${run.headName(facts.heads[head.index])}. ${parts.cellText(head, state.state.query, state.state.key)}`);
  }

  base.scene = () => heat.items(shapes());
  over.scene = () => heat.crosshair(shapes());

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

  return { root, update, focus: () => over.focus() };
}
