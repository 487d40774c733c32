"""Speed and memory as ratios measured in one run: machines are noisy, ratios less so."""
