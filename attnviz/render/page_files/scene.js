// A scene is a list of simple shapes. It can be painted on a canvas, or written as SVG; so what is
// downloaded is what is seen. A view that is made of elements becomes a scene by `snapshot`.

import * as colours from "./colours.js";

const SANS = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'Liberation Sans', 'DejaVu Sans', sans-serif";

function font(item) {
  return `${item.weight ?? 400} ${item.size}px ${item.family ?? SANS}`;
}

let hatch = null;
let hatchTheme = "";

// The tone for what a mask forbids: slanted lines, which no weight can have.
function hatchPattern(context) {
  if (hatchTheme !== colours.theme()) {
    hatchTheme = colours.theme();
    hatch = document.createElement("canvas");
    hatch.width = hatch.height = 12;
    const pen = hatch.getContext("2d");
    pen.fillStyle = colours.css("forbidden");
    pen.fillRect(0, 0, 12, 12);
    pen.strokeStyle = colours.css("forbidden-line");
    pen.lineWidth = 1.5;
    for (const x of [-6, 0, 6, 12]) {
      pen.moveTo(x - 2, 8);
      pen.lineTo(x + 8, -2);
      pen.moveTo(x - 2, 14);
      pen.lineTo(x + 8, 4);
    }
    pen.stroke();
  }
  return context.createPattern(hatch, "repeat");
}

const painters = {
  rect(context, item) {
    const { x, y, w, h, radius = 0, rotate = 0 } = item;
    const [cx, cy] = item.about ?? [0, 0]; // the point that it is turned about
    context.save();
    context.translate(cx, cy);
    context.rotate((rotate * Math.PI) / 180);
    context.beginPath();
    context.roundRect(x - cx, y - cy, w, h, radius);
    if (item.fill) {
      context.fillStyle = item.fill;
      context.fill();
    }
    if (item.stroke) {
      context.strokeStyle = item.stroke;
      context.lineWidth = item.width ?? 1;
      context.stroke();
    }
    context.restore();
  },
  hatch(context, item) {
    context.fillStyle = hatchPattern(context);
    context.fillRect(item.x, item.y, item.w, item.h);
  },
  image(context, item) {
    context.imageSmoothingEnabled = item.smooth ?? false;
    const { sx = 0, sy = 0, sw = item.canvas.width, sh = item.canvas.height } = item;
    context.drawImage(item.canvas, sx, sy, sw, sh, item.x, item.y, item.w, item.h);
  },
  line(context, item) {
    context.beginPath();
    context.moveTo(item.x0, item.y0);
    context.lineTo(item.x1, item.y1);
    context.strokeStyle = item.stroke;
    context.lineWidth = item.width ?? 1;
    context.stroke();
  },
  // Boxes [x, y, width, height] with one stroke: there may be very many.
  frames(context, { boxes, stroke }) {
    context.beginPath();
    for (const frame of boxes) context.rect(...frame);
    context.strokeStyle = stroke;
    context.lineWidth = 1;
    context.stroke();
  },
  area(context, { points, fill }) {
    context.beginPath();
    for (const [x, y] of points) context.lineTo(x, y);
    context.fillStyle = fill;
    context.fill();
  },
  curve(context, item) {
    const middle = (item.x0 + item.x1) / 2;
    context.beginPath();
    context.moveTo(item.x0, item.y0);
    context.bezierCurveTo(middle, item.y0, middle, item.y1, item.x1, item.y1);
    context.globalAlpha = item.alpha;
    context.strokeStyle = item.stroke;
    context.lineWidth = item.width;
    context.stroke();
    context.globalAlpha = 1;
  },
  text(context, item) {
    context.font = font(item);
    context.fillStyle = item.fill;
    context.direction = item.dir ?? "ltr";
    context.textAlign = item.anchor === "middle" ? "center" : item.anchor ?? "start";
    context.textBaseline = "alphabetic";
    if (!item.rotate) {
      context.fillText(item.text, item.x, item.y);
      return;
    }
    context.save();
    context.translate(item.x, item.y);
    context.rotate((item.rotate * Math.PI) / 180);
    context.fillText(item.text, 0, 0);
    context.restore();
  },
};

export function paint(context, items) {
  for (const item of items) painters[item.kind](context, item);
}

// ── SVG ──

function escaped(text) {
  // XML has no place for control characters and lone surrogates, even escaped.
  const sound = String(text).replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "\ufffd");
  return sound.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
}

function attributes(values) {
  return Object.entries(values)
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([name, value]) => ` ${name}="${escaped(typeof value === "number" ? Math.round(value * 100) / 100 : value)}"`)
    .join("");
}

function element(name, values, content = "") {
  return content ? `<${name}${attributes(values)}>${content}</${name}>` : `<${name}${attributes(values)}/>`;
}

function tenths(value) {
  return Math.round(value * 10) / 10;
}

