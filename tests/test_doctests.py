"""Every example in a docstring is true."""

import doctest
import importlib
import pkgutil

import pytest

import servefit

MODULES = sorted(
    m.name for m in pkgutil.walk_packages(servefit.__path__, "servefit.") if not m.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name):
    """Run the doctests of one module."""
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
