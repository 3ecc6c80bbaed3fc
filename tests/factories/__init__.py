"""Small models for the tests: plain modules, and folders in Hugging Face layout."""
