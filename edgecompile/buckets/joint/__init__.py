"""Plans over two axes."""
