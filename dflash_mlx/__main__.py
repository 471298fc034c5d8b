"""The program's entry: `dflash-mlx`, and `python -m dflash_mlx`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program. An interrupt while it is still being imported is one like any other."""
    try:
        from .cli import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
