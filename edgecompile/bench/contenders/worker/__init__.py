"""The process in which one contender runs: loads it once, runs lengths when told, says the times.

``python <this folder>`` reads requests and writes answers, one JSON object a line. Nothing here
imports the rest of edgecompile: the process of a bundle has only the bundle's own runtime on its
path, and that of another runtime must not pay for our modules in memory or at its start.
"""
