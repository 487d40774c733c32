"""What a refinement does to each batch, in words."""
