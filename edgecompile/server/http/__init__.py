"""The ASGI application, and the connections that it is spoken to over."""
