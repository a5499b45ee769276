"use strict";
// Sort a table by a click on a heading, compare the figures of two methods with a slider, unfold everything for print.
// Without this script the page has the same content, in its first order and one figure after the other.

const createElement = (name, properties, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

const valueOf = (row, column) => {
  const cell = row.cells[column];
  const shown = cell.dataset.value ?? cell.textContent.trim();
  return { text: shown, number: shown === "" || Number.isNaN(Number(shown)) ? null : Number(shown) };
};

// Numbers come before texts, and dashes come last in both directions.
const compare = (a, b, sign) => {
  if (a.text === "-" || b.text === "-") return (a.text === "-") - (b.text === "-");
  if (a.number !== null && b.number !== null) return sign * (a.number - b.number);
  if (a.number !== null || b.number !== null) return (b.number !== null) - (a.number !== null);
  return sign * a.text.localeCompare(b.text, "en", { numeric: true });
};

const sort = (table, head) => {
  const descending = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [valueOf(row, head.cellIndex), row]);
  rows.sort((a, b) => compare(a[0], b[0], descending ? -1 : 1));
  body.append(...rows.map(([, row]) => row));
};

for (const table of document.querySelectorAll("table.sortable")) {
  if (table.tBodies[0].rows.length < 2) continue;
  for (const head of table.tHead.rows[0].cells) {
    const button = createElement("button", { type: "button", title: "Sort by this column" }, ...head.childNodes);
    button.addEventListener("click", () => sort(table, head));
    head.append(button);
  }
}

const choice = (name, layers, chosen) => {
  const options = layers.map((layer, place) =>
    createElement("option", { value: place, selected: place === chosen }, layer.dataset.method));
  const select = createElement("select", {}, ...options);
  return [select, createElement("label", {}, name + " ", select)];
};

for (const stack of document.querySelectorAll(".layers")) {
  const layers = [...stack.children];
  const [left, leftLabel] = choice("Left", layers, 0);
  const [right, rightLabel] = choice("Right", layers, 1);
  // At first the left figure is complete. The edge between two figures would cut the texts of both.
  const slider = createElement("input", { type: "range", min: 0, max: 100, value: 100 });
  const label = createElement("label", { className: "slide" }, "Share of the left figure ", slider);
  const show = () => {
    layers.forEach((layer, place) => {
      layer.classList.toggle("left", place === Number(left.value));
      layer.classList.toggle("right", place === Number(right.value) && left.value !== right.value);
    });
    stack.style.setProperty("--share", slider.value + "%");
    slider.setAttribute("aria-valuetext", slider.value + " % " + layers[Number(left.value)].dataset.method);
  };
  for (const control of [left, right, slider]) control.addEventListener("input", show);
  stack.before(createElement("div", { className: "controls" }, leftLabel, rightLabel, label));
  stack.classList.add("live");
  show();
}

const unfolded = [];
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.open = true;
    unfolded.push(details);
  }
});
addEventListener("afterprint", () => {
  for (const details of unfolded.splice(0)) details.open = false;
});
