// Space shows the answer, 1 to 4 rate it. Without script the page works by buttons.
"use strict";
(() => {
  const answer = document.querySelector("[data-card] details.answer");
  if (!answer) return;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea, summary, button, a")) return;
    if (event.key === " ") {
      event.preventDefault();
      answer.open = !answer.open;
    } else if (answer.open && /^[1-4]$/.test(event.key)) {
      answer.querySelector(`[data-key="${event.key}"]`).click();
    }
  });
})();
