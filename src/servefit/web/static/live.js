// A measurement in progress: the new state is asked for every second and put in its place; nothing is loaded again.
"use strict";
(() => {
  const live = document.getElementById("live"), charts = document.getElementById("live-charts");
  const said = document.getElementById("live-said");
  if (!live) return;
  let before = -1;
  async function ended() {
    const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
    document.getElementById("main").replaceChildren(...page.getElementById("main").childNodes);
    for (const word of page.querySelectorAll(".popover")) if (!document.getElementById(word.id)) document.body.append(word);
    said.textContent = "The measurement has ended.";
    document.getElementById("main").append(said);
    servefitCharts.drawAll();
  }
  async function look() {
    try {
      const answer = await fetch(live.dataset.live, { headers: { accept: "application/json" } });
      if (answer.ok) {
        const now = await answer.json();
        if (now.state !== "running") return await ended();
        if (now.n !== before) {
          before = now.n;
          live.innerHTML = now.html;
          for (const [anchor, chart] of Object.entries(now.charts)) {
            let host = document.querySelector(`[data-chart="${anchor}-spec"]`);
            if (!host) {
              host = document.createElement("div");
              host.className = "chart-canvas";
              host.dataset.chart = `${anchor}-spec`;
              charts.append(host);
            }
            host.dataset.alt = chart.alt;
            await servefitCharts.draw(host, chart.spec);
          }
        }
      }
    } catch {
      // the server was stopped or the phone slept: try again
    }
    setTimeout(look, document.hidden ? 5000 : 1000);
  }
  addEventListener("DOMContentLoaded", look);
})();