// The part of a canvas that is shown, cut at whole pixels; the rest of a pixel is hidden by the frame.
function imageElement(item) {
  const { canvas, x, y, w, h, sx = 0, sy = 0, sw = canvas.width, sh = canvas.height } = item;
  const [left, top] = [Math.floor(sx), Math.floor(sy)];
  const width = Math.min(canvas.width, Math.ceil(sx + sw)) - left;
  const height = Math.min(canvas.height, Math.ceil(sy + sh)) - top;
  const part = document.createElement("canvas");
  [part.width, part.height] = [width, height];
  part.getContext("2d").drawImage(canvas, -left, -top);
  const [across, down] = [w / sw, h / sh]; // a pixel's size
  return element("svg", { x, y, width: w, height: h }, element("image", {
    x: (left - sx) * across, y: (top - sy) * down, width: width * across, height: height * down,
    preserveAspectRatio: "none", style: "image-rendering:pixelated", href: part.toDataURL("image/png"),
  }));
}

const writers = {
  rect: ({ x, y, w, h, radius, fill, stroke, width, rotate, about }) => element("rect", {
    transform: rotate ? `rotate(${[rotate, ...about].map(tenths).join(" ")})` : undefined, x, y, width: w, height: h, rx: radius || undefined, fill: fill ?? "none", stroke, "stroke-width": stroke && (width ?? 1),
  }),
  hatch: ({ x, y, w, h }) => element("rect", { x, y, width: w, height: h, fill: "url(#forbidden)" }),
  image: imageElement,
  line: ({ x0, y0, x1, y1, stroke, width }) => element("line", {
    x1: x0, y1: y0, x2: x1, y2: y1, stroke, "stroke-width": width ?? 1,
  }),
  frames: ({ boxes, stroke }) => element("path", {
    d: boxes.map(([x, y, w, h]) => `M${tenths(x)} ${tenths(y)}h${tenths(w)}v${tenths(h)}h${-tenths(w)}z`).join(""), fill: "none", stroke,
  }),
  area: ({ points, fill }) => element("path", { d: `M${points.map((point) => point.map(tenths).join(" ")).join("L")}z`, fill }),
  curve: ({ x0, y0, x1, y1, stroke, width, alpha }) => {
    const [a, b, c, d, m] = [x0, y0, x1, y1, (x0 + x1) / 2].map(tenths);
    return element("path", {
      d: `M${a} ${b}C${m} ${b} ${m} ${d} ${c} ${d}`, fill: "none", stroke, "stroke-width": width, "stroke-opacity": alpha,
    });
  },
  text: ({ x, y, text, size, fill, anchor, rotate, weight, family, dir }) => element("text", {
    x, y, fill, "font-size": size, "font-weight": weight, "font-family": family ?? SANS, direction: dir,
    "text-anchor": anchor, transform: rotate ? `rotate(${[rotate, x, y].map(tenths).join(" ")})` : undefined,
  }, escaped(text)),
};

export function toSvg(scene) {
  const lines = [-6, 0, 6, 12].map((x) => `M${x - 2} 8L${x + 8} -2M${x - 2} 14L${x + 8} 4`).join("");
  const pattern = element("pattern", { id: "forbidden", width: 12, height: 12, patternUnits: "userSpaceOnUse" },
    element("rect", { width: 12, height: 12, fill: colours.css("forbidden") })
    + element("path", { d: lines, stroke: colours.css("forbidden-line"), "stroke-width": 1.5 }));
  const shapes = scene.items.map((item) => writers[item.kind](item)).join("\n");
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${scene.width}" height="${scene.height}" `
    + `viewBox="0 0 ${scene.width} ${scene.height}" role="img">\n`
    + `<title>${escaped(scene.title)}</title>\n<desc>${escaped(scene.description)}</desc>\n`
    + `<defs>${pattern}</defs>\n${shapes}\n</svg>\n`;
}

// ── PNG ──

const LARGEST_SIDE = 16_000; // canvases of more are refused by some browsers
const MOST_PIXELS = 16_000_000; // more take seconds to compress

