"use strict";
const cards = [...document.querySelectorAll("article")];
const chips = [...document.querySelectorAll("button[data-kind]")];
const text = document.getElementById("text"), id = document.getElementById("id"), same = document.getElementById("same");
const count = document.getElementById("count");
const words = new Map();
const kinds = { kind: "", other: "" };
function wordsOf(card) {
  if (!words.has(card)) words.set(card, card.textContent.toLowerCase());
  return words.get(card);
}
function show() {
  let shown = 0;
  const wanted = text.value.toLowerCase(), name = id.value.toLowerCase(), equal = same ? same.value : "";
  for (const card of cards) {
    const data = card.dataset;
    const fits = Object.keys(kinds).every((of) => !kinds[of] || data[of] === kinds[of]) && (!equal || data.same === equal) && (!name || data.id.toLowerCase().includes(name))
      && (!wanted || wordsOf(card).includes(wanted));
    card.hidden = !fits;
    shown += fits;
  }
  count.textContent = `${shown} of ${cards.length} shown`;
  for (const chip of chips) chip.setAttribute("aria-pressed", String(chip.dataset.kind === kinds[chip.dataset.of]));
}
for (const chip of chips) chip.addEventListener("click", () => { kinds[chip.dataset.of] = chip.dataset.kind; show(); });
for (const frame of document.querySelectorAll(".frame")) frame.addEventListener("click", () => frame.parentElement.classList.toggle("large"));
for (const field of [text, id]) field.addEventListener("input", show);
if (same) same.addEventListener("change", show);
show();
