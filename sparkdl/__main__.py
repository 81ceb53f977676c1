"""``python -m sparkdl``: the ``sparkdl`` command, for environments in which its script is not on the path."""

from sparkdl.cli import main

if __name__ == "__main__":
    main()
