# The types of what `__init__.py` imports when it is asked for.

from servefit.api import EngineConfig as EngineConfig
from servefit.api import Lengths as Lengths
from servefit.api import PlanSpec as PlanSpec
from servefit.api import Targets as Targets
from servefit.api import Workload as Workload
from servefit.api import find_device as find_device
from servefit.api import find_model as find_model
from servefit.api import load_plan as load_plan
from servefit.api import load_run as load_run
from servefit.api import make_plan as make_plan
from servefit.api import save_plan as save_plan
from servefit.api import save_run as save_run
from servefit.api import simulate as simulate
from servefit.api import summarize as summarize
from servefit.api import verify as verify
from servefit.api import write_decision as write_decision

__version__: str
