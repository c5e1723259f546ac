// Trace: the shape of every tensor that the run made, and the facts of the run.

import * as run from "./run.js";
import * as parts from "./parts.js";

const { facts } = run;
const { el } = parts;

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  let value = bytes;
  while (value >= 1024 && i < units.length - 1) {
    value /= 1024;
    i++;
  }
  return `${i === 0 ? value : value.toFixed(1)} ${units[i]}`;
}

function flopsText(flops) {
  const units = ["", "k", "M", "G", "T", "P"];
  let i = 0;
  let value = flops;
  while (value >= 1000 && i < units.length - 1) {
    value /= 1000;
    i++;
  }
  return `${i === 0 ? value : value.toFixed(1)}${units[i] ? ` ${units[i]}` : ""}`;
}

function shape(axes, sizes) {
  return el("span", { class: "shape" }, ...axes.map((axis, i) => el("span", { class: "axis" },
    el("span", { class: "axis-name" }, axis), el("span", { class: "axis-size" }, parts.grouped(sizes[i])))));
}

function stepRow(step, stage) {
  const parameters = step.parameters.map(([name, axes, sizes]) => el("span", { class: "parameter" },
    `${name} [${axes.join(" × ")}] = ${sizes.map(parts.grouped).join(" × ")}`));
  const cost = [];
  if (step.matmulFlops) cost.push(`${flopsText(step.matmulFlops)}FLOP`);
  if (step.elementwiseFlops) cost.push(`≈ ${flopsText(step.elementwiseFlops)}op`);
  return el("tr", { "data-step": step.name },
    el("td", { class: "stage" }, stage),
    el("th", { scope: "row" }, step.name),
    el("td", {}, shape(step.axes, step.shape)),
    el("td", { class: "words" }, el("span", {}, step.words), ...parameters),
    el("td", { class: "number" }, step.isView ? (step.isContiguous ? "view" : "view, strided") : bytesText(step.nbytes)),
    el("td", { class: "number" }, cost.join(" ") || "–"),
    el("td", { class: "source" }, `${step.dtype} · ${step.source}`));
}

function stepTable() {
  if (!facts.steps.length) {
    return el("p", { class: "none" }, "This attention was loaded, not computed here, so no trace was recorded.");
  }
  let last = "";
  const rows = facts.steps.map((step) => {
    const stage = step.stage === last ? "" : step.stage;
    last = step.stage;
    const row = stepRow(step, stage);
    if (stage) row.classList.add("first");
    return row;
  });
  const heads = ["stage", "tensor", "shape", "what happens", "memory", "cost", "dtype · line"];
  return el("div", { class: "scroller", tabindex: 0, role: "region", "aria-label": "Shape trace" },
    el("table", { class: "steps" },
      el("caption", { class: "hidden-text" }, "The shape of every tensor, in the order in which it was made"),
      el("thead", {}, el("tr", {}, ...heads.map((h) => el("th", { scope: "col" }, h)))),
      el("tbody", {}, ...rows)));
}

function list(pairs) {
  return el("dl", { class: "facts" }, ...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

export function view() {
  const one = facts.sequences;
  const about = [
    ["source", facts.source || "not said"],
    ["trained", facts.trained ? "yes" : "no: the weights are random, and the patterns are chance"],
    ["masks", facts.masks.join(", ") || "none"],
    ["attention", facts.cross ? "cross: queries and keys are different texts" : "self: the text looks at itself"],
    ["size", `${facts.layers} layer${facts.layers > 1 ? "s" : ""} × ${facts.headsPerLayer} heads × ${facts.queries} queries × ${facts.keys} keys`],
    ["on this page", `${facts.heads.length} head${facts.heads.length > 1 ? "s" : ""} of ${one.length} sequence${one.length > 1 ? "s" : ""}`],
    ["weights", facts.stored],
  ];
  const command = facts.command
    ? el("section", {}, el("h2", {}, "Command"), el("pre", { tabindex: 0, class: "command" }, facts.command)) : null;
  const root = el("div", { class: "trace" },
    el("div", { class: "panels" },
      el("section", {}, el("h2", {}, "Run"), list(about)),
      el("section", {}, el("h2", {}, "Layer"), facts.config.length ? list(facts.config) : el("p", { class: "none" }, "not said")),
      el("section", {}, el("h2", {}, "Drawn with"), list(facts.versions))),
    command,
    el("section", {}, el("h2", {}, "Shape trace"), stepTable()));
  return { root, update() {} };
}
