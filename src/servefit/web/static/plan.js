// The live plan: every number gets a slider, each move asks again, the newest answer wins, the address keeps the state.
"use strict";
(() => {
  const form = document.getElementById("plan"), picture = document.getElementById("picture");
  const charts = document.getElementById("charts"), trouble = document.getElementById("trouble");
  const said = document.getElementById("said"), writeup = document.getElementById("writeup");
  const tab = crypto.randomUUID ? crypto.randomUUID() : String(Math.random());
  const STEPS = 400;
  document.body.classList.add("scripted");

  for (const input of form.querySelectorAll("input[data-low]")) {
    const low = Number(input.dataset.low), high = Number(input.dataset.high), log = input.dataset.log === "1";
    const range = document.createElement("input");
    Object.assign(range, { type: "range", min: 0, max: STEPS, step: 1 });
    range.setAttribute("aria-label", `${form.querySelector(`label[for="${input.id}"]`).textContent}, slider`);
    const place = (value) => log ? STEPS * Math.log(value / low) / Math.log(high / low) : STEPS * (value - low) / (high - low);
    const value = (at) => log ? low * (high / low) ** (at / STEPS) : low + (high - low) * at / STEPS;
    const rounded = (x) => {
      const whole = input.dataset.whole === "1";
      if (x >= 100 || whole) return String(whole && x < 100 ? Math.round(x) : Number(x.toPrecision(2)));
      return String(Number(x.toPrecision(log ? 2 : 3)));
    };
    const told = () => {
      const number = Number(input.value.replaceAll(",", ""));
      if (number > 0) range.value = String(place(number));
      range.setAttribute("aria-valuetext", `${input.value} ${document.getElementById(input.getAttribute("aria-describedby")).textContent}`);
    };
    range.addEventListener("input", () => {
      const now = rounded(Math.min(high, Math.max(low, value(Number(range.value)))));
      if (now === input.value) return;
      input.value = now;
      told();
      moved();
    });
    input.addEventListener("input", () => { told(); moved(); });
    input.closest(".slide").append(range);
    told();
  }
  // Of rate and users only the one that counts is shown.
  function loaded() {
    const load = form.elements.load.value;
    for (const name of ["rate", "users"]) form.querySelector(`[data-slide="${name}"]`).hidden = name !== load;
  }
  loaded();
  for (const select of form.querySelectorAll("select")) select.addEventListener("change", () => { loaded(); moved(); });
  form.addEventListener("submit", (event) => { event.preventDefault(); moved(); });

  let asking = null, next = false, speak = null;
  function moved() {
    next = true;
    if (!asking) ask();
  }
  async function ask() {
    while (next) {
      next = false;
      const state = new URLSearchParams(new FormData(form));
      const began = performance.now();
      asking = fetch(`/plan/picture?${state}&tab=${tab}`);
      try {
        const answer = await asking;
        if (next) continue;  // the slider has moved on: what comes next is newer
        if (answer.status === 204) continue;
        const now = await answer.json();
        if (next) continue;
        await show(now, state);
        picture.dataset.ms = String(Math.round(performance.now() - began));
      } catch {
        trouble.textContent = "The page's server does not answer. Was it stopped?";
        trouble.hidden = false;
      }
    }
    asking = null;
  }
  async function show(now, state) {
    trouble.hidden = !now.trouble;
    trouble.textContent = now.trouble || "";
    if (now.trouble) return;
    history.replaceState(null, "", `/plan?${state}`);
    for (const [name, value] of state) if (writeup.elements[name]) writeup.elements[name].value = value;
    const open = picture.querySelector("details")?.open;
    picture.innerHTML = now.html;
    if (open) picture.querySelector("details").open = true;
    summarise();
    await Promise.all(Object.entries(now.charts).map(([anchor, chart]) => place(anchor, chart)));
    for (const figure of charts.querySelectorAll("figure")) figure.hidden = !(figure.id in now.charts);
    clearTimeout(speak);
    speak = setTimeout(() => { said.textContent = picture.querySelector(".verdict").textContent.trim(); }, 600);
  }
  // On a phone the checks are below the sliders: their gist stays in sight at the bottom of the screen.
  function summarise() {
    const strip = document.getElementById("strip"), verdict = picture.querySelector(".verdict");
    if (!verdict) return;
    strip.hidden = false;
    strip.className = `strip ${verdict.classList[1]}`;
    const parts = [...picture.querySelectorAll(".checks li")].map((li) => {
      const part = document.createElement("span");
      part.className = li.className;
      part.textContent = `${li.querySelector(".check-label").textContent.replace("p99 ", "")} ${li.querySelector(".check-value").textContent}`;
      return part;
    });
    strip.replaceChildren(verdict.querySelector(".mark").cloneNode(true), ...parts);
  }
  function place(anchor, chart) {
    let figure = document.getElementById(anchor);
    if (!figure) {
      figure = document.createElement("figure");
      figure.className = "chart";
      figure.id = anchor;
      const caption = document.createElement("figcaption"), canvas = document.createElement("div");
      const text = document.createElement("p"), more = document.createElement("details");
      caption.textContent = chart.spec.title || chart.title;
      canvas.className = "chart-canvas";
      text.className = "chart-said";
      more.innerHTML = '<summary></summary><div class="scroll" tabindex="0" role="region"></div>';
      more.firstChild.textContent = `${chart.title}: the numbers`;
      more.lastChild.setAttribute("aria-label", `${chart.title}: the numbers`);
      figure.append(caption, canvas, text, more);
      charts.append(figure);
    }
    const canvas = figure.querySelector(".chart-canvas");
    canvas.dataset.alt = chart.alt;
    figure.querySelector("figcaption").textContent = chart.title;
    figure.querySelector(".chart-said").textContent = chart.alt;
    figure.querySelector("details .scroll").innerHTML = chart.table;
    return servefitCharts.draw(canvas, chart.spec);
  }
  writeup.addEventListener("submit", () => {
    const button = writeup.querySelector("button");
    button.textContent = "Planning, three schedules…";
    setTimeout(() => { button.disabled = true; });
  });
  addEventListener("pageshow", () => { writeup.querySelector("button").disabled = false; });
  addEventListener("DOMContentLoaded", () => { summarise(); moved(); });
})();
