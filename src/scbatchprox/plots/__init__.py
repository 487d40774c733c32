"""Pictures of what a refinement did (extra ``report``)."""
