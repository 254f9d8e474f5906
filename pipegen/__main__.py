"""`python -m pipegen` is the command `pipegen`."""

from __future__ import annotations

from pipegen.cli import main

if __name__ == "__main__":
    main()
