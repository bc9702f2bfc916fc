// Sorts a table by the column whose button is pressed: once upwards, again downwards. Buttons are
// pressed by keyboard too. Rows that are equal stay in their order, and all in their group; cells
// without a figure in a column of figures come last.
"use strict";
for (const head of document.querySelectorAll("th[aria-sort]")) {
  head.querySelector("button").addEventListener("click", () => {
    const table = head.closest("table");
    const column = head.cellIndex;
    const upwards = head.getAttribute("aria-sort") !== "ascending";
    const isNumber = head.classList.contains("number");
    const key = (row) => {
      const cell = row.cells[column];
      if (!isNumber) return cell.textContent.trim();
      return "value" in cell.dataset ? Number(cell.dataset.value) : null;
    };
    const compare = (one, other) => {
      if (one === null || other === null) return (one === null) - (other === null);
      const order = isNumber ? one - other : one.localeCompare(other);
      return upwards ? order : -order;
    };
    for (const body of table.tBodies) {
      const rows = [...body.querySelectorAll("tr:not(.group)")].map((row) => [key(row), row]);
      rows.sort(([one], [other]) => compare(one, other));
      body.append(...rows.map(([, row]) => row));
    }
    for (const other of table.tHead.rows[0].cells) {
      other.setAttribute("aria-sort", "none");
    }
    head.setAttribute("aria-sort", upwards ? "ascending" : "descending");
  });
}
