"""Every figure, one place: `figures` turns data into Vega-Lite specifications, `embed` puts them on a page or in a file."""

from servefit.charts.figures import Chart

__all__ = ["Chart"]
