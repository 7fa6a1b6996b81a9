"use strict";
const root = document.documentElement;
const titles = { en: document.querySelector("h1 .in-en"), zh: document.querySelector("h1 .in-zh") };

// Opened as a file, a page may have no storage: then nothing is remembered.
const remembered = (key, value) => {
  try {
    if (value !== undefined) localStorage.setItem("shardscope-" + key, value);
    return localStorage.getItem("shardscope-" + key);
  } catch { return null; }
};

const speak = (language) => {
  root.dataset.language = language;
  root.lang = language === "zh" ? "zh-Hans" : "en";
  document.title = titles[language].textContent;
  for (const button of document.querySelectorAll("[data-choose]"))
    button.setAttribute("aria-pressed", String(button.dataset.choose === language));
};
const preferred = (navigator.languages || [navigator.language]).find((tag) => /^(en|zh)\b/i.test(tag)) || "en";
const chosen = remembered("language");
speak(chosen === "en" || chosen === "zh" ? chosen : preferred.slice(0, 2).toLowerCase());
for (const button of document.querySelectorAll("[data-choose]"))
  button.addEventListener("click", () => speak(remembered("language", button.dataset.choose) || button.dataset.choose));

const paint = (theme) => { if (theme === "light" || theme === "dark") root.dataset.theme = theme; };
paint(remembered("theme"));
document.getElementById("theme").addEventListener("click", () => {
  const dark = getComputedStyle(root).colorScheme === "dark";
  const theme = dark ? "light" : "dark";
  remembered("theme", theme);
  paint(theme);
});

// "45.2 (−22.6 %, better)" sorts as 45.2, "not applicable: …" and "–" come last either way.
const valueOf = (row, column, numeric) => {
  const cell = row.cells[column];
  const text = cell && cell.colSpan === 1 ? cell.textContent.trim() : "";
  if (!numeric) return text || null;
  const match = /[−+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?/.exec(text);
  return match ? Number(match[0].replaceAll(",", "").replace("−", "-")) : null;
};
const sortBy = (table, column) => {
  const headings = table.tHead.rows[0].cells;
  const ascending = headings[column].getAttribute("aria-sort") !== "ascending";
  const numeric = headings[column].classList.contains("number");
  const rows = Array.from(table.tBodies[0].rows, (row, place) => ({ row, place, value: valueOf(row, column, numeric) }));
  rows.sort((one, two) => {
    if (one.value === null || two.value === null)
      return one.value === two.value ? one.place - two.place : one.value === null ? 1 : -1;
    const order = numeric ? one.value - two.value : one.value.localeCompare(two.value, root.lang, { numeric: true });
    return (ascending ? order : -order) || one.place - two.place;
  });
  for (const heading of headings) heading.removeAttribute("aria-sort");
  headings[column].setAttribute("aria-sort", ascending ? "ascending" : "descending");
  table.tBodies[0].append(...rows.map(({ row }) => row));
};
for (const table of document.querySelectorAll("table.sortable"))
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) =>
    heading.firstElementChild.addEventListener("click", () => sortBy(table, column)));
