"""Programs for the CPU: which variant this machine can run, its libraries, and calls into them."""
