"use strict";
// A button in a header sorts its table: rising first, then falling. Missing values stay last both ways.
document.addEventListener("click", (event) => {
  const button = event.target.closest("th button");
  if (button === null) return;
  const header = button.closest("th");
  const body = header.closest("table").tBodies[0];
  const falling = header.getAttribute("aria-sort") === "ascending";
  const numeric = "numeric" in header.dataset;
  const valueOf = (row) => {
    const cell = row.cells[header.cellIndex];
    return cell.dataset.value ?? cell.textContent.trim();
  };
  const compare = (a, b) => (numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true }));
  const rows = Array.from(body.rows, (row) => ({ row, value: valueOf(row) }));
  rows.sort((a, b) => {
    if (a.value === "" || b.value === "") return (a.value === "") - (b.value === "");
    return falling ? compare(b.value, a.value) : compare(a.value, b.value);
  });
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", falling ? "descending" : "ascending");
  body.append(...rows.map(({ row }) => row));
});
