"""servefit: which device, batching policy and batch limit, for this traffic, at these targets, at what cost."""

__version__ = "0.1.0"
