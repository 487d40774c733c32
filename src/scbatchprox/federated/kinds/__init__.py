"""The kinds of sums that sites compute together, each a function that is given how to add up."""
