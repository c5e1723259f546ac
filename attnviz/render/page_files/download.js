// Download: the view that is shown, as PNG and as SVG, with a title above and the legend below it.

import * as tokens from "./tokens.js";
import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as scene from "./scene.js";

const { facts } = run;
const byId = (id) => document.getElementById(id);

function fileName(suffix) {
  const { view } = state.state;
  const [layer, number] = facts.heads[state.state.head];
  const place = view === "trace" || view === "matrix" ? "" : `-layer${layer}-head${number}`;
  return `attnviz-${view}${place}.${suffix}`;
}

// The view as a picture: a title above it, what is seen, the legend below.
function currentScene() {
  const { view, head: index } = state.state;
  const margin = 24;
  const ink = colours.css("ink");
  const soft = colours.css("soft");
  const here = facts.heads.filter(([layer]) => layer === facts.heads[index][0]);
  const drawn = view === "lines" ? Array.from(document.querySelectorAll('.chip[aria-pressed="true"]'), (chip) => chip.getAttribute("data-chip")) : [];
  const several = `${facts.namesLayers ? `layer ${here[0][0]} · ` : ""}head${drawn.length === 1 ? "" : "s"} ${drawn.join(", ") || "none"}`;
  const name = { matrix: "all heads", trace: "shape trace", lines: several }[view] ?? run.headName(facts.heads[index]);
  const subtitle = [facts.source, byId("masks-line").textContent].filter(Boolean).map((t) => tokens.shorten(tokens.visible(t).replaceAll("␣", " "), 100)).join(" · ");
  const body = scene.snapshot(byId(`panel-${view}`));
  const items = [
    { kind: "text", text: name, x: margin, y: margin + 14, size: 20, weight: 700, fill: ink },
    { kind: "text", text: subtitle, x: margin, y: margin + 36, size: 13, fill: soft },
  ];
  let y = margin + 48;
  if (!facts.trained) {
    items.push({ kind: "text", text: byId("untrained").textContent.trim().replace(/\s+/g, " "), x: margin, y: y + 8, size: 13, weight: 600, fill: colours.css("warn") });
    y += 20;
  }
  const widest = Math.max(...items.map((item) => item.x + scene.textWidth(item.text, item.size, item.weight)));
  items.push(...scene.moved(body.items, margin, y + 8));
  y += body.height + 8;
  if (!byId("legend").hidden) {
    const below = scene.snapshot(byId("legend"));
    items.push(...scene.moved(below.items, margin, y + 8));
    y += below.height + 8;
  }
  const width = Math.ceil(Math.max(body.width + margin, widest) + margin);
  const height = Math.ceil(y + margin);
  return {
    width, height, title: `attnviz: ${view}, ${name}`, description: `${subtitle}. ${byId("rounding").textContent}`,
    items: [{ kind: "rect", x: 0, y: 0, w: width, h: height, fill: "#ffffff" }, ...items],
  };
}

// Pictures are light and on white, whatever the page is, since they go into papers.
async function picture(write, redraw) {
  await colours.inLight(async () => {
    await redraw();
    write(currentScene());
  });
  await redraw();
}

export function png(redraw) {
  return picture((made) => scene.download(scene.toPng(made), fileName("png")), redraw);
}

export function svg(redraw) {
  return picture((made) => scene.download(new Blob([scene.toSvg(made)], { type: "image/svg+xml" }), fileName("svg")), redraw);
}
