"use strict";
// Text is only ever set as text: what a page shows is hostile.
function number(cell) {
  const text = cell ? cell.textContent.replace(/[,\u2009]/g, "").replace("\u2212", "-").trim() : "";
  const value = parseFloat(text);
  return Number.isNaN(value) ? null : value;
}

// Each group of rows is sorted for itself, below its heading.
function sortBy(table, column, head) {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const body of table.tBodies) {
    const whole = table.tHead.rows[0].cells.length;
    const rows = Array.from(body.rows).filter((row) => row.cells.length === whole);
    rows.sort((one, other) => {
      const [x, y] = [one, other].map((row) => number(row.cells[column]));
      if (x !== null && y !== null) return x - y;
      if (x !== null || y !== null) return x === null ? 1 : -1;
      return one.cells[column].textContent.localeCompare(other.cells[column].textContent);
    });
    body.append(...(down ? rows.reverse() : rows));
  }
  for (const th of table.tHead.rows[0].cells) th.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
}

function addSorting(table) {
  Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
    head.tabIndex = 0;
    head.title = "sort by this column";
    head.addEventListener("click", () => sortBy(table, column, head));
    head.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sortBy(table, column, head);
    });
  });
}

function labelled(text, input) {
  const label = document.createElement("label");
  label.append(text + " ", input);
  return label;
}

function addFilters(table) {
  const rows = Array.from(table.tBodies[0].rows);
  const heads = Array.from(table.tHead.rows[0].cells, (th) => th.textContent.trim());
  const column = heads.indexOf("round");
  const rounds = column < 0 ? [] : [...new Set(rows.map((row) => number(row.cells[column])))];
  rounds.sort((x, y) => x - y);
  if (rows.length < 9 && rounds.length < 2) return;
  const tools = document.createElement("div"), words = document.createElement("input");
  const slider = document.createElement("input"), said = document.createElement("output");
  tools.className = "tools";
  words.type = "search";
  tools.append(labelled("Filter", words));
  if (rounds.length > 1) {
    Object.assign(slider, { type: "range", min: 0, max: rounds.length, value: 0 });
    tools.append(labelled("Round", slider), said);
  }
  const show = () => {
    const at = rounds.length > 1 ? Number(slider.value) : 0, wanted = words.value.toLowerCase();
    said.textContent = at ? String(rounds[at - 1]) : "all";
    for (const row of rows) {
      const inRound = !at || number(row.cells[column]) === rounds[at - 1];
      row.hidden = !(inRound && row.textContent.toLowerCase().includes(wanted));
    }
  };
  tools.addEventListener("input", show);
  show();
  table.parentElement.before(tools);
}

// A line-up is no table of values: its columns are defenses, its rows one victim each.
for (const table of document.querySelectorAll("table:not(.lineup)")) addSorting(table);
for (const table of document.querySelectorAll("table.grid, table.matrix")) addFilters(table);

for (const link of document.querySelectorAll("a[data-defense]")) {
  const choose = () => {
    for (const cell of document.querySelectorAll(".chosen")) cell.classList.remove("chosen");
    const place = document.getElementById(link.hash.slice(1)), group = place.closest(".groups");
    for (const head of (group || place).querySelectorAll("th[data-defense]")) {
      if (head.dataset.defense !== link.dataset.defense) continue;
      for (const row of head.closest("table").rows) {
        if (row.cells[head.cellIndex]) row.cells[head.cellIndex].classList.add("chosen");
      }
    }
  };
  link.addEventListener("click", choose);
  link.closest("tr").addEventListener("click", (event) => {
    if (!event.target.closest("a")) link.click();
  });
}

const folded = [];
addEventListener("beforeprint", () => {
  folded.push(...document.querySelectorAll("details:not([open])"));
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of folded.splice(0)) one.open = false;
});
