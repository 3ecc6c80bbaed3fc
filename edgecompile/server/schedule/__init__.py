"""When and how requests run: costs, composition, admission, streams."""
