"""The search for the best buckets: its problem, the strips it chooses from, and their bound."""
