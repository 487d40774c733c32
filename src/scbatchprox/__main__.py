"""``python -m scbatchprox`` is the command ``scbatchprox``."""

from .cli import main

main()
