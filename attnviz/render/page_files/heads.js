"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const names = Object.keys(data.figures);
const select = document.getElementById("measure");
const matrix = document.getElementById("matrix");
const table = document.getElementById("heads");
const told = document.getElementById("told");
let sortedBy = null, chosen = null;

// viridis at nine places; between them colours are mixed
const RAMP = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"]
  .map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));

function colour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const i = Math.min(Math.floor(at), RAMP.length - 2);
  return RAMP[i].map((c, k) => Math.round(c + (RAMP[i + 1][k] - c) * (at - i)));
}

function shown(value) {
  if (value === null) return "–";
  return Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(3);
}

function element(kind, text, more) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  return Object.assign(made, more || {});
}

function choose(head) {
  chosen = head;
  told.textContent = `layer ${head.layer} head ${head.head}: ${head.class}, ${select.value} ${shown(head[select.value])}` +
    (head.sentence ? `. ${head.sentence}.` : ".");
  for (const mark of document.querySelectorAll("[data-head]"))
    mark.classList.toggle("chosen", mark.dataset.head === `${head.layer}.${head.head}`);
}

function drawMatrix() {
  const name = select.value;
  const known = data.heads.map((head) => head[name]).filter((value) => value !== null);
  const low = Math.min(0, ...known), high = Math.max(...known, low + 1e-12);
  document.getElementById("means").textContent = `${data.figures[name]} – colours run from ${shown(low)} to ${shown(high)}`;
  matrix.replaceChildren();
  const top = matrix.insertRow();
  top.append(element("th", "layer \\ head"));
  for (let i = 0; i < data.n_heads; i++) top.append(element("th", i, { scope: "col" }));
  data.layers.forEach((layer, row) => {
    const line = matrix.insertRow();
    line.append(element("th", layer, { scope: "row" }));
    for (let i = 0; i < data.n_heads; i++) {
      const head = data.heads[row * data.n_heads + i], value = head[name];
      const cell = element("td", value === null ? "–" : shown(value).slice(0, 5));
      if (value !== null) {
        const [r, g, b] = colour((value - low) / (high - low));
        cell.style.background = `rgb(${r} ${g} ${b})`;
        cell.style.color = 0.2126 * r + 0.7152 * g + 0.0722 * b < 128 ? "#fff" : "#000";
      }
      cell.title = `layer ${layer} head ${i}: ${shown(value)} (${head.class})`;
      cell.dataset.head = `${layer}.${i}`;
      cell.tabIndex = row + i === 0 ? 0 : -1;
      cell.addEventListener("click", () => choose(head));
      cell.addEventListener("focus", () => choose(head));
      line.append(cell);
    }
  });
}

matrix.addEventListener("keydown", (event) => {
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const cell = event.target.closest("td");
  if (!move || !cell) return;
  const row = matrix.rows[cell.parentNode.rowIndex + move[0]];
  const next = row && row.cells[cell.cellIndex + move[1]];
  if (next && next.tagName === "TD") { next.focus(); event.preventDefault(); }
});

function drawTable() {
  const heads = [...data.heads];
  if (sortedBy !== null) {
    const value = (head) => head[sortedBy];
    heads.sort((a, b) => typeof value(a) === "string"
      ? value(a).localeCompare(value(b)) : (value(b) ?? -Infinity) - (value(a) ?? -Infinity));
  }
  table.replaceChildren();
  const top = table.createTHead().insertRow();
  for (const name of ["head", "class", ...names]) {
    const cell = element("th", undefined, { scope: "col", title: data.figures[name] || "" });
    const button = element("button", name.replaceAll("_", " "), { type: "button" });
    button.addEventListener("click", () => { sortedBy = name === "head" ? null : name; drawTable(); });
    cell.setAttribute("aria-sort", sortedBy === name ? "descending" : "none");
    cell.append(button);
    top.append(cell);
  }
  const body = table.createTBody();
  for (const head of heads) {
    const line = body.insertRow();
    line.dataset.head = `${head.layer}.${head.head}`;
    line.append(element("th", `${head.layer}.${head.head}`, { scope: "row" }), element("td", head.class, { title: data.classes[head.class] || "" }));
    for (const name of names) line.append(element("td", shown(head[name])));
    line.addEventListener("click", () => choose(head));
  }
  if (chosen) choose(chosen);
}

for (const name of names) select.append(element("option", name.replaceAll("_", " "), { value: name }));
select.value = names.includes(select.dataset.first) ? select.dataset.first : names[0];
select.addEventListener("change", () => { drawMatrix(); if (chosen) choose(chosen); });
drawMatrix();
drawTable();
