"""Damaged and hostile files for every command: each must be read correctly, or refused in one sentence."""
