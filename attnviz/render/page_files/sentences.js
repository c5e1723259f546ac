// Tokens as a text to choose from: all of them, or, of a long text, those around the chosen one.

import * as tokens from "./tokens.js";
import * as run from "./run.js";
import * as parts from "./parts.js";

const { el } = parts;

// `which` is queries or keys; `onHover` and `onPick` get the place of a token. At most `most` tokens are shown.
export function sentence({ which, prefix = "", name, most, onHover, onPick }) {
  const root = el("div", { class: "sentence", role: "listbox", tabindex: 0, "aria-label": name, "aria-orientation": "horizontal", "data-text": which });
  let spans = [];
  let first = 0;
  let filled = "";

  function fill(sequence, around) {
    const one = run.facts.sequences[sequence];
    const all = which === "keys" ? run.keyTokens(sequence) : run.queryTokens(sequence);
    const [start, end] = run.real(sequence, which === "keys" ? "key" : "query");
    const inside = around >= first + Math.min(8, around - start) && around < first + spans.length - Math.min(8, end - 1 - around);
    if (filled === `${sequence}.${all.length}` && (end - start <= most || inside)) return;
    filled = `${sequence}.${all.length}`;
    const from = end - start <= most ? start : Math.max(start, Math.min(end - most, around - Math.floor(most / 2)));
    const some = all.slice(from, Math.min(end, from + most));
    first = from;
    root.dir = tokens.direction(some);
    const answer = which === "keys" ? null : one.answer; // what the model wrote itself
    spans = some.map((token, i) => el("span", {
      class: answer !== null && from + i >= answer ? "answer" : "", role: "option", id: `${prefix}${which}-${from + i}`,
      "data-at": from + i, "aria-label": parts.label(token, 60), title: `#${parts.number(from + i, start)}`,
    }));
    const pieces = tokens.asText(some);
    spans.forEach((span, i) => { span.textContent = tokens.shorten(pieces[i].text, 80); });
    root.classList.toggle("short", some.join(" ").length < 160);
    const more = (text) => el("bdi", { class: "padded", dir: "ltr" }, text);
    root.replaceChildren(...(from > start ? [more(`… ${parts.grouped(from - start)} before`), " "] : []),
      ...spans.flatMap((span, i) => (pieces[i].space ? [" ", span] : [span])),
      ...(from + some.length < end ? [" ", more(`${parts.grouped(end - from - some.length)} more …`)] : []));
    if (end <= start) root.append(el("span", { class: "none" }, "no tokens: all of this sequence is padding"));
    const padded = all.length - (end - start);
    if (padded && end > start) root.append(" ", more(`+ ${padded} padding`));
  }

  // `weightOf(i)` is what token i is coloured by: null for one that may not be looked at.
  function colour(chosen, weightOf, colourOf) {
    spans.forEach((span, i) => {
      const weight = weightOf ? weightOf(first + i) : undefined;
      span.setAttribute("aria-selected", String(first + i === chosen));
      span.classList.toggle("forbidden", weight === null);
      span.classList.toggle("broken", Number.isNaN(weight));
      const css = weight > 0 && colourOf ? colourOf(weight) : null;
      span.style.backgroundColor = css ? css.fill : "";
      span.style.color = css ? css.ink : "";
    });
    if (chosen >= first && chosen < first + spans.length) root.setAttribute("aria-activedescendant", `${prefix}${which}-${chosen}`);
    else root.removeAttribute("aria-activedescendant");
  }

  const placeOf = (event) => (event.target.dataset?.at === undefined ? null : Number(event.target.dataset.at));
  root.addEventListener("pointermove", (event) => { if (placeOf(event) !== null) onHover(placeOf(event)); });
  root.addEventListener("click", (event) => { if (placeOf(event) !== null) onPick(placeOf(event)); });
  return { root, fill, colour, scrollTo: (i) => spans[i - first]?.scrollIntoView({ block: "nearest" }) };
}
