(function () {
  "use strict";
  // Hover opens a number's card, a tap or Enter keeps it open; Escape or a click elsewhere closes it (the popover's own).
  let kept = null;
  function place(button, card) {
    const at = button.getBoundingClientRect(), size = card.getBoundingClientRect(), gap = 8;
    const left = Math.max(gap, Math.min(at.left, innerWidth - size.width - gap));
    const below = at.bottom + gap + size.height < innerHeight;
    const top = below ? at.bottom + 6 : Math.max(gap, at.top - size.height - 6);
    card.style.inset = "auto"; card.style.margin = "0";
    card.style.left = left + "px"; card.style.top = top + "px";
  }
  function open(button) {
    const card = document.getElementById(button.getAttribute("popovertarget"));
    if (!card || !card.showPopover) return null;
    if (!card.matches(":popover-open")) card.showPopover();
    place(button, card);
    return card;
  }
  for (const button of document.querySelectorAll("button.q")) {
    button.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse" && !kept) open(button); });
    button.addEventListener("pointerleave", (event) => {
      const card = document.getElementById(button.getAttribute("popovertarget"));
      if (event.pointerType === "mouse" && card && kept !== card && card.matches(":popover-open")) card.hidePopover();
    });
    button.addEventListener("click", (event) => { event.preventDefault(); kept = open(button); });
  }
  for (const card of document.querySelectorAll(".card")) {
    card.addEventListener("toggle", (event) => { if (event.newState === "closed" && kept === card) kept = null; });
  }
  addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });
})();
