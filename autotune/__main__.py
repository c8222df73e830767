"""`python -m autotune`: the same as the `autotune` command, also from a checkout."""

from autotune.cli.main import main

if __name__ == "__main__":
    main()
