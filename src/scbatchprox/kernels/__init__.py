"""Loops and products over cells: arrays in, arrays out."""
