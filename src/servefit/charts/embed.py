"""A figure on a page (drawn by the vendored Vega, no request to anywhere) or in a file (PNG, SVG: extra `charts`)."""

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from servefit.charts.figures import Chart
from servefit.errors import MissingExtra, ServefitError
from servefit.files import write_bytes

FONT = "system-ui, -apple-system, Segoe UI, Roboto, sans-serif"

DRAW_JS = """
(function () {
  "use strict";
  const V = globalThis.servefitVega;
  const views = new WeakMap();
  function theme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches;
    const ink = dark ? "#d6dae1" : "#374151", line = dark ? "#3d4653" : "#d6dae1";
    return { background: "transparent", font: FONT, view: { stroke: null },
      axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12 },
      legend: { labelColor: ink, titleColor: ink, orient: "top", labelFontSize: 12, labelLimit: 260, columns: 2 },
      text: { color: ink, fontSize: 12 }, line: { strokeWidth: 2 } };
  }
  // The figure's data apart from its shape: same shape again means only the data is replaced, which is ten times as fast.
  function parted(spec) {
    const sets = {};
    const shape = JSON.parse(JSON.stringify(spec), (key, value) => {
      if (value && typeof value === "object" && Array.isArray(value.values) && key === "data") {
        const name = "set" + Object.keys(sets).length;
        sets[name] = value.values;
        return { name };
      }
      return value;
    });
    delete shape.description;
    return { sets, shape: { ...shape, datasets: Object.fromEntries(Object.keys(sets).map((name) => [name, []])) } };
  }
  async function draw(host, spec) {
    const { sets, shape } = parted(spec);
    const key = JSON.stringify([shape, theme()]);
    let old = views.get(host);
    if (old && old.key === key) {
      for (const [name, values] of Object.entries(sets)) old.view.data(name, values);
      await old.view.runAsync();
    } else {
      const vg = V.compile({ ...shape, datasets: sets }, { config: theme() }).spec;
      const view = new V.View(V.parse(vg, null, { ast: true }), { expr: V.expressionInterpreter, renderer: "svg", container: host, hover: true, logLevel: V.Warn });
      views.set(host, { key, view });
      await view.runAsync();
      if (old) old.view.finalize();
    }
    const svg = host.querySelector("svg");
    if (svg) { svg.setAttribute("role", "img"); svg.setAttribute("aria-label", host.dataset.alt || ""); svg.removeAttribute("tabindex"); }
  }
  async function drawAll(root) {
    for (const host of (root || document).querySelectorAll("[data-chart]")) {
      const source = document.getElementById(host.dataset.chart);
      if (source) await draw(host, JSON.parse(source.textContent));
    }
  }
  globalThis.servefitCharts = { draw, drawAll };
  addEventListener("DOMContentLoaded", () => drawAll());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());
})();
""".replace("FONT", json.dumps(FONT))
"""Draws every element with data-chart from the JSON script that it names, in the reader's light or dark."""

STYLE = """
.chart{margin:1rem 0}.chart figcaption{font-weight:600;margin-bottom:.25rem}.chart-canvas{width:100%;min-height:60px;overflow:hidden}
.chart details{margin-top:.25rem}.chart .scroll{overflow-x:auto}
"""


@cache
def library_js() -> str:
    """The vendored Vega bundle as text (about 825,000 bytes)."""
    return (files("servefit.charts") / "vendor" / "vega-bundle.min.js").read_text(encoding="utf-8")


def script_json(value: object) -> str:
    """JSON that may stand inside a script element, whatever strings it holds."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")


def figure_html(chart: Chart, *, anchor: str) -> str:
    """The figure as HTML: caption, place to draw, and its numbers as a table for those who would rather read."""
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in chart.columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in chart.rows)
    alt = escape(chart.description, quote=True)
    return (
        f'<figure class="chart" id="{escape(anchor)}"><figcaption>{escape(chart.title)}</figcaption>'
        f'<div class="chart-canvas" data-chart="{escape(anchor)}-spec" data-alt="{alt}"></div>'
        f'<script type="application/json" id="{escape(anchor)}-spec">{script_json(chart.spec)}</script>'
        f'<p class="chart-said">{escape(chart.description)}</p>'
        f"<details><summary>{escape(chart.title)}: the numbers</summary>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(chart.title, quote=True)}: the numbers">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f"</details></figure>"
    )


def save_images(charts: Sequence[Chart], folder: Path) -> tuple[Path, ...]:
    """Write each figure into the folder as SVG, in order, by its name; returns the files. Errors as those of `save_image`."""
    paths = tuple(folder / f"{number:02}-{chart.name}.svg" for number, chart in enumerate(charts, 1))
    for chart, path in zip(charts, paths, strict=True):
        save_image(chart, path)
    return paths


def save_image(chart: Chart, path: Path) -> None:
    """Write the figure as PNG or SVG, by the ending of `path`. Needs the extra `charts`; raises ServefitError."""
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra("vl-convert-python", "charts", purpose="A figure as PNG or SVG") from None
    spec = json.dumps({**chart.spec, "width": 720, "background": "white"})
    if path.suffix == ".svg":
        write_bytes(path, vl_convert.vegalite_to_svg(spec).encode())
    elif path.suffix == ".png":
        write_bytes(path, vl_convert.vegalite_to_png(spec, scale=2))
    else:
        raise ServefitError(
            f"A figure cannot be written as '{path.name}'.", hint="Name a file that ends in .png or .svg."
        )
