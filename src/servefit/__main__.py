"""`python -m servefit` is the same as `servefit`."""

from servefit.cli.main import run

if __name__ == "__main__":
    run()
