"""The server: bundles behind an address. Imports the runtime, numpy and uvicorn; ships as edgecompile-server."""
