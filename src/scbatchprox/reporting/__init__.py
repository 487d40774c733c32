"""The report: one HTML file that shows what a refinement does (extra ``report``)."""
