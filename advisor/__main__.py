"""`python -m advisor` is `advise`."""

from advisor.cli import main

main()
