// Draw a card at random, those not yet opened first; everything else works without script.
"use strict";
(() => {
  const tools = document.getElementById("tools"), topic = document.getElementById("topic"), seen = new Set();
  tools.hidden = false;
  topic.addEventListener("change", () => {
    for (const part of document.querySelectorAll("[data-topic]")) part.hidden = topic.value !== "" && part.dataset.topic !== topic.value;
  });
  document.getElementById("draw").addEventListener("click", () => {
    const cards = [...document.querySelectorAll("[data-topic]:not([hidden]) > .card")];
    const fresh = cards.filter((card) => !seen.has(card.id));
    const from = fresh.length ? fresh : cards;
    const card = from[Math.floor(Math.random() * from.length)];
    if (!card) return;
    seen.add(card.id);
    for (const other of document.querySelectorAll(".drawn")) other.classList.remove("drawn");
    card.classList.add("drawn");
    card.open = false;
    card.querySelector("summary").focus();
    card.scrollIntoView({ block: "center" });
  });
})();
