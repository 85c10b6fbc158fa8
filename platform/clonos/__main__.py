"""``python -m clonos``: the ``clonos`` command."""

from clonos.cli import main

if __name__ == "__main__":
    main()
