"""The kinds of sums that sites compute together, each a generator of rounds."""
