"""servefit: which device, batching policy and batch limit, for this traffic, at these targets, at what cost.

The names of `servefit.api` can be had from here: `from servefit import load_run, summarize`. They are imported when they
are first asked for, so that `import servefit` and `servefit --help` stay fast. Type checkers read the types in `__init__.pyi`.
"""

from typing import Any

__version__ = "0.1.0"

__all__ = [
    "Device",
    "EngineConfig",
    "Lengths",
    "ModelShape",
    "Plan",
    "PlanSpec",
    "Report",
    "Run",
    "Summary",
    "Targets",
    "Workload",
    "__version__",
    "find_device",
    "find_model",
    "load_plan",
    "load_run",
    "make_plan",
    "save_plan",
    "save_run",
    "simulate",
    "summarize",
    "verify",
    "write_decision",
]


def __getattr__(name: str) -> Any:
    """A name of `servefit.api`, imported now."""
    if name not in __all__:
        raise AttributeError(f"module 'servefit' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module("servefit.api"), name)


def __dir__() -> list[str]:
    """What there is to ask for."""
    return sorted({*globals(), *__all__})
