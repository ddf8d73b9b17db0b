"""`python -m heddle` is the command `heddle`."""

from heddle.cli import main

if __name__ == "__main__":
    main()
