"""Generation of text: sessions, token streams and sampling."""
