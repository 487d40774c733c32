"""The method: cells give Moments, Moments a Target and a Problem, its Solution gives an Adapter."""
