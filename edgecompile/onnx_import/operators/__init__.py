"""The functions that compute the operators, by topic."""
