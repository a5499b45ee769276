"use strict";
// Sorting by a click on a head, a slider between the figures of two methods, and everything unfolded in print.
// Without script the page shows the same, in its first order and one picture after the other.

const made = (name, properties, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

const valueOf = (row, column) => {
  const cell = row.cells[column];
  const given = cell.dataset.value ?? cell.textContent.trim();
  return { text: given, number: given === "" || Number.isNaN(Number(given)) ? null : Number(given) };
};

// Numbers before texts, dashes last in both directions.
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
    const button = made("button", { type: "button", title: "Sort by this column" }, ...head.childNodes);
    button.addEventListener("click", () => sort(table, head));
    head.append(button);
  }
}

const choice = (name, layers, chosen) => {
  const options = layers.map((layer, place) =>
    made("option", { value: place, selected: place === chosen }, layer.dataset.method));
  const select = made("select", {}, ...options);
  return [select, made("label", {}, name + " ", select)];
};

for (const stack of document.querySelectorAll(".layers")) {
  const layers = [...stack.children];
  const [left, leftLabel] = choice("Left", layers, 0);
  const [right, rightLabel] = choice("Right", layers, 1);
  const slider = made("input", { type: "range", min: 0, max: 100, value: 50 });
  const label = made("label", { className: "slide" }, "How much of the left ", slider);
  const show = () => {
    layers.forEach((layer, place) => {
      layer.classList.toggle("left", place === Number(left.value));
      layer.classList.toggle("right", place === Number(right.value) && left.value !== right.value);
    });
    stack.style.setProperty("--share", slider.value + "%");
    slider.setAttribute("aria-valuetext", slider.value + " % " + layers[Number(left.value)].dataset.method);
  };
  for (const control of [left, right, slider]) control.addEventListener("input", show);
  stack.before(made("div", { className: "controls" }, leftLabel, rightLabel, label));
  stack.classList.add("live");
  show();
}

const unfolded = [];
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details:not([open])")) {
    folded.open = true;
    unfolded.push(folded);
  }
});
addEventListener("afterprint", () => {
  for (const folded of unfolded.splice(0)) folded.open = false;
});
