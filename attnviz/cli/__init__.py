"""The command line: flags become objects, objects become calls."""

STOPPED = "stopped; no file was left half written"
"""What is said when a person, or the system, ends the program."""
