// On a narrow screen a table becomes a list if it asks for it (`.stack`) or is too wide. Then each
// cell begins with the name of its column, which the list has no head for.
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const page = table.closest(".md-content__inner");
  const names = [...table.querySelectorAll("th")].map((cell) => cell.textContent.trim());
  const narrow = matchMedia("(max-width: 37rem)");
  const stack = () => {
    if (!narrow.matches) delete table.dataset.stacked;
    else if (table.closest(".stack") || Math.max(table.offsetWidth, table.scrollWidth) > page.clientWidth) table.dataset.stacked = "";
  };
  for (const row of table.querySelectorAll("tbody tr"))
    [...row.cells].forEach((cell, at) => {
      const named = at > 0 && names[at] !== "meaning" && (names.length > 2 || names[at] === "not on");
      if (named && names[at] && cell.textContent.trim()) cell.dataset.column = names[at];
    });
  narrow.addEventListener("change", stack);
  stack();
}
