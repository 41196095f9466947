"""`python -m fedvarp.cli`: the command line without an installed script."""

from fedvarp.cli.app import main

main()
