"""Reading files, and writing them completely or not at all."""
