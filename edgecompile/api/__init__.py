"""The Python interface: build, plan, explain and verify from a program; docs/python.md."""
