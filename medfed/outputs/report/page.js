"use strict";
// Sort a table by a click on a heading, filter patients, unfold everything for print. Without this script the page has
// the same content, in its first order.

const make = (name, properties, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

const valueOf = (row, column) => {
  const cell = row.cells[column];
  const text = cell.textContent.trim();
  const isText = cell.classList.contains("text");
  const match = isText ? null : text.replace(/,(?=\d{3})/g, "").match(/^[<+]?(-?\d+(\.\d+)?)/);
  return { text, number: match ? Number(match[1]) : null };
};

// Numbers come before texts, and dashes and empty cells come last in both directions.
const isNothing = (value) => value.text === "-" || value.text === "";
const compare = (a, b, sign) => {
  if (isNothing(a) || isNothing(b)) return isNothing(a) - isNothing(b);
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
    const button = make("button", { type: "button", title: "Sort by this column" }, ...head.childNodes);
    button.addEventListener("click", () => sort(table, head));
    head.append(button);
  }
}

for (const table of document.querySelectorAll("table.filtered")) {
  const input = make("input", { type: "search", placeholder: "site, patient, failure ..." });
  const count = make("output", {});
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  input.addEventListener("input", filter);
  filter();
  table.parentElement.before(make("p", { className: "controls" }, make("label", {}, "Filter ", input), count));
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