export function toPng(scene) {
  const scale = Math.min(2, LARGEST_SIDE / Math.max(scene.width, scene.height), Math.sqrt(MOST_PIXELS / scene.width / scene.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(scene.width * scale);
  canvas.height = Math.round(scene.height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  paint(context, scene.items);
  // Not toBlob: it waits for idle time, for seconds where there is little of it.
  const data = atob(canvas.toDataURL("image/png").split(",")[1]);
  return new Blob([Uint8Array.from(data, (byte) => byte.charCodeAt(0))], { type: "image/png" });
}

// ── elements → shapes ──

export function moved(items, dx, dy) {
  return items.map((item) => {
    const copy = { ...item };
    for (const name of ["x", "x0", "x1"]) if (name in copy) copy[name] += dx;
    for (const name of ["y", "y0", "y1"]) if (name in copy) copy[name] += dy;
    if (copy.points) copy.points = copy.points.map(([x, y]) => [x + dx, y + dy]);
    if (copy.boxes) copy.boxes = copy.boxes.map(([x, y, w, h]) => [x + dx, y + dy, w, h]);
    if (copy.about) copy.about = [copy.about[0] + dx, copy.about[1] + dy];
    return copy;
  });
}

function boxItems(style, box) {
  const seen = (colour) => !/^rgba\(.*, 0\)$|^transparent$/.test(colour);
  const border = (side) => (parseFloat(style[`border${side}Width`]) > 0 && seen(style[`border${side}Color`]) ? style[`border${side}Color`] : null);
  const sides = ["Top", "Right", "Bottom", "Left"].map(border);
  const framed = sides.every(Boolean);
  const fill = seen(style.backgroundColor) ? style.backgroundColor : undefined;
  const items = [];
  if (fill || framed) {
    const inset = framed ? 0.5 : 0;
    items.push({
      kind: "rect", x: box.x + inset, y: box.y + inset, w: box.width - 2 * inset, h: box.height - 2 * inset,
      radius: Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2), fill, stroke: framed ? sides[0] : undefined,
    });
  }
  const [x0, y0, x1, y1] = [box.left, box.top + 0.5, box.right, box.bottom - 0.5];
  if (!framed && sides[0]) items.push({ kind: "line", x0, y0, x1, y1: y0, stroke: sides[0] });
  if (!framed && sides[2]) items.push({ kind: "line", x0, y0: y1, x1, y1, stroke: sides[2] });
  return items;
}

// The lines that a text node is broken into, each with its box.
function textLines(node) {
  const range = document.createRange();
  const found = [];
  for (const match of node.data.matchAll(/\S+\s*/g)) {
    range.setStart(node, match.index);
    range.setEnd(node, match.index + match[0].trimEnd().length);
    for (const box of range.getClientRects()) {
      const last = found.at(-1);
      if (last && Math.abs(last.top - box.top) < 2) {
        last.left = Math.min(last.left, box.left);
        last.right = Math.max(last.right, box.right);
        if (last.word !== match.index) last.text += match[0];
      } else {
        found.push({ text: match[0], word: -1, left: box.left, right: box.right, top: box.top, bottom: box.bottom });
      }
      found.at(-1).word = match.index;
    }
  }
  return found;
}

function textItems(node, style) {
  const size = parseFloat(style.fontSize);
  return textLines(node).map((line) => ({
    kind: "text",
    text: style.textTransform === "uppercase" ? line.text.trim().toUpperCase() : line.text.trim(),
    x: style.direction === "rtl" ? line.right : line.left,
    y: (line.top + line.bottom) / 2 + 0.35 * size,
    size,
    weight: style.fontWeight,
    family: style.fontFamily,
    fill: style.color,
    dir: style.direction,
  }));
}

function walk(node, items) {
  if (node.nodeType === Node.TEXT_NODE) {
    items.push(...textItems(node, getComputedStyle(node.parentElement)));
    return;
  }
  if (node.nodeType !== Node.ELEMENT_NODE || node.dataset.picture === "no") return;
  const style = getComputedStyle(node);
  const box = node.getBoundingClientRect();
  if (style.display === "none" || style.visibility === "hidden" || box.width <= 1) return;
  if (node.scene) {
    items.push(...moved(node.scene(), box.x, box.y));
    return;
  }
  if (node.dataset.hatch || node.classList.contains("forbidden")) items.push({ kind: "hatch", x: box.x, y: box.y, w: box.width, h: box.height });
  else items.push(...boxItems(style, box));
  if (node.tagName === "CANVAS") {
    if (node.classList.contains("drawn")) items.push({ kind: "hatch", x: box.x, y: box.y, w: box.width, h: box.height });
    items.push({ kind: "image", canvas: node, x: box.x, y: box.y, w: box.width, h: box.height });
  }
  for (const child of node.childNodes) walk(child, items);
}

// An element as shapes, moved to the corner. What has data-picture="no" stays out.
export function snapshot(root) {
  const items = [];
  walk(root, items);
  const tops = items.flatMap((item) => [item.y !== undefined ? item.y - (item.size ?? 0) : Math.min(item.y0, item.y1)]);
  const { x } = root.getBoundingClientRect();
  const y = tops.length ? Math.min(...tops) : 0;
  const right = items.map((item) => item.x1 ?? item.x + (item.w ?? 0));
  const bottom = items.map((item) => Math.max(item.y1 ?? 0, (item.y ?? 0) + (item.h ?? 4)));
  return { width: Math.max(root.clientWidth, ...right.map((at) => at - x)), height: Math.max(0, ...bottom) - y, items: moved(items, -x, -y) };
}

const measuring = document.createElement("canvas").getContext("2d");
export function textWidth(text, size, weight = 400) {
  measuring.font = font({ size, weight });
  return measuring.measureText(text).width;
}

export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
