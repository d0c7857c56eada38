# The types of what `__init__.py` imports when it is asked for: the names of `servefit.api`, which lists them.

from servefit.api import *  # noqa: F403

__version__: str
