"""`python -m hamipy`."""

from hamipy.cli.main import main

main()
